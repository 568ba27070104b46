"""A closed loop of two pools: a fixed number of concurrent requests over a prefill and a decode pool.

With n sequences decoding on each rank and micro-batch (peer) of the decode replicas, requests complete at

    X(n) = n · peers · replicas / ((output_len - 1) · tpot(n))        requests/s

and those in flight follow from Little's law, with the time to first token of the prefill pool at that rate:

    C = X(n) · (ttft(X) + (output_len - 1) · tpot(n))

At the rate of the prefill pool, the rest of C waits for prefill; where the decode pool is full (memory, running
sequences), requests wait for a slot in it.
"""

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
from rackline.serving.pool_queue import prompt_passes_s, prompt_time_s
from rackline.serving.steady import Engine
from rackline.serving.workload import Workload

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
