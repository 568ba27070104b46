"""The search over single engines: every layout × precision × mode × batch, and the cheapest within the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import InputError
from rackline.parallel import Deployment, Layout
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.search.candidate import Candidate, plan_points, price_per_chip_s
from rackline.search.choice import Choice, Inside
from rackline.search.evaluate import Part, Space
from rackline.search.finalists import CONTENDERS
from rackline.search.fits import ClusterNeed, smallest_cluster
from rackline.search.floors import floors
from rackline.search.pareto import pareto_front
from rackline.search.points import Block, Numbering, Place, Points
from rackline.search.rejected import Rejected, nearest_rejected
from rackline.search.shortlist import MOST_RANKED, Shortlist
from rackline.search.space import Constraints
from rackline.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What the search over single engines found.

    Args:
        contenders: the cheapest in the steady state that keep the limits, cheapest first.
        pareto: front of tokens/s/user against cost, of all that fit, fastest first.
        ranked: cheapest of each tp, pp, moe_tp and precision that keeps the limits, cheapest first.
        rejected: nearest candidate for each reason of rejection.
        candidates_evaluated: points whose times were computed.
        reason: why none keeps the limits; empty when one does.
        need: smallest cluster on which one would fit.
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
    """The search over layouts × precisions × modes × batches of one engine: look at all parts, then answer."""

    space: Space
    options: list[Layout]
    limits: Constraints
    shortlist: Shortlist

    @classmethod
    def of(cls, space: Space, options: list[Layout], limits: Constraints) -> EngineSearch:
        """Nothing looked at yet."""
        return cls(space=space, options=options, limits=limits, shortlist=Shortlist(limits=limits))

    @property
    def usd_per_chip_s(self) -> float:
        """Price of a chip."""
        return price_per_chip_s(self.space.cluster)[0]

    @property
    def numbering(self) -> Numbering:
        """How the points are counted."""
        return Numbering(len(self.space.modes), len(self.options), len(self.space.batches))

    def look_at(self, part: Part) -> None:
        """Evaluate all modes and batches of some layouts in one precision, but what cannot be in the answer."""
        layouts = len(part.space.grid)
        for overlap in (False, True):
            blocks = [
                Block.of(
                    part, mode, self.numbering.indices(part.label, place, part.start, layouts), self.usd_per_chip_s
                )
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
        """Pick from all that was looked at."""
        if not self.shortlist.looked_at:
            raise InputError(
                what="modes",
                given=", ".join(mode.label() for mode in self.space.modes),
                allowed="a mode without two-batch overlap, or a layout whose attention-dp ranks exchange tokens",
            )
        points = self.shortlist.points()
        serves = points.serves
        front = pareto_front(np.where(serves, 1.0 / points.tpot_s, np.nan), points.cost)
        kept = np.flatnonzero(serves & points.meets(self.limits))
        order = kept[np.argsort(points.cost[kept], kind="stable")]
        ranked = self._distinct(points, order, self._style, 10)
        # the grid of batches is coarse: each of the cheapest combinations may be the best between its points
        near = self._distinct(points, order, lambda place: (place.label, place.mode, place.row), 12)
        refined = [self._refined(candidate) for candidate in near]
        refined.sort(key=lambda option: option.usd_per_mtok_output_all_in)
        best = refined[0] if refined else None
        rejected = nearest_rejected(
            points,
            self.limits,
            best_cost=best.usd_per_mtok_output_all_in if best else np.inf,
            describe=lambda at: self._candidate(points, at),
            short=lambda at: self._short(points, at),
        )
        reason, need = ("", None) if best else self._why_nothing(points)
        contenders = [
            Choice(workload=self.space.workload, steady=one, inside=self._inside(one)) for one in refined[:CONTENDERS]
        ]
        return Engines(
            contenders=tuple(contenders),
            pareto=tuple(self._candidate(points, int(at)) for at in front),
            ranked=tuple(ranked),
            rejected=tuple(rejected),
            candidates_evaluated=self.shortlist.looked_at,
            reason=reason,
            need=need,
        )

    def _candidate(self, points: Points, at: int) -> Candidate:
        place = self.numbering.place(int(points.index[at]))
        layout = self.options[place.row]
        per_rank = int(self.space.batches[place.column])
        placed = replace(layout, dp=max(1, self.space.cluster.num_chips // layout.chips_per_replica))
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
            requests_per_s=rate * placed.num_chips / work.output_len,
            output_tokens_per_s_per_chip=rate,
            usd_per_mtok_output_all_in=cost,
            usd_per_mtok_input=cost * share * work.output_len / work.input_len,
            usd_per_mtok_output=cost * (1.0 - share),
            prefill_utilisation=float(points.utilisation[at]),
            free_bytes=float(points.free_bytes[at]),
        )

    def _short(self, points: Points, at: int) -> str:
        found = self._candidate(points, at)
        return (
            f"{replace(found.layout, dp=1).label()} · {found.precision.short()} · {found.mode.label()} · "
            f"batch {found.batch_size}"
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

    def _style(self, place: Place) -> object:
        """What makes a layout another style: tp, pp, moe_tp and precision."""
        layout = self.options[place.row]
        return layout.tp, layout.pp, layout.moe_tp, self.space.precisions[place.label].label

    def _deployment(self, candidate: Candidate) -> Deployment:
        return Deployment(
            model=self.space.model,
            cluster=self.space.cluster,
            layout=candidate.layout,
            precision=candidate.precision,
            calibration=self.space.calibration,
            routing=self.space.routing,
        )

    def _refined(self, candidate: Candidate) -> Candidate:
        """The cheapest whole batch between the neighbours of the grid point."""
        at = candidate.sequences_per_rank
        above = self.space.batches[self.space.batches > at]
        stop = int(above[0]) if above.size else at + 1
        tries = np.unique(np.linspace(at, stop - 1, num=min(stop - at, 64)).astype(int)).astype(float)
        found = plan_points(
            self._deployment(candidate),
            candidate,
            tries,
            self.space.workload,
            self.space.server(float(candidate.mode.max_batched_tokens)),
            self.usd_per_chip_s,
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
        deployment = self._deployment(best)
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
                prefix_tokens=workload.cached_tokens + (workload.new_tokens - chunk) / 2.0,
                group_tokens=chunk * layout.attention_dp,
            )
        )
        memory = deployment.memory(
            sequences=float(best.batch_size),
            context_len=workload.final_context,
            server=self.space.server(float(best.mode.max_batched_tokens)),
        )
        return Inside(
            decode=decode,
            prefill=prefill,
            memory=memory,
            floors=floors(deployment, workload, best.tpot_s, best.usd_per_mtok_output, self.usd_per_chip_s),
        )

    def _why_nothing(self, points: Points) -> tuple[str, ClusterNeed | None]:
        space = self.space
        if not np.any(points.free_bytes >= 0):
            tightest = int(np.argmax(points.free_bytes))
            candidate = self._candidate(points, tightest)
            has = space.cluster.chip.program_bytes * self.limits.memory_fraction
            needs = has - candidate.free_bytes
            need = smallest_cluster(space.model, space.workload, self.limits.memory_fraction)
            return (
                f"{space.model.name} fits nowhere on {space.cluster.name}: at best "
                f"({self._short(points, tightest)}) a chip needs {format_bytes(needs)}, "
                f"has {format_bytes(has)}"
            ), need
        serves = points.serves
        if not np.any(serves):
            return "no batch that fits can be kept full: prefill is slower than decoding frees slots", None
        fastest = int(np.nanargmin(np.where(serves, points.tpot_s, np.nan)))
        parts = [
            f"nothing that fits keeps the limits; fastest tpot {points.tpot_s[fastest] * 1e3:.3g} ms "
            f"({self._short(points, fastest)})"
        ]
        if self.limits.ttft_s is not None:
            soonest = int(np.nanargmin(np.where(serves, points.ttft_s, np.nan)))
            parts.append(f"soonest ttft {points.ttft_s[soonest] * 1e3:.3g} ms ({self._short(points, soonest)})")
        return "; ".join(parts), None
