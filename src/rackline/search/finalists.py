"""The cheapest of each kind are simulated; the answer is the cheapest at its promised request rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.search.choice import Choice
from rackline.search.promise import Promise, promise
from rackline.search.served import Site

CONTENDERS = 3  # ways of one kind that are tried, where the cheapest cannot keep its limits when it is served


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """The best of one kind.

    Args:
        choice: served, or with the reason why not; None where none keeps the limits.
        reason: why none does.
    """

    choice: Choice | None = None
    reason: str = ""


def serve_kinds(site: Site, kinds: Sequence[Sequence[Choice]]) -> list[Finalist]:
    """Serve the cheapest of each kind, the cheapest kind first.

    Nothing gets cheaper by being served: its rate only falls. So a kind that costs more than the answer with every
    slot taken need not be served.

    Args:
        site: what all share.
        kinds: by kind the cheapest in the steady state, cheapest first; some may be empty.
    """
    found = [Finalist() for _ in kinds]
    costs = [kind[0].usd_per_mtok_output_all_in if kind else float("inf") for kind in kinds]
    least = float("inf")
    for index in sorted(range(len(kinds)), key=lambda place: costs[place]):
        finalist = _first_that_holds(site, kinds[index], least)
        found[index] = finalist
        if finalist.choice is not None:
            least = min(least, finalist.choice.usd_per_mtok_output_all_in)
    return found


def _first_that_holds(site: Site, kind: Sequence[Choice], least: float) -> Finalist:
    reason = ""
    for choice in kind:
        if choice.usd_per_mtok_output_all_in >= least:
            why = "it costs more than the answer even with every slot taken"
            return Finalist(choice=replace(choice, not_simulated=why))
        found = promise(choice.steady, site)
        if isinstance(found, Promise):
            return Finalist(choice=choice.with_promise(found))
        if not found.simulated:
            return Finalist(choice=replace(choice, not_simulated=found.reason))
        reason = reason or found.reason
    return Finalist(reason=reason)
