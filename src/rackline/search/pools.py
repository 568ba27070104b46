"""The search over pools: the cheapest prefill pool, decode pool and ratio of both, with the details of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from rackline.arch import AnyModel, Model
from rackline.errors import InputError
from rackline.hardware import Cluster, FabricLevel
from rackline.parallel import Deployment, Layout, MemoryUse
from rackline.passes import Batch, PassTime
from rackline.passes.features import Array
from rackline.rounding import rounded
from rackline.search.candidate import MANY_RANKS, Pool, PoolPair, price_per_chip_s
from rackline.search.choice import Choice, Inside, floors
from rackline.search.points import firsts, pareto_front
from rackline.search.pool_pairs import Budget, Pairs, pair
from rackline.search.pool_points import (
    WAITING_PROMPTS,
    PoolPoints,
    best_loaded,
    decode_modes,
    decode_points,
    prefill_modes,
    prefill_points,
    undominated,
)
from rackline.search.single_engines import CONTENDERS
from rackline.search.space import Part, Space
from rackline.serving.disaggregated import kv_transfer, prefill_chunk, shared_level
from rackline.serving.workload import Mode, Workload
from rackline.system import Constraints

_NEAR, _PAIRED = 12, 4  # cheapest decode engines, and how many of them are paired with other prefill replicas too


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregated:
    """Result of the search over both pools.

    Args:
        best: cheapest pair that meets the limits, None when there is none, see `reason`.
        contenders: the cheapest pairs by their estimates, cheapest first.
        pareto: front of tokens/s/user against cost among the pairs that keep the time to first token.
        candidates_evaluated: points of both pools whose times were computed.
        pairs_compared: combinations of both pools that were compared.
    """

    json_keys: ClassVar = (
        "pareto",
        "candidates_evaluated",
        "pairs_compared",
        "reason",
    )

    best: Choice | None
    pareto: tuple[PoolPair, ...]
    candidates_evaluated: int
    pairs_compared: int
    contenders: tuple[Choice, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The search space of one pool, with its schedulers and its link to the other pool."""

    space: Space
    modes: list[Mode]
    link: FabricLevel

    @classmethod
    def of(cls, space: Space, link: FabricLevel, modes: Callable[[bool], list[Mode]]) -> Side:
        """A pool with its schedulers; overlapped ones where ranks exchange tokens."""
        return cls(space=space, modes=modes(bool(np.any(space.grid.attention_dp > 1))), link=link)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the pool."""
        return self.space.system.cluster

    def layout(self, row: int, cp: int, replicas: int) -> Layout:
        """The layout of a point: of attention-dp ranks that share contexts, cp form one group."""
        layout = replace(self.space.grid.layout(row), dp=replicas)
        if cp == 1:
            return layout
        ranks = layout.attention_dp // cp if layout.attention_dp % cp == 0 and layout.attention_dp > 1 else 1
        return replace(layout, attention_dp=ranks, cp=cp)

    def pool(self, points: PoolPoints, at: int, replicas: int, requests_per_s: float) -> Pool:
        """Replicas of a point at a rate of all of them."""
        layout, per_rank = self.layout(int(points.row[at]), int(points.cp[at]), replicas), int(points.per_rank[at])
        most = replicas * float(points.requests_per_s[at])
        return Pool(
            cluster=self.cluster.name,
            layout=layout,
            precision=self.space.system.precisions[int(points.label[at])],
            mode=self.modes[int(points.mode[at])],
            batch_size=per_rank * layout.attention_dp * layout.pp,
            sequences_per_rank=per_rank,
            seconds=float(points.seconds[at]),
            requests_per_s=most,
            load=requests_per_s / most,
        )


def pool_links(decode: Cluster, prefill: Cluster | None) -> tuple[FabricLevel, FabricLevel]:
    """Fabric levels over which the KV cache leaves the prefill pool and arrives at the decode pool.

    Raises:
        InputError: the pools are on two clusters, one of which has no network.
    """
    if prefill is None:
        level = shared_level(decode.scale_up, decode.num_chips, decode.scale_out)
        return level, level
    if prefill.scale_out is None or decode.scale_out is None:
        lacking = prefill if prefill.scale_out is None else decode
        raise InputError(what="pools", given=lacking.name, allowed="clusters with a network that joins them")
    return prefill.scale_out, decode.scale_out


def _caveat(prefill: Layout, decode: Layout, workload: Workload) -> str:
    """Known error of the estimate of a pair against the simulator; empty if there is none."""
    known = (
        (prefill.cp > 1 or decode.cp > 1, "context parallelism has not been checked against a simulation"),
        (
            prefill.attention_dp >= MANY_RANKS,
            f"prompts of equal length; spread ones wait up to a third longer on {prefill.attention_dp} ranks",
        ),
        (
            workload.mixture is not None and workload.input_cv2 > 0.0,
            "prompts of unlike lengths before a prefill pool: time to first token to within a quarter",
        ),
    )
    return next((error for applies, error in known if applies), "")


def without_context(layout: Layout, model: AnyModel) -> Layout:
    """The layout whose tables a context-parallel layout uses, in which the ranks hold different sequences."""
    if layout.cp == 1:
        return layout
    spread = isinstance(model, Model) and model.is_moe
    return replace(layout, attention_dp=layout.attention_dp * layout.cp if spread else 1, cp=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSearch:
    """The search over all pairs of a prefill and a decode pool that the chips allow: evaluate all parts, then answer.

    Args:
        prefill, decode: both pools; a shared space is evaluated once.
    """

    prefill: Side
    decode: Side
    limits: Constraints
    _prefill_points: list[PoolPoints] = field(default_factory=list[PoolPoints], init=False, repr=False)
    _decode_points: list[PoolPoints] = field(default_factory=list[PoolPoints], init=False, repr=False)

    @classmethod
    def of(cls, decode: Space, limits: Constraints, prefill: Space) -> PoolSearch:
        """A search with nothing evaluated yet.

        Args:
            decode, prefill: spaces of both pools, one where they share chips and layouts; precisions in the same order.

        Raises:
            InputError: the pools are on two clusters, one of which has no network.
        """
        ideal = decode.system.calibration.is_unit
        ends = [each.system.cluster.without_latency() if ideal else each.system.cluster for each in (decode, prefill)]
        links = pool_links(ends[0], None if prefill.system.cluster is decode.system.cluster else ends[1])
        return cls(
            prefill=Side.of(prefill, links[0], prefill_modes),
            decode=Side.of(decode, links[1], decode_modes),
            limits=limits.of_predictions("pools"),
        )

    def look_at(self, part: Part) -> None:
        """Evaluate some layouts of the decode pool in one precision, and of the prefill pool where it has the same."""
        points = decode_points(part, self.decode.modes, self.decode.link)
        self._decode_points.append(undominated(points))
        if self.prefill.space is self.decode.space:
            self._prefill(part)

    def _prefill(self, part: Part) -> None:
        points = prefill_points(part, self.prefill.modes, self.prefill.link)
        self._prefill_points.append(best_loaded(points, self.slack_s))

    def answer(self, most: int = CONTENDERS) -> Disaggregated:
        """Pair everything that was evaluated.

        Args:
            most: contenders; from a few on they have other partners than the cheapest by estimates [count].
        """
        if self.prefill.space is not self.decode.space:
            for part in self.prefill.space.parts():
                self._prefill(part)
        first = best_loaded(PoolPoints.join(self._prefill_points).in_order(), self.slack_s)
        then = undominated(PoolPoints.join(self._decode_points).in_order())
        evaluated = first.evaluated + then.evaluated
        if not first.fitting or not then.fitting:
            pool = "prefill" if not first.fitting else "decode"
            return Disaggregated(
                best=None, pareto=(), candidates_evaluated=evaluated, pairs_compared=0, reason=f"no {pool} pool fits"
            )
        pairs, compared = pair(first, then, self.budget, self.slack_s)
        cost = pairs.usd_per_request
        front = pareto_front(np.where(np.isfinite(cost), 1.0 / then.seconds, np.nan), cost)
        meets = np.isfinite(cost)
        if self.limits.tpot_s is not None:
            meets &= then.seconds <= self.limits.tpot_s
        kept = np.flatnonzero(meets)
        near = kept[np.argsort(rounded(cost[kept]), kind="stable")]
        near = near[firsts(np.stack([then.label, then.mode, then.row, then.cp], axis=1)[near])][: min(_NEAR, most)]
        options = [self._refined(first, then, pairs, int(index)) for index in near]
        if most > _PAIRED:
            options += self._other_partners(first, then.take(near[:_PAIRED]), pairs.partner[near[:_PAIRED]])
        options.sort(key=lambda option: float(rounded(option.usd_per_mtok_output_all_in)))
        contenders = tuple(
            Choice(workload=self.decode.space.workload, estimate=one, inside=self._inside(one))
            for one in options[:most]
        )
        shown = [self._pair(first, then, pairs, int(index)) for index in front]
        again = pareto_front(
            np.array([one.tokens_per_s_per_user for one in shown]),
            np.array([one.usd_per_mtok_output_all_in for one in shown]),
        )
        return Disaggregated(
            best=contenders[0] if contenders else None,
            contenders=contenders,
            pareto=tuple(shown[int(index)] for index in again),
            candidates_evaluated=evaluated,
            pairs_compared=compared,
            reason="" if contenders else self._why_nothing(first, then, cost),
        )

    def _other_partners(self, first: PoolPoints, then: PoolPoints, partner: Array) -> list[PoolPair]:
        """Decode points with other prefill replicas than the cheapest by their estimate, whose waits are known worse.

        Args:
            partner: of each decode point, its cheapest.
        """
        found: list[tuple[float, int, int, Pairs]] = []
        for at in range(first.chips.size):
            pairs, _ = pair(first.take(np.array([at])), then, self.budget, self.slack_s)
            costs = np.where(partner == at, np.inf, pairs.usd_per_request)
            found += [(cost, at, index, pairs) for index, cost in enumerate(costs.tolist()) if np.isfinite(cost)]
        cheapest = sorted(found, key=lambda one: one[0])[:_NEAR]
        return [self._refined(first.take(np.array([at])), then, pairs, index) for _, at, index, pairs in cheapest]

    def _inside(self, pair: PoolPair) -> Inside:
        prefill, prefill_memory = self._prefilling(pair.prefill)
        decode, memory = self._decoding(pair.decode)
        limits = floors(
            self._deployment(pair.decode, self.decode),
            self.decode.space.workload,
            pair.tpot_s,
            pair.usd_per_mtok_output,
            self.budget.decode_usd_per_chip_s,
        )
        return Inside(
            decode=decode,
            prefill=prefill,
            memory=memory,
            prefill_memory=prefill_memory,
            # with shared contexts the floor of one replica is not meaningful
            floors=limits if pair.decode.layout.cp == 1 else None,
        )

    def _deployment(self, pool: Pool, side: Side) -> Deployment:
        system = side.space.system
        return system.deployment(without_context(pool.layout, system.model), pool.precision)

    def _decoding(self, pool: Pool) -> tuple[PassTime, MemoryUse]:
        """A step of a decode pool, and the memory of its fullest chip; the exchange of shared contexts is no row."""
        space, cp = self.decode.space, pool.layout.cp
        deployment, work = self._deployment(pool, self.decode), space.workload
        layout, per_rank = deployment.layout, pool.sequences_per_rank
        batch = Batch(
            decode_sequences=float(per_rank),
            context_len=work.mean_context / cp,
            group_tokens=float(per_rank * layout.attention_dp / cp),
        )
        memory = deployment.memory(
            sequences=float(per_rank * layout.attention_dp * layout.pp),
            context_len=work.final_context / cp,
            server=space.system.server(space.system.stack.scheduler.max_num_seqs),
        )
        return deployment.table().time(batch), memory

    def _prefilling(self, pool: Pool) -> tuple[PassTime, MemoryUse]:
        """A full pass of a prefill pool, and the memory of its fullest chip; the same of shared prompts."""
        space, cp, tokens = self.prefill.space, pool.layout.cp, float(pool.mode.max_batched_tokens)
        deployment, work = self._deployment(pool, self.prefill), space.workload
        layout = deployment.layout
        batch = replace(prefill_chunk(work, tokens, cp), group_tokens=tokens * layout.attention_dp)
        memory = deployment.memory(
            sequences=max(tokens * cp / work.new_tokens, 1.0) * WAITING_PROMPTS * layout.attention_dp * layout.pp,
            context_len=work.input_len / cp,
            server=space.system.server(tokens),
        )
        return deployment.table().time(batch), memory

    @property
    def slack_s(self) -> float | None:
        """Part of the time to first token that is left for prompts [s]."""
        if self.limits.ttft_s is None:
            return None
        constant = self.prefill.space.system.stack.prefill_pool().arrivals.beyond_passes_s(self.decode.space.workload)
        return self.limits.ttft_s - constant - max(self.prefill.link.latency_s, self.decode.link.latency_s)

    @property
    def budget(self) -> Budget:
        """Chips and prices."""
        return Budget(
            prefill_chips=self.prefill.cluster.num_chips,
            decode_chips=self.decode.cluster.num_chips,
            shared_chips=self.decode.cluster.num_chips if self.prefill.cluster is self.decode.cluster else None,
            prefill_usd_per_chip_s=price_per_chip_s(self.prefill.cluster),
            decode_usd_per_chip_s=price_per_chip_s(self.decode.cluster),
            prefill_on=self.prefill.cluster,
            decode_on=self.decode.cluster,
        )

    def _refined(self, first: PoolPoints, then: PoolPoints, pairs: Pairs, index: int) -> PoolPair:
        """The best integer batch size between the grid point and the next, with the same layouts."""
        base = self._pair(first, then, pairs, index)
        batches = self.decode.space.batches
        at = int(then.per_rank[index])
        above = batches[batches > at]
        stop = int(above[0]) if above.size else at + 1
        tries = np.unique(np.linspace(at, stop, num=min(stop - at + 1, 33)).astype(int)).astype(float)
        row, label = int(then.row[index]), int(then.label[index])
        space = self.decode.space
        part = space.one(space.grid.layout(row), space.system.precisions[label], tries)
        mode = self.decode.modes[int(then.mode[index])]
        finer = decode_points(part, [mode], self.decode.link)
        finer = finer.take(np.flatnonzero(finer.cp == then.cp[index]))
        same = ("label", "row", "mode", "alone_s")
        finer = replace(finer, **{name: np.full(finer.row.size, getattr(then, name)[index]) for name in same})
        if self.limits.tpot_s is not None:
            finer = finer.take(np.flatnonzero(finer.seconds <= self.limits.tpot_s))
        if finer.chips.size == 0:
            return base
        again, _ = pair(first, finer, self.budget, self.slack_s)
        best = int(np.argmin(again.usd_per_request))
        if not again.usd_per_request[best] < pairs.usd_per_request[index]:
            return base
        return self._pair(first, finer, again, best)

    def _pair(self, first: PoolPoints, then: PoolPoints, pairs: Pairs, index: int) -> PoolPair:
        partner, budget, work = int(pairs.partner[index]), self.budget, self.decode.space.workload
        rate, cost = float(pairs.requests_per_s[index]), float(pairs.usd_per_request[index])
        n_first, n_then = int(pairs.prefill_replicas[index]), int(pairs.decode_replicas[index])
        prefill = self.prefill.pool(first, partner, n_first, rate)
        decode = self.decode.pool(then, index, n_then, rate)
        transfer = kv_transfer(
            self.decode.space.system.model,
            work,
            decode.precision,
            prefill_layout=prefill.layout,
            decode_layout=decode.layout,
            prefill_link=self.prefill.link,
            decode_link=self.decode.link,
        )
        constant = self.prefill.space.system.stack.prefill_pool().arrivals.beyond_passes_s(work)
        prompt_s = float(first.passes(partner).prompt_s(prefill.load, n_first))
        one, other = budget.taken(
            np.array(float(prefill.layout.chips_per_replica)), np.array(float(decode.layout.chips_per_replica))
        )
        paid = budget.billed(n_first * one, n_then * other)
        first_usd = float(paid[0]) * budget.prefill_usd_per_chip_s / rate
        return PoolPair(
            prefill=prefill,
            decode=decode,
            transfer=transfer,
            tpot_s=then.tpot_s(index, rate / n_then),
            ttft_s=constant + prompt_s + transfer.seconds,
            ttft_alone_s=constant + float(first.alone_s[partner]) + transfer.seconds,
            caveat=_caveat(prefill.layout, decode.layout, work),
            requests_per_s=rate,
            billed_chips=round(float(paid[0] + paid[1])),
            output_tokens_per_s_per_chip=rate * work.output_len / (prefill.num_chips + decode.num_chips),
            usd_per_mtok_output_all_in=cost / work.output_len * 1e6,
            usd_per_mtok_input=first_usd / work.input_len * 1e6,
            usd_per_mtok_output=(cost - first_usd) / work.output_len * 1e6,
        )

    def _why_nothing(self, first: PoolPoints, then: PoolPoints, cost: Array) -> str:
        if first.chips.size == 0:
            return "no prefill pool meets the time to first token"
        if not np.any(np.isfinite(cost)):
            return f"no two pools fit into {self.decode.cluster.num_chips} chips together"
        return f"no decode pool meets the time per output token: the fastest takes {then.seconds.min() * 1e3:.3g} ms"
