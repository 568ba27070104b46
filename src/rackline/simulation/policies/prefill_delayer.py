"""Prompts first, held until every attention-dp rank has one."""

from dataclasses import replace

from rackline.serving.prompt_passes import Alignment
from rackline.simulation.policies import prefill_first

POLICY = replace(
    prefill_first.POLICY,
    name="prefill_delayer",
    alignment=Alignment(
        name="prefill_delayer",
        some_passes=29,
        holds_chunks=False,
        options=("--enable-prefill-delayer", "--prefill-delayer-max-delay-passes", "{passes}"),
    ),
    source="SGLang from 0.5.8 on, --enable-prefill-delayer (off by default) with --prefill-delayer-max-delay-passes 30 "
    "(the 30th pass runs them); managers/prefill_delayer.py at 003b8dc4, accessed 2026-11-23. A rank in the middle of "
    "a prompt goes on with it",
)
