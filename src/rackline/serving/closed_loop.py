"""A closed loop: a fixed number of concurrent requests, as in benchmarks.

Requests in flight are waiting, in prefill or decoding. With b of them decoding, requests complete at

    X(b) = b / ((output_len - 1) · tpot(b))        requests/s

and Little's law gives the time of a request, C / X. The number b is the one at which the requests that are not decoding
account for the time to first token: C = X(b) · (ttft(b) + (output_len - 1) · tpot(b)) = b + X(b) · ttft(b).
Four limits bound b: the concurrency itself, the memory, the running sequences that the engine allows, and the prefill
path, which at full load keeps room · (output_len - 1) / (new tokens + output_len - 1) slots busy. At a limit the other
requests wait, and their waiting time is part of the time to first token.

Requests over a prefill and a decode pool form such a loop as well, in which prompts also wait for a prefill replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError
from rackline.parallel import Deployment, Layout
from rackline.parallel.deployment import draft_table
from rackline.parallel.memory import fitting_sequences
from rackline.passes import Batch
from rackline.passes.features import Array, as_array
from rackline.serving.disaggregated import kv_transfer, shared_level
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.steady import Engine, steady_state
from rackline.serving.workload import PLAIN, Mode, Speculation, Workload, Workloads

_POINTS = 48
_LOOPS = 1000  # loops solved at a time, which bounds the memory
_NEARLY = 0.8  # share of the slots that the prefill path can keep busy, beyond which requests queue for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Mean times of a request.

    Args:
        tpot_s, ttft_s: time per output token, time to first token [s].
        request_s: ttft + (output_len - 1) · tpot [s].
        decoding: mean number of decoding requests, over all ranks and replicas [requests].
        bound: what limits the number of decoding requests: "concurrency", "memory", "max_num_seqs" or "prefill".
        output_tokens_per_s: output of all replicas, of both pools where there are two [tokens/s].
        decode_s: step without prompt tokens [s].
        transfer_s: transfer of the KV cache between two pools, part of the time to first token [s].
        load: utilisation of the prefill pool, where there is one [1].
    """

    tpot_s: float
    ttft_s: float
    request_s: float
    decoding: float
    bound: str
    output_tokens_per_s: float
    decode_s: float
    transfer_s: float = 0.0
    load: float | None = None


def engine_of(deployment: Deployment, stack: Stack = IDEAL, speculation: Speculation = PLAIN) -> Engine:
    """The engine of a deployment under a serving stack, with the draft pass if it decodes speculatively."""
    model = deployment.model
    return Engine(
        table=deployment.table(),
        attention_dp=float(deployment.layout.attention_dp),
        micro_batches=float(deployment.layout.pp),
        stage_imbalance=deployment.stage_imbalance,
        num_layers=model.num_layers if isinstance(model, Model) else 0,
        stack=stack,
        speculation=speculation,
        draft=draft_table(deployment) if speculation.draft_tokens else None,
    )


def closed_loop(
    deployment: Deployment,
    workload: Workload,
    mode: Mode,
    concurrency: float,
    *,
    engine: Engine | None = None,
) -> ClosedLoop:
    """Mean latencies with `concurrency` requests always in flight, on all replicas together.

    Args:
        engine: the engine of the deployment, if it has been built already.

    Raises:
        InputError: concurrency is below 1, or the model does not fit.
    """
    found = closed_loops(deployment, [workload], mode, np.array([concurrency]), engine=engine)[0]
    if isinstance(found, InputError):
        raise found
    return found


