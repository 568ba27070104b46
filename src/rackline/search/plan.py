"""`plan`: the cheapest way to serve a model on a cluster under latency limits, and how far from the floors it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rackline.arch import AggregateModel, AnyModel
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.parallel import (
    Deployment,
    Layout,
    LayoutGrid,
    Precision,
    Routing,
    enumerate_layouts,
)
from rackline.passes import Batch, Calibration
from rackline.passes.features import Array
from rackline.search.candidate import Candidate, plan_points, price_per_chip_s
from rackline.search.choice import Choice, Inside
from rackline.search.disaggregated import Disaggregated
from rackline.search.evaluate import Block, Space
from rackline.search.fits import ClusterNeed, smallest_cluster
from rackline.search.floors import floors
from rackline.search.pareto import pareto_front
from rackline.search.points import Points
from rackline.search.pool_space import pools_beside
from rackline.search.rejected import Rejected, nearest_rejected
from rackline.search.space import BATCH_GRID, Constraints, default_modes, default_precisions
from rackline.serving.stack import stack_of
from rackline.serving.workload import Mode, Workload
from rackline.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer.

    Args:
        aggregated: the cheapest single engine that keeps every limit; None when there is none, see `reason`.
        pareto: front of tokens/s/user against cost, of all that fit, fastest first.
        ranked: cheapest single engine of each tp, pp, moe_tp and precision that keeps the limits, cheapest first.
        rejected: nearest candidate for each reason of rejection.
        candidates_evaluated: points whose times were computed.
        combinations: distinct layout × precision × mode among them.
        priced: False when costs are chip-hours, because the cluster has no price.
        reason: why no single engine keeps the limits; empty when one does.
        disaggregated: the search over separate pools for prefill and decode; None when not asked.
    """

    model: AnyModel
    cluster: Cluster
    workload: Workload
    constraints: Constraints
    calibration: Calibration
    aggregated: Choice | None
    pareto: tuple[Candidate, ...]
    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    candidates_evaluated: int
    combinations: int
    priced: bool
    reason: str = ""
    need: ClusterNeed | None = None
    assumptions: tuple[str, ...] = ()
    disaggregated: Disaggregated | None = None

    @property
    def pools(self) -> Choice | None:
        """The cheapest pair of pools that keeps every limit; None when there is none or none was asked for."""
        return self.disaggregated.best if self.disaggregated else None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The cheapest of each kind that keeps the limits, cheapest first."""
        found = [choice for choice in (self.aggregated, self.pools) if choice is not None]
        return tuple(sorted(found, key=lambda choice: choice.usd_per_mtok_output_all_in))

    @property
    def best(self) -> Choice | None:
        """The cheapest way to serve that keeps every limit, of one engine or of two pools; None when there is none."""
        return next(iter(self.choices), None)

    @property
    def runner_up(self) -> Choice | None:
        """The cheapest of the other kind; None when only one kind keeps the limits."""
        return self.choices[1] if len(self.choices) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data with the keys that other programs rely on."""
        best, second = self.best, self.runner_up
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "calibration": self.calibration.name,
            "evidence": self.calibration.evidence,
            "input_len": self.workload.input_len,
            "output_len": self.workload.output_len,
            "tpot_limit_s": self.constraints.tpot_s,
            "ttft_limit_s": self.constraints.ttft_s,
            "candidates_evaluated": self.candidates_evaluated,
            "combinations": self.combinations,
            "priced": self.priced,
            "best": best.as_dict() if best else None,
            "runner_up": second.as_dict() if second else None,
            "disaggregated": self.disaggregated.as_dict() if self.disaggregated else None,
            "pareto": [candidate.as_dict() for candidate in self.pareto],
            "ranked": [candidate.as_dict() for candidate in self.ranked],
            "rejected": [rejected.as_dict() for rejected in self.rejected],
            "reason": self.reason,
            "need": self.need.as_dict() if self.need else None,
            "assumptions": list(self.assumptions),
        }


