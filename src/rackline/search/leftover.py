"""Chips of paid units that the replicas of an answer leave free, and the smaller engine that serves on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rackline.parallel import LayoutGrid, enumerate_layouts
from rackline.search.choice import Choice, Leftover
from rackline.search.engines import EngineSearch
from rackline.search.evaluate import Space
from rackline.search.launchable import launchable, starts_nothing
from rackline.search.served import Site
from rackline.search.space import Constraints
from rackline.search.sustained_rate import SustainedRate, sustained_rate


def free_places(space: Space, choice: Choice) -> tuple[int, int]:
    """Chips that lie free together in a host, and in how many hosts; (0, 0) where all paid chips are in use.

    Example: an engine of 3 chips on hosts of 4 leaves 1 in each; pools of 4 + 3 chips on a host of 8 leave 1.
    """
    left, host = choice.billed_chips - choice.num_chips, space.cluster.host_chips
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
    """Each choice with the cheapest engine on the chips that it leaves free; cheapest first, both together.

    Args:
        space: of the plan; layouts that its engine launches are searched, in the precision of the choice.
        open_loop: by which estimate, as of the choices.
    """
    found: list[Choice] = []
    for choice in choices:
        together, places = free_places(space, choice)
        engine = _cheapest_on(together, choice, space, limits, open_loop=open_loop) if together else None
        if engine is not None:
            choice = replace(choice, leftover=Leftover(choice=engine, places=places))
        found.append(choice)
    return sorted(found, key=lambda choice: choice.usd_with_leftover)


def _cheapest_on(chips: int, choice: Choice, space: Space, limits: Constraints, *, open_loop: bool) -> Choice | None:
    layouts = enumerate_layouts(space.model, chips)
    own = replace(
        space,
        cluster=space.cluster.with_num_chips(chips),
        grid=LayoutGrid.of(layouts),
        precisions=[choice.precision],
    )
    own, layouts = launchable(own, layouts, pools=False)
    if starts_nothing(own):
        return None
    search = EngineSearch.of(own, layouts, limits, open_loop=open_loop)
    for part in own.parts():
        search.look_at(part)
    return next(iter(search.answer().contenders), None) if search.shortlist.looked_at else None


def serve_leftover(choice: Choice | None, site: Site) -> Choice | None:
    """The choice with its leftover engine served at its own share of the traffic; without it where no rate holds."""
    if choice is None or choice.leftover is None or choice.sustained is None:
        return choice
    engine = choice.leftover.choice
    on = replace(site, cluster=site.cluster.with_num_chips(engine.num_chips))
    found = sustained_rate(engine.estimate, on)
    if not isinstance(found, SustainedRate):
        return replace(choice, leftover=None)
    return replace(choice, leftover=replace(choice.leftover, choice=engine.with_sustained_rate(found)))
