"""Predictions by kind of case: one function each for the predicted values of the measured quantities."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rackline.arch import AggregateModel
from rackline.errors import InputError, RacklineError
from rackline.hardware import ChipPower
from rackline.late import late
from rackline.parallel import Deployment
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch, PassTime
from rackline.passes.features import Array
from rackline.serving import ClosedLoop, Engine, Workload, max_throughput
from rackline.serving.closed_loop import TwoPools, closed_loops, engine_of, unlimited_requests
from rackline.serving.curve import static_batches
from rackline.serving.stack import Stack
from rackline.serving.steady import median_step_s, steady_state
from rackline.serving.workload import PLAIN, USUAL_DRAFT_TOKENS, Speculation, Workloads, usual_speculation
from rackline.simulation import CacheConfig, Lengths, Requests, open_arrivals, pool_of, simulate
from rackline.validation.cases import (
    LONG_TAIL,
    UNKNOWN_SPECULATION,
    Case,
    Predicted,
    distribution_of,
    request_s,
    requests_of,
    rounds_of,
    source_of,
    workload_of,
)
from rackline.validation.resolve import Resolver

with late:
    from rackline.validation import fit_cases, op, requests, rl, train_cases

# Samplers of benchmarks leave out prompts above 1,024 tokens, and prompts with answers above 2,048 (vLLM's
# is_valid_sequence, which SGLang's client has as well).
_LONGEST_PROMPT, _LONGEST = 1024, 2048
_SEED = 0
_ALLOWED = "none, unknown, mtp, mtp-K, eagle, eagle-K or eagle3-K with K drafts per step"


@dataclass(slots=True)
class Predictor:
    """Predicts cases, all cases of one engine at once; its resolver keeps the engines that they share.

    Args:
        resolver: builds deployments.
        powers: chip → what it draws, instead of the catalogue's.
    """

    resolver: Resolver
    powers: Mapping[str, ChipPower] = field(default_factory=dict[str, ChipPower])

    def engine(self, deployment: Deployment, stack: Stack, speculation: Speculation = PLAIN) -> Engine:
        """The engine of a deployment under a serving stack, built once."""
        key = ("engine", deployment, stack, speculation)
        return self.resolver.once(key, lambda: engine_of(deployment, stack, speculation))

    def power(self, case: Case) -> fit_cases.PowerCase | None:
        """What the kernels of a serving do in a step; None where nothing is known of the power of its chip.

        Raises:
            RacklineError: the case cannot be predicted.
        """
        deployment, stack = self.resolver.deployments(case)[0], self.resolver.stack(case)
        engine, layout = self.engine(deployment, stack, speculation_of(case)), deployment.layout
        single = self.resolver.once(("single", engine), lambda: fit_cases.single_numbers(engine))
        ranks = layout.attention_dp * layout.pp * layout.dp
        return fit_cases.power_case(case, engine, single, workload_of(case), ranks) if single else None

    def pools(self, case: Case) -> TwoPools:
        """The prefill and the decode pool of a case, built once per deployment."""
        prefill, decode = self.resolver.pools(case)
        stack, how = self.resolver.stack(case), speculation_of(case)
        first, then = self.engine(prefill, stack.prefill_pool()), self.engine(decode, stack, how)
        return self.resolver.once(
            ("pools", first, then), lambda: TwoPools(prefill=prefill, decode=decode, first=first, then=then)
        )

    def predict(self, case: Case) -> dict[str, float]:
        """Predicted values of the measured keys, and of derived ones that are scored too, in SI units.

        Raises:
            RacklineError: the case cannot be predicted, with the reason.
        """
        found = self.predict_all([case])[0]
        if not isinstance(found, dict):
            raise found
        return found

    def predict_all(self, cases: Sequence[Case]) -> list[Predicted]:
        """Predicted values of each case, or the error that explains why there are none; cases of one engine at once."""
        found: dict[int, Predicted] = {}
        for kind in dict.fromkeys(case.kind for case in cases):
            own = [index for index, case in enumerate(cases) if case.kind == kind]
            found |= zip(own, _together(self, kind, [cases[index] for index in own]), strict=True)
        return [found[index] for index in range(len(cases))]

    def passes(self, case: Case) -> dict[str, PassTime]:
        """The passes behind a prediction, broken down: decode and prefill by name; empty for other kinds.

        Those of pools are a decode step of the decode pool and a full pass of the prefill pool, on one rank.
        """
        if case.kind not in ("serve", "serve-disaggregated", "static-batch", "max-throughput"):
            return {}
        lengths = workload_of(case)
        prompts, chunk = 1.0, lengths.input_len
        if case.kind == "serve-disaggregated":
            pools = self.pools(case)
            first, engine, layout = pools.first, pools.then, pools.decode.layout
            requests = pools.closed_loop(lengths, case.number("concurrency")).decoding / layout.dp
            prefill_dp, tokens = pools.prefill.layout.attention_dp, float(first.stack.scheduler.max_batched_tokens)
            chunk = min(chunk, tokens)
            prompts = tokens / chunk
        else:
            deployment, stack = self.resolver.deployments(case)[0], self.resolver.stack(case)
            first = engine = self.engine(deployment, stack)
            layout, prefill_dp = deployment.layout, deployment.layout.attention_dp
            if case.kind == "max-throughput":
                most = stack.scheduler.max_num_seqs
                peak = max_throughput(deployment, lengths, stack.scheduler.mode(), max_num_seqs=most, engine=engine)
                requests = peak.decoding / layout.dp
            else:
                requests = case.number("concurrency" if case.kind == "serve" else "batch_size") / layout.dp
        sequences = requests / layout.attention_dp
        sequences = max(sequences if case.kind == "static-batch" else sequences / layout.pp, 1.0)
        prompts = sequences if case.kind == "static-batch" else prompts
        decode = Batch(
            decode_sequences=sequences,
            context_len=lengths.mean_context,
            group_tokens=sequences * layout.attention_dp,
        )
        prefill = Batch(prefill_sequences=prompts, chunk_tokens=chunk, group_tokens=prompts * chunk * prefill_dp)
        return {"decode": engine.table.time(decode), "prefill": first.table.time(prefill)}


def speculation_of(case: Case) -> Speculation:
    """Speculation that a case states; one token per step if it states nothing or "unknown".

    Raises:
        InputError: the value is not recognised.
    """
    text = case.text("speculative", "none").lower()
    if text in ("none", "off", "false", UNKNOWN_SPECULATION):
        return PLAIN
    found = re.fullmatch(r"(?:mtp|eagle3?)(?:[-=_]([1-9]|1[0-9]))?", text)
    if found is None:
        raise InputError(what="speculative", given=case.text("speculative"), allowed=_ALLOWED, nearest="mtp-3")
    return usual_speculation(int(found.group(1) or USUAL_DRAFT_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Cases of one engine, with their places in a list of cases and their lengths."""

    deployment: Deployment
    stack: Stack
    engine: Engine
    places: list[int] = field(default_factory=list[int])
    cases: list[Case] = field(default_factory=list[Case])
    works: list[Workload] = field(default_factory=list[Workload])

    def loops(
        self, concurrency: Sequence[float], rounds: Sequence[float] | None = None
    ) -> Sequence[ClosedLoop | RacklineError]:
        """A closed loop for each case, or the error that explains why there is none; endless without `rounds`."""
        return closed_loops(
            self.deployment,
            self.works,
            self.stack.scheduler.mode(),
            np.array(concurrency, dtype=np.float64),
            engine=self.engine,
            rounds=None if rounds is None else np.array(rounds),
        )

    def running(self, requests: Sequence[float]) -> tuple[Array, Array]:
        """Median and mean inter-token time of each case with a number of requests on all replicas [s]."""
        layout = self.deployment.layout
        each = np.array(requests, dtype=np.float64)[:, None] / (layout.attention_dp * layout.pp * layout.dp)
        work, mode = Workloads.of(self.works), self.stack.scheduler.mode()
        mean_s = steady_state(self.engine, work, mode, each).tpot_s
        return median_step_s(self.engine, work, mode, each)[:, 0], mean_s[:, 0]


