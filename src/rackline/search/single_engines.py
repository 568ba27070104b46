"""The search over single engines: every layout × precision × mode × batch, and the cheapest within the limits.

One selection for every question and every estimate: the front, the cheapest within the limits, what was rejected. What
comes before it, which points are evaluated at all, is `rackline.search.points.Shortlist`; what comes after it, the
simulation of the cheapest, `rackline.search.finalists`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rackline.errors import require
from rackline.hardware import billed_chips, replicas, taken_chips
from rackline.parallel import MemoryUse
from rackline.parallel.layout import KINDS
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.rounding import rounded
from rackline.search.candidate import Candidate, PoolPair, price_per_chip_s
from rackline.search.choice import Choice, Inside, floors
from rackline.search.estimates import Block, ClosedLoop, Estimate, OpenLoop, numbering
from rackline.search.misfit import ClusterNeed, nearest_cluster
from rackline.search.points import (
    BETWEEN,
    NEAR,
    OperatingPoints,
    Shortlist,
    firsts,
    idle_chips,
    least_cost,
    pareto_front,
)
from rackline.search.space import Part, Space
from rackline.system import Constraints, Objective
from rackline.units import format_bytes, format_seconds

CONTENDERS = 16  # options of one kind, the cheapest by their estimates, that are simulated where one could win
MOST_HELPED = 12  # layouts that engines on the chips that they leave free may make the cheapest
_MODES = 3  # engines of a layout that idle chips may help: the cheapest that are refined
_REFINED, _LAYOUTS = 12, 24  # engines and layouts, the cheapest, that are refined between the points of the grid
_RANKED = 10  # styles that are shown with the best
Either = TypeVar("Either", bound=Candidate | Choice)


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
    order = order[np.argsort(rounded(points.cost[order]), kind="stable")]
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
    each = ((at, np.flatnonzero(good & (finer.engine == points.engine[at]))) for at in chosen.tolist())
    found = (
        candidate_of(finer, int(mine[np.argmin(rounded(finer.cost[mine]))]), estimate)
        if mine.size
        else candidate_of(points, at, estimate)
        for at, mine in each
    )
    return sorted(found, key=lambda one: one.usd_per_mtok_output_all_in)


def _least(points: OperatingPoints, values: Array, estimate: Estimate) -> Candidate | None:
    """The serving candidate with the smallest value; None if there is none."""
    serves = points.serves
    return candidate_of(points, int(np.argmin(np.where(serves, values, np.inf))), estimate) if np.any(serves) else None


def candidate_of(points: OperatingPoints, at: int, estimate: Estimate) -> Candidate:
    """One point with its numbers, on all replicas that the cluster holds."""
    space = estimate.space
    label, mode, row = numbering(space).place(int(points.engine[at]))
    cluster, work, layout = space.system.cluster, space.workload, space.grid.layout(row)
    layout = replace(layout, dp=int(replicas(cluster, layout.chips_per_replica)))
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
        requests_per_s=rate * layout.num_chips / work.output_len,
        output_tokens_per_s_per_chip=rate,
        usd_per_mtok_output_all_in=cost,
        usd_per_mtok_input=cost * share * work.output_len / work.input_len,
        usd_per_mtok_output=cost * (1.0 - share),
        prefill_utilisation=float(points.utilisation[at]),
        free_bytes=float(points.free_bytes[at]),
        billed_chips=round(float(billed_chips(cluster, layout.dp * taken_chips(cluster, layout.chips_per_replica)))),
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
    return [
        Rejected(what=one.label(), reason=_reason(name, points, at, limits), excess=excess, candidate=one)
        for name, at, excess in nearest_violations(points, limits, best_cost)
        if name in names
        for one in [candidate_of(points, at, estimate)]
    ]


def nearest_violations(
    points: OperatingPoints, limits: Constraints, best_cost: float
) -> Iterator[tuple[str, int, float]]:
    """The point that breaks each limit alone and by the least, cheaper than the best where there is one.

    Yields:
        (limit, position, excess over the limit [1]).
    """
    for name, (where, excess) in points.violations(limits).items():
        if where.size:
            cheaper = points.cost[where] < best_cost
            nearest = int(np.argmin(np.where(cheaper, excess, np.inf) if np.any(cheaper) else excess))
            yield name, int(where[nearest]), float(excess[nearest])


def _reason(name: str, points: OperatingPoints, at: int, limits: Constraints) -> str:
    lower, (free, load) = limits.of_predictions(KINDS[int(points.kind[at])]), (points.free_bytes, points.utilisation)
    if name in ("tpot", "ttft"):
        limit_s, lower_s = (getattr(each, f"{name}_s") or 0.0 for each in (limits, lower))
        headroom = f", {format_seconds(lower_s)} with headroom" if lower_s < limit_s else ""
        return f"{name}: {format_seconds(getattr(points, f'{name}_s')[at])}, limit {format_seconds(limit_s)}{headroom}"
    return {
        "memory": f"memory: {format_bytes(-free[at])} too much on the fullest chip",
        "prefill": f"prefill: prompts need {load[at]:.3g} of the room in each pass, so the batch never fills",
    }[name]


MOST_NEAR = 250  # engines near the closed-loop front that are evaluated in an open loop
MOST_CHEAP = 60  # cheapest engines within the limits, for each limit that is tried
LATE = 1.5  # times the limit on ttft, up to which an engine is evaluated in an open loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Result of the search over single engines.

    Args:
        contenders: the cheapest by their estimates that meet the limits, cheapest first.
        pareto: front of tokens/s/user against cost, of all that fit, fastest first.
        ranked: cheapest of each tp, pp, moe_tp and precision that meets the limits, cheapest first.
        rejected: nearest candidate for each reason of rejection.
        candidates_evaluated: points whose times were computed.
        reason: why none meets the limits; empty when one does.
        need: nearest chips on which one would fit.
    """

    contenders: tuple[Choice, ...]
    pareto: tuple[Candidate, ...]
    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    candidates_evaluated: int
    reason: str
    need: ClusterNeed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSearch:
    """The search over layouts × precisions × modes × batches of one engine: evaluate all parts, then answer.

    Args:
        open_loop: whether to rank under random arrivals; else with every slot always taken.
        objective: what an engine has the least of; energy is known with every slot taken.
    """

    space: Space
    limits: Constraints
    shortlist: Shortlist
    open_loop: bool
    objective: Objective = "dollars"

    @classmethod
    def of(
        cls, space: Space, limits: Constraints, *, open_loop: bool, objective: Objective = "dollars"
    ) -> EngineSearch:
        """A search with nothing evaluated yet."""
        wanted = replace(limits, ttft_s=limits.ttft_s and LATE * limits.ttft_s) if open_loop else limits
        shortlist = Shortlist(limits=wanted, near=NEAR if open_loop else 1.0)
        return cls(space=space, limits=limits, shortlist=shortlist, open_loop=open_loop, objective=objective)

    @classmethod
    def through(
        cls, space: Space, limits: Constraints, *, open_loop: bool, objective: Objective = "dollars"
    ) -> EngineSearch:
        """A search with every part of the space evaluated."""
        search = cls.of(space, limits, open_loop=open_loop, objective=objective)
        for part in space.parts():
            search.look_at(part)
        return search

    def look_at(self, part: Part) -> None:
        """Evaluate all modes and batches of some layouts in one precision, except what cannot be in the answer."""
        layouts, numbers = len(part.space.grid), numbering(self.space)
        for overlap in (False, True):
            blocks = [
                Block.of(part, mode, numbers.engines(part.label, place, part.start, layouts), objective=self.objective)
                for place, mode in enumerate(self.space.modes)
                if mode.two_batch_overlap == overlap
            ]
            wanted = [self.shortlist.wanted(block.bounds) for block in blocks]
            hit = [block.where[mask] // len(self.space.batches) for block, mask in zip(blocks, wanted, strict=True)]
            rows = np.unique(np.concatenate(hit)) if hit else np.empty(0, dtype=np.int64)
            if not rows.size:
                continue
            some = part if rows.size == layouts else part.take(rows)
            for block, mask in zip(blocks, wanted, strict=True):
                self.shortlist.add(block.timed(some, rows, mask))

    def answer(self) -> Engines:
        """Pick from everything that was evaluated."""
        require(
            self.shortlist.looked_at,
            what="modes",
            given=", ".join(mode.label() for mode in self.space.modes),
            allowed="a mode without two-batch overlap or alignment, or several attention-dp ranks (where they wait for "
            "each other: without pipeline stages, and with prompts that one pass holds)",
        )
        points, closed, opened = self.shortlist.points(), ClosedLoop(space=self.space), OpenLoop(space=self.space)
        promising = self._promising(points) if self.open_loop else np.empty(0)
        found = (
            select(opened.grid(promising), self.limits, opened)
            if promising.size
            else select(points, self.limits, closed)
        )
        unfit = nearest_rejected(points, self.limits, found.refined, closed, ("memory", "prefill"))
        reason, need = ("", None) if found.refined else self._why_nothing(points, found)
        return Engines(
            contenders=tuple(
                Choice(workload=self.space.workload, estimate=one, inside=self._inside(one))
                for one in found.contenders()
            ),
            pareto=tuple(found.pareto),
            ranked=tuple(found.ranked),
            rejected=(*unfit, *found.rejected),
            candidates_evaluated=self.shortlist.looked_at,
            reason=reason,
            need=need,
        )

    def _promising(self, points: OperatingPoints) -> Array:
        """Engines that are near the closed-loop front, or the cheapest within the limits.

        The closed loop often underestimates the time to first token and seldom overestimates it: the cheapest within
        the limit, within half of it, and within 1.5 times the limit are taken.
        """
        some = points.take(np.flatnonzero(points.serves))
        engines, engine = np.unique(some.engine, return_inverse=True)
        tpot_s, ttft_s, cost = some.tpot_s, some.ttft_s, some.cost
        found: dict[int, None] = {}

        def take(values: Array, most: int, below: float) -> None:
            best = np.full(engines.size, np.inf)
            np.minimum.at(best, engine, values)
            order = np.argsort(best, kind="stable")[:most]
            found.update(dict.fromkeys(engines[order[best[order] < below]].tolist()))

        if len(some):
            order = np.lexsort((cost, tpot_s))
            cheapest = np.minimum.accumulate(cost[order])  # of all engines that are as fast
            take(cost / cheapest[np.searchsorted(tpot_s[order], tpot_s, side="right") - 1], MOST_NEAR, NEAR)
            most_tpot_s, most_ttft_s = self.limits.of_kinds(some.kind)
            within = tpot_s <= most_tpot_s
            least = with_idle(some, self.space, within)
            late = (LATE, 1.0, 0.5) if self.limits.ttft_s is not None else (np.inf,)
            for part in late:
                kept = within & (ttft_s <= part * most_ttft_s)
                take(np.where(kept, cost, np.inf), MOST_CHEAP, np.inf)
                helped = kept & (least < cost)
                take(np.where(helped, least, np.inf), MOST_HELPED, BETWEEN * float(np.min(cost[kept], initial=np.inf)))
        return np.array(list(found), dtype=np.int64)

    def _inside(self, best: Candidate) -> Inside:
        deployment = self.space.system.deployment(best.layout, best.precision)
        table, usd_per_chip_s = deployment.table(), price_per_chip_s(self.space.system.cluster)
        workload, layout = self.space.workload, best.layout
        decode = table.time(
            Batch(
                decode_sequences=float(best.sequences_per_rank),
                context_len=workload.mean_context,
                group_tokens=float(best.sequences_per_rank * layout.attention_dp),
            )
        )
        chunk = min(workload.new_tokens, float(best.mode.max_batched_tokens))
        prefill = table.time(
            Batch(
                prefill_sequences=1.0,
                chunk_tokens=chunk,
                prefix_tokens=workload.prefix_tokens + (workload.new_tokens - chunk) / 2.0,
                group_tokens=chunk * layout.attention_dp,
            )
        )
        return Inside(
            decode=decode,
            prefill=prefill,
            memory=self._memory(best),
            floors=floors(deployment, workload, best.tpot_s, best.usd_per_mtok_output, usd_per_chip_s),
        )

    def _memory(self, of: Candidate) -> MemoryUse:
        """Memory of the fullest chip by the rule of the stack."""
        return self.space.system.deployment(of.layout, of.precision).memory(
            sequences=float(of.batch_size),
            context_len=self.space.workload.final_context,
            server=self.space.system.server(float(of.mode.max_batched_tokens)),
        )

    def _why_nothing(self, points: OperatingPoints, found: Selection) -> tuple[str, ClusterNeed | None]:
        space = self.space
        if not np.any(points.free_bytes >= 0):
            candidate = candidate_of(points, int(np.argmax(points.free_bytes)), ClosedLoop(space=space))
            memory, need = self._memory(candidate), nearest_cluster(space.system, space.workload)
            used, usable = format_bytes(float(memory.used)), format_bytes(float(memory.usable))
            return (
                f"{space.system.model.name} fits nowhere on {space.system.cluster.name}: at best "
                f"({candidate.label()}) a chip needs {used}, has {usable}"
            ), need
        if found.fastest is None or found.soonest is None:
            return "no batch that fits can be kept full: prefill is slower than decoding frees slots", None
        fastest, soonest = found.fastest, found.soonest
        first = f"; lowest ttft {format_seconds(soonest.ttft_s)} ({soonest.label()})"
        return (
            f"nothing that fits meets the limits; fastest tpot {format_seconds(fastest.tpot_s)} ({fastest.label()})"
            f"{'' if self.limits.ttft_s is None else first}"
        ), None
