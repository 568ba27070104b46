"""Points of disaggregated serving: every prefill and every decode replica, and the cheapest way to pair them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from rackline.arch import Model
from rackline.hardware import FabricLevel
from rackline.parallel import Layout, memory_use
from rackline.parallel.memory import kv_bytes_per_sequence
from rackline.passes.features import Array, FloatLike, as_array
from rackline.search.evaluate import Part, Space
from rackline.search.pareto import pareto_front
from rackline.search.pool_ratios import ChipLimit, nearest_ratios
from rackline.serving.context import ContextGroup, context_decode_s, exchange_s, kv_exchange_bytes
from rackline.serving.disaggregated import MOST_LOAD, prefill_load, prefill_rate
from rackline.serving.workload import Mode, Workload

PREFILL_BUDGETS = (2048, 4096, 8192, 16384, 32768)  # new tokens of a pass on one rank
LONG_PROMPT = 16384  # tokens from which on context parallelism is looked at
_PAIRS = 200_000  # looked at a time: bounds the memory
_COUNTS = ("evaluated", "fitting")
WAITING_PROMPTS = 2.0  # passes' worth of KV on a prefill chip: one being made, one being sent


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPoints:
    """Replicas of one pool; arrays of one length.

    Args:
        label: precision of each, as an index into `precisions`.
        mode: scheduler of each, as an index into `modes`.
        row: layout of each, as an index into the list of layouts.
        per_rank: sequences of a rank and micro-batch; 0 in a prefill pool [sequences].
        chips: of one replica [count].
        seconds: time per output token of a decode replica, service time of a prefill replica [s].
        requests_per_s: of one replica, no more than its links can send or receive [requests/s].
        link_s: time to send or to receive the KV cache of one prompt [s].
        together: prompts that a prefill replica serves at a time; 1 in a decode pool [requests].
        cp: ranks that share one context [count].
        evaluated: points whose times were computed [count].
        fitting: points among them that fit, whichever are left of them [count].
    """

    label: Array
    mode: Array
    row: Array
    per_rank: Array
    chips: Array
    seconds: Array
    requests_per_s: Array
    link_s: Array
    together: Array
    cp: Array
    evaluated: int
    fitting: int

    def take(self, index: Array) -> PoolPoints:
        """The points of an index."""
        arrays = {name: getattr(self, name)[index] for name in self.__slots__ if name not in _COUNTS}
        return PoolPoints(**arrays, evaluated=self.evaluated, fitting=self.fitting)

    @classmethod
    def join(cls, parts: list[PoolPoints]) -> PoolPoints:
        """Several pools end to end."""
        names = [name for name in cls.__slots__ if name not in _COUNTS]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        evaluated, fitting = (sum(getattr(part, name) for part in parts) for name in _COUNTS)
        return cls(**arrays, evaluated=evaluated, fitting=fitting)

    def in_order(self) -> PoolPoints:
        """By precision, scheduler, context ranks, layout and batch: the order in which the first of equals counts."""
        return self.take(np.lexsort((self.per_rank, self.row, self.cp, self.mode, self.label)))


def prefill_modes(overlap: bool) -> list[Mode]:
    """Schedulers of a prefill pool: full passes of each budget, plain and overlapped."""
    return [
        Mode(admission="prefill_first", max_batched_tokens=budget, two_batch_overlap=two)
        for two in ((False, True) if overlap else (False,))
        for budget in PREFILL_BUDGETS
    ]


def decode_modes(overlap: bool) -> list[Mode]:
    """Schedulers of a decode pool: plain and overlapped."""
    return [Mode(admission="chunked", two_batch_overlap=two) for two in ((False, True) if overlap else (False,))]


def context_sizes(workload: Workload) -> tuple[int, ...]:
    """Ranks that may share one context: only long prompts are worth the exchange."""
    return (1, 2, 4, 8, 16) if workload.input_len >= LONG_PROMPT else (1,)


def _context_rows(space: Space, cp: int) -> tuple[Array, int]:
    """Layouts whose ranks can form context groups, and how many times their chips are needed for it.

    With experts the attention-dp ranks form the groups; without, the chips of a replica are taken cp times.
    """
    if cp == 1:
        return np.ones(len(space.grid), dtype=bool), 1
    if isinstance(space.model, Model) and space.model.is_moe:
        return space.grid.attention_dp % cp == 0, 1
    return space.grid.chips_per_replica * cp <= space.cluster.num_chips, cp


def prefill_points(part: Part, modes: list[Mode], link: FabricLevel) -> PoolPoints:
    """Every layout × scheduler that only prefills and fits.

    Args:
        link: level over which the KV cache leaves.
    """
    space, precision = part.space, part.precision
    engine = replace(part.engine, stack=part.engine.stack.prefill_pool())
    grid, work = space.grid, space.workload
    pp = as_array(grid.pp)
    parts: list[PoolPoints] = []
    whole = float(as_array(kv_bytes_per_sequence(space.model, Layout(), precision, work.input_len)))
    link_s = whole / (as_array(grid.tp) * pp) / link.bytes_per_s_each_way
    for (index, mode), cp in itertools.product(enumerate(modes), context_sizes(work)):
        shares, replicated = _context_rows(space, cp)
        exchange: FloatLike = 0.0
        if cp > 1 and isinstance(space.model, Model):
            group = ContextGroup(cp=cp, tp=as_array(grid.tp))
            sent = kv_exchange_bytes(space.model, precision, work, mode.max_batched_tokens, group)
            exchange = exchange_s(engine, space.cluster, sent, group, "all_gather")
        rate = prefill_rate(
            engine,
            work,
            mode.max_batched_tokens,
            pp,
            two_batch_overlap=mode.two_batch_overlap,
            cp=cp,
            replicated=replicated,
            exchange_seconds=exchange,
        )
        prompts = max(mode.max_batched_tokens * cp / work.new_tokens, 1.0) / cp
        free = memory_use(
            space.model,
            grid,
            precision,
            space.cluster.chip,
            space.server(float(mode.max_batched_tokens)),
            sequences_per_rank=prompts * WAITING_PROMPTS * pp,
            context_len=work.input_len,
        ).free
        shares = shares & space.launches(precision, mode, "prefill", cp)
        fits = np.broadcast_to(as_array(free) >= 0, (len(grid),)) & shares
        if mode.two_batch_overlap:
            fits = fits & (grid.attention_dp > 1)
        rows = np.flatnonzero(fits)
        parts.append(
            PoolPoints(
                label=np.full(rows.size, part.label),
                mode=np.full(rows.size, index),
                row=part.start + rows,
                per_rank=np.zeros(rows.size),
                chips=grid.chips_per_replica[rows] * replicated,
                seconds=np.broadcast_to(rate.service_s, (len(grid),))[rows],
                requests_per_s=np.minimum(rate.prompts_per_s, as_array(grid.attention_dp) * replicated / link_s)[rows],
                link_s=link_s[rows] / cp,
                together=np.broadcast_to(rate.together, (len(grid),))[rows],
                cp=np.full(rows.size, cp),
                evaluated=int(np.sum((grid.attention_dp > 1) & shares if mode.two_batch_overlap else shares)),
                fitting=rows.size,
            )
        )
    return PoolPoints.join(parts)


def decode_points(part: Part, modes: list[Mode], link: FabricLevel) -> PoolPoints:
    """Every layout × scheduler × batch that only decodes and fits.

    Args:
        link: level over which the KV cache arrives.
    """
    space, precision, engine = part.space, part.precision, part.engine
    grid, work, b = space.grid, space.workload, space.batches[None, :]
    ranks, pp = as_array(grid.attention_dp)[:, None], as_array(grid.pp)[:, None]
    parts: list[PoolPoints] = []
    received = as_array(kv_bytes_per_sequence(space.model, grid, precision, work.input_len))
    link_s = np.broadcast_to(received / link.bytes_per_s_each_way, (len(grid),))
    for (index, mode), cp in itertools.product(enumerate(modes), context_sizes(work)):
        overlap = mode.two_batch_overlap
        shares, replicated = _context_rows(space, cp)
        if cp > 1 and overlap:
            continue  # the batch of a context group is small
        free = np.broadcast_to(part.free_bytes(space.stack.max_num_seqs, cp), (len(grid), b.size))
        shares = shares & space.launches(precision, mode, "decode", cp)
        fits = (free >= 0) & shares[:, None]
        if cp > 1 and isinstance(space.model, Model):
            group = ContextGroup(cp=cp, tp=as_array(grid.tp))
            step = context_decode_s(engine, space.model, space.cluster, work, b, group, threads=space.threads)
        else:
            step = part.decode_s(overlap)
        tpot = np.broadcast_to(step, fits.shape)
        groups = ranks * replicated / cp
        rate = np.minimum(b * groups * pp / (tpot * (work.output_len - 1.0)), ranks * replicated / link_s[:, None])
        usable = fits & (grid.attention_dp > 1)[:, None] & (b >= 2) if overlap else fits
        rows, columns = np.nonzero(usable)
        parts.append(
            PoolPoints(
                label=np.full(rows.size, part.label),
                mode=np.full(rows.size, index),
                row=part.start + rows,
                per_rank=space.batches[columns],
                chips=grid.chips_per_replica[rows] * replicated,
                seconds=tpot[rows, columns],
                requests_per_s=rate[rows, columns],
                link_s=link_s[rows] / cp,
                together=np.ones(rows.size),
                cp=np.full(rows.size, cp),
                evaluated=int(np.sum((grid.attention_dp > 1) & shares if overlap else shares)) * b.size,
                fitting=rows.size,
            )
        )
    return PoolPoints.join(parts)


def undominated(points: PoolPoints, limit_s: float | None = None) -> PoolPoints:
    """Of each precision and size of a replica, what no other beats in time and in rate.

    Args:
        limit_s: largest time; nothing slower is kept [s].
    """
    keep: list[Array] = []
    usable = np.ones(points.chips.size, dtype=bool) if limit_s is None else points.seconds <= limit_s
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.flatnonzero(usable)
    order = order[np.argsort(kind[order], kind="stable")]
    for group in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        if group.size:
            keep.append(group[pareto_front(points.requests_per_s[group], points.seconds[group])])
    return points.take(np.concatenate(keep) if keep else np.empty(0, dtype=np.int64))


def best_loaded(points: PoolPoints, slack_s: float | None, most: int = 2) -> PoolPoints:
    """Of each precision and size of a prefill replica, the few that serve most requests within the time to first token.

    Args:
        slack_s: time to first token less its constant part; None for no limit [s].
        most: how many of each to keep [count].
    """
    rate = points.requests_per_s * effective_load(points.seconds, points.link_s, points.together, slack_s)
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.lexsort((-rate, kind))
    order = order[rate[order] > 0]
    first = np.searchsorted(kind[order], kind[order], side="left")
    return points.take(order[np.arange(order.size) - first < most])


def effective_load(service_s: Array, transfer_s: Array, together: Array, slack_s: float | None) -> Array:
    """Load at which a prefill replica keeps the time to first token; MOST_LOAD without a limit."""
    if slack_s is None:
        return np.full(np.broadcast_shapes(service_s.shape, transfer_s.shape), MOST_LOAD)
    return prefill_load(slack_s - service_s - transfer_s, service_s, together)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Chips and prices of both pools.

    Args:
        prefill_chips, decode_chips: most that each pool may use [count].
        shared_chips: most that both may use together; None for pools on clusters of their own [count].
        prefill_usd_per_chip_s, decode_usd_per_chip_s: [USD/s].
    """

    prefill_chips: int
    decode_chips: int
    shared_chips: int | None
    prefill_usd_per_chip_s: float
    decode_usd_per_chip_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """For each decode point its cheapest partner; infinite cost where there is none.

    Args:
        usd_per_request: [USD].
        requests_per_s: of both pools together [requests/s].
        partner: index of the prefill point.
        prefill_replicas, decode_replicas: [count].
        evaluated: prefill points that were compared, over all decode points [count].
    """

    usd_per_request: Array
    requests_per_s: Array
    partner: Array
    prefill_replicas: Array
    decode_replicas: Array
    evaluated: int


