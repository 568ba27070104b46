"""One small function a kind of case: what the library says would have been measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rackline.arch import AggregateModel
from rackline.errors import InputError
from rackline.parallel import Deployment
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch, PassTime
from rackline.serving import Engine, Workload, closed_loop, max_throughput, static_batch
from rackline.serving.closed_loop import engine_of
from rackline.serving.speculative import PLAIN, Speculation
from rackline.serving.stack import Stack
from rackline.validation.cases import Case
from rackline.validation.resolve import Resolver
from rackline.validation.speculation import speculation_of

# Mean length over the nominal one.
FIXED = "fixed"
LENGTH_SHARES = {FIXED: 1.0, "uniform_0.8_1.0": 0.9}


@dataclass(slots=True)
class Predictor:
    """Predicts cases one by one and keeps the engines that they share.

    Args:
        resolver: builds deployments.
    """

    resolver: Resolver
    _engines: dict[tuple[int, Stack, Speculation], tuple[Deployment, Engine]] = field(
        default_factory=dict[tuple[int, Stack, Speculation], tuple[Deployment, Engine]]
    )

    def engine(self, deployment: Deployment, stack: Stack, speculation: Speculation = PLAIN) -> Engine:
        """The engine of a deployment under a stack, built once."""
        key = (id(deployment), stack, speculation)
        if key not in self._engines:
            self._engines[key] = (deployment, engine_of(deployment, stack, speculation))
        return self._engines[key][1]

    def predict(self, case: Case) -> dict[str, float]:
        """Predicted values of what was measured, and of the sums that are scored besides, SI units.

        Raises:
            RacklineError: the case cannot be predicted; says why.
        """
        return PREDICTORS[case.kind](self, case)

    def passes(self, case: Case) -> dict[str, PassTime]:
        """The passes behind a prediction, broken down: decode and prefill by name; empty for other kinds."""
        if case.kind not in ("serve", "static-batch", "max-throughput"):
            return {}
        deployment, stack = self.resolver.deployments(case)[0], self.resolver.stack(case)
        engine = self.engine(deployment, stack)
        table = engine.table
        lengths = workload_of(case)
        ranks = deployment.layout.attention_dp * deployment.layout.dp
        if case.kind == "serve":
            sequences = case.number("concurrency") / (ranks * deployment.layout.pp)
        elif case.kind == "static-batch":
            sequences = case.number("batch_size") / ranks
        else:
            peak = max_throughput(
                deployment,
                lengths,
                stack.mode(),
                memory_fraction=stack.memory_fraction,
                max_num_seqs=stack.max_num_seqs,
                engine=engine,
            )
            sequences = peak.batch_size / (deployment.layout.attention_dp * deployment.layout.pp)
        sequences = max(sequences, 1.0)
        prompts = sequences if case.kind == "static-batch" else 1.0
        group = sequences * deployment.layout.attention_dp
        prompt_group = prompts * lengths.input_len * deployment.layout.attention_dp
        return {
            "decode": table.time(
                Batch(decode_sequences=sequences, context_len=lengths.mean_context, group_tokens=group)
            ),
            "prefill": table.time(
                Batch(prefill_sequences=prompts, chunk_tokens=lengths.input_len, group_tokens=prompt_group)
            ),
        }


def workload_of(case: Case) -> Workload:
    """Mean lengths of a case's requests."""
    share = length_share(case)
    output_len = case.number("output_len") * share if "output_len" in case.values else 2.0
    return Workload(
        input_len=max(case.number("input_len") * share, 1.0),
        output_len=max(output_len, 2.0),
        equal_lengths=case.text("length_distribution", FIXED) == FIXED,
    )


def length_share(case: Case) -> float:
    """Mean over nominal length.

    Raises:
        InputError: a distribution that is not known.
    """
    name = case.text("length_distribution", FIXED)
    if name not in LENGTH_SHARES:
        raise InputError(what="length_distribution", given=name, allowed=", ".join(LENGTH_SHARES))
    return LENGTH_SHARES[name]


def request_s(case: Case, tpot_s: float, ttft_s: float) -> float:
    """Time of one request: ttft + (output_len - 1) tpot, at the mean output length [s]."""
    return ttft_s + (case.number("output_len") * length_share(case) - 1.0) * tpot_s


def predict_serve(predictor: Predictor, case: Case, speculation: Speculation | None = None) -> dict[str, float]:
    """A closed loop with a fixed number of concurrent requests over all replicas.

    Args:
        speculation: drafts, in place of what the case says of them.
    """
    speculation = speculation_of(case) if speculation is None else speculation
    deployment, stack = predictor.resolver.deployments(case)[0], predictor.resolver.stack(case)
    found = closed_loop(
        deployment,
        workload_of(case),
        stack.mode(),
        case.number("concurrency"),
        memory_fraction=stack.memory_fraction,
        engine=predictor.engine(deployment, stack, speculation),
    )
    whole = request_s(case, found.tpot_s, found.ttft_s)
    return {"tpot_s": found.tpot_s, "ttft_s": found.ttft_s, "request_s": whole}


def predict_static_batch(predictor: Predictor, case: Case) -> dict[str, float]:
    """One batch, prefilled and decoded together."""
    deployment, stack = predictor.resolver.deployments(case)[0], predictor.resolver.stack(case)
    output_len = case.number("output_len") if "output_len" in case.values else 1.0
    found = static_batch(
        deployment,
        case.number("batch_size"),
        case.number("input_len"),
        output_len,
        engine=predictor.engine(deployment, stack),
    )
    return {"prefill_s": found.prefill_s, "token_s": found.token_s, "total_s": found.total_s}


def predict_max_throughput(predictor: Predictor, case: Case) -> dict[str, float]:
    """Requests without limit; the best of the layouts that the source leaves open."""
    best, reason = 0.0, None
    stack = predictor.resolver.stack(case)
    for deployment in predictor.resolver.deployments(case):
        try:
            found = max_throughput(
                deployment,
                workload_of(case),
                stack.mode(),
                memory_fraction=stack.memory_fraction,
                max_num_seqs=stack.max_num_seqs,
                engine=predictor.engine(deployment, stack),
            )
        except InputError as error:
            reason = error
            continue
        best = max(best, found.output_tokens_per_s)
    if not best and reason is not None:
        raise reason
    return {"output_tokens_per_s": best}


def predict_params(predictor: Predictor, case: Case) -> dict[str, float]:
    """Sizes of the model alone; the KV cache in the data type of the case's precision, bf16 if it has none."""
    model = predictor.resolver.model(case)
    size = 2.0
    if case.precision and case.chip and not isinstance(model, AggregateModel):
        types = predictor.resolver.precision(case, model, predictor.resolver.chip(case.chip))
        size = storage_bytes(types.kv_cache)
    return {
        "total_params": float(model.total_params),
        "active_params": float(model.active_params),
        "kv_bytes_per_token": float(model.kv_bytes_per_token(size)),
    }


def predict_op(predictor: Predictor, case: Case) -> dict[str, float]:
    """One kernel or collective."""
    from rackline.validation.op import op_seconds

    return {"seconds": op_seconds(predictor.resolver, [case])[0]}


PREDICTORS: dict[str, Callable[[Predictor, Case], dict[str, float]]] = {
    "serve": predict_serve,
    "static-batch": predict_static_batch,
    "max-throughput": predict_max_throughput,
    "params": predict_params,
    "op": predict_op,
}
