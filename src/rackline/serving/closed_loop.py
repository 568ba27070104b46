"""A closed loop: a fixed number of concurrent requests, as in benchmarks.

Requests in flight are waiting, in prefill or decoding. With b of them decoding, requests complete at

    X(b) = b / ((output_len - 1) · tpot(b))        requests/s

and Little's law gives the time of a request, C / X. The number b is the one at which the requests that are not decoding
account for the time to first token: C = X(b) · (ttft(b) + (output_len - 1) · tpot(b)) = b + X(b) · ttft(b).
Four limits bound b: the concurrency itself, the memory, the running sequences that the engine allows, and the prefill
path, which at full load keeps room · (output_len - 1) / (new tokens + output_len - 1) slots busy. At a limit the other
requests wait, and their waiting time is part of the time to first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError
from rackline.parallel import Deployment, Layout
from rackline.parallel.draft import draft_table
from rackline.parallel.memory import fitting_sequences
from rackline.passes import Batch
from rackline.passes.features import Array, as_array
from rackline.serving.speculative import PLAIN, Speculation
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.steady import Engine, SteadyState, steady_state
from rackline.serving.workload import Mode, Workload, Workloads

_POINTS = 48
_LOOPS = 1000  # loops solved at a time, which bounds the memory
_NEARLY = 0.8  # share of the slots that the prefill path can keep busy, beyond which requests queue for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Mean times of a request.

    Args:
        tpot_s, ttft_s: time per output token, time to first token [s].
        request_s: ttft + (output_len - 1) · tpot [s].
        decoding: mean number of decoding requests, over all ranks [requests].
        decode_s: step without prompt tokens [s].
        bound: what limits the number of decoding requests: "concurrency", "memory", "max_num_seqs" or "prefill".
        output_tokens_per_s: output of all replicas [tokens/s].
    """

    tpot_s: float
    ttft_s: float
    request_s: float
    decoding: float
    decode_s: float
    bound: str
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatch:
    """One batch, prefilled and decoded together: prefill_s, mean step token_s, total_s = prefill_s + (n - 1) token_s
    [s]."""

    prefill_s: float
    token_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakThroughput:
    """Output of all chips at saturation [tokens/s], and the sequences decoding on a replica."""

    output_tokens_per_s: float
    batch_size: float
    tpot_s: float
    bound: str


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
    whole = engine.stack.reserve == "final"  # a request starts only if its last token fits as well
    held = fitting_sequences(
        deployment.model,
        layout,
        deployment.precision,
        deployment.cluster.chip,
        engine.stack.memory(mode.max_batched_tokens),
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
        "max_num_seqs": np.full(wanted.shape, float(engine.stack.max_num_seqs)),
    }
    if mode.is_mixed:
        # with speculation, a step yields several tokens per sequence and processes the drafts as well
        steps = (output_steps / engine.speculation.tokens_per_step)[:, 0]
        pushed = work.new_tokens[:, 0] + steps * engine.speculation.verified_tokens
        caps["prefill"] = 0.999 * mode.max_batched_tokens * steps / pushed
    names: list[str] = list(caps)
    each = np.stack(list(caps.values()))
    first = np.argmin(each, axis=0)
    most: Array = each[first, np.arange(wanted.size)]
    points: Array = np.geomspace(np.minimum(1e-2, most), most, _POINTS, axis=-1)
    state = steady_state(engine, work, mode, points)
    rate = points / (output_steps * state.tpot_s + state.hold_s)
    if mode.is_batch_by_batch:  # sequences that end together are admitted together
        waiting = mean_wait = engine.stack.beyond_passes_s(work) + state.hold_s
    else:
        others = as_array(np.maximum(wanted * layout.pp - 1.0, 0.0))[:, None]
        waiting = state.ttft_s + engine.stack.share_of_burst(work) * others * state.prompt_s
        burst_s = _first_burst_s(engine, work, mode, others + 1.0, state)
        mean_wait = waiting + first_share[:, None] * (burst_s - waiting)
    in_flight: Array = rate * (waiting + output_steps * state.tpot_s)
    answers: list[ClosedLoop] = []
    for loop in range(wanted.size):
        users = float(wanted[loop])
        steps = float(output_steps[loop, 0])
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


def _first_burst_s(engine: Engine, work: Workloads, mode: Mode, users: Array, state: SteadyState) -> Array:
    """Mean time to first token of users that begin at once, in passes full of prompts [s].

    Args:
        users: of a rank, (loops, 1) [requests].
    """
    in_pass = np.maximum(mode.max_batched_tokens / work.new_tokens, 1.0)
    prompts = np.where(users > in_pass, (users + in_pass) / 2.0, users)
    return engine.stack.beyond_passes_s(work) + np.maximum(prompts * state.prompt_s, state.mixed_s)


def static_batch(
    deployment: Deployment, batch_size: float, input_len: float, output_len: float, engine: Engine | None = None
) -> StaticBatch:
    """One batch prefilled together, then decoded together.

    Args:
        batch_size: sequences, on all replicas together [sequences].
        input_len, output_len: prompt and output lengths [tokens].
    """
    sizes = (np.array([size], dtype=np.float64) for size in (batch_size, input_len, output_len))
    return static_batches(deployment, *sizes, engine=engine)[0]


def static_batches(
    deployment: Deployment, batch_size: Array, input_len: Array, output_len: Array, engine: Engine | None = None
) -> list[StaticBatch]:
    """Many independent static batches on one deployment; see `static_batch`.

    Args:
        batch_size: sequences, on all replicas together, (batches,) [sequences].
        input_len, output_len: prompt and output lengths, (batches,) [tokens].
    """
    engine = engine or engine_of(deployment)
    layout = deployment.layout
    per_rank = np.ceil(batch_size / (layout.attention_dp * layout.dp))
    times = engine.time_table(False)
    prompts = engine.seconds(Batch(prefill_sequences=per_rank, chunk_tokens=input_len), times, two_batch_overlap=False)
    prefill = engine.with_prompts_s(0.0, prompts)  # called in process, without a server
    step = Batch(decode_sequences=per_rank, context_len=input_len + output_len / 2.0)
    token = np.where(output_len > 1, engine.decode_s(step, times, two_batch_overlap=False), 0.0)
    total = prefill + np.maximum(output_len - 1.0, 0.0) * token
    rows = zip(prefill.tolist(), token.tolist(), total.tolist(), strict=True)
    return [StaticBatch(prefill_s=first, token_s=each, total_s=whole) for first, each, whole in rows]


def max_throughput(
    deployment: Deployment,
    workload: Workload,
    mode: Mode,
    *,
    max_num_seqs: float = 4096.0,
    engine: Engine | None = None,
) -> PeakThroughput:
    """Output of an engine at unlimited request rate, with the largest batch that fits.

    Args:
        max_num_seqs: sequences that one rank may decode at once [sequences].
    """
    unlimited = unlimited_requests(deployment, max_num_seqs)
    loop = closed_loop(deployment, workload, mode, unlimited, engine=engine)
    return PeakThroughput(
        output_tokens_per_s=loop.output_tokens_per_s,
        batch_size=loop.decoding / deployment.layout.dp,
        tpot_s=loop.tpot_s,
        bound=loop.bound,
    )


def unlimited_requests(deployment: Deployment, max_num_seqs: float) -> float:
    """Requests in flight that are enough to saturate a deployment [requests]."""
    layout = deployment.layout
    return max_num_seqs * layout.attention_dp * layout.pp * layout.dp
