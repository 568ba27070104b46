"""Predictions by kind of case: one function each for the predicted values of the measured quantities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from rackline.arch import AggregateModel
from rackline.errors import InputError, RacklineError
from rackline.hardware import ChipPower
from rackline.parallel import Deployment
from rackline.parallel.precision import storage_bytes
from rackline.passes import Batch, PassTime
from rackline.passes.features import Array
from rackline.serving import ClosedLoop, Engine, Workload, max_throughput
from rackline.serving.closed_loop import TwoPools, closed_loops, engine_of, unlimited_requests
from rackline.serving.curve import static_batches
from rackline.serving.stack import Stack
from rackline.serving.steady import median_step_s, steady_state
from rackline.serving.workload import PLAIN, Speculation, Workloads
from rackline.validation.cases import Case
from rackline.validation.finite_runs import LONG_TAIL, output_rate
from rackline.validation.power import PowerCase, has_power, power_case, single_numbers
from rackline.validation.resolve import Resolver
from rackline.validation.sources import requests_of, rounds_of, source_of
from rackline.validation.speculation import speculation_of

Predicted = dict[str, float] | RacklineError  # values by measured key, or the error that explains why there are none

# Mean length over the nominal one.
FIXED = "fixed"
LENGTH_SHARES = {FIXED: 1.0, "uniform_0.8_1.0": 0.9, LONG_TAIL: 1.0}
_LONG_TAILED = ("sharegpt",)  # data sets of conversations


@dataclass(slots=True)
class Predictor:
    """Predicts cases, all cases of one engine at once, and caches the engines that they share.

    Args:
        resolver: builds deployments.
        powers: chip → what it draws, instead of the catalogue's.
    """

    resolver: Resolver
    powers: Mapping[str, ChipPower] = field(default_factory=dict[str, ChipPower])
    _engines: dict[tuple[Deployment, Stack, Speculation], Engine] = field(
        default_factory=dict[tuple[Deployment, Stack, Speculation], Engine]
    )
    _pools: dict[tuple[Engine, Engine], TwoPools] = field(default_factory=dict[tuple[Engine, Engine], TwoPools])
    _single: dict[Engine, dict[str, Engine]] = field(default_factory=dict[Engine, dict[str, Engine]])

    def engine(self, deployment: Deployment, stack: Stack, speculation: Speculation = PLAIN) -> Engine:
        """The engine of a deployment under a serving stack, built once."""
        key = (deployment, stack, speculation)
        if key not in self._engines:
            self._engines[key] = engine_of(deployment, stack, speculation)
        return self._engines[key]

    def power(self, case: Case) -> PowerCase | None:
        """What the kernels of a serving do in a step; None where nothing is known of the power of its chip.

        Raises:
            RacklineError: the case cannot be predicted.
        """
        deployment, stack = self.resolver.deployments(case)[0], self.resolver.stack(case)
        engine, layout = self.engine(deployment, stack, speculation_of(case)), deployment.layout
        if engine not in self._single:
            self._single[engine] = single_numbers(engine)
        single, ranks = self._single[engine], layout.attention_dp * layout.pp * layout.dp
        return power_case(case, engine, single, workload_of(case), ranks) if single else None

    def pools(self, case: Case) -> TwoPools:
        """The prefill and the decode pool of a case, built once per deployment."""
        prefill, decode = self.resolver.pools(case)
        stack, how = self.resolver.stack(case), speculation_of(case)
        first, then = self.engine(prefill, stack.prefill_pool()), self.engine(decode, stack, how)
        key = (first, then)
        if key not in self._pools:
            self._pools[key] = TwoPools(prefill=prefill, decode=decode, first=first, then=then)
        return self._pools[key]

    def predict(self, case: Case) -> dict[str, float]:
        """Predicted values of the measured keys, and of derived ones that are scored too, in SI units.

        Raises:
            RacklineError: the case cannot be predicted, with the reason.
        """
        found = self.predict_all([case])[0]
        if isinstance(found, RacklineError):
            raise found
        return found

    def predict_all(self, cases: Sequence[Case]) -> list[Predicted]:
        """Predicted values of each case, or the error that explains why there are none; cases of one engine at once."""
        found: dict[int, Predicted] = {}
        kinds: dict[str, list[int]] = {}
        for index, case in enumerate(cases):
            kinds.setdefault(case.kind, []).append(index)
        for kind, own in kinds.items():
            found |= zip(own, PREDICTORS[kind](self, [cases[index] for index in own]), strict=True)
        return [found[index] for index in range(len(cases))]

    def passes(self, case: Case) -> dict[str, PassTime]:
        """The passes behind a prediction, broken down: decode and prefill by name; empty for other kinds."""
        if case.kind == "serve-disaggregated":
            return self._pool_passes(case)
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
                max_num_seqs=stack.max_num_seqs,
                engine=engine,
            )
            sequences = peak.decoding / deployment.layout.dp / (deployment.layout.attention_dp * deployment.layout.pp)
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

    def _pool_passes(self, case: Case) -> dict[str, PassTime]:
        """A decode step of the decode pool and a full pass of the prefill pool, on one rank."""
        pools, lengths = self.pools(case), workload_of(case)
        layout = pools.decode.layout
        found = pools.closed_loop(lengths, case.number("concurrency"))
        held = max(found.decoding / (layout.dp * layout.pp * layout.attention_dp), 1.0)
        tokens = float(pools.first.stack.max_batched_tokens)
        chunk = min(lengths.input_len, tokens)
        return {
            "decode": pools.then.table.time(
                Batch(decode_sequences=held, context_len=lengths.mean_context, group_tokens=held * layout.attention_dp)
            ),
            "prefill": pools.first.table.time(
                Batch(
                    prefill_sequences=tokens / chunk,
                    chunk_tokens=chunk,
                    group_tokens=tokens * pools.prefill.layout.attention_dp,
                )
            ),
        }


def workload_of(case: Case) -> Workload:
    """Mean lengths of a case's requests."""
    share, source = length_share(case), source_of(case)
    output_len = case.number("output_len") * share if "output_len" in case.values else 2.0
    input_len = case.number("input_len") * share
    if source.assumed_input_len and "input_len" in cast("Sequence[str]", case.values.get("assumed") or ()):
        input_len = source.assumed_input_len
    return Workload(
        input_len=max(input_len, 1.0),
        output_len=max(output_len, 2.0),
        equal_lengths=distribution_of(case) == FIXED and not source.output_spread,
        output_spread=source.output_spread,
    )


