"""The nearest rejected candidates: for each limit, the cheapest one that violates only that limit, by the least."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from rackline.passes.features import Array
from rackline.search.space import Constraints
from rackline.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate that would be cheaper or faster but breaks one limit.

    Args:
        what: short text of the candidate.
        reason: which limit, what it has, what is allowed.
        excess: how far beyond the limit, as a share of it.
    """

    what: str
    reason: str
    excess: float
    candidate: dict[str, Any]


def nearest_rejected(
    *,
    cost: Array,
    tpot_s: Array,
    ttft_s: Array,
    free_bytes: Array,
    utilisation: Array,
    limits: Constraints,
    best_cost: float,
    describe: Callable[[int], dict[str, Any]],
    short: Callable[[int], str],
    names: Collection[str] = ("memory", "prefill", "tpot", "ttft"),
) -> list[Rejected]:
    """One rejected candidate a reason: cheaper than the best, breaking only that limit, by the least.

    Args:
        cost, tpot_s, ttft_s, free_bytes, utilisation: of all points, shape (points,).
        best_cost: cost of the answer; infinite when there is none.
        names: reasons that are looked at.
    """
    exists = np.isfinite(cost) & np.isfinite(free_bytes)
    over: dict[str, Array] = {
        "memory": np.where(exists, np.maximum(-free_bytes, 0.0), np.inf) / 1e9,
        "prefill": np.where(utilisation >= 1.0, np.maximum(utilisation - 1.0, 1e-9), 0.0),
    }
    if limits.tpot_s is not None:
        over["tpot"] = np.maximum(tpot_s / limits.tpot_s - 1.0, 0.0)
    if limits.ttft_s is not None:
        infinite = np.where(np.isfinite(ttft_s), ttft_s, 1e9)
        over["ttft"] = np.where(utilisation >= 1.0, 0.0, np.maximum(infinite / limits.ttft_s - 1.0, 0.0))
    found: list[Rejected] = []
    for name in [name for name in over if name in names]:
        excess = over[name]
        others = np.zeros(cost.shape, dtype=bool)
        for other, value in over.items():
            if other != name:
                others |= value > 0
        rejected = exists & (excess > 0) & ~others & (cost < best_cost)
        if not np.any(rejected):
            rejected = exists & (excess > 0) & ~others
        if not np.any(rejected):
            continue
        index = int(np.argmin(np.where(rejected, excess, np.inf)))
        found.append(
            Rejected(
                what=short(index),
                reason=_reason(name, index, tpot_s, ttft_s, free_bytes, utilisation, limits),
                excess=float(excess[index]),
                candidate=describe(index),
            )
        )
    return found


def _reason(
    name: str,
    index: int,
    tpot_s: Array,
    ttft_s: Array,
    free_bytes: Array,
    utilisation: Array,
    limits: Constraints,
) -> str:
    if name == "memory":
        return f"memory: {format_bytes(-free_bytes[index])} too much on the fullest chip"
    if name == "prefill":
        return f"prefill: prompts need {utilisation[index]:.3g} of the room in each pass, so the batch never fills"
    if name == "tpot" and limits.tpot_s is not None:
        return f"tpot: {tpot_s[index] * 1e3:.3g} ms, limit {limits.tpot_s * 1e3:.3g} ms"
    limit = limits.ttft_s or 0.0
    return f"ttft: {ttft_s[index] * 1e3:.3g} ms, limit {limit * 1e3:.3g} ms"