def _by_engine(
    predictor: Predictor,
    cases: Sequence[Case],
    predict: Callable[[Predictor, _Group], Sequence[Predicted]],
    speculation: Speculation | None = None,
) -> list[Predicted]:
    """Predict the cases of each engine together; a case whose source does not state the layout, in its best one.

    Args:
        predict: predicted values of the cases of a group.
        speculation: speculation to assume instead of what the cases state.
    """
    groups: dict[tuple[Engine, bool, float], _Group] = {}
    found: dict[int, Predicted] = {}
    for index, case in enumerate(cases):
        try:
            how = speculation_of(case) if speculation is None else speculation
            work, stack = workload_of(case), predictor.resolver.stack(case)
            for deployment in predictor.resolver.deployments(case):
                engine = predictor.engine(deployment, stack, how)
                key = (engine, work.equal_lengths, work.output_spread)
                group = groups.setdefault(key, _Group(deployment=deployment, stack=stack, engine=engine))
                group.places.append(index)
                group.cases.append(case)
                group.works.append(work)
        except RacklineError as error:
            found[index] = error
    for group in groups.values():
        for index, own in zip(group.places, _of_group(predictor, group, predict), strict=True):
            found[index] = _better(found.get(index), own)
    return [found[index] for index in range(len(cases))]


