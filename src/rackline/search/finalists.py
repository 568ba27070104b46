"""The cheapest of each kind are simulated; the answer is the cheapest at the request rate that it sustains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.search.choice import Choice
from rackline.search.served import Site
from rackline.search.sustained_rate import SustainedRate, sustained_rate

CONTENDERS = 3  # options of one kind that are simulated if the cheapest does not meet its limits
OFF = 1.1  # times its estimate with a caveat: beyond it, the next options are simulated too


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """The best of one kind.

    Args:
        choice: simulated, or with the reason why not; None if none meets the limits.
        reason: why none does.
    """

    choice: Choice | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Single engines, or pools.

    Args:
        choices: the cheapest by their estimates, cheapest first; may be empty.
        usd_lower_bound: lower bound of the cost of this kind [USD per million output tokens].
    """

    choices: Sequence[Choice]
    usd_lower_bound: float


def serve_kinds(site: Site, kinds: Sequence[Kind]) -> list[Finalist]:
    """Simulate the cheapest of each kind, the cheapest kind first.

    A kind is skipped only if it cannot win: if its lower bound, with every slot always taken and no limit on the time
    to first token, is above the simulated cost of the other kind.

    Args:
        site: what all of them share.
    """
    found = [Finalist() for _ in kinds]
    costs = [kind.choices[0].usd_with_leftover if kind.choices else float("inf") for kind in kinds]
    least = float("inf")
    for index in sorted(range(len(kinds)), key=lambda place: costs[place]):
        finalist = _first_that_holds(site, kinds[index], least)
        found[index] = finalist
        if finalist.choice is not None:
            least = min(least, finalist.choice.usd_with_leftover)
    return found


def _first_that_holds(site: Site, kind: Kind, least: float) -> Finalist:
    """The first that holds its limits; where its estimate was off, as its caveat says, the cheapest of the next too."""
    best: Choice | None = None
    reason = ""
    for choice in kind.choices:
        if best is not None and choice.usd_with_leftover >= best.usd_with_leftover:
            break
        if best is None and kind.usd_lower_bound >= least:
            why = (
                "it cannot be cheaper: even with every slot always taken and no limit to the first token "
                f"it costs {kind.usd_lower_bound / least:.3g} times the answer"
            )
            return Finalist(choice=replace(choice, not_simulated=why))
        found = sustained_rate(choice.estimate, site)
        if isinstance(found, SustainedRate):
            served = _with_served_leftover(choice.with_sustained_rate(found), site)
            if best is None or served.usd_with_leftover < best.usd_with_leftover:
                best = served
            if not choice.caveat or served.usd_with_leftover <= OFF * choice.usd_with_leftover:
                break
        elif not found.simulated:
            best = best or replace(choice, not_simulated=found.reason)
            break
        elif best is None:
            reason = reason or found.reason
    return Finalist(choice=best, reason="" if best is not None else reason)


def _with_served_leftover(choice: Choice, site: Site) -> Choice:
    """The choice with its leftover engine served at its own share of the traffic; without it where no rate holds."""
    if choice.leftover is None:
        return choice
    engine = choice.leftover.choice
    on = replace(site, cluster=site.cluster.with_num_chips(engine.num_chips))
    found = sustained_rate(engine.estimate, on)
    if not isinstance(found, SustainedRate):
        return replace(choice, leftover=None)
    return replace(choice, leftover=replace(choice.leftover, choice=engine.with_sustained_rate(found)))
