"""Chunked prefill that runs prompts in every n-th pass of all attention-dp ranks."""

from dataclasses import replace

from rackline.serving.prompt_passes import Alignment
from rackline.simulation.policies import chunked

POLICY = replace(
    chunked.POLICY,
    name="prefill_schedule_interval",
    alignment=Alignment(
        name="prefill_schedule_interval",
        every=16,
        options=("--prefill-schedule-interval", "{passes}"),
    ),
    source="vLLM from 0.25 on, --prefill-schedule-interval (1, off, by default), for data-parallel ranks of a mixture: "
    "v1/engine/core.py, DPEngineCoreProc._should_throttle_prefills; config/scheduler.py, accessed 2026-11-23",
)
