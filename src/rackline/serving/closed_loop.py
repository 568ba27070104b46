"""A closed loop: a fixed number of requests always in flight, as benchmarks drive a server.

Requests in flight are waiting, prefilling or decoding. With b of them decoding, requests leave at

    X(b) = b / ((output_len - 1) · tpot(b))        requests/s

and Little's law gives the time of a request, C / X. The decoding number is where the requests that are not decoding
account for the time to first token: C = X(b) · (ttft(b) + (output_len - 1) · tpot(b)) = b + X(b) · ttft(b).
Four things cap b: the loop itself, the memory, the sequences that the engine may run, and the prefill path, which at
full load feeds room · (output_len - 1) / (new tokens + output_len - 1) slots. At a cap the rest of the requests wait,
and their wait is part of the time to first token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError
from rackline.parallel import Deployment
from rackline.passes import Batch
from rackline.serving.speculative import PLAIN, Speculation, draft_table
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.steady import Engine, steady_state
from rackline.serving.workload import Mode, Workload

_POINTS = 48
_NEARLY = 0.8  # of what the prefill path can feed: beyond, requests queue for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Mean times of a request.

    Args:
        tpot_s, ttft_s: [s].
        request_s: ttft + (output_len - 1) tpot [s].
        decoding: requests that decode at a time, over all ranks [requests].
        decode_s: step without prompt tokens [s].
        bound: what keeps more requests from decoding: "concurrency", "memory", "max_num_seqs" or "prefill".
        output_tokens_per_s: of all chips of the replicas [tokens/s].
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
    """One batch prefilled and decoded together: prefill_s, mean step token_s, total = prefill + (n - 1) token [s]."""

    prefill_s: float
    token_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakThroughput:
    """Saturated: output of all chips [tokens/s] with a given number of sequences decoding on a replica."""

    output_tokens_per_s: float
    batch_size: float
    tpot_s: float
    bound: str


def engine_of(deployment: Deployment, stack: Stack = IDEAL, speculation: Speculation = PLAIN) -> Engine:
    """The engine of a deployment under a stack, with speculative decoding if it drafts."""
    model = deployment.model
    return Engine(
        table=deployment.table(),
        attention_dp=float(deployment.layout.attention_dp),
        micro_batches=float(deployment.layout.pp),
        pipeline_stretch=deployment.pipeline_stretch,
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
    memory_fraction: float = 0.9,
    engine: Engine | None = None,
) -> ClosedLoop:
    """Mean latencies with `concurrency` requests always in flight on all replicas together.

    Args:
        engine: of the deployment, when it is built already.

    Raises:
        InputError: concurrency below 1, or a model that does not fit.
    """
    if not concurrency >= 1:
        raise InputError(what="concurrency", given=concurrency, allowed="at least 1", nearest="1")
    layout = deployment.layout
    engine = engine or engine_of(deployment)
    slots = layout.attention_dp * layout.pp * layout.dp
    wanted = concurrency / slots  # requests of one rank and micro-batch
    whole = engine.stack.reserve == "final"  # a request starts where its last token has room
    held = deployment.max_sequences(
        context_len=workload.final_context if whole else workload.mean_context,
        server=engine.stack.memory(mode.max_batched_tokens, memory_fraction),
    )
    if held < 1:
        raise InputError(
            what=f"{deployment.model.name} on {layout.label()}",
            given="no room for one request",
            allowed="weights and one request within the memory",
        )
    caps = {
        "concurrency": wanted,
        "memory": held / (layout.attention_dp * layout.pp),
        "max_num_seqs": float(engine.stack.max_num_seqs),
    }
    if mode.is_mixed:
        # a step yields several tokens of a sequence under speculation and pushes the drafts through as well
        steps = (workload.output_len - 1.0) / engine.speculation.tokens_per_step
        pushed = workload.new_tokens + steps * engine.speculation.verified_tokens
        caps["prefill"] = 0.999 * mode.max_batched_tokens * steps / pushed
    bound = min(caps, key=lambda name: caps[name])
    most = caps[bound]
    points = np.geomspace(min(1e-2, most), most, _POINTS)
    state = steady_state(engine, workload, mode, points)
    steps = workload.output_len - 1.0
    rate = points / (steps * state.tpot_s + state.hold_s)
    if mode.is_batch_by_batch:  # all that ended together are admitted together
        waiting = engine.stack.beyond_passes_s(workload) + state.hold_s
    else:
        waiting = state.ttft_s + engine.stack.burst_share * max(wanted * layout.pp - 1.0, 0.0) * state.prompt_s
    in_flight = rate * (waiting + steps * state.tpot_s)
    if in_flight[-1] <= wanted:
        tpot, decoding = float(state.tpot_s[-1]), most
        hold = float(state.hold_s[-1])
        request = wanted / float(rate[-1])
        ttft = request - steps * tpot
        decode = float(state.decode_s[-1])
    else:
        decoding = float(np.interp(wanted, in_flight, points))
        bound = "prefill" if decoding > _NEARLY * caps.get("prefill", np.inf) else "concurrency"
        tpot = float(np.interp(decoding, points, state.tpot_s))
        hold = float(np.interp(decoding, points, state.hold_s))
        ttft = float(np.interp(decoding, points, waiting))
        request = ttft + steps * tpot
        decode = float(np.interp(decoding, points, state.decode_s))
    return ClosedLoop(
        tpot_s=tpot,
        ttft_s=ttft,
        request_s=request,
        decoding=decoding * slots,
        decode_s=decode,
        bound=bound,
        output_tokens_per_s=decoding * slots / (tpot + hold / steps),
    )


def static_batch(
    deployment: Deployment, batch_size: float, input_len: float, output_len: float, engine: Engine | None = None
) -> StaticBatch:
    """One batch prefilled together, then decoded together.

    Args:
        batch_size: sequences on all replicas together [sequences].
        input_len, output_len: [tokens].
    """
    engine = engine or engine_of(deployment)
    layout = deployment.layout
    per_rank = float(np.ceil(batch_size / (layout.attention_dp * layout.dp)))
    times = engine.time_table(False)

    def pass_s(batch: Batch) -> float:
        return float(engine.seconds(batch, times, two_batch_overlap=False))

    prompts = pass_s(Batch(prefill_sequences=per_rank, chunk_tokens=input_len))
    prefill = float(engine.with_prompts_s(0.0, prompts))  # driven in process: no server in between
    token = 0.0
    if output_len > 1:
        step = Batch(decode_sequences=per_rank, context_len=input_len + output_len / 2.0)
        token = float(engine.decode_s(step, times, two_batch_overlap=False))
    return StaticBatch(prefill_s=prefill, token_s=token, total_s=prefill + max(output_len - 1.0, 0.0) * token)


def max_throughput(
    deployment: Deployment,
    workload: Workload,
    mode: Mode,
    *,
    memory_fraction: float = 0.9,
    max_num_seqs: float = 4096.0,
    engine: Engine | None = None,
) -> PeakThroughput:
    """Output of an engine that never lacks requests; the batch is what fits.

    Args:
        max_num_seqs: sequences that one rank may decode at once [sequences].
    """
    unlimited = max_num_seqs * deployment.layout.attention_dp * deployment.layout.pp * deployment.layout.dp
    loop = closed_loop(deployment, workload, mode, unlimited, memory_fraction=memory_fraction, engine=engine)
    return PeakThroughput(
        output_tokens_per_s=loop.output_tokens_per_s,
        batch_size=loop.decoding / deployment.layout.dp,
        tpot_s=loop.tpot_s,
        bound=loop.bound,
    )
