"""A closed loop of two pools: a fixed number of concurrent requests over a prefill and a decode pool.

With n sequences decoding on each rank and micro-batch (peers) of the decode replicas, requests pass at

    X(n) = n · peers · replicas / ((output_len - 1) · tpot(n))        requests/s

and those in flight follow from Little's law, with the time to first token of the prefill pool at that rate:

    C = X(n) · (ttft(X) + (output_len - 1) · tpot(n))

At the rate of the prefill pool, the rest of C waits for it; where the decode pool is full (memory, sequences
that it may run), requests wait for a place in it.
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
_FINE = 2000  # points between them, where requests in flight rise steeply
_FULL = 0.995  # of the prefill pool's rate: beyond, all further requests wait
_NEARLY = 0.8  # of it, from which on requests queue
_LOADS = np.array([0.02, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92])  # of the prefill pool, between which times are interpolated
_MOST_IN_TURN = 8  # replicas beyond which the arrivals of one are as even as of this number


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPools:
    """Mean times of a request.

    Args:
        tpot_s, ttft_s: [s].
        request_s: ttft + (output_len - 1) tpot [s].
        decoding: requests that decode at a time, over all replicas [requests].
        transfer_s: part of the time to first token that moves the KV cache [s].
        load: share of the prefill pool's rate that is used.
        bound: what keeps more requests from decoding: "concurrency", "prefill", "memory" or "max_num_seqs".
        output_tokens_per_s: of all chips [tokens/s].
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
    """A prefill and a decode pool of one cluster, each of layout.dp replicas; keeps what its closed loops share.

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
            InputError: concurrency below 1, or a pool in which no request fits.

        Assumes: requests go to the replicas in turn; the first token is seen when the KV cache has arrived.
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
        # the requests of a benchmark's first burst wait for each other in the prefill pool
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
        else:  # the others wait for a place
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
        """Prompts that the prefill pool serves with full passes [requests/s]."""
        passes = self._prompt_passes_s(workload)
        return self.prefill.layout.dp * len(passes) / float(passes[-1])

    def _places(self, workload: Workload, concurrency: float) -> tuple[float, dict[str, float]]:
        """(peers of all decode replicas, sequences that one of them can decode by what bounds it)."""
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
        """Decode step with these numbers of sequences a rank and micro-batch, at least one on the busiest [s]."""
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
        """Arrival of a prompt to the end of its pass, by the load of the prefill pool [s]."""
        if workload not in self._waits:
            passes = self._prompt_passes_s(workload)
            each = len(passes) / float(passes[-1])
            turn = min(self.prefill.layout.dp, _MOST_IN_TURN)
            self._waits[workload] = np.array([prompt_time_s(passes, float(rho) * each, turn) for rho in _LOADS])
        waits = self._waits[workload]
        # in proportion to 1 / (1 - load) between the loads and beyond the last
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
