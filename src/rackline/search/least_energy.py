"""The plan with the least energy of an output token within the limits: power caps, and at each its layouts.

Dollars are chip-seconds, joules are watts times chip-seconds. So the engines that a plan finds cheapest at a power cap
are near the least energy at that cap, and the cap is what trades speed against joules. At each cap the cheapest engine
of each style (tp, pp, moe_tp, precision) and the cheapest pair of pools are compared by their energy; the best of all
caps is searched again and simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rackline.errors import InputError
from rackline.hardware import Cluster, checked_cap
from rackline.search.choice import Choice
from rackline.search.plan import Plan
from rackline.search.space import SearchSpace

CAPS = (1.0, 0.85, 0.7, 0.55, 0.4)
"""Power caps that are tried, as shares of the range between idle power and the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The least energy at a power cap.

    Args:
        cap_w: the cap; None is the limit [W].
        joules_per_output_token: of the best there; None where nothing meets the limits [J].
        layout: of the engine that decodes.
    """

    cap_w: float | None
    joules_per_output_token: float | None
    layout: str = ""


def caps_of(cluster: Cluster) -> tuple[float | None, ...]:
    """Power caps to try on a cluster [W]; only its own where one is set.

    Raises:
        InputError: nothing is known of what its chips draw.
    """
    chip = cluster.chip
    if chip.power_cap_w is not None:
        return (chip.power_cap_w,)
    power = chip.power
    if power is None:
        raise InputError(what="objective", given="joules", allowed=f"dollars: nothing is known of {chip.name}'s power")
    spread = power.limit_w - power.idle_w
    return tuple(None if share == 1.0 else round(power.idle_w + share * spread) for share in CAPS)


def capped(cluster: Cluster, cap_w: float | None) -> Cluster:
    """The cluster with its chips set to keep below a power."""
    if cap_w is None or cap_w == cluster.chip.power_cap_w:
        return cluster
    return replace(cluster, chip=replace(cluster.chip, power_cap_w=checked_cap(cluster.chip, cap_w)))


Search = Callable[[Cluster, SearchSpace, bool], Plan]
"""Plan on a cluster, within a space, simulated or estimated."""


def least_energy(cluster: Cluster, space: SearchSpace, search: Search) -> tuple[Plan, tuple[Tried, ...]]:
    """The plan with the least energy of an output token, and what was tried.

    Args:
        cluster: with a power cap where only that one counts.
        space: what the plan may choose from.
        search: the plan of its question.

    Raises:
        InputError: nothing is known of what its chips draw.
    """
    found: list[tuple[float, Cluster, SearchSpace]] = []
    tried: list[Tried] = []
    for cap_w in caps_of(cluster):
        on = capped(cluster, cap_w)
        here = _least(on, space, search)
        joules, kept, layout = here or (None, space, "")
        tried.append(Tried(cap_w=cap_w, joules_per_output_token=joules, layout=layout))
        if joules is not None:
            found.append((joules, on, kept))
    if not found:
        return search(cluster, space, True), tuple(tried)
    _, on, kept = min(found, key=lambda one: one[0])
    return replace(search(on, kept, True), objective="joules"), tuple(tried)


def _least(on: Cluster, space: SearchSpace, search: Search) -> tuple[float, SearchSpace, str] | None:
    """Energy, space and layout of the best engine or pools at a cap; None where nothing meets the limits."""
    whole = search(on, space, False)
    best = [(joules, space, one.layout.label()) for one in whole.choices if (joules := _joules(one)) is not None]
    for one in whole.ranked[1:]:
        kept = replace(space, layouts=[replace(one.layout, dp=1)], precisions=[one.precision])
        choice = search(on, kept, False).aggregated
        joules = _joules(choice)
        if choice is not None and joules is not None:
            best.append((joules, kept, choice.layout.label()))
    return min(best, key=lambda one: one[0], default=None)


def _joules(choice: Choice | None) -> float | None:
    return choice.energy.joules_per_output_token if choice is not None and choice.energy is not None else None
