"""Continuous batching in steady state: every slot decodes, finished requests are replaced by new prompts.

One attention-dp rank decodes b sequences. A request ends every (output_len - 1) steps per slot, so

    r = b / (output_len - 1)              prompts arrive a step
    p = max(1 - exp(-r), r · n / room)    share of steps that carry prompt tokens, n new tokens a prompt
    q = 1 - (1 - p)^ranks                 share of steps in which any attention-dp rank carries prompt tokens
    tpot = t_decode + q · (t_mixed - t_decode)        chunked: prompts and decodes share a pass
    tpot = t_decode + q · t_prefill                   prefill first: decoding waits

Attention-dp ranks step together: the busiest one has the prompt tokens of p, the experts see the ranks' mean.

room is max_batched_tokens (less the b decodes when they share the pass). With p at 1 a chunked engine cannot prefill
as fast as slots get free: such a batch never fills.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.passes import Batch, PassTable, TimeTable
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.workload import Mode, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Latencies of a full engine; floats or arrays (layouts, points).

    Args:
        decode_s: step without prompt tokens [s].
        mixed_s: step (or extra pass) with prompt tokens [s].
        prefill_share: q, share of steps with prompt tokens on any rank.
        tpot_s: time per output token of one request [s].
        ttft_s: queue and prefill of one request [s].
        prefill_utilisation: load of the prefill path; at 1 the batch cannot be kept full.
        prefill_cost_share: share of the engine's time that prompts cost.
    """

    decode_s: Array
    mixed_s: Array
    prefill_share: Array
    tpot_s: Array
    ttft_s: Array
    prefill_utilisation: Array
    prefill_cost_share: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A pass table with what the steady state needs of the layout.

    Args:
        table: of one layout or of many.
        attention_dp: ranks that hold different sequences [count].
        pipeline_stretch: slowest over mean pipeline stage.
    """

    table: PassTable
    attention_dp: FloatLike
    pipeline_stretch: FloatLike = 1.0

    def time_table(self, two_batch_overlap: bool) -> TimeTable:
        """Rates put in, under the policy of the mode."""
        policy = "overlap" if two_batch_overlap else self.table.calibration.step_policy
        return self.table.time_table(policy)

    def seconds(self, batch: Batch, times: TimeTable, *, two_batch_overlap: bool, threads: int = 1) -> Array:
        """Time of a pass of one rank; `batch.group_tokens` is filled in here [s].

        Two-batch overlap runs two half batches whose compute and communication overlap: twice the half's time.
        """
        half = 0.5 if two_batch_overlap else 1.0
        decode = as_array(batch.decode_sequences) * half
        prefill = as_array(batch.prefill_sequences) * half
        tokens = decode + prefill * batch.chunk_tokens
        work = Batch(
            decode_sequences=decode,
            context_len=batch.context_len,
            prefill_sequences=prefill,
            chunk_tokens=batch.chunk_tokens,
            prefix_tokens=batch.prefix_tokens,
            group_tokens=tokens * self.attention_dp if batch.group_tokens is None else batch.group_tokens * half,
        )
        return times.seconds(self.table.features(work), threads=threads) / half * self.pipeline_stretch


def steady_state(
    engine: Engine,
    workload: Workload,
    mode: Mode,
    sequences_per_rank: FloatLike,
    *,
    decode_s: Array | None = None,
    threads: int = 1,
) -> SteadyState:
    """Latencies with `sequences_per_rank` sequences decoding on each rank, per pipeline micro-batch.

    Args:
        sequences_per_rank: b [sequences], scalar or (points,) or (layouts, points).
        decode_s: the decode step if it is known already [s].

    Returns:
        Arrays of shape () or (points,) or (layouts, points). Where prefill_utilisation is 1 or more the state does
        not exist and ttft_s is infinite.

    Assumes: prompts arrive at random (waiting for the prefill path as M/D/1), equal lengths, equal ranks.
    Sources: M/D/1 mean wait rho / (2 (1 - rho)) service times, Pollaczek 1930.
    """
    b = as_array(sequences_per_rank)
    times = engine.time_table(mode.two_batch_overlap)
    overlap = mode.two_batch_overlap
    if decode_s is None:
        decode = Batch(decode_sequences=b, context_len=workload.mean_context)
        decode_s = engine.seconds(decode, times, two_batch_overlap=overlap, threads=threads)
    room = float(mode.max_batched_tokens) - (b if mode.admission == "chunked" else 0.0)
    room = np.maximum(room, 1.0)
    new = workload.new_tokens
    arrivals = b / (workload.output_len - 1.0)
    load = arrivals * new / room
    share = np.maximum(-np.expm1(-arrivals), load)
    if mode.admission == "chunked":
        share = np.minimum(share, 1.0)
    chunk = np.minimum(new, room)
    carried = np.minimum(arrivals * new / share, room)
    ranks = as_array(engine.attention_dp)
    some = np.maximum(-np.expm1(ranks * np.log1p(-np.minimum(share, 1.0 - 1e-12))), share)
    beside = b if mode.admission == "chunked" else np.zeros_like(b)
    batch = Batch(
        decode_sequences=beside,
        context_len=workload.mean_context,
        prefill_sequences=carried / chunk,
        chunk_tokens=chunk,
        prefix_tokens=workload.cached_tokens + (new - chunk) / 2.0,
        group_tokens=ranks * (beside + carried * share / some),
    )
    mixed_s = engine.seconds(batch, times, two_batch_overlap=overlap, threads=threads)
    extra = mixed_s - decode_s if mode.admission == "chunked" else mixed_s
    extra = np.maximum(extra, 0.0)
    tpot = decode_s + some * extra
    cost_share = some * extra / tpot
    utilisation = load if mode.admission == "chunked" else cost_share
    passes = np.ceil(new / chunk)
    service = passes * mixed_s
    with np.errstate(divide="ignore", invalid="ignore"):
        waiting = np.where(utilisation < 1.0, utilisation / (2.0 * (1.0 - utilisation)), np.inf)
    ttft = 0.5 * tpot + service * (1.0 + waiting)
    return SteadyState(
        decode_s=decode_s,
        mixed_s=mixed_s,
        prefill_share=some,
        tpot_s=tpot,
        ttft_s=ttft,
        prefill_utilisation=utilisation,
        prefill_cost_share=cost_share,
    )