def pair(prefill: PoolPoints, decode: PoolPoints, budget: Budget, slack_s: float | None) -> Pairs:
    """The cheapest prefill pool and the best ratio for each decode point, in whole replicas.

    A request costs (n a + m c) / min(n f, m r): least where m / n is nearest to f / r, from below or from above, so
    that these two are all that is looked at, however many replicas there are; see `nearest_ratios`.

    Args:
        slack_s: time to first token less its constant part; None for no limit [s].
    """
    size = decode.chips.size
    found = Pairs(
        usd_per_request=np.full(size, np.inf),
        requests_per_s=np.zeros(size),
        partner=np.zeros(size, dtype=np.int64),
        prefill_replicas=np.zeros(size, dtype=np.int64),
        decode_replicas=np.zeros(size, dtype=np.int64),
        evaluated=0,
    )
    evaluated = 0
    for label in np.unique(decode.label):
        mine = np.flatnonzero(decode.label == label)
        others = np.flatnonzero(prefill.label == label)
        if others.size == 0:
            continue
        step = max(1, _PAIRS // others.size)
        for start in range(0, mine.size, step):
            part = mine[start : start + step]
            cost, rate, counts = _costs(prefill, decode, part, others, budget, slack_s)
            evaluated += cost.size
            best = np.argmin(cost, axis=1)
            row = np.arange(part.size)
            found.usd_per_request[part] = cost[row, best]
            found.requests_per_s[part] = rate[row, best]
            found.partner[part] = others[best]
            found.prefill_replicas[part], found.decode_replicas[part] = counts[:, row, best]
    return Pairs(
        **{name: getattr(found, name) for name in Pairs.__slots__ if name != "evaluated"},
        evaluated=evaluated,
    )


def _costs(
    prefill: PoolPoints, decode: PoolPoints, part: Array, others: Array, budget: Budget, slack_s: float | None
) -> tuple[Array, Array, Array]:
    """Cost of a request, requests/s, and prefill and decode replicas: (decode points, prefill points) each."""
    shape = (part.size, others.size)
    rate_d, chips_d = decode.requests_per_s[part][:, None], decode.chips[part][:, None]
    transfer = np.maximum(prefill.link_s[others][None, :], decode.link_s[part][:, None])
    load = effective_load(prefill.seconds[others][None, :], transfer, prefill.together[others][None, :], slack_s)
    rate_p, chips_p = prefill.requests_per_s[others][None, :] * load, prefill.chips[others][None, :]
    first = np.broadcast_to(as_array(chips_p), shape).ravel()
    then = np.broadcast_to(as_array(chips_d), shape).ravel()
    if budget.shared_chips is not None:
        limits = [ChipLimit(prefill_chips=first, decode_chips=then, num_chips=budget.shared_chips)]
    else:
        none = np.zeros(first.shape)
        limits = [
            ChipLimit(prefill_chips=first, decode_chips=none, num_chips=budget.prefill_chips),
            ChipLimit(prefill_chips=none, decode_chips=then, num_chips=budget.decode_chips),
        ]
    best_cost = np.full(shape, np.inf)
    best_rate, best_counts = np.zeros(shape), np.zeros((2, *shape), dtype=np.int64)
    for counts in nearest_ratios(np.broadcast_to(rate_p / rate_d, shape).ravel(), limits):
        n, m = counts.reshape(2, *shape)
        rate = np.minimum(n * rate_p, m * rate_d)
        spent = n * chips_p * budget.prefill_usd_per_chip_s + m * chips_d * budget.decode_usd_per_chip_s
        with np.errstate(divide="ignore", invalid="ignore"):
            cost = np.where(rate > 0, spent / rate, np.inf)
        better = cost < best_cost
        best_cost = np.where(better, cost, best_cost)
        best_rate = np.where(better, rate, best_rate)
        best_counts = np.where(better, counts.reshape(2, *shape).astype(np.int64), best_counts)
    return best_cost, best_rate, best_counts
