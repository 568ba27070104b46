"""The cheapest of each kind, with engines on chips that they leave free, are simulated; the cheapest is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.hardware import Cluster
from rackline.parallel import LayoutGrid, Precision
from rackline.search.choice import Choice, Leftover
from rackline.search.engines import EngineSearch
from rackline.search.select import with_a_sure_one
from rackline.search.served import Service
from rackline.search.space import Space, every_layout
from rackline.search.sustained_rate import (
    MOST_LOAD,
    RESOLVED,
    NoSustainedRate,
    SustainedRate,
    most_rate,
    sustained_rate,
)
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


_OFF = 1.1  # times its simulated cost that an estimate may be too dear by; of two pools, whose waits are known worse
_OFF_POOLS = 1.3
_FEWER = (0.5, 0.7)  # of the running sequences: a request that waits does not slow those that run


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """The best of one kind.

    Args:
        choice: simulated, or with the reason why not; None if none meets the limits.
        reason: why none does.
    """

    choice: Choice | None = None
    reason: str = ""


def serve_kinds(service: Service, kinds: Sequence[Sequence[Choice]], below: float = float("inf")) -> list[Finalist]:
    """Simulate the cheapest of each kind, the cheapest kind first.

    An option is simulated to the end unless it cannot be cheaper than what was: because its passes alone cost more
    (`most_rate`), or because its limits break in simulation at the rate at which it would cost as much.

    Args:
        service: what all of them share.
        kinds: of single engines and of pools, the cheapest by their estimates, cheapest first; may be empty.
        below: cost of an option that is known already [USD per million output tokens].
    """
    found = [Finalist() for _ in kinds]
    costs = [kind[0].usd_with_leftover if kind else float("inf") for kind in kinds]
    least = below
    for index in sorted(range(len(kinds)), key=lambda place: costs[place]):
        finalist = _first_that_holds(service, kinds[index], least)
        found[index] = finalist
        if finalist.choice is not None and finalist.choice.sustained is not None:
            least = min(least, finalist.choice.usd_with_leftover)
    return found


def _first_that_holds(service: Service, choices: Sequence[Choice], least: float) -> Finalist:
    """The cheapest that holds its limits, of all whose estimates may be off by enough to win.

    Args:
        least: simulated cost of the other kind; infinite before it is known [USD per million output tokens].
    """
    best: Choice | None = None
    unserved: Choice | None = None
    reason = ""
    for choice in choices:
        off = _OFF_POOLS if choice.serving == "disaggregated" else _OFF
        if (best or unserved) and choice.usd_with_leftover >= (off if best else 1.0) * least:
            break
        found = sustained_rate(
            choice.estimate, service, _rate_of(choice, least * (1.0 - RESOLVED if best else 1.0), service)
        )
        if isinstance(found, SustainedRate):
            served = _with_served_leftover(choice.with_sustained_rate(found), service)
            if best is None or served.usd_with_leftover < best.usd_with_leftover:
                best = served
            least = min(least, served.usd_with_leftover)
        elif isinstance(found, NoSustainedRate) and found.simulated:
            reason = reason or found.reason
        else:
            unserved = unserved or replace(choice, not_simulated=found.reason)
    best = _with_fewer_slots(best, service) if best else unserved
    return Finalist(choice=best, reason="" if best is not None else reason)


def _with_fewer_slots(best: Choice, service: Service) -> Choice:
    """The choice with the cap of running sequences, of a few smaller ones, at which it serves most."""
    for share in _FEWER if service.demand.limits.latencies() else ():
        rate, slots = best.requests_per_s * (1.0 + RESOLVED), max(int(best.max_num_seqs * share), 1)
        if rate > MOST_LOAD * best.saturation_requests_per_s:
            break
        found = sustained_rate(best.estimate, service, rate, max_num_seqs=slots)
        if isinstance(found, SustainedRate):
            best = best.with_sustained_rate(found)
    return best


def _rate_of(choice: Choice, usd: float, service: Service) -> float:
    """Rate from which a choice costs less, with the most that its leftover engine may add [requests/s].

    Args:
        usd: cost [USD per million output tokens]; infinite for any rate.
    """
    rate = choice.estimate.usd_per_mtok_output_all_in * choice.estimate.requests_per_s / usd
    if not rate or choice.leftover is None:
        return rate
    engine = choice.leftover.choice
    on = replace(service, system=service.system.with_chips(engine.num_chips))
    return max(rate - choice.leftover.places * most_rate(engine.estimate, on), 0.0)


def _with_served_leftover(choice: Choice, service: Service) -> Choice:
    """The choice with its leftover engine served at its own share of the traffic; without it where no rate holds."""
    if choice.leftover is None:
        return choice
    engine = choice.leftover.choice
    on = replace(service, system=service.system.with_chips(engine.num_chips))
    found = sustained_rate(engine.estimate, on)
    if not isinstance(found, SustainedRate):
        return replace(choice, leftover=None)
    return replace(choice, leftover=replace(choice.leftover, choice=engine.with_sustained_rate(found)))
