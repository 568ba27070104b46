"""Chunked prefill that runs prompts in every n-th pass of all attention-dp ranks."""

from dataclasses import replace

from rackline.simulation.policies import chunked
from rackline.simulation.policies.base import Alignment

POLICY = replace(
    chunked.POLICY,
    name="prefill_schedule_interval",
    alignment=Alignment(every=16),
    source="vLLM from 0.25 on, --prefill-schedule-interval (1, off, by default), for data-parallel ranks of a mixture: "
    "v1/engine/core.py, DPEngineCoreProc._should_throttle_prefills; config/scheduler.py, accessed 2026-11-23",
)
