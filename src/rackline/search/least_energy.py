"""The plan with the least energy of an output token within the limits: power caps, and at each its layouts.

At each cap all engines of the space are ranked by the energy of an output token with every slot taken: idle power and
kernels of the mean step, at the machine's plug. The best of these, with the chips that they leave idle, the cheapest
engine and the cheapest pair of pools (whose search is by dollars: chip-seconds, of which joules are watts times) are
compared; the best of all caps is searched again and simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import InputError
from rackline.hardware import Cluster, checked_cap
from rackline.search.choice import Choice
from rackline.search.engines import EngineSearch
from rackline.search.estimates import numbering
from rackline.search.plan import Plan, plan
from rackline.search.select import firsts
from rackline.search.space import ANY_POOL, PrefillPool, SearchSpace, Space
from rackline.system import Constraints, Demand, System

MOST_RANKED = 4
"""Engines of the least energy that are compared with their idle chips, at each cap."""
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


def least_energy(
    system: System,
    demand: Demand,
    among: SearchSpace,
    *,
    prefill: PrefillPool | None = ANY_POOL,
    served: bool = True,
) -> tuple[Plan, tuple[Tried, ...]]:
    """The plan with the least energy of an output token, and what was tried.

    Args:
        system: with a power cap where only that one counts.
        demand, prefill: as `rackline.search.plan`.
        among: what the plan may choose from.
        served: whether the plan that is returned is simulated.

    Raises:
        InputError: nothing is known of what its chips draw.
    """
    found: list[tuple[float, System, SearchSpace]] = []
    tried: list[Tried] = []
    for cap_w in caps_of(system.cluster):
        on = replace(system, cluster=capped(system.cluster, cap_w))
        space = Space.of(on, demand.workload, among)
        best = [
            (joules, (one, kept), choice.layout.label())
            for one, kept in ((on, among), *ranked_by_energy(space, demand.limits, among))
            for choice in plan(one, demand, kept, prefill=prefill, served=False).choices
            if (joules := _joules(choice)) is not None
        ]
        joules, chosen, layout = min(best, key=lambda one: one[0], default=(None, (on, among), ""))
        tried.append(Tried(cap_w=cap_w, joules_per_output_token=joules, layout=layout))
        if joules is not None:
            found.append((joules, *chosen))
    if not found:
        return plan(system, demand, among, prefill=prefill, served=served), tuple(tried)
    _, on, kept = min(found, key=lambda one: one[0])
    return replace(plan(on, demand, kept, prefill=prefill, served=served), objective="joules"), tuple(tried)


def ranked_by_energy(
    space: Space, limits: Constraints, among: SearchSpace, most: int = MOST_RANKED
) -> list[tuple[System, SearchSpace]]:
    """Engines that meet the limits with the least energy of an output token, all slots taken: the best of each layout
    and precision, the least first.

    Every layout × precision × mode × batch is compared, those apart that idle power alone makes worse than what is
    ranked already.

    Args:
        among: what each of the spaces is a part of.
        most: engines [count].
    """
    points = EngineSearch.through(space, limits, open_loop=False, objective="joules").shortlist.points()
    order = np.flatnonzero(points.serves & points.meets(limits) & np.isfinite(points.cost))
    order = order[np.argsort(points.cost[order], kind="stable")]
    numbers = numbering(space)
    found: list[tuple[System, SearchSpace]] = []
    for at in order[firsts(numbers.deployed(points.engine[order]))][:most]:
        label, mode, row = numbers.place(int(points.engine[at]))
        only = replace(
            among,
            layouts=[space.grid.layout(row)],
            modes=[space.modes[mode]],
            batches=space.batches[space.batches <= points.per_rank[at]],
        )
        found.append((replace(space.system, precisions=(space.system.precisions[label],)), only))
    return found


def _joules(choice: Choice | None) -> float | None:
    return choice.energy.joules_per_output_token if choice is not None and choice.energy is not None else None