def length_share(case: Case) -> float:
    """Mean over nominal length.

    Raises:
        InputError: the length distribution is unknown.
    """
    name = distribution_of(case)
    if name not in LENGTH_SHARES:
        raise InputError(what="length_distribution", given=name, allowed=", ".join(LENGTH_SHARES))
    return LENGTH_SHARES[name]


def distribution_of(case: Case) -> str:
    """How lengths are drawn: as the data set has them, else as the case says; equal by default."""
    return LONG_TAIL if case.text("data_set") in _LONG_TAILED else case.text("length_distribution", FIXED)


def request_s(case: Case, tpot_s: float, ttft_s: float) -> float:
    """Time of one request at the mean output length, ttft + (output_len - 1) · tpot [s]."""
    return ttft_s + (case.number("output_len") * length_share(case) - 1.0) * tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Cases of one engine, as indices into a list of cases."""

    deployment: Deployment
    stack: Stack
    engine: Engine
    equal_lengths: bool
    members: list[tuple[int, Workload]]

    def loops(
        self, concurrency: Sequence[float], rounds: Sequence[float] | None = None
    ) -> Sequence[ClosedLoop | RacklineError]:
        """A closed loop for each case, or the error that explains why there is none; endless without `rounds`."""
        try:
            return closed_loops(
                self.deployment,
                [work for _, work in self.members],
                self.stack.mode(),
                np.array(concurrency, dtype=np.float64),
                engine=self.engine,
                rounds=None if rounds is None else np.array(rounds),
            )
        except RacklineError as error:  # the model does not run on this chip, at any lengths
            return [error] * len(self.members)

    def running(self, requests: Sequence[float]) -> tuple[Array, Array]:
        """Median and mean inter-token time of each case with a number of requests on all replicas [s]."""
        layout = self.deployment.layout
        each = np.array(requests, dtype=np.float64)[:, None] / (layout.attention_dp * layout.pp * layout.dp)
        work, mode = Workloads.of([work for _, work in self.members]), self.stack.mode()
        mean_s = steady_state(self.engine, work, mode, each).tpot_s
        return median_step_s(self.engine, work, mode, each)[:, 0], mean_s[:, 0]


def _grouped(
    predictor: Predictor, cases: Sequence[Case], speculation: Speculation | None = None
) -> tuple[list[_Group], dict[int, RacklineError]]:
    """Cases grouped by engine, and the errors of those that have none.

    A case whose source does not state the layout is in several groups.

    Args:
        speculation: speculation to assume instead of what the cases state.
    """
    groups: dict[tuple[Engine, bool, float], _Group] = {}
    refused: dict[int, RacklineError] = {}
    for index, case in enumerate(cases):
        try:
            how = speculation_of(case) if speculation is None else speculation
            work, stack = workload_of(case), predictor.resolver.stack(case)
            for deployment in predictor.resolver.deployments(case):
                engine = predictor.engine(deployment, stack, how)
                key = (engine, work.equal_lengths, work.output_spread)
                if key not in groups:
                    groups[key] = _Group(
                        deployment=deployment,
                        stack=stack,
                        engine=engine,
                        equal_lengths=work.equal_lengths,
                        members=[],
                    )
                groups[key].members.append((index, work))
        except RacklineError as error:
            refused[index] = error
    return list(groups.values()), refused


def predict_serve(
    predictor: Predictor, cases: Sequence[Case], speculation: Speculation | None = None
) -> list[Predicted]:
    """Closed loops, each with a fixed number of concurrent requests over all replicas.

    Args:
        speculation: speculation to assume instead of what the cases state.
    """
    found: dict[int, Predicted] = {}
    groups, refused = _grouped(predictor, cases, speculation)
    for group in groups:
        concurrency = [cases[index].number("concurrency") for index, _ in group.members]
        medians = [source_of(cases[index]).tpot == "median" for index, _ in group.members]
        steps, means = group.running(concurrency) if any(medians) else (np.zeros(len(medians)), np.ones(len(medians)))
        loops = group.loops(concurrency, [rounds_of(cases[index]) for index, _ in group.members])
        for place, ((index, _), loop) in enumerate(zip(group.members, loops, strict=True)):
            if isinstance(loop, RacklineError):
                found.setdefault(index, loop)
                continue
            whole = request_s(cases[index], loop.tpot_s, loop.ttft_s)
            tpot, rate = loop.tpot_s, loop.output_tokens_per_s
            if medians[place]:  # they did run, even where the memory count says that they do not fit
                tpot, rate = float(steps[place]), concurrency[place] / float(means[place])
            found[index] = {
                "tpot_s": tpot,
                "ttft_s": loop.ttft_s,
                "request_s": whole,
                "output_tokens_per_s": rate,
                **_power(predictor, cases[index], rate),
            }
    found |= refused
    return [found[index] for index in range(len(cases))]


def _power(predictor: Predictor, case: Case, output_tokens_per_s: float) -> dict[str, float]:
    """Watts and joules of a serving that states them."""
    drawn = predictor.power(case) if has_power(case) else None
    if drawn is None or drawn.chip.power is None:
        return {}
    return drawn.values(predictor.powers.get(case.chip, drawn.chip.power), output_tokens_per_s)


def predict_static_batch(predictor: Predictor, cases: Sequence[Case]) -> list[Predicted]:
    """Static batches, each prefilled and decoded together."""
    found: dict[int, Predicted] = {}
    groups, refused = _grouped(predictor, cases, PLAIN)
    for group in groups:
        own = [cases[index] for index, _ in group.members]
        lengths = [case.number("output_len") if "output_len" in case.values else 1.0 for case in own]
        try:
            batches = static_batches(
                group.deployment,
                np.array([case.number("batch_size") for case in own]),
                np.array([max(case.number("input_len"), 1.0) for case in own]),  # at least a token that begins the text
                np.array(lengths),
                engine=group.engine,
            )
        except RacklineError as error:
            found |= dict.fromkeys((index for index, _ in group.members), error)
            continue
        for (index, _), one in zip(group.members, batches, strict=True):
            found[index] = {"prefill_s": one.prefill_s, "token_s": one.token_s, "total_s": one.total_s}
    found |= refused
    return [found[index] for index in range(len(cases))]


def predict_max_throughput(predictor: Predictor, cases: Sequence[Case]) -> list[Predicted]:
    """All requests at once; the best of the possible layouts where the source does not state one.

    If their number is known, they run in full waves of as many as fit at once, and a partial one:
    rate = N / (waves · B / X(B) + rest / X(rest)), with X(b) requests/s at b in flight. Runs whose lengths have a long
    tail are simulated.
    """
    best: dict[int, float] = {}
    reasons: dict[int, RacklineError] = {}
    groups, refused = _grouped(predictor, cases, PLAIN)
    for group in groups:
        unlimited = unlimited_requests(group.deployment, group.stack.max_num_seqs)
        loops = group.loops([unlimited] * len(group.members))
        own = [cases[index] for index, _ in group.members]
        waves = [_waves(case, loop, unlimited) for case, loop in zip(own, loops, strict=True)]
        ends = group.loops([max(rest, 1.0) for _, rest in waves])
        for (index, _), loop, (whole, rest), end in zip(group.members, loops, waves, ends, strict=True):
            if isinstance(loop, RacklineError):
                reasons[index] = loop
                continue
            rate = loop.output_tokens_per_s
            if distribution_of(cases[index]) == LONG_TAIL and requests_of(cases[index]):
                rate = output_rate(group.deployment, group.stack, cases[index])
            elif rest and not isinstance(end, RacklineError):
                rate = (whole + rest) / (whole / rate + rest / end.output_tokens_per_s)
            best[index] = max(best.get(index, 0.0), rate)
    found: dict[int, Predicted] = {index: {"output_tokens_per_s": value} for index, value in best.items()}
    found = {**reasons, **found, **refused}
    return [found[index] for index in range(len(cases))]


def _waves(case: Case, loop: ClosedLoop | RacklineError, unlimited: float) -> tuple[float, float]:
    """Requests of a benchmark in full waves, and those of the last one; (0, 0) if their number is unknown."""
    number = requests_of(case)
    if not number or isinstance(loop, RacklineError):
        return 0.0, 0.0
    places = unlimited if loop.bound == "concurrency" else loop.decoding
    whole = number // places * places
    return whole, number - whole


def _one_by_one(
    predict: Callable[[Predictor, Case], dict[str, float]],
) -> Callable[[Predictor, Sequence[Case]], list[Predicted]]:
    def predict_all(predictor: Predictor, cases: Sequence[Case]) -> list[Predicted]:
        found: list[Predicted] = []
        for case in cases:
            try:
                found.append(predict(predictor, case))
            except RacklineError as error:
                found.append(error)
        return found

    return predict_all


def predict_params(predictor: Predictor, case: Case) -> dict[str, float]:
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


def predict_op(predictor: Predictor, case: Case) -> dict[str, float]:
    """One kernel or collective."""
    from rackline.validation.op import op_seconds

    return {"seconds": op_seconds(predictor.resolver, [case])[0]}


def predict_pools(predictor: Predictor, case: Case) -> dict[str, float]:
    """A closed loop of a prefill and a decode pool."""
    loop = predictor.pools(case).closed_loop(workload_of(case), case.number("concurrency"))
    return {
        "tpot_s": loop.tpot_s,
        "ttft_s": loop.ttft_s,
        "request_s": request_s(case, loop.tpot_s, loop.ttft_s),
    }


PREDICTORS: dict[str, Callable[[Predictor, Sequence[Case]], list[Predicted]]] = {
    "serve": predict_serve,
    "serve-disaggregated": _one_by_one(predict_pools),
    "static-batch": predict_static_batch,
    "max-throughput": predict_max_throughput,
    "params": _one_by_one(predict_params),
    "op": _one_by_one(predict_op),
}