def closed_loops(
    deployment: Deployment,
    workloads: Sequence[Workload],
    mode: Mode,
    concurrency: Array,
    *,
    engine: Engine | None = None,
    rounds: Array | None = None,
) -> list[ClosedLoop | InputError]:
    """Many independent closed loops on one deployment; see `closed_loop`.

    Args:
        workloads: the workload of each loop; `equal_lengths` must be the same for all.
        concurrency: requests in flight in each loop, (loops,) [requests].
        rounds: requests that each user sends, (loops,), where all users begin at once and every request counts, as in a
            benchmark; endless loops if it is None [requests].
        engine: the engine of the deployment, if it has been built already.

    Returns:
        For each loop its means, or the error that explains why there are none.
    """
    layout = deployment.layout
    engine = engine or engine_of(deployment)
    work = Workloads.of(workloads)
    first_share = np.zeros_like(concurrency) if rounds is None else 1.0 / np.maximum(rounds, 1.0)
    slots = layout.attention_dp * layout.pp * layout.dp
    whole = engine.stack.scheduler.reserve == "final"  # a request starts only if its last token fits as well
    held = fitting_sequences(
        deployment.model,
        layout,
        deployment.precision,
        deployment.cluster.chip,
        engine.stack.server_memory(mode.max_batched_tokens),
        (work.final_context if whole else work.mean_context)[:, 0],
    )
    refused = [
        refusal(deployment, users, room) for users, room in zip(concurrency.tolist(), held.tolist(), strict=True)
    ]
    able = np.flatnonzero([problem is None for problem in refused])
    found: dict[int, ClosedLoop] = {}
    for start in range(0, able.size, _LOOPS):
        part = able[start : start + _LOOPS]
        wanted = concurrency[part] / slots  # requests of one rank and micro-batch
        means = _mean_times(engine, work.take(part), mode, wanted, held[part], layout, first_share[part])
        found |= zip(part.tolist(), means, strict=True)
    return [found[index] if problem is None else problem for index, problem in enumerate(refused)]


def refusal(deployment: Deployment, concurrency: float, room: float) -> InputError | None:
    """Why there is no closed loop with this many requests, given how many fit on a rank; None if there is one."""
    if not concurrency >= 1:
        return InputError(what="concurrency", given=concurrency, allowed="at least 1", nearest="1")
    if room < 1:
        return InputError(
            what=f"{deployment.model.name} on {deployment.layout.label()}",
            given="no memory for one request",
            allowed="memory for the weights and one request",
        )
    return None


def _mean_times(
    engine: Engine, work: Workloads, mode: Mode, wanted: Array, held: Array, layout: Layout, first_share: Array
) -> list[ClosedLoop]:
    """Mean times of loops by requests per rank and micro-batch, (loops,), given how many fit and the share of requests
    that all users send at once."""
    slots = layout.attention_dp * layout.pp * layout.dp
    output_steps: Array = work.output_len - 1.0
    caps: dict[str, Array] = {
        "concurrency": wanted,
        "memory": held,
        "max_num_seqs": np.full(wanted.shape, float(engine.stack.scheduler.max_num_seqs)),
    }
    if mode.is_mixed:
        # with speculation, a step yields several tokens per sequence and processes the drafts as well
        steps = (output_steps / engine.speculation.tokens_per_step)[:, 0]
        pushed = work.new_tokens[:, 0] + steps * engine.speculation.verified_tokens
        caps["prefill"] = 0.999 * mode.max_batched_tokens * steps / pushed
    names, each = list(caps), np.stack(list(caps.values()))
    first = np.argmin(each, axis=0)
    most: Array = each[first, np.arange(wanted.size)]
    points: Array = np.geomspace(np.minimum(1e-2, most), most, _POINTS, axis=-1)
    state = steady_state(engine, work, mode, points)
    rate = points / (output_steps * state.tpot_s + state.hold_s)
    if mode.is_batch_by_batch:  # sequences that end together are admitted together
        waiting = mean_wait = engine.stack.arrivals.beyond_passes_s(work) + state.hold_s
    else:
        others = as_array(np.maximum(wanted * layout.pp - 1.0, 0.0))[:, None]
        waiting = state.ttft_s + engine.stack.arrivals.share_of_burst(work) * others * state.prompt_s
        # users that begin at once, in passes full of prompts
        users, in_pass = others + 1.0, np.maximum(mode.max_batched_tokens / work.new_tokens, 1.0)
        prompts = np.where(users > in_pass, (users + in_pass) / 2.0, users)
        burst_s = engine.stack.arrivals.beyond_passes_s(work) + np.maximum(prompts * state.prompt_s, state.mixed_s)
        mean_wait = waiting + first_share[:, None] * (burst_s - waiting)
    in_flight: Array = rate * (waiting + output_steps * state.tpot_s)
    answers: list[ClosedLoop] = []
    for loop in range(wanted.size):
        users, steps = float(wanted[loop]), float(output_steps[loop, 0])
        here: Array = points[loop]
        if in_flight[loop, -1] <= users:
            decoding, bound = float(most[loop]), names[int(first[loop])]
            tpot, hold = float(state.tpot_s[loop, -1]), float(state.hold_s[loop, -1])
            decode = float(state.decode_s[loop, -1])
            request = users / float(rate[loop, -1])
            ttft = request - steps * tpot
        else:
            decoding = float(np.interp(users, as_array(in_flight[loop]), here))
            bound = "prefill" if "prefill" in caps and decoding > _NEARLY * caps["prefill"][loop] else "concurrency"
            tpot, hold, ttft, decode = (
                float(np.interp(decoding, here, as_array(values[loop])))
                for values in (state.tpot_s, state.hold_s, mean_wait, state.decode_s)
            )
            request = ttft + steps * tpot
        answers.append(
            ClosedLoop(
                tpot_s=tpot,
                ttft_s=ttft,
                request_s=request,
                decoding=decoding * slots,
                decode_s=decode,
                bound=bound,
                output_tokens_per_s=decoding * slots / (tpot + hold / steps),
            )
        )
    return answers


