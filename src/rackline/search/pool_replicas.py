"""Prefill and decode replicas of a space: their schedulers, the time of their passes and what their links carry."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from rackline.arch import Model
from rackline.hardware import FabricLevel
from rackline.parallel import Layout, memory_use
from rackline.parallel.memory import kv_bytes_per_sequence
from rackline.passes.features import Array, FloatLike, as_array
from rackline.search.evaluate import Part, Space
from rackline.search.pool_points import PoolPoints
from rackline.serving.context import ContextGroup, context_decode_s, exchange_s, kv_exchange_bytes
from rackline.serving.disaggregated import prefill_rate
from rackline.serving.open_loop import UNEVEN
from rackline.serving.workload import Mode, Workload

PREFILL_BUDGETS = (2048, 4096, 8192, 16384, 32768)  # new tokens of a pass on one rank
LONG_PROMPT = 16384  # tokens; context parallelism is considered for longer prompts
WAITING_PROMPTS = 2.0  # passes' worth of KV on a prefill chip: one being made, one being sent


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
            space.system.server(float(mode.max_batched_tokens)),
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
        free = np.broadcast_to(part.free_bytes(space.system.stack.max_num_seqs, cp), (len(grid), b.size))
        shares = shares & space.launches(precision, mode, "decode", cp)
        fits = (free >= 0) & (shares & space.holds_longest(precision, space.system.stack.max_num_seqs, cp))[:, None]
        if cp > 1 and isinstance(space.model, Model):
            group = ContextGroup(cp=cp, tp=as_array(grid.tp))
            step = context_decode_s(engine, space.model, space.cluster, work, b, group, threads=space.threads)
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
    see `rackline.serving.pool_queue`.

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