def plan(
    model: AnyModel,
    cluster: Cluster,
    workload: Workload,
    *,
    calibration: Calibration,
    constraints: Constraints | None = None,
    precisions: Sequence[Precision] | None = None,
    modes: Sequence[Mode] | None = None,
    layouts: Sequence[Layout] | None = None,
    routing: Routing | None = None,
    batches: Array | None = None,
    threads: int = 2,
    pools: bool = True,
    prefill_on: Cluster | None = None,
    prefill_layouts: Sequence[Layout] | None = None,
    prefill_calibration: Calibration | None = None,
) -> Plan:
    """Look at every layout × precision × mode × batch and return the cheapest that keeps the limits.

    Args:
        model, cluster, workload: what is served, on what, for whom.
        precisions, modes, layouts, batches: restrict the space; the defaults are exhaustive
            (see `rackline.search.space` and `rackline.parallel.enumerate_layouts`).
        routing: how tokens spread over experts; as fitted to servers of the calibration's stack by default.
        pools: look at separate pools for prefill and decode as well.
        prefill_on: cluster of the prefill pool; chips of `cluster` by default.
        prefill_layouts: restrict the layouts of the prefill pool; all by default.
        prefill_calibration: numbers of the chip of `prefill_on`.

    Raises:
        InputError: an empty space.
    """
    limits = constraints or Constraints()
    options = list(layouts) if layouts is not None else enumerate_layouts(model, cluster.num_chips)
    if not options:
        raise InputError(what="layouts", given=0, allowed=f"at least one layout of {model.name}")
    chosen = list(precisions) if precisions else default_precisions(model, cluster.chip)
    space = Space(
        model=model,
        cluster=cluster,
        workload=workload,
        grid=LayoutGrid.of(options),
        precisions=chosen,
        modes=list(modes) if modes else default_modes(model),
        calibration=calibration,
        routing=routing or stack_of(calibration, cluster.chip.hbm_bytes).routing,
        batches=np.asarray(BATCH_GRID if batches is None else batches, dtype=np.float64),
        memory_fraction=limits.memory_fraction,
        threads=threads,
    )
    search = _Search(space=space, options=options, limits=limits)
    found, blocks = search.answer()
    if not pools or isinstance(model, AggregateModel) or (cluster.num_chips < 2 and prefill_on is None):
        return found
    both = pools_beside(space, options, limits, blocks, prefill_on, prefill_layouts, prefill_calibration)
    return replace(found, disaggregated=both)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    space: Space
    options: list[Layout]
    limits: Constraints

    def answer(self) -> tuple[Plan, list[Block]]:
        """The aggregated answer, and the points that it was chosen from."""
        blocks = list(self.space.blocks())
        usd_per_chip_s, priced = price_per_chip_s(self.space.cluster)
        points = Points.of(blocks, usd_per_chip_s, self.limits)
        if not np.any(points.evaluated):
            raise InputError(
                what="modes",
                given=", ".join(mode.label() for mode in self.space.modes),
                allowed="a mode without two-batch overlap, or a layout whose attention-dp ranks exchange tokens",
            )
        front = pareto_front(np.where(points.serves, 1.0 / points.tpot_s, np.nan), points.cost)
        kept = np.flatnonzero(points.serves & points.meets)
        order = kept[np.argsort(points.cost[kept], kind="stable")]
        ranked = self._distinct(points, blocks, order, lambda block, row: self._style(blocks, block, row), 10)
        # the grid of batches is coarse: each of the cheapest combinations may be the best between its points
        near = self._distinct(points, blocks, order, lambda block, row: (block, row), 12)
        refined = [self._refined(candidate, usd_per_chip_s) for candidate in near]
        best = min(refined, key=lambda option: option.usd_per_mtok_output_all_in, default=None)
        rejected = nearest_rejected(
            cost=points.cost,
            tpot_s=points.tpot_s,
            ttft_s=points.ttft_s,
            free_bytes=points.free_bytes,
            utilisation=points.utilisation,
            limits=self.limits,
            best_cost=best.usd_per_mtok_output_all_in if best else np.inf,
            describe=lambda index: self._candidate(points, blocks, index).as_dict(),
            short=lambda index: self._short(points, blocks, index),
        )
        reason, need = ("", None) if best else self._why_nothing(points, blocks)
        answer = Plan(
            model=self.space.model,
            cluster=self.space.cluster,
            workload=self.space.workload,
            constraints=self.limits,
            calibration=self.space.calibration,
            aggregated=Choice(steady=best, inside=self._inside(best)) if best else None,
            pareto=tuple(self._candidate(points, blocks, int(i)) for i in front),
            ranked=tuple(ranked),
            rejected=tuple(rejected),
            candidates_evaluated=int(np.count_nonzero(points.evaluated)),
            combinations=self.space.combinations,
            priced=priced,
            reason=reason,
            need=need,
            assumptions=(
                "one request length; arrivals that just keep the batch full",
                "KV of every sequence reserved at its final context",
                f"chips that no replica uses are not paid; experts chosen by {self.space.routing.label()}",
                f"calibration {self.space.calibration.name} ({self.space.calibration.evidence})",
            ),
        )
        return answer, blocks

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

    def _short(self, points: Points, blocks: list[Block], index: int) -> str:
        found = self._candidate(points, blocks, index)
        return (
            f"{replace(found.layout, dp=1).label()} · {found.precision.short()} · {found.mode.label()} · "
            f"batch {found.batch_size}"
        )

    def _distinct(
        self,
        points: Points,
        blocks: list[Block],
        order: Array,
        key: Callable[[int, int], object],
        most: int,
    ) -> list[Candidate]:
        """The first candidate of each kind, in this order; `key` names the kind from (block, layout row)."""
        seen: set[object] = set()
        found: list[Candidate] = []
        for index in order[:20000]:
            block, row, _ = points.locate(int(index))
            kind = key(block, row)
            if kind not in seen:
                seen.add(kind)
                found.append(self._candidate(points, blocks, int(index)))
            if len(found) == most:
                break
        return found

    def _style(self, blocks: list[Block], block: int, row: int) -> object:
        """What makes a layout another style: tp, pp, moe_tp and precision."""
        layout = self.options[row]
        return layout.tp, layout.pp, layout.moe_tp, blocks[block].precision.label

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

    def _why_nothing(self, points: Points, blocks: list[Block]) -> tuple[str, ClusterNeed | None]:
        space = self.space
        if not np.any(points.free_bytes >= 0):
            tightest = int(np.nanargmax(points.free_bytes))
            candidate = self._candidate(points, blocks, tightest)
            has = space.cluster.chip.program_bytes * self.limits.memory_fraction
            needs = has - candidate.free_bytes
            need = smallest_cluster(space.model, space.workload, self.limits.memory_fraction)
            return (
                f"{space.model.name} fits nowhere on {space.cluster.name}: at best "
                f"({self._short(points, blocks, tightest)}) a chip needs {format_bytes(needs)}, "
                f"has {format_bytes(has)}"
            ), need
        serves = points.serves
        if not np.any(serves):
            return "no batch that fits can be kept full: prefill is slower than decoding frees slots", None
        fastest = int(np.nanargmin(np.where(serves, points.tpot_s, np.nan)))
        parts = [
            f"nothing that fits keeps the limits; fastest tpot {points.tpot_s[fastest] * 1e3:.3g} ms "
            f"({self._short(points, blocks, fastest)})"
        ]
        if self.limits.ttft_s is not None:
            soonest = int(np.nanargmin(np.where(serves, points.ttft_s, np.nan)))
            parts.append(f"soonest ttft {points.ttft_s[soonest] * 1e3:.3g} ms ({self._short(points, blocks, soonest)})")
        return "; ".join(parts), None