def _of_group(
    predictor: Predictor, group: _Group, predict: Callable[[Predictor, _Group], Sequence[Predicted]]
) -> Sequence[Predicted]:
    """The cases of a group together; where that fails, each alone."""
    try:
        return predict(predictor, group)
    except RacklineError as error:
        if len(group.cases) == 1:
            return [error]
    alone = [
        replace(group, places=[place], cases=[case], works=[work])
        for place, case, work in zip(group.places, group.cases, group.works, strict=True)
    ]
    return [value for one in alone for value in _of_group(predictor, one, predict)]


def _better(known: Predicted | None, own: Predicted) -> Predicted:
    """The layout of a case that runs; where both do, the faster one."""
    if not isinstance(known, dict):
        return own
    rate = "output_tokens_per_s"
    return own if isinstance(own, dict) and own[rate] > known[rate] else known


def predict_serve(
    predictor: Predictor, cases: Sequence[Case], speculation: Speculation | None = None
) -> list[Predicted]:
    """Closed loops, each with a fixed number of concurrent requests over all replicas.

    Args:
        speculation: speculation to assume instead of what the cases state.
    """
    return _by_engine(predictor, cases, _serve, speculation)


def _serve(predictor: Predictor, group: _Group) -> Sequence[Predicted]:
    concurrency = [case.number("concurrency") for case in group.cases]
    loops = group.loops(concurrency, [rounds_of(case) for case in group.cases])
    medians = [source_of(case).tpot == "median" for case in group.cases]
    steps, means = group.running(concurrency) if any(medians) else (np.zeros(len(medians)), np.ones(len(medians)))
    found: list[Predicted] = []
    for place, (case, loop) in enumerate(zip(group.cases, loops, strict=True)):
        if isinstance(loop, RacklineError):
            found.append(loop)
            continue
        tpot, rate = loop.tpot_s, loop.output_tokens_per_s
        if medians[place]:  # they did run, even where the memory count says that they do not fit
            tpot, rate = float(steps[place]), concurrency[place] / float(means[place])
        values = {"tpot_s": tpot, "ttft_s": loop.ttft_s, "request_s": request_s(case, loop.tpot_s, loop.ttft_s)}
        found.append({**values, "output_tokens_per_s": rate, **_power(predictor, case, rate)})
    return found


def _power(predictor: Predictor, case: Case, output_tokens_per_s: float) -> dict[str, float]:
    """Watts and joules of a serving that states them."""
    drawn = predictor.power(case) if fit_cases.has_power(case) else None
    if drawn is None or drawn.chip.power is None:
        return {}
    return drawn.values(predictor.powers.get(case.chip, drawn.chip.power), output_tokens_per_s)


def _static_batch(predictor: Predictor, group: _Group) -> Sequence[Predicted]:
    """Static batches, each prefilled and decoded together."""
    batches = static_batches(
        group.deployment,
        np.array([case.number("batch_size") for case in group.cases]),
        np.array([max(case.number("input_len"), 1.0) for case in group.cases]),  # at least a token that begins the text
        np.array([case.number("output_len", 1.0) for case in group.cases]),
        engine=group.engine,
    )
    return [{"prefill_s": one.prefill_s, "token_s": one.token_s, "total_s": one.total_s} for one in batches]


def _max_throughput(predictor: Predictor, group: _Group) -> Sequence[Predicted]:
    """All requests at once.

    If their number is known, they run in full waves of as many as fit at once, and a partial one:
    rate = N / (waves · B / X(B) + rest / X(rest)), with X(b) requests/s at b in flight. Runs whose lengths have a long
    tail are simulated.
    """
    unlimited = unlimited_requests(group.deployment, group.stack.scheduler.max_num_seqs)
    loops = group.loops([unlimited] * len(group.cases))
    waves = [_waves(case, loop, unlimited) for case, loop in zip(group.cases, loops, strict=True)]
    ends = group.loops([max(rest, 1.0) for _, rest in waves])
    found: list[Predicted] = []
    for case, loop, (whole, rest), end in zip(group.cases, loops, waves, ends, strict=True):
        if isinstance(loop, RacklineError):
            found.append(loop)
            continue
        rate = loop.output_tokens_per_s
        if distribution_of(case) == LONG_TAIL and requests_of(case):
            rate = output_rate(group.deployment, group.stack, case)
        elif rest and not isinstance(end, RacklineError):
            rate = (whole + rest) / (whole / rate + rest / end.output_tokens_per_s)
        found.append({"output_tokens_per_s": rate})
    return found


