"""Serving in closed form: workloads, continuous batching in steady state, capacity."""

from rackline.serving.capacity import Capacity, CapacityRow, capacity
from rackline.serving.closed_loop import (
    ClosedLoop,
    closed_loop,
    max_throughput,
)
from rackline.serving.curve import (
    BatchCurve,
    StaticBatch,
    balance_batch,
    batch_curve,
    static_batch,
)
from rackline.serving.open_loop import Population, open_loop
from rackline.serving.stack import IDEAL, Stack, stack
from rackline.serving.steady import Engine, SteadyState, steady_state
from rackline.serving.workload import PLAIN, Mode, Speculation, Workload, expected_tokens, usual_speculation

__all__ = [
    "IDEAL",
    "PLAIN",
    "BatchCurve",
    "Capacity",
    "CapacityRow",
    "ClosedLoop",
    "Engine",
    "Mode",
    "Population",
    "Speculation",
    "Stack",
    "StaticBatch",
    "SteadyState",
    "Workload",
    "balance_batch",
    "batch_curve",
    "capacity",
    "closed_loop",
    "expected_tokens",
    "max_throughput",
    "open_loop",
    "stack",
    "static_batch",
    "steady_state",
    "usual_speculation",
]
