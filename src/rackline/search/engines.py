"""The search over single engines: every layout × precision × mode × batch, and the cheapest within the limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import InputError
from rackline.parallel import MemoryUse
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.search.candidate import Candidate, price_per_chip_s
from rackline.search.choice import Choice, Inside, floors
from rackline.search.estimates import Block, ClosedLoop, OpenLoop, numbering
from rackline.search.fits import ClusterNeed, nearest_cluster
from rackline.search.points import BETWEEN, NEAR, OperatingPoints, Shortlist
from rackline.search.select import MOST_HELPED, Rejected, Selection, candidate_of, nearest_rejected, select, with_idle
from rackline.search.space import Part, Space
from rackline.system import Constraints, Objective
from rackline.units import format_bytes, format_seconds

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

    def without_answer(self, reason: str) -> Engines:
        """The same points without an answer."""
        return replace(self, contenders=(), pareto=(), ranked=(), reason=reason)


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
        wanted = limits
        if open_loop and limits.ttft_s is not None:
            wanted = replace(limits, ttft_s=LATE * limits.ttft_s)
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
        if not self.shortlist.looked_at:
            raise InputError(
                what="modes",
                given=", ".join(mode.label() for mode in self.space.modes),
                allowed="a mode without two-batch overlap, or a layout whose attention-dp ranks exchange tokens",
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
        table, usd_per_chip_s = deployment.table(), price_per_chip_s(self.space.system.cluster)[0]
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
            memory = self._memory(candidate)
            used, usable = format_bytes(float(memory.used)), format_bytes(float(memory.usable))
            need = nearest_cluster(space.system, space.workload)
            return (
                f"{space.system.model.name} fits nowhere on {space.system.cluster.name}: at best "
                f"({candidate.label()}) a chip needs {used}, has {usable}"
            ), need
        if found.fastest is None or found.soonest is None:
            return "no batch that fits can be kept full: prefill is slower than decoding frees slots", None
        fastest, soonest = found.fastest, found.soonest
        parts = [
            f"nothing that fits meets the limits; fastest tpot {format_seconds(fastest.tpot_s)} ({fastest.label()})"
        ]
        if self.limits.ttft_s is not None:
            parts.append(f"lowest ttft {format_seconds(soonest.ttft_s)} ({soonest.label()})")
        return "; ".join(parts), None
