"""What is picked from a table of operating points: the front, the cheapest within the limits, what was rejected.

One selection for every question and every estimate. What comes before it, which points are evaluated at all, is
`rackline.search.points.Shortlist`; what comes after it, the simulation of the cheapest, `rackline.search.finalists`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rackline.parallel.layout import KINDS
from rackline.passes.features import Array
from rackline.search.candidate import Candidate, PoolPair, billed_of, placed_on, rate_and_costs
from rackline.search.estimates import Estimate, numbering
from rackline.search.points import BETWEEN, OperatingPoints, firsts, idle_chips, least_cost, pareto_front
from rackline.search.space import Space
from rackline.system import Constraints
from rackline.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rackline.search.choice import Choice

CONTENDERS = 16  # options of one kind, the cheapest by their estimates, that are simulated where one could win
MOST_HELPED = 12  # layouts that engines on the chips that they leave free may make the cheapest
_MODES = 3  # engines of a layout that idle chips may help: the cheapest that are refined
_REFINED, _LAYOUTS = 12, 8  # engines and layouts, the cheapest, that are refined between the points of the grid
_RANKED = 10  # styles that are shown with the best
Either = TypeVar("Either", bound="Candidate | Choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate that would be cheaper or faster but breaks one limit.

    Args:
        what: short text of the candidate.
        reason: the limit, the value, and what is allowed.
        excess: excess over the limit, as a share of it [1].
        candidate: its numbers.
    """

    what: str
    reason: str
    excess: float
    candidate: Candidate | PoolPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is picked from operating points.

    Args:
        refined: the cheapest that meet the limits, between the points of the grid, cheapest first.
        pareto: front of tokens/s/user against cost, fastest first.
        ranked: cheapest of each tp, pp, moe_tp and precision that meets the limits, cheapest first.
        rejected: nearest candidate for each reason of rejection.
        fastest, soonest: candidates with the least time per output token and the least time to first token; None if
            nothing serves.
    """

    refined: Sequence[Candidate]
    pareto: Sequence[Candidate]
    ranked: Sequence[Candidate]
    rejected: Sequence[Rejected]
    fastest: Candidate | None
    soonest: Candidate | None

    def contenders(self) -> list[Candidate]:
        """The cheapest few, whichever layout and scheduler they have, the first of no known error, all with idle chips.

        What other engines yield on idle chips is not known here: layouts may be fixed, theirs are not.
        """
        first: dict[object, Candidate] = {}
        for one in self.refined:
            first.setdefault((one.layout, one.precision.label), one)
        kept = with_a_sure_one(self.refined)
        return [*kept, *(one for one in first.values() if one.billed_chips > one.num_chips and one not in kept)]


def with_a_sure_one(options: Sequence[Either]) -> list[Either]:
    """The cheapest few, and the first of which no error is known.

    Args:
        options: cheapest first.
    """
    sure = next((one for one in options if not one.caveat), None)
    kept = list(options[:CONTENDERS])
    return kept if sure is None or sure in kept else [*kept, sure]


def select(points: OperatingPoints, limits: Constraints, estimate: Estimate) -> Selection:
    """The front, the cheapest within the limits, and what breaks one limit alone.

    Args:
        points: that the estimate filled; of equal ones the first counts.
    """

    def candidates(places: Array) -> list[Candidate]:
        return [candidate_of(points, int(at), estimate) for at in places]

    space, serves, numbers = estimate.space, points.serves, numbering(estimate.space)
    front = pareto_front(np.where(serves & (points.per_rank >= 1.0), 1.0 / points.tpot_s, np.nan), points.cost)
    slack = (1.0, 1.0)
    kept = serves & points.meets(limits)
    if not np.any(kept):
        slack = estimate.slack
        kept = serves & points.meets(limits, slack)
    order = np.flatnonzero(kept)
    order = order[np.argsort(points.cost[order], kind="stable")]
    best = order[firsts(points.engine[order])]
    deployed = numbers.deployed(points.engine[best])
    label, row = np.divmod(deployed, len(space.grid))
    style = np.stack([label, space.grid.tp[row], space.grid.pp[row], space.grid.moe_tp[row]], axis=1)
    each = best[firsts(deployed)]
    sure = next((at for at in each if not candidate_of(points, int(at), estimate).caveat), best[:0])
    helped = numbers.deployed(points.engine[each[_helped(points, each, estimate)]])
    with_others = [at for layout in helped for at in best[deployed == layout][:_MODES]]
    chosen = [*best[:_REFINED], *each[:_LAYOUTS], *with_others, *np.atleast_1d(sure)]
    refined = _refined(points, np.array(list(dict.fromkeys(chosen)), dtype=np.int64), limits, slack, estimate)
    return Selection(
        refined=refined,
        pareto=candidates(front),
        ranked=candidates(best[firsts(style)][:_RANKED]),
        rejected=nearest_rejected(points, limits, refined, estimate, ("tpot", "ttft")),
        fastest=_least(points, points.tpot_s, estimate),
        soonest=_least(points, points.ttft_s, estimate),
    )


def with_idle(points: OperatingPoints, space: Space, kept: Array) -> Array:
    """Costs of points if engines on the chips that they leave free yield as much as the best of some [as their cost].

    Args:
        kept: mask of the points whose rates count.
    """
    row = points.engine % len(space.grid)
    used, idle = idle_chips(space.system.cluster, space.grid.chips_per_replica)
    most_rate = float(np.max(points.rate[kept], initial=0.0))
    return least_cost(points.cost, points.rate, used[row], idle[row], most_rate)


def _helped(points: OperatingPoints, each: Array, estimate: Estimate) -> Array:
    """Which of some points others on the chips that they leave free may make the cheapest, most of all first.

    Args:
        each: positions of the cheapest points of their layouts within the limits, cheapest first.
    """
    some = points.take(each)
    least = with_idle(some, estimate.space, np.ones(len(some), dtype=bool))
    order = np.argsort(least, kind="stable")
    return order[(least[order] < some.cost[order]) & (least[order] < BETWEEN * some.cost[:1])][:MOST_HELPED]


def _refined(
    points: OperatingPoints, chosen: Array, limits: Constraints, slack: tuple[float, float], estimate: Estimate
) -> list[Candidate]:
    """The cheapest of each engine between its point and the next of the grid, cheapest first."""
    if not chosen.size:
        return []
    finer = estimate.between(points.engine[chosen], points.per_rank[chosen])
    good = finer.serves & finer.meets(limits, slack)
    found: list[Candidate] = []
    for at in chosen.tolist():
        mine = np.flatnonzero(good & (finer.engine == points.engine[at]))
        better = candidate_of(finer, int(mine[np.argmin(finer.cost[mine])]), estimate) if mine.size else None
        found.append(better or candidate_of(points, at, estimate))
    return sorted(found, key=lambda one: one.usd_per_mtok_output_all_in)


def _least(points: OperatingPoints, values: Array, estimate: Estimate) -> Candidate | None:
    """The serving candidate with the smallest value; None if there is none."""
    serves = points.serves
    return candidate_of(points, int(np.argmin(np.where(serves, values, np.inf))), estimate) if np.any(serves) else None


def candidate_of(points: OperatingPoints, at: int, estimate: Estimate) -> Candidate:
    """One point with its numbers, on all replicas that the cluster holds."""
    space = estimate.space
    label, mode, row = numbering(space).place(int(points.engine[at]))
    layout, cluster = placed_on(space.system.cluster, space.grid.layout(row)), space.system.cluster
    n, rate, cost, share = (
        float(column[at]) for column in (points.per_rank, points.rate, points.cost, points.prompt_cost_share)
    )
    batch = n * layout.attention_dp * layout.pp
    return Candidate(
        layout=layout,
        precision=space.system.precisions[label],
        mode=space.modes[mode],
        batch_size=int(batch) if batch.is_integer() else batch,
        sequences_per_rank=max(1, round(n)),
        tpot_s=float(points.tpot_s[at]),
        ttft_s=float(points.ttft_s[at]),
        **rate_and_costs(layout, space.workload, rate, cost, share),
        prefill_utilisation=float(points.utilisation[at]),
        free_bytes=float(points.free_bytes[at]),
        billed_chips=billed_of(cluster, layout),
        basis=estimate.basis,
        caveat=estimate.caveat(layout, space.modes[mode], float(points.steepness[at])),
    )


def nearest_rejected(
    points: OperatingPoints,
    limits: Constraints,
    answers: Sequence[Candidate],
    estimate: Estimate,
    names: Collection[str],
) -> list[Rejected]:
    """One rejected candidate a reason: cheaper than the best, breaking only that limit, by the least.

    Args:
        answers: that meet the limits, cheapest first.
        names: reasons that are considered.
    """
    best_cost = answers[0].usd_per_mtok_output_all_in if answers else np.inf
    found: list[Rejected] = []
    for name, at, excess in nearest_violations(points, limits, best_cost):
        if name in names:
            one = candidate_of(points, at, estimate)
            reason = _reason(name, points, at, limits)
            found.append(Rejected(what=one.label(), reason=reason, excess=excess, candidate=one))
    return found


def nearest_violations(
    points: OperatingPoints, limits: Constraints, best_cost: float
) -> Iterator[tuple[str, int, float]]:
    """For each limit the point that breaks it alone and by the least, cheaper than the best if any is.

    Yields:
        (limit, position, excess over the limit [1]).
    """
    for name, (where, excess) in points.violations(limits).items():
        if where.size:
            cheaper = points.cost[where] < best_cost
            nearest = int(np.argmin(np.where(cheaper, excess, np.inf) if np.any(cheaper) else excess))
            yield name, int(where[nearest]), float(excess[nearest])


def _reason(name: str, points: OperatingPoints, at: int, limits: Constraints) -> str:
    limits = limits.of_predictions(KINDS[int(points.kind[at])])
    if name == "memory":
        return f"memory: {format_bytes(-points.free_bytes[at])} too much on the fullest chip"
    if name == "prefill":
        room = f"prompts need {points.utilisation[at]:.3g} of the room in each pass"
        return f"prefill: {room}, so the batch never fills"
    if name == "tpot" and limits.tpot_s is not None:
        return f"tpot: {format_seconds(points.tpot_s[at])}, limit {format_seconds(limits.tpot_s)}"
    limit = limits.ttft_s or 0.0
    return f"ttft: {format_seconds(points.ttft_s[at])}, limit {format_seconds(limit)}"