def max_throughput(
    deployment: Deployment,
    workload: Workload,
    mode: Mode,
    *,
    max_num_seqs: float = 4096.0,
    engine: Engine | None = None,
) -> ClosedLoop:
    """Output of an engine at unlimited request rate, with the largest batch that fits.

    Args:
        max_num_seqs: sequences that one rank may decode at once [sequences].
    """
    return closed_loop(deployment, workload, mode, unlimited_requests(deployment, max_num_seqs), engine=engine)


def unlimited_requests(deployment: Deployment, max_num_seqs: float) -> float:
    """Requests in flight that are enough to saturate a deployment [requests]."""
    layout = deployment.layout
    return max_num_seqs * layout.attention_dp * layout.pp * layout.dp


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
    each = max(round(room / new), 1)
    prompts = np.arange(1.0, each * peers + 1.0)
    busiest = np.ceil(prompts / peers)
    chunk = min(new, room)
    tokens = np.minimum(busiest * chunk, room)
    batch = Batch(
        prefill_sequences=tokens / chunk,
        chunk_tokens=chunk,
        prefix_tokens=workload.prefix_tokens + (new - chunk) / 2.0,
        group_tokens=np.maximum(prompts * chunk * float(as_array(engine.attention_dp)) / peers, tokens),
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


_FINE = 2000  # points between them where the requests in flight rise steeply
_FULL = 0.995  # share of the prefill pool's rate beyond which all further requests wait
_LOADS = np.array([0.02, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92])  # of the prefill pool, between which times are interpolated
_MOST_IN_TURN = 8  # with more replicas in turn, arrivals at one of them are hardly more even


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

    def closed_loop(self, workload: Workload, concurrency: float) -> ClosedLoop:
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
        waits = self.first.stack.arrivals
        around = waits.beyond_passes_s(workload) + sent_s + waits.burst_share * max(concurrency - 1.0, 0.0) / most
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
        return ClosedLoop(
            tpot_s=step / self.then.speculation.tokens_per_step,
            ttft_s=request - steps * step,
            request_s=request,
            decoding=n * slots,
            decode_s=step,
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
            whole = pool is self.decode and engine.stack.scheduler.reserve == "final"
            context = workload.input_len if pool is self.prefill else workload.mean_context
            room = fitting_sequences(
                pool.model,
                pool.layout,
                pool.precision,
                pool.cluster.chip,
                engine.stack.server_memory(),
                workload.final_context if whole else context,
            )
            problem = refusal(pool, concurrency, float(room))
            if problem is not None:
                raise problem
        return slots, {
            "concurrency": concurrency / slots,
            "memory": float(room),
            "max_num_seqs": float(self.then.stack.scheduler.max_num_seqs),
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
            self._passes[workload] = prompt_passes_s(self.first, workload, self.first.stack.scheduler.mode())
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
        return cast(Array, np.interp(at, known, waits)) + (np.maximum(at - known[-1], 0.0) * slope)

    def _transfer_s(self, workload: Workload) -> float:
        whole = self.prefill.cluster
        link = shared_level(whole.scale_up, whole.num_chips + self.decode.cluster.num_chips, whole.scale_out)
        return kv_transfer(
            self.decode.model,
            workload,
            self.decode.precision,
            prefill_layout=self.prefill.layout,
            decode_layout=self.decode.layout,
            prefill_link=link,
            decode_link=link,
        ).seconds
