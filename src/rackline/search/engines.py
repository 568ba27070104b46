"""The search over single engines: every layout × precision × mode × batch, and the cheapest within the limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import InputError
from rackline.parallel import Layout, MemoryUse, Precision
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.search.candidate import Candidate, billed_of, placed_on, plan_points, price_per_chip_s, rate_and_costs
from rackline.search.choice import Choice, Inside
from rackline.search.evaluate import Part, Space
from rackline.search.finalists import CONTENDERS
from rackline.search.fits import ClusterNeed, nearest_cluster
from rackline.search.floors import floors
from rackline.search.idle import BETWEEN, idle_chips, least_cost
from rackline.search.open_engines import Found, OpenEngines, OpenSearch, Pick
from rackline.search.pareto import pareto_front
from rackline.search.points import Block, Numbering, Place, Points
from rackline.search.rejected import Rejected, nearest_rejected
from rackline.search.shortlist import MOST_RANKED, NEAR, Shortlist
from rackline.system import Constraints
from rackline.units import format_bytes

MOST_NEAR = 250  # engines near the closed-loop front that are evaluated in an open loop
MOST_CHEAP = 60  # cheapest engines within the limits, for each limit that is tried
MOST_HELPED = 12  # layouts that engines on the chips that they leave free may make the cheapest
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

    def without_answer(self, reason: str) -> Engines:
        """The same points without an answer."""
        return replace(self, contenders=(), pareto=(), ranked=(), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSearch:
    """The search over layouts × precisions × modes × batches of one engine: evaluate all parts, then answer.

    Args:
        open_loop: whether to rank under random arrivals; else with every slot always taken.
    """

    space: Space
    options: list[Layout]
    limits: Constraints
    shortlist: Shortlist
    open_loop: bool

    @classmethod
    def of(cls, space: Space, options: list[Layout], limits: Constraints, *, open_loop: bool) -> EngineSearch:
        """A search with nothing evaluated yet."""
        wanted = limits
        if open_loop and limits.ttft_s is not None:
            wanted = replace(limits, ttft_s=LATE * limits.ttft_s)
        shortlist = Shortlist(limits=wanted, near=NEAR if open_loop else 1.0)
        return cls(space=space, options=options, limits=limits, shortlist=shortlist, open_loop=open_loop)

    @property
    def usd_per_chip_s(self) -> float:
        """Price of a chip [USD/s]."""
        return price_per_chip_s(self.space.cluster)[0]

    @property
    def numbering(self) -> Numbering:
        """Numbering of the points."""
        return Numbering(len(self.space.modes), len(self.options), len(self.space.batches))

    def look_at(self, part: Part) -> None:
        """Evaluate all modes and batches of some layouts in one precision, except what cannot be in the answer."""
        layouts = len(part.space.grid)
        for overlap in (False, True):
            blocks = [
                Block.of(part, mode, self.numbering.indices(part.label, place, part.start, layouts))
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
        if not self.shortlist.looked_at:
            raise InputError(
                what="modes",
                given=", ".join(mode.label() for mode in self.space.modes),
                allowed="a mode without two-batch overlap, or a layout whose attention-dp ranks exchange tokens",
            )
        points = self.shortlist.points()
        found = self._open(points) if self.open_loop else None
        found = found or self._closed(points)
        reason, need = ("", None) if found.refined else self._why_nothing(points, found)
        contenders = [
            Choice(workload=self.space.workload, estimate=one, inside=self._inside(one))
            for one in self._contenders(found.refined)
        ]
        return Engines(
            contenders=tuple(contenders),
            pareto=tuple(found.pareto),
            ranked=tuple(found.ranked),
            rejected=tuple(found.rejected),
            candidates_evaluated=self.shortlist.looked_at,
            reason=reason,
            need=need,
        )

    def _contenders(self, refined: Sequence[Candidate]) -> list[Candidate]:
        """The cheapest of each layout: the first, the first of which no error is known, all that idle chips may help.

        Args:
            refined: cheapest first.
        """
        found: dict[object, Candidate] = {}
        for one in refined:
            found.setdefault((one.layout, one.precision.label), one)
        distinct = list(found.values())
        kept = distinct[:CONTENDERS]
        kept += [one for one in distinct[CONTENDERS:] if not one.caveat][
            : 0 if any(not one.caveat for one in kept) else 1
        ]
        most_rate = max((one.output_tokens_per_s_per_chip for one in distinct), default=0.0)
        for one in distinct:
            idle = float(one.billed_chips - one.num_chips)
            cost, rate = one.usd_per_mtok_output_all_in, one.output_tokens_per_s_per_chip
            least = least_cost(np.array(cost), np.array(rate), np.array(one.num_chips), np.array(idle), most_rate)
            if one not in kept and idle and float(least) < distinct[0].usd_per_mtok_output_all_in:
                kept.append(one)
        return kept

    def _least_costs(self, points: Points) -> Array:
        """Lower bounds of the costs of points, engines on the chips that they leave free included [USD per million]."""
        layouts = len(self.options)
        row = points.index // len(self.space.batches) % layouts
        used, idle = idle_chips(self.space.cluster, self.space.grid.chips_per_replica)
        used, idle = np.broadcast_to(used, (layouts,))[row], np.broadcast_to(idle, (layouts,))[row]
        if not np.any(idle):
            return points.cost
        kept = points.serves & (points.tpot_s <= (self.limits.tpot_s or np.inf))
        most_rate = float(np.max(points.rate[kept], initial=0.0))
        return least_cost(points.cost, points.rate, used, idle, most_rate)

    def _closed(self, points: Points) -> Found:
        """The best engines with every slot always taken."""
        serves = points.serves
        front = pareto_front(np.where(serves, 1.0 / points.tpot_s, np.nan), points.cost)
        kept = np.flatnonzero(serves & points.meets(self.limits))
        order = kept[np.argsort(points.cost[kept], kind="stable")]
        ranked = self._distinct(
            points, order, lambda place: _style(self.options[place.row], self.space.precisions[place.label]), 10
        )
        # the grid of batches is coarse: any of the cheapest combinations may be the best between its points
        near = self._distinct(points, order, lambda place: (place.label, place.mode, place.row), 12)
        least = self._least_costs(points)
        if order.size and least is not points.cost:
            helped = order[least[order] < BETWEEN * points.cost[order[0]]]
            helped = helped[np.argsort(least[helped], kind="stable")]
            helped = helped[points.cost[helped] > least[helped]]
            near += self._distinct(points, helped, lambda place: (place.label, place.row), MOST_HELPED)
        refined = [self._refined(candidate) for candidate in near]
        refined.sort(key=lambda option: option.usd_per_mtok_output_all_in)
        best_cost = refined[0].usd_per_mtok_output_all_in if refined else np.inf
        return Found(
            refined=refined,
            pareto=[self._candidate(points, int(at)) for at in front],
            ranked=ranked,
            rejected=self._rejected(points, best_cost, ("memory", "prefill", "tpot", "ttft")),
            fastest=self._least(points, points.tpot_s),
            soonest=self._least(points, points.ttft_s),
        )

    def _open(self, points: Points) -> Found | None:
        """The best of the promising engines under random arrivals; None if there are none."""
        picks: list[Pick] = []
        for engine in self._promising(points):
            place = self.numbering.place(engine * len(self.space.batches))
            picks.append(Pick(self.space.precisions[place.label], self.space.modes[place.mode], place.row))
        if not picks:
            return None
        found = OpenSearch(
            engines=OpenEngines(space=self.space, options=self.options),
            picks=picks,
            limits=self.limits,
            style=lambda one: _style(one.layout, one.precision),
            short=_short,
        ).answer()
        cost = found.refined[0].usd_per_mtok_output_all_in if found.refined else np.inf
        unfit = self._rejected(points, cost, ("memory", "prefill"))
        return replace(found, rejected=[*unfit, *found.rejected])

    def _promising(self, points: Points) -> list[int]:
        """Engines that are near the closed-loop front, or the cheapest within the limits.

        The closed loop often underestimates the time to first token and seldom overestimates it: the cheapest within
            the limit, within half of it, and within 1.5 times the limit are taken.

        Returns:
            Indices of engines: those of their points over the number of batches.
        """
        serves = np.flatnonzero(points.serves)
        engines, engine = np.unique(points.index[serves] // len(self.space.batches), return_inverse=True)
        tpot_s, ttft_s, cost = (column[serves] for column in (points.tpot_s, points.ttft_s, points.cost))
        found: dict[int, None] = {}

        def take(values: Array, most: int, below: float) -> None:
            best = np.full(engines.size, np.inf)
            np.minimum.at(best, engine, values)
            order = np.argsort(best, kind="stable")[:most]
            found.update(dict.fromkeys(engines[order[best[order] < below]].tolist()))

        if serves.size:
            least = self._least_costs(points)[serves]
            order = np.lexsort((cost, tpot_s))
            cheapest = np.minimum.accumulate(cost[order])  # of all engines that are as fast
            take(cost / cheapest[np.searchsorted(tpot_s[order], tpot_s, side="right") - 1], MOST_NEAR, NEAR)
            within = np.ones(serves.size, dtype=bool) if self.limits.tpot_s is None else tpot_s <= self.limits.tpot_s
            late = (LATE, 1.0, 0.5) if self.limits.ttft_s is not None else (np.inf,)
            for part in late:
                kept = within & (ttft_s <= part * (self.limits.ttft_s or 1.0))
                take(np.where(kept, cost, np.inf), MOST_CHEAP, np.inf)
                helped = kept & (least < cost)
                take(np.where(helped, least, np.inf), MOST_HELPED, BETWEEN * float(np.min(cost[kept], initial=np.inf)))
        return list(found)

    def _rejected(self, points: Points, best_cost: float, names: Collection[str]) -> list[Rejected]:
        return nearest_rejected(
            points,
            self.limits,
            best_cost=best_cost,
            describe=lambda at: self._candidate(points, at),
            short=lambda at: _short(self._candidate(points, at)),
            names=names,
        )

    def _least(self, points: Points, values: Array) -> Candidate | None:
        """The serving candidate with the smallest value; None if there is none."""
        if not np.any(points.serves):
            return None
        return self._candidate(points, int(np.nanargmin(np.where(points.serves, values, np.nan))))

    def _candidate(self, points: Points, at: int) -> Candidate:
        place = self.numbering.place(int(points.index[at]))
        layout = self.options[place.row]
        per_rank = int(self.space.batches[place.column])
        placed = placed_on(self.space.cluster, layout)
        rate, cost, share = (float(column[at]) for column in (points.rate, points.cost, points.prefill_cost_share))
        work = self.space.workload
        return Candidate(
            layout=placed,
            precision=self.space.precisions[place.label],
            mode=self.space.modes[place.mode],
            batch_size=per_rank * layout.attention_dp * layout.pp,
            sequences_per_rank=per_rank,
            tpot_s=float(points.tpot_s[at]),
            ttft_s=float(points.ttft_s[at]),
            **rate_and_costs(placed, work, rate, cost, share),
            prefill_utilisation=float(points.utilisation[at]),
            free_bytes=float(points.free_bytes[at]),
            billed_chips=billed_of(self.space.cluster, placed),
        )

    def _distinct(self, points: Points, order: Array, key: Callable[[Place], object], most: int) -> list[Candidate]:
        """The first candidate of each kind, in this order; `key` names the kind."""
        found: dict[object, Candidate] = {}
        for at in order[:MOST_RANKED]:
            kind = key(self.numbering.place(int(points.index[at])))
            if kind not in found:
                found[kind] = self._candidate(points, int(at))
            if len(found) == most:
                break
        return list(found.values())

    def _refined(self, candidate: Candidate) -> Candidate:
        """The cheapest integer batch size between the neighbours of the grid point."""
        at = candidate.sequences_per_rank
        above = self.space.batches[self.space.batches > at]
        stop = int(above[0]) if above.size else at + 1
        tries = np.unique(np.linspace(at, stop - 1, num=min(stop - at, 64)).astype(int)).astype(float)
        found = plan_points(
            self.space.system,
            candidate,
            tries,
            self.space.workload,
            self.usd_per_chip_s * candidate.billed_chips / candidate.num_chips,
        )
        good = [
            option
            for option in found
            if option.free_bytes >= 0
            and option.prefill_utilisation < 1
            and (self.limits.tpot_s is None or option.tpot_s <= self.limits.tpot_s)
            and (self.limits.ttft_s is None or option.ttft_s <= self.limits.ttft_s)
        ]
        return min(good, key=lambda option: option.usd_per_mtok_output_all_in, default=candidate)

    def _inside(self, best: Candidate) -> Inside:
        deployment = self.space.system.deployment(best.layout, best.precision)
        table = deployment.table()
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
            floors=floors(deployment, workload, best.tpot_s, best.usd_per_mtok_output, self.usd_per_chip_s),
        )

    def _memory(self, of: Candidate) -> MemoryUse:
        """Memory of the fullest chip by the rule of the stack."""
        return self.space.system.deployment(of.layout, of.precision).memory(
            sequences=float(of.batch_size),
            context_len=self.space.workload.final_context,
            server=self.space.system.server(float(of.mode.max_batched_tokens)),
        )

    def _why_nothing(self, points: Points, found: Found) -> tuple[str, ClusterNeed | None]:
        space = self.space
        if not np.any(points.free_bytes >= 0):
            candidate = self._candidate(points, int(np.argmax(points.free_bytes)))
            memory = self._memory(candidate)
            used, usable = format_bytes(float(memory.used)), format_bytes(float(memory.usable))
            need = nearest_cluster(space.system, space.workload)
            return (
                f"{space.model.name} fits nowhere on {space.cluster.name}: at best "
                f"({_short(candidate)}) a chip needs {used}, has {usable}"
            ), need
        if found.fastest is None or found.soonest is None:
            return "no batch that fits can be kept full: prefill is slower than decoding frees slots", None
        fastest, soonest = found.fastest, found.soonest
        parts = [f"nothing that fits meets the limits; fastest tpot {fastest.tpot_s * 1e3:.3g} ms ({_short(fastest)})"]
        if self.limits.ttft_s is not None:
            parts.append(f"lowest ttft {soonest.ttft_s * 1e3:.3g} ms ({_short(soonest)})")
        return "; ".join(parts), None


def _style(layout: Layout, precision: Precision) -> object:
    """Key that distinguishes styles of layouts: tp, pp, moe_tp and precision."""
    return layout.tp, layout.pp, layout.moe_tp, precision.label


def _short(found: Candidate) -> str:
    return (
        f"{replace(found.layout, dp=1).label()} · {found.precision.short()} · {found.mode.label()} · "
        f"batch {found.batch_size:.4g}"
    )
