"""The search over single engines: every layout × precision × mode × batch, and the cheapest within the limits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import InputError
from rackline.parallel import Deployment, Layout, Precision
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.plain import plain
from rackline.search.candidate import Candidate, plan_points, price_per_chip_s
from rackline.search.choice import Choice, Inside
from rackline.search.cost import least_between
from rackline.search.evaluate import Block, Space
from rackline.search.finalists import CONTENDERS
from rackline.search.fits import ClusterNeed, smallest_cluster
from rackline.search.floors import floors
from rackline.search.open_engines import Found, OpenEngines, OpenSearch, Pick
from rackline.search.pareto import pareto_front
from rackline.search.points import Points
from rackline.search.rejected import Rejected, nearest_rejected
from rackline.search.space import Constraints
from rackline.units import format_bytes

NEAR = 1.15  # times the front with every slot taken: engines that are looked at in an open loop
MOST_NEAR = 250
MOST_CHEAP = 60  # of those within the limits, for each limit that is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What the search over single engines found.

    Args:
        contenders: the cheapest by the estimate that keep the limits, cheapest first.
        usd_at_least: cost of the cheapest within the time per output token with every slot taken all the time
            [USD per million output tokens]; infinite where there is none.
        blocks: all points.
        pareto: front of tokens/s/user against cost, of all that fit, fastest first.
        ranked: cheapest of each tp, pp, moe_tp and precision that keeps the limits, cheapest first.
        rejected: nearest candidate for each reason of rejection.
        candidates_evaluated: points whose times were computed.
        reason: why none keeps the limits; empty when one does.
        need: smallest cluster on which one would fit.
    """

    contenders: tuple[Choice, ...]
    usd_at_least: float
    blocks: tuple[Block, ...]
    pareto: tuple[Candidate, ...]
    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    candidates_evaluated: int
    reason: str
    need: ClusterNeed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSearch:
    """The search over layouts × precisions × modes × batches of one engine.

    Args:
        open_loop: rank by arrivals at random; else by every slot taken all the time.
    """

    space: Space
    options: list[Layout]
    limits: Constraints
    open_loop: bool = True

    def answer(self) -> Engines:
        """Evaluate every point and pick."""
        blocks = list(self.space.blocks())
        usd_per_chip_s, _ = price_per_chip_s(self.space.cluster)
        points = Points.of(blocks, usd_per_chip_s, self.limits)
        if not np.any(points.evaluated):
            raise InputError(
                what="modes",
                given=", ".join(mode.label() for mode in self.space.modes),
                allowed="a mode without two-batch overlap, or a layout whose attention-dp ranks exchange tokens",
            )
        found = self._open(points, blocks, usd_per_chip_s) if self.open_loop else None
        found = found or self._closed(points, blocks, usd_per_chip_s)
        best = found.refined[0] if found.refined else None
        reason, need = ("", None) if best else self._why_nothing(points, blocks, found)
        contenders = [
            Choice(workload=self.space.workload, estimate=one, inside=self._inside(one))
            for one in found.refined[:CONTENDERS]
        ]
        return Engines(
            contenders=tuple(contenders),
            usd_at_least=self._usd_at_least(points),
            blocks=tuple(blocks),
            pareto=tuple(found.pareto),
            ranked=tuple(found.ranked),
            rejected=tuple(found.rejected),
            candidates_evaluated=int(np.count_nonzero(points.evaluated)),
            reason=reason,
            need=need,
        )

    def _usd_at_least(self, points: Points) -> float:
        """What no engine within the time per output token can be below, with every slot taken [USD per million]."""
        limit = np.inf if self.limits.tpot_s is None else self.limits.tpot_s
        each, batches = points.shape[1], self.space.batches
        tpot_s, cost = points.tpot_s.reshape(-1, each), points.cost.reshape(-1, each)
        serves = points.serves.reshape(-1, each)
        after_s = np.full(tpot_s.shape, np.inf)
        after_s[:, :-1] = np.where(serves[:, 1:], tpot_s[:, 1:], np.inf)
        row, column = np.nonzero(serves & (tpot_s <= limit))
        after = np.append(batches[1:], batches[-1])[column]
        least = least_between(
            cost[row, column], tpot_s[row, column], batches[column], after, after_s[row, column], limit
        )
        return float(np.min(least, initial=np.inf))

    def _closed(self, points: Points, blocks: list[Block], usd_per_chip_s: float) -> Found:
        """The best with every slot taken all the time."""
        front = pareto_front(np.where(points.serves, 1.0 / points.tpot_s, np.nan), points.cost)
        kept = np.flatnonzero(points.serves & points.meets)
        order = kept[np.argsort(points.cost[kept], kind="stable")]
        ranked = self._distinct(
            points, order, lambda block, row: _style(self.options[row], blocks[block].precision), 10
        )
        # the grid of batches is coarse: each of the cheapest combinations may be the best between its points
        near = self._distinct(points, order, lambda block, row: (block, row), 12)
        refined = [self._refined(self._candidate(points, blocks, index), usd_per_chip_s) for index in near]
        refined.sort(key=lambda option: option.usd_per_mtok_output_all_in)
        best_cost = refined[0].usd_per_mtok_output_all_in if refined else np.inf
        return Found(
            refined=refined,
            pareto=[self._candidate(points, blocks, int(index)) for index in front],
            ranked=[self._candidate(points, blocks, index) for index in ranked],
            rejected=self._rejected(points, blocks, best_cost, ("memory", "prefill", "tpot", "ttft")),
            fastest=self._least(points, blocks, points.tpot_s),
            soonest=self._least(points, blocks, points.ttft_s),
        )

    def _open(self, points: Points, blocks: list[Block], usd_per_chip_s: float) -> Found | None:
        """The best under arrivals at random among the engines that are promising; None where there are none."""
        picks = [
            Pick(precision=blocks[block].precision, mode=blocks[block].mode, row=row, engine=blocks[block].engine)
            for block, row in self._promising(points)
        ]
        if not picks:
            return None
        engines = OpenEngines(space=self.space, options=self.options, usd_per_chip_s=usd_per_chip_s)
        found = OpenSearch(
            engines=engines,
            picks=picks,
            limits=self.limits,
            style=lambda one: _style(one.layout, one.precision),
            short=_short,
        ).answer()
        cost = found.refined[0].usd_per_mtok_output_all_in if found.refined else np.inf
        unfit = self._rejected(points, blocks, cost, ("memory", "prefill"))
        return replace(found, rejected=[*unfit, *found.rejected])

    def _rejected(
        self, points: Points, blocks: list[Block], best_cost: float, names: Collection[str]
    ) -> list[Rejected]:
        return nearest_rejected(
            cost=points.cost,
            tpot_s=points.tpot_s,
            ttft_s=points.ttft_s,
            free_bytes=points.free_bytes,
            utilisation=points.utilisation,
            limits=self.limits,
            best_cost=best_cost,
            describe=lambda index: plain(self._candidate(points, blocks, index)),
            short=lambda index: _short(self._candidate(points, blocks, index)),
            names=names,
        )

    def _least(self, points: Points, blocks: list[Block], values: Array) -> Candidate | None:
        if not np.any(points.serves):
            return None
        return self._candidate(points, blocks, int(np.nanargmin(np.where(points.serves, values, np.nan))))

    def _promising(self, points: Points) -> list[tuple[int, int]]:
        """Engines, as (block, row), that are near the front with every slot taken, or the cheapest within the limits.

        The closed loop is often too early with the first token, seldom too late: the cheapest within the limit, within
        half of it, and within one and a half of it are looked at.
        """
        each = points.shape[1]
        serves = points.serves
        front = pareto_front(np.where(serves, 1.0 / points.tpot_s, np.nan), points.cost)
        found: dict[int, None] = {}
        if front.size:
            # cheapest of all that are as fast: the front falls with the time per output token
            below = np.searchsorted(points.tpot_s[front], points.tpot_s[serves], side="right") - 1
            over = np.full(serves.shape, np.inf)
            over[serves] = points.cost[serves] / points.cost[front][below]
            nearest = np.min(over.reshape(-1, each), axis=1)
            order = np.argsort(nearest, kind="stable")[:MOST_NEAR]
            found.update(dict.fromkeys(order[nearest[order] < NEAR].tolist()))
        within = serves if self.limits.tpot_s is None else serves & (points.tpot_s <= self.limits.tpot_s)
        late = (1.5, 1.0, 0.5) if self.limits.ttft_s is not None else (np.inf,)
        for part in late:
            kept = within & (points.ttft_s <= part * (self.limits.ttft_s or 1.0))
            cost = np.min(np.where(kept, points.cost, np.inf).reshape(-1, each), axis=1)
            order = np.argsort(cost, kind="stable")[:MOST_CHEAP]
            found.update(dict.fromkeys(order[np.isfinite(cost[order])].tolist()))
        return [divmod(place, points.shape[0]) for place in found]

    def _candidate(self, points: Points, blocks: list[Block], index: int) -> Candidate:
        block, row, column = points.locate(index)
        chosen, layout = blocks[block], self.options[row]
        per_rank = int(self.space.batches[column])
        placed = replace(layout, dp=max(1, self.space.cluster.num_chips // layout.chips_per_replica))
        return Candidate(
            layout=placed,
            precision=chosen.precision,
            mode=chosen.mode,
            batch_size=per_rank * layout.attention_dp * layout.pp,
            sequences_per_rank=per_rank,
            tpot_s=float(points.tpot_s[index]),
            ttft_s=float(points.ttft_s[index]),
            requests_per_s=float(points.rate[index]) * placed.num_chips / self.space.workload.output_len,
            output_tokens_per_s_per_chip=float(points.rate[index]),
            usd_per_mtok_output_all_in=float(points.cost[index]),
            usd_per_mtok_input=float(points.cost[index] * points.prefill_cost_share[index])
            * self.space.workload.output_len
            / self.space.workload.input_len,
            usd_per_mtok_output=float(points.cost[index] * (1.0 - points.prefill_cost_share[index])),
            prefill_utilisation=float(points.utilisation[index]),
            free_bytes=float(points.free_bytes[index]),
        )

    def _distinct(self, points: Points, order: Array, key: Callable[[int, int], object], most: int) -> list[int]:
        """The first point of each kind, in this order; `key` names the kind from (block, layout row)."""
        seen: dict[object, int] = {}
        for index in order[:20000]:
            block, row, _ = points.locate(int(index))
            seen.setdefault(key(block, row), int(index))
            if len(seen) == most:
                break
        return list(seen.values())

    def _deployment(self, candidate: Candidate) -> Deployment:
        return Deployment(
            model=self.space.model,
            cluster=self.space.cluster,
            layout=candidate.layout,
            precision=candidate.precision,
            calibration=self.space.calibration,
            routing=self.space.routing,
        )

    def _refined(self, candidate: Candidate, usd_per_chip_s: float) -> Candidate:
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
            usd_per_chip_s,
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
        usd_per_chip_s, _ = price_per_chip_s(self.space.cluster)
        return Inside(
            decode=decode,
            prefill=prefill,
            memory=memory,
            floors=floors(deployment, workload, best.tpot_s, best.usd_per_mtok_output, usd_per_chip_s),
        )

    def _why_nothing(self, points: Points, blocks: list[Block], found: Found) -> tuple[str, ClusterNeed | None]:
        space = self.space
        if not np.any(points.free_bytes >= 0):
            candidate = self._candidate(points, blocks, int(np.nanargmax(points.free_bytes)))
            has = space.cluster.chip.program_bytes * self.limits.memory_fraction
            needs = has - candidate.free_bytes
            need = smallest_cluster(space.model, space.workload, self.limits.memory_fraction)
            return (
                f"{space.model.name} fits nowhere on {space.cluster.name}: at best "
                f"({_short(candidate)}) a chip needs {format_bytes(needs)}, has {format_bytes(has)}"
            ), need
        if found.fastest is None or found.soonest is None:
            return "no batch that fits can be kept full: prefill is slower than decoding frees slots", None
        fastest, soonest = found.fastest, found.soonest
        parts = [f"nothing that fits keeps the limits; fastest tpot {fastest.tpot_s * 1e3:.3g} ms ({_short(fastest)})"]
        if self.limits.ttft_s is not None:
            parts.append(f"soonest ttft {soonest.ttft_s * 1e3:.3g} ms ({_short(soonest)})")
        return "; ".join(parts), None


def _style(layout: Layout, precision: Precision) -> object:
    """What makes a layout another style: tp, pp, moe_tp and precision."""
    return layout.tp, layout.pp, layout.moe_tp, precision.label


def _short(found: Candidate) -> str:
    return (
        f"{replace(found.layout, dp=1).label()} · {found.precision.short()} · {found.mode.label()} · "
        f"batch {found.batch_size:.4g}"
    )
