"""Loops of two pools: concurrent requests over a prefill and a decode pool, and prompts that wait for a replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from rackline.parallel import Deployment
from rackline.parallel.memory import fitting_sequences
from rackline.passes import Batch
from rackline.passes.features import Array, as_array
from rackline.serving.closed_loop import refusal
from rackline.serving.disaggregated import kv_transfer, shared_level
from rackline.serving.steady import Engine
from rackline.serving.workload import Mode, Workload

_TOO_FULL = 0.98  # of the rate of a prefill replica: beyond it, the chain has too many states


def prompt_passes_s(engine: Engine, workload: Workload, mode: Mode) -> Array:
    """Time of passes with 1, 2, ... prompts, as many as fit, spread evenly over ranks and micro-batches [s].

    Returns:
        Array of shape (m,); for a prompt that needs several passes, one entry with the time of all of them.

    Assumes: prompts of equal length; where a pass does not hold a whole number of prompts, the nearest one at the same
    rate.
    """
    new, room = workload.new_tokens, float(mode.max_batched_tokens)
    peers = round(float(as_array(engine.attention_dp)) * float(as_array(engine.micro_batches)))
    ranks = float(as_array(engine.attention_dp))
    each = max(round(room / new), 1)
    prompts = np.arange(1.0, each * peers + 1.0)
    busiest = np.ceil(prompts / peers)
    chunk = min(new, room)
    tokens = np.minimum(busiest * chunk, room)
    batch = Batch(
        prefill_sequences=tokens / chunk,
        chunk_tokens=chunk,
        prefix_tokens=workload.prefix_tokens + (new - chunk) / 2.0,
        group_tokens=np.maximum(prompts * chunk * ranks / peers, tokens),
    )
    overlap = mode.two_batch_overlap
    times = engine.time_table(overlap)
    found = engine.with_prompts_s(0.0, engine.seconds(batch, times, two_batch_overlap=overlap), tokens=tokens)
    # the token rate of passes that are full to the last token
    return np.where(busiest == each, found * np.maximum(each * new / room, 1.0), found)


def prompt_time_s(pass_s: Array, prompts_per_s: float, in_turn: int = 1) -> float:
    """Mean time from the arrival of a prompt at a replica to the end of its pass [s].

    Args:
        pass_s: time of passes with 1, 2, ..., m prompts [s], (m,).
        prompts_per_s: lambda, arrival rate at this replica [requests/s].
        in_turn: k, replicas that receive the arrivals round-robin [count].

    Returns:
        Seconds; infinite if the load is above 98 %.

    Assumes: Poisson arrivals at all replicas together; a pass starts as soon as a prompt is waiting.
    Sources: Bailey 1954, On queueing processes with bulk service; the method of phases, Erlang 1917.

    >>> round(prompt_time_s(np.array([1.0]), 0.5), 6)
    1.5
    """
    most, k = len(pass_s), in_turn
    load = prompts_per_s * float(pass_s[-1]) / most
    if load > _TOO_FULL:
        return float("inf")
    phases_per_s = k * prompts_per_s
    size = k * (most + 1) + int(8.0 * np.sqrt(phases_per_s * pass_s[-1]) + 6.0 * k / (1.0 - load))
    held = np.arange(size)
    ready = np.minimum(held // k, most)
    taken = np.maximum(ready, 1)
    left = np.where(ready == 0, 0, held - k * taken)
    seconds = np.asarray(pass_s, dtype=float)[taken - 1]
    # transitions: what is left, and what arrives during a pass
    come = held[None, :] - left[:, None]
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, size)))))
    mean = (phases_per_s * seconds)[:, None]
    some = np.maximum(come, 0)
    chance = np.where(come >= 0, np.exp(some * np.log(mean) - mean - logs[some]), 0.0)
    chance[:, -1] += np.maximum(1.0 - chance.sum(axis=1), 0.0)
    balance = chance.T - np.eye(size)
    balance[-1] = 1.0
    share = cast(Array, np.linalg.solve(balance, np.eye(size)[-1]))
    begin = np.maximum(held, k)
    idle_s = (begin - held) / phases_per_s
    waited = (begin - held) * (begin + held - 1.0) / 2.0 / phases_per_s
    whole_s = float(share @ (idle_s + seconds))
    phases = float(share @ (waited + begin * seconds + phases_per_s * seconds**2 / 2.0)) / whole_s
    return (phases - (k - 1) / 2.0) / k / prompts_per_s


_POINTS = 48
_FINE = 2000  # points between them where the requests in flight rise steeply
_FULL = 0.995  # share of the prefill pool's rate beyond which all further requests wait
_NEARLY = 0.8  # share of it beyond which requests queue
_LOADS = np.array([0.02, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92])  # of the prefill pool, between which times are interpolated
_MOST_IN_TURN = 8  # with more replicas in turn, arrivals at one of them are hardly more even


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPools:
    """Mean times of a request.

    Args:
        tpot_s, ttft_s: time per output token, time to first token [s].
        request_s: ttft + (output_len - 1) · tpot [s].
        decoding: mean number of decoding requests, over all replicas [requests].
        transfer_s: transfer of the KV cache, part of the time to first token [s].
        load: utilisation of the prefill pool [1].
        bound: what limits the number of decoding requests: "concurrency", "prefill", "memory" or "max_num_seqs".
        output_tokens_per_s: output of both pools [tokens/s].
    """

    tpot_s: float
    ttft_s: float
    request_s: float
    decoding: float
    transfer_s: float
    load: float
    bound: str
    output_tokens_per_s: float


@dataclass(slots=True, kw_only=True)
class TwoPools:
    """A prefill and a decode pool on one cluster, each of layout.dp replicas; caches what closed loops share.

    Args:
        prefill, decode: the pools.
        first, then: their engines.
    """

    prefill: Deployment
    decode: Deployment
    first: Engine
    then: Engine
    _passes: dict[Workload, Array] = field(default_factory=dict[Workload, Array])
    _waits: dict[Workload, Array] = field(default_factory=dict[Workload, Array])

    def closed_loop(self, workload: Workload, concurrency: float) -> ClosedPools:
        """Mean latencies with `concurrency` requests always in flight.

        Raises:
            InputError: concurrency is below 1, or no request fits in one of the pools.

        Assumes: requests go to the replicas in turn; the first token counts once the KV cache has arrived.
        """
        steps = (workload.output_len - 1.0) / self.then.speculation.tokens_per_step
        slots, caps = self._places(workload, concurrency)
        bound = min(caps, key=lambda name: caps[name])
        least = min(1e-2, caps[bound])
        coarse, points = (cast(Array, np.geomspace(least, caps[bound], count)) for count in (_POINTS, _FINE))
        step_s = cast(Array, np.interp(points, coarse, self._step_s(workload, coarse)))
        rate: Array = points * slots / (steps * step_s)
        most = self.prompts_per_s(workload)
        sent_s = self._transfer_s(workload)
        # the initial burst of a benchmark queues in the prefill pool
        stack = self.first.stack
        around = stack.beyond_passes_s(workload) + sent_s + stack.burst_share * max(concurrency - 1.0, 0.0) / most
        if rate[-1] > _FULL * most:
            bound = "prefill"
            open_ones = rate <= max(_FULL * most, float(rate[0]))
            points, step_s, rate = points[open_ones], step_s[open_ones], rate[open_ones]
        in_flight: Array = rate * (around + self._first_s(workload, rate / most) + steps * step_s)
        if in_flight[-1] > concurrency:
            n = float(np.interp(concurrency, in_flight, points))
            bound = "prefill" if np.interp(n, points, rate) > _NEARLY * most else "concurrency"
        else:  # the others wait for a slot
            n = float(points[-1])
        served, step = float(np.interp(n, points, rate)), float(np.interp(n, points, step_s))
        request = concurrency / served
        return ClosedPools(
            tpot_s=step / self.then.speculation.tokens_per_step,
            ttft_s=request - steps * step,
            request_s=request,
            decoding=n * slots,
            transfer_s=sent_s,
            load=served / most,
            bound=bound,
            output_tokens_per_s=served * workload.output_len,
        )

    def prompts_per_s(self, workload: Workload) -> float:
        """Rate of the prefill pool with full passes [requests/s]."""
        passes = self._prompt_passes_s(workload)
        return self.prefill.layout.dp * len(passes) / float(passes[-1])

    def _places(self, workload: Workload, concurrency: float) -> tuple[float, dict[str, float]]:
        """(peers of all decode replicas, sequences that one peer can decode by the limit that bounds it)."""
        layout = self.decode.layout
        slots = float(layout.attention_dp * layout.pp * layout.dp)
        for pool, engine in ((self.prefill, self.first), (self.decode, self.then)):
            whole = pool is self.decode and engine.stack.reserve == "final"
            context = workload.input_len if pool is self.prefill else workload.mean_context
            room = fitting_sequences(
                pool.model,
                pool.layout,
                pool.precision,
                pool.cluster.chip,
                engine.stack.memory(),
                workload.final_context if whole else context,
            )
            problem = refusal(pool, concurrency, float(room))
            if problem is not None:
                raise problem
        return slots, {
            "concurrency": concurrency / slots,
            "memory": float(room),
            "max_num_seqs": float(self.then.stack.max_num_seqs),
        }

    def _step_s(self, workload: Workload, points: Array) -> Array:
        """Decode step with these numbers of sequences per rank and micro-batch, at least one on the busiest [s]."""
        ranks = float(as_array(self.then.attention_dp))
        held = np.maximum(points, 1.0)
        batch = Batch(
            decode_sequences=held,
            decode_tokens=self.then.speculation.verified_tokens,
            context_len=workload.mean_context,
            group_tokens=np.maximum(points * ranks, held) * self.then.speculation.verified_tokens,
        )
        step = self.then.decode_s(batch, self.then.time_table(False), two_batch_overlap=False)
        return np.maximum.accumulate(step + self.then.drafts_s(held, workload.mean_context))

    def _prompt_passes_s(self, workload: Workload) -> Array:
        if workload not in self._passes:
            self._passes[workload] = prompt_passes_s(self.first, workload, self.first.stack.mode())
        return self._passes[workload]

    def _first_s(self, workload: Workload, load: Array) -> Array:
        """Time from the arrival of a prompt to the end of its pass, by the load of the prefill pool [s]."""
        if workload not in self._waits:
            passes = self._prompt_passes_s(workload)
            each = len(passes) / float(passes[-1])
            turn = min(self.prefill.layout.dp, _MOST_IN_TURN)
            self._waits[workload] = np.array([prompt_time_s(passes, float(rho) * each, turn) for rho in _LOADS])
        waits = self._waits[workload]
        # interpolated in proportion to 1 / (1 - load), extrapolated beyond the last
        at = 1.0 / (1.0 - np.minimum(load, 1.0 - 1e-6))
        known = 1.0 / (1.0 - _LOADS)
        slope = (waits[-1] - waits[-2]) / (known[-1] - known[-2])
        beyond = np.maximum(at - known[-1], 0.0) * slope
        return cast(Array, np.interp(at, known, waits)) + beyond

    def _transfer_s(self, workload: Workload) -> float:
        chips = self.prefill.cluster.num_chips + self.decode.cluster.num_chips
        whole = self.prefill.cluster
        link = shared_level(whole.scale_up, chips, whole.scale_out)
        return kv_transfer(
            self.decode.model,
            workload,
            self.decode.precision,
            prefill_layout=self.prefill.layout,
            decode_layout=self.decode.layout,
            prefill_link=link,
            decode_link=link,
        ).seconds