def output_rate(deployment: Deployment, stack: Stack, case: Case) -> float:
    """Output tokens of all chips over the whole time of a run whose lengths have a long tail [tokens/s].

    It is simulated as it was run, request by request. A closed form has the mean request; in a run of some waves the
    longest answers decide when the last one ends, and a server is full for part of the time only. Runs of equal lengths
    stay closed forms: a simulated server keeps them in step from wave to wave, which servers do less (docs/history), so
    that closed forms are nearer to what was measured.

    Raises:
        RacklineError: the model or a request does not fit on the server.
    """
    requests = run_of(case)
    longest = int(np.max(requests.input_len + requests.output_len))
    pool = pool_of(deployment, stack, cache=CacheConfig(longest=longest))
    result = simulate(requests, pool, beyond_s=stack.arrivals.first_token_s)
    return float(np.sum(requests.output_len) / np.max(result.finish_s))


def run_of(case: Case) -> Requests:
    """The requests of a run with long tails: as many as stated, at the stated rate or all at once."""
    count, rng = int(requests_of(case)), np.random.default_rng(_SEED)
    means = case.number("input_len"), case.number("output_len")
    if "request_rate" in case.values:
        lengths = Lengths(input_len=means[0], output_len=means[1], spread=LONG_TAIL)
        return open_arrivals(rng, count, case.number("request_rate"), lengths)
    drawn = Lengths(input_len=means[0], output_len=means[1], spread=LONG_TAIL).draw(rng, count)
    prompts = np.minimum(drawn[0], max(_LONGEST_PROMPT, means[0]))
    answers = np.minimum(drawn[1], np.maximum(_LONGEST - prompts, means[1]))
    return Requests(
        arrival_s=np.zeros(count), input_len=_of_mean(prompts, means[0]), output_len=_of_mean(answers, means[1])
    )


def _of_mean(lengths: Array, mean: float) -> Array:
    return np.maximum(np.rint(lengths * (mean / np.mean(lengths))), 1).astype(np.int64)


def _waves(case: Case, loop: ClosedLoop | RacklineError, unlimited: float) -> tuple[float, float]:
    """Requests of a benchmark in full waves, and those of the last one; (0, 0) if their number is unknown."""
    number = requests_of(case)
    if not number or isinstance(loop, RacklineError):
        return 0.0, 0.0
    places = unlimited if loop.bound == "concurrency" else loop.decoding
    whole = number // places * places
    return whole, number - whole


def _params(predictor: Predictor, case: Case) -> dict[str, float]:
    """Sizes of the model; the KV cache in the data type of the case's precision, bf16 if it states none."""
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


def _pools(predictor: Predictor, case: Case) -> dict[str, float]:
    """A closed loop of a prefill and a decode pool."""
    loop = predictor.pools(case).closed_loop(workload_of(case), case.number("concurrency"))
    return {"tpot_s": loop.tpot_s, "ttft_s": loop.ttft_s, "request_s": request_s(case, loop.tpot_s, loop.ttft_s)}


_PREDICTORS: dict[str, Callable[[Predictor, Sequence[Case]], Sequence[Predicted]]] = {
    "op": lambda predictor, cases: op.predict_operations(predictor.resolver, cases),
    "train": lambda predictor, cases: train_cases.predict_training(predictor.resolver, cases),
    "adapters": lambda predictor, cases: requests.predict_adapters(predictor.resolver, cases),
    "serve": predict_serve,
    "static-batch": lambda predictor, cases: _by_engine(predictor, cases, _static_batch, PLAIN),
    "max-throughput": lambda predictor, cases: _by_engine(predictor, cases, _max_throughput, PLAIN),
}
"""Kind → what predicts cases of it together."""
_SINGLE: dict[str, Callable[[Predictor, Case], dict[str, float]]] = {
    "rl-step": lambda predictor, case: rl.predict_rl(predictor.resolver, case),
    "params": _params,
    "serve-disaggregated": _pools,
}
"""Kind → what predicts one case of it."""


def _together(predictor: Predictor, kind: str, cases: Sequence[Case]) -> Sequence[Predicted]:
    """Predict cases of one kind together; where that fails, halves of them, so that one bad case never ends others."""
    try:
        if kind in _PREDICTORS:
            return _PREDICTORS[kind](predictor, cases)
        if len(cases) == 1:
            return [_SINGLE[kind](predictor, cases[0])]
    except (RacklineError, ValueError) as error:
        if len(cases) == 1:
            return [error]
    half = len(cases) // 2
    return [*_together(predictor, kind, cases[:half]), *_together(predictor, kind, cases[half:])]
