"""The cheapest of each kind are simulated; the answer is the cheapest at the request rate that it sustains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.search.choice import Choice
from rackline.search.served import Site
from rackline.search.sustained_rate import SustainedRate, sustained_rate

CONTENDERS = 3  # options of one kind that are simulated if the cheapest does not meet its limits


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
    costs = [kind.choices[0].usd_per_mtok_output_all_in if kind.choices else float("inf") for kind in kinds]
    least = float("inf")
    for index in sorted(range(len(kinds)), key=lambda place: costs[place]):
        finalist = _first_that_holds(site, kinds[index], least)
        found[index] = finalist
        if finalist.choice is not None:
            least = min(least, finalist.choice.usd_per_mtok_output_all_in)
    return found


def _first_that_holds(site: Site, kind: Kind, least: float) -> Finalist:
    reason = ""
    for choice in kind.choices:
        if kind.usd_lower_bound >= least:
            why = (
                "it cannot be cheaper: even with every slot always taken and no limit to the first token "
                f"it costs {kind.usd_lower_bound / least:.3g} times the answer"
            )
            return Finalist(choice=replace(choice, not_simulated=why))
        found = sustained_rate(choice.estimate, site)
        if isinstance(found, SustainedRate):
            return Finalist(choice=choice.with_sustained_rate(found))
        if not found.simulated:
            return Finalist(choice=replace(choice, not_simulated=found.reason))
        reason = reason or found.reason
    return Finalist(reason=reason)
