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
from rackline.hardware import Cluster, checked_cap, drawn_w, wall_w
from rackline.parallel import Layout
from rackline.passes.features import Array, as_array
from rackline.search.choice import Choice
from rackline.search.evaluate import Part, Space
from rackline.search.plan import Plan, plan, space_of
from rackline.search.points import Block, Numbering
from rackline.search.pool_space import ANY_POOL, PrefillPool
from rackline.search.space import SearchSpace
from rackline.serving.energy import step_joules
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
        space, options = space_of(on, demand.workload, among)
        best = [
            (joules, (one, kept), choice.layout.label())
            for one, kept in ((on, among), *ranked_by_energy(space, options, demand.limits, among))
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
    space: Space, options: list[Layout], limits: Constraints, among: SearchSpace, most: int = MOST_RANKED
) -> list[tuple[System, SearchSpace]]:
    """Engines that meet the limits with the least energy of an output token, all slots taken: the best of each layout
    and precision, the least first.

    Every layout × precision × mode × batch is compared, those apart that idle power alone makes worse than what is
    ranked already.

    Args:
        options: layouts of the space.
        among: what each of the spaces is a part of.
        most: engines [count].
    """
    best: dict[tuple[int, int], tuple[float, int, int]] = {}  # (layout, precision) → (joules, mode, batch)
    numbering = Numbering(len(space.modes), len(options), len(space.batches))
    machine_w = wall_w(space.cluster, 0.0)
    plug = wall_w(space.cluster, 1.0) - machine_w  # watts at the plug for one of the chip
    idle_w = wall_w(space.cluster, float(drawn_w(space.cluster.chip, 0.0, 1.0)))
    for part in space.parts():
        layouts = len(part.space.grid)
        rows = np.arange(layouts)
        kernels = _kernel_joules(part)
        for place, mode in enumerate(space.modes):
            block = Block.of(part, mode, numbering.indices(part.label, place, part.start, layouts))
            worst = sorted(one[0] for one in best.values())[most - 1] if len(best) >= most else np.inf
            price = np.broadcast_to(part.space.usd_per_chip_s[:, None], kernels.shape).ravel()[block.where]
            bound = idle_w * block.bounds.cost / 1e6 / price  # chip-seconds of a token, at idle power
            wanted = (bound < worst) & (block.bounds.free_bytes >= 0)
            if limits.tpot_s is not None:
                wanted &= block.bounds.tpot_s <= limits.tpot_s
            if not np.any(wanted):
                continue
            points = block.timed(part, rows, wanted)
            at = block.where[wanted]
            with np.errstate(invalid="ignore", divide="ignore"):
                chip_w = drawn_w(space.cluster.chip, kernels.ravel()[at] * points.rate, 1.0)
                joules = (machine_w + plug * chip_w) / points.rate
            good = points.serves & points.meets(limits) & np.isfinite(joules)
            for index in np.flatnonzero(good)[np.argsort(joules[good])].tolist():
                key = (part.start + int(at[index]) // len(space.batches), part.label)
                if key not in best or joules[index] < best[key][0]:
                    best[key] = (float(joules[index]), place, int(at[index]) % len(space.batches))
    order = sorted(best, key=lambda key: best[key][0])[:most]
    return [
        (
            replace(space.system, precisions=(space.precisions[label],)),
            replace(
                among,
                layouts=[replace(options[row], dp=1)],
                modes=[space.modes[best[row, label][1]]],
                batches=space.batches[: best[row, label][2] + 1],
            ),
        )
        for row, label in order
    ]


def _kernel_joules(part: Part) -> Array:
    """Energy of the kernels of a chip beyond idle, for each output token that it yields, (layouts, batches) [J]."""
    space, batches = part.space, part.space.batches[None, :]
    work, grid = space.workload, part.space.grid
    steps = (work.output_len - 1.0) / part.engine.speculation.tokens_per_step / work.output_len
    chips = (as_array(grid.chips_per_replica) / as_array(grid.attention_dp * grid.pp))[:, None]
    return step_joules(part.engine, work, batches) * steps * chips / batches


def _joules(choice: Choice | None) -> float | None:
    return choice.energy.joules_per_output_token if choice is not None and choice.energy is not None else None
