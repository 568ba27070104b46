"""Chips of paid units that the replicas of an answer leave free, and the smaller engine that serves on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rackline.hardware import Cluster
from rackline.parallel import LayoutGrid, Precision
from rackline.search.choice import Choice, Leftover
from rackline.search.engines import EngineSearch
from rackline.search.select import with_a_sure_one
from rackline.search.space import Space, every_layout
from rackline.system import Constraints


def free_places(cluster: Cluster, choice: Choice) -> tuple[int, int]:
    """Chips that lie free together in a host, and in how many hosts; (0, 0) where all paid chips are in use.

    Example: an engine of 3 chips on hosts of 4 leaves 1 in each; pools of 4 + 3 chips on a host of 8 leave 1.
    """
    left, host = choice.billed_chips - choice.num_chips, cluster.host_chips
    if left < 1:
        return 0, 0
    if choice.serving == "disaggregated":
        together = min(left, host)
        return together, left // together
    size = choice.layout.chips_per_replica
    if size <= host:
        together, places = host % size, choice.layout.dp // (host // size)
    else:
        together, places = -size % host, choice.layout.dp
    return (together, places) if together and places else (left, 1)


def with_leftover(choices: Sequence[Choice], space: Space, limits: Constraints, *, open_loop: bool) -> list[Choice]:
    """Each choice with the cheapest engine on the chips that it leaves free; the cheapest with both, cheapest first.

    Args:
        space: of the plan; layouts that its engine launches are searched, in the precision of the choice.
        open_loop: by which estimate, as of the choices.
    """
    engines: dict[tuple[int, str], Choice | None] = {}  # by chips and precision
    found: list[Choice] = []
    for choice in choices:
        together, places = free_places(space.system.cluster, choice)
        key = (together, choice.precision.label)
        if together and key not in engines:
            engines[key] = _cheapest_on(together, choice.precision, space, limits, open_loop=open_loop)
        engine = engines.get(key)
        if engine is not None:
            choice = replace(choice, leftover=Leftover(choice=engine, places=places))
        found.append(choice)
    return with_a_sure_one(sorted(found, key=lambda choice: choice.usd_with_leftover))


def _cheapest_on(
    chips: int, precision: Precision, space: Space, limits: Constraints, *, open_loop: bool
) -> Choice | None:
    system = replace(space.system.with_chips(chips), precisions=(precision,))
    own = replace(space, system=system, grid=LayoutGrid.of(every_layout(system))).launchable(pools=False)
    if own.starts_nothing:
        return None
    search = EngineSearch.through(own, limits, open_loop=open_loop)
    return next(iter(search.answer().contenders), None) if search.shortlist.looked_at else None
