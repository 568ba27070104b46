"""The nearest rejected candidates: for each limit, the cheapest one that violates only that limit, by the least."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from rackline.passes.features import Array
from rackline.search.candidate import Candidate
from rackline.search.points import Points
from rackline.search.pool_pair import PoolPair
from rackline.system import Constraints
from rackline.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate that would be cheaper or faster but breaks one limit.

    Args:
        what: short text of the candidate.
        reason: the limit, the value, and what is allowed.
        excess: excess over the limit, as a share of it [1].
        candidate: its numbers.
    """

    what: str
    reason: str
    excess: float
    candidate: Candidate | PoolPair


def excesses(points: Points, limits: Constraints) -> dict[str, Array]:
    """By limit, how far each point is beyond it; 0 where it keeps it. Lower bounds of points give lower bounds."""
    crowded = points.utilisation >= 1.0
    over = {
        "memory": np.maximum(-points.free_bytes, 0.0) / 1e9,
        "prefill": np.where(crowded, np.maximum(points.utilisation - 1.0, 1e-9), 0.0),
    }
    if limits.tpot_s is not None:
        over["tpot"] = np.maximum(points.tpot_s / limits.tpot_s - 1.0, 0.0)
    if limits.ttft_s is not None:
        finite = np.where(np.isfinite(points.ttft_s), points.ttft_s, 1e9)
        over["ttft"] = np.where(crowded, 0.0, np.maximum(finite / limits.ttft_s - 1.0, 0.0))
    return over


def violations(points: Points, limits: Constraints) -> dict[str, tuple[Array, Array]]:
    """By limit, the points that break this one alone and by how much: (positions, excess)."""
    over = excesses(points, limits)
    broken = {name: excess > 0 for name, excess in over.items()}
    single = np.add.reduce(list(broken.values()), dtype=np.int8) == 1
    positions = {name: np.flatnonzero(mask & single) for name, mask in broken.items()}
    return {name: (where, over[name][where]) for name, where in positions.items()}


def nearest_rejected(
    points: Points,
    limits: Constraints,
    *,
    best_cost: float,
    describe: Callable[[int], Candidate],
    short: Callable[[int], str],
    names: Collection[str] = ("memory", "prefill", "tpot", "ttft"),
) -> list[Rejected]:
    """One rejected candidate a reason: cheaper than the best, breaking only that limit, by the least.

    Args:
        best_cost: cost of the answer; infinite when there is none.
        describe, short: a point by its position, as data and as text.
        names: reasons that are considered.
    """
    found: list[Rejected] = []
    for name, (where, excess) in violations(points, limits).items():
        if not where.size or name not in names:
            continue
        cheaper = points.cost[where] < best_cost
        nearest = int(np.argmin(np.where(cheaper, excess, np.inf) if np.any(cheaper) else excess))
        at = int(where[nearest])
        found.append(
            Rejected(
                what=short(at),
                reason=_reason(name, points, at, limits),
                excess=float(excess[nearest]),
                candidate=describe(at),
            )
        )
    return found


def _reason(name: str, points: Points, at: int, limits: Constraints) -> str:
    if name == "memory":
        return f"memory: {format_bytes(-points.free_bytes[at])} too much on the fullest chip"
    if name == "prefill":
        room = f"prompts need {points.utilisation[at]:.3g} of the room in each pass"
        return f"prefill: {room}, so the batch never fills"
    if name == "tpot" and limits.tpot_s is not None:
        return f"tpot: {points.tpot_s[at] * 1e3:.3g} ms, limit {limits.tpot_s * 1e3:.3g} ms"
    limit = limits.ttft_s or 0.0
    return f"ttft: {points.ttft_s[at] * 1e3:.3g} ms, limit {limit * 1e3:.3g} ms"
