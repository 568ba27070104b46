"""Serving: workloads, the steady state of continuous batching, curves over batch, capacity, closed forms."""

from rackline.serving.capacity import Capacity, CapacityRow, capacity
from rackline.serving.curve import (
    BatchCurve,
    ModeChoice,
    balance_batch,
    batch_curve,
    crossover_context,
    mode_at_price,
    mode_at_speed,
)
from rackline.serving.steady import Engine, SteadyState, steady_state
from rackline.serving.workload import Mode, Workload

__all__ = [
    "BatchCurve",
    "Capacity",
    "CapacityRow",
    "Engine",
    "Mode",
    "ModeChoice",
    "SteadyState",
    "Workload",
    "balance_batch",
    "batch_curve",
    "capacity",
    "crossover_context",
    "mode_at_price",
    "mode_at_speed",
    "steady_state",
]
