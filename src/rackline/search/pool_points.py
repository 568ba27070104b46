"""Replicas of a pool as arrays: their schedulers, the time of their passes, what their links carry, which to keep."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from rackline.arch import Model
from rackline.hardware import FabricLevel
from rackline.parallel import Layout, memory_use
from rackline.parallel.memory import kv_bytes_per_sequence
from rackline.passes.features import Array, FloatLike, as_array
from rackline.rounding import rounded
from rackline.search.points import Columns, firsts, pareto_front
from rackline.search.space import Part, Space
from rackline.serving.disaggregated import (
    MOST_LOAD,
    ContextGroup,
    PrefillPasses,
    context_decode_s,
    exchange_s,
    kv_exchange_bytes,
    prefill_rate,
)
from rackline.serving.open_loop import UNEVEN
from rackline.serving.workload import Mode, Workload

PREFILL_BUDGETS = (2048, 4096, 8192, 16384, 32768)  # new tokens of a pass on one rank
LONG_PROMPT = 16384  # tokens; context parallelism is considered for longer prompts
WAITING_PROMPTS = 2.0  # passes' worth of KV on a prefill chip: one being made, one being sent
_COUNTS = ("evaluated", "fitting")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPoints(Columns):
    """Replicas of one pool; arrays of one length.

    Args:
        label: precision of each, as an index into `precisions`.
        mode: scheduler of each, as an index into `modes`.
        row: layout of each, as an index into the list of layouts.
        per_rank: sequences of a rank and micro-batch; 0 in a prefill pool [sequences].
        chips: of one replica [count].
        seconds: time per output token of a decode replica, service time of a prefill replica in full passes [s].
        alone_s: the same with one sequence on a rank, or in passes of one prompt per rank [s].
        requests_per_s: of one replica, no more than its links can send or receive [requests/s].
        link_s: time to send or to receive the KV cache of one prompt [s].
        together: prompts that a prefill replica serves at a time; 1 in a decode pool [requests].
        peers: ranks and micro-batches of a prefill replica among which they are spread; 1 in a decode pool [count].
        cp: ranks that share one context [count].
        input_cv2: variance of the prompts' tokens over the square of their mean [1].
        evaluated: points whose times were computed [count].
        fitting: points among them that fit, whichever are left of them [count].
    """

    label: Array
    mode: Array
    row: Array
    per_rank: Array
    chips: Array
    seconds: Array
    alone_s: Array
    requests_per_s: Array
    link_s: Array
    together: Array
    peers: Array
    cp: Array
    input_cv2: Array
    evaluated: int
    fitting: int

    def passes(self, index: Array | int) -> PrefillPasses:
        """What prompts find at the prefill replicas of an index."""
        return PrefillPasses(
            alone_s=self.alone_s[index],
            full_s=self.seconds[index],
            together=self.together[index],
            peers=self.peers[index],
            input_cv2=self.input_cv2[index],
        )

    def tpot_s(self, index: int, requests_per_s: float) -> float:
        """Time per output token of a decode replica at a rate, which may be less than it could serve [s].

        Assumes: it grows in proportion to the sequences in flight.
        """
        full_s, share = float(self.seconds[index]), min(requests_per_s / float(self.requests_per_s[index]), 1.0)
        alone_s = min(float(self.alone_s[index]), full_s)
        return alone_s / (1.0 - share * (1.0 - alone_s / full_s))

    def load(self, index: Array, transfer_s: Array, slack_s: float | None, in_turn: FloatLike = 1.0) -> Array:
        """Load at which prefill replicas of an index keep the time to first token; MOST_LOAD without a limit.

        Args:
            transfer_s: of the cache [s]; broadcasts with the index.
            slack_s: time to first token less its constant part; None for no limit [s].
            in_turn: replicas of the pool, which get the arrivals round-robin [count].
        """
        if slack_s is None:
            return np.full(np.broadcast_shapes(index.shape, transfer_s.shape), MOST_LOAD)
        return self.passes(index).highest_load(slack_s - transfer_s, in_turn)

    @classmethod
    def join(cls, parts: list[PoolPoints]) -> PoolPoints:
        """Several pools end to end."""
        names = [name for name in cls.__slots__ if name not in _COUNTS]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        evaluated, fitting = (sum(getattr(part, name) for part in parts) for name in _COUNTS)
        return cls(**arrays, evaluated=evaluated, fitting=fitting)

    def in_order(self) -> PoolPoints:
        """The points sorted by precision, scheduler, context ranks, layout and batch: among equals the first counts."""
        return self.take(np.lexsort((self.per_rank, self.row, self.cp, self.mode, self.label)))


def undominated(points: PoolPoints) -> PoolPoints:
    """The points of each precision and replica size that no other point beats in both time and rate."""
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.argsort(kind, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)
    return points.take(
        np.concatenate([group[pareto_front(points.requests_per_s[group], points.seconds[group])] for group in groups])
    )


def best_loaded(points: PoolPoints, slack_s: float | None, most: int = 3) -> PoolPoints:
    """Few points of each precision and prefill replica size that serve most requests within the time to first token,
    of each layout the best scheduler.

    Args:
        slack_s: time to first token less its constant part; None for no limit [s].
        most: how many of each to keep [count].
    """
    rate = points.requests_per_s * points.load(np.arange(points.chips.size), points.link_s, slack_s)
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.lexsort((-rounded(rate), kind))
    order = order[rate[order] > 0]
    order = order[firsts(np.stack([points.label[order], points.row[order], points.cp[order]], axis=1))]
    first = np.searchsorted(kind[order], kind[order], side="left")
    return points.take(order[np.arange(order.size) - first < most])


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
    system = space.system
    if isinstance(system.model, Model) and system.model.is_moe:
        return space.grid.attention_dp % cp == 0, 1
    return space.grid.chips_per_replica * cp <= system.cluster.num_chips, cp


def prefill_points(part: Part, modes: list[Mode], link: FabricLevel) -> PoolPoints:
    """Every layout × scheduler that only prefills and fits.

    Args:
        link: level over which the KV cache leaves.
    """
    space, system, precision = part.space, part.space.system, part.precision
    engine = replace(part.engine, stack=part.engine.stack.prefill_pool())
    grid, work = space.grid, space.workload
    pp = as_array(grid.pp)
    parts: list[PoolPoints] = []
    whole = float(as_array(kv_bytes_per_sequence(system.model, Layout(), precision, work.input_len)))
    link_s = whole / (as_array(grid.tp) * pp) / link.bytes_per_s_each_way
    for (index, mode), cp in itertools.product(enumerate(modes), context_sizes(work)):
        shares, replicated = _context_rows(space, cp)
        exchange: FloatLike = 0.0
        if cp > 1 and isinstance(system.model, Model):
            group = ContextGroup(cp=cp, tp=as_array(grid.tp))
            sent = kv_exchange_bytes(system.model, precision, work, mode.max_batched_tokens, group)
            exchange = exchange_s(engine, system.cluster, sent, group, "all_gather")
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
            system.model,
            grid,
            precision,
            system.cluster.chip,
            system.server(float(mode.max_batched_tokens)),
            sequences_per_rank=prompts * WAITING_PROMPTS * pp,
            context_len=work.input_len,
        ).free
        shares = shares & space.launches(precision, mode, "prefill", cp)
        fits = np.broadcast_to(as_array(free) >= 0, (len(grid),)) & shares
        fits = fits & space.holds_longest(precision, float(mode.max_batched_tokens), cp, prompt=True)
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
                alone_s=np.broadcast_to(rate.alone_s, (len(grid),))[rows],
                requests_per_s=np.minimum(rate.prompts_per_s, as_array(grid.attention_dp) * replicated / link_s)[rows],
                link_s=link_s[rows] / cp,
                together=np.broadcast_to(rate.together, (len(grid),))[rows],
                peers=np.broadcast_to(rate.peers, (len(grid),))[rows],
                cp=np.full(rows.size, cp),
                input_cv2=np.full(rows.size, work.input_cv2),
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
    space, system, precision, engine = part.space, part.space.system, part.precision, part.engine
    grid, work, b = space.grid, space.workload, space.batches[None, :]
    ranks, pp = as_array(grid.attention_dp)[:, None], as_array(grid.pp)[:, None]
    parts: list[PoolPoints] = []
    received = as_array(kv_bytes_per_sequence(system.model, grid, precision, work.input_len))
    link_s = np.broadcast_to(received / link.bytes_per_s_each_way, (len(grid),))
    for (index, mode), cp in itertools.product(enumerate(modes), context_sizes(work)):
        overlap = mode.two_batch_overlap
        shares, replicated = _context_rows(space, cp)
        if cp > 1 and overlap:
            continue  # the batch of a context group is small
        free = np.broadcast_to(part.free_bytes(system.stack.scheduler.max_num_seqs, cp), (len(grid), b.size))
        shares = shares & space.launches(precision, mode, "decode", cp)
        fits = (free >= 0) & (shares & space.holds_longest(precision, system.stack.scheduler.max_num_seqs, cp))[:, None]
        if cp > 1 and isinstance(system.model, Model):
            group = ContextGroup(cp=cp, tp=as_array(grid.tp))
            step = context_decode_s(engine, system.model, system.cluster, work, b, group, threads=space.threads)
        else:
            step = part.decode_s(overlap)
        groups = ranks * replicated / cp
        tpot = seen_s(np.broadcast_to(step, fits.shape), b, groups * pp, work)
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
                alone_s=tpot[rows, 0],
                requests_per_s=rate[rows, columns],
                link_s=link_s[rows] / cp,
                together=np.ones(rows.size),
                peers=np.ones(rows.size),
                cp=np.full(rows.size, cp),
                input_cv2=np.full(rows.size, work.input_cv2),
                evaluated=int(np.sum((grid.attention_dp > 1) & shares if overlap else shares)) * b.size,
                fitting=rows.size,
            )
        )
    return PoolPoints.join(parts)


def seen_s(step_s: Array, batch: Array, peers: Array, workload: Workload) -> Array:
    """Time per output token where requests arrive at random and `batch` of them decode on average [s].

    A request sees itself beside the others, waits for the busiest of the peers, and for half a step until it joins;
    see `rackline.serving.closed_loop`.

    Args:
        step_s: at each batch, (layouts, batches) [s].
        batch: sequences of a rank and micro-batch, (1, batches) [sequences].
        peers: ranks and micro-batches, (layouts, 1) [count].
    """
    growth = np.zeros(step_s.shape)
    if batch.size > 1:
        growth[:, :-1] = np.diff(step_s, axis=1) / np.diff(batch, axis=1)
        growth[:, -1] = growth[:, -2]
    beside = 1.0 / peers + UNEVEN * (1.0 - 1.0 / peers)
    return (step_s + np.maximum(growth, 0.0) * beside) * (1.0 + 0.5 / (workload.output_len - 1.0))
