"""Prompts first; after each pass with prompts on any rank all ranks decode for a number of passes."""

from dataclasses import replace

from rackline.serving.prompt_passes import Alignment
from rackline.simulation.policies import prefill_first

POLICY = replace(
    prefill_first.POLICY,
    name="prefill_decode_interval",
    alignment=Alignment(
        name="prefill_decode_interval",
        decodes_after=22,
        options=("--prefill-decode-interval", "{passes}"),
    ),
    source="SGLang from 0.5.20 on, --prefill-decode-interval (0, off, by default; 22 for Qwen3-VL on Hopper); pull "
    "request 35017, https://github.com/sgl-project/sglang/pull/35017, accessed 2026-11-23",
)
