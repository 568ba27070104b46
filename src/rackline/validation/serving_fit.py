"""Fits of the few parameters that serving stacks add to their kernels: servers, single batches, pools."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

import numpy as np

from rackline.arch import Model
from rackline.errors import RacklineError
from rackline.fitting.solver import Parameter, Values, fit
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.serving.closed_loop import TwoPools
from rackline.serving.curve import static_batch
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.steady import behind, median_prompts
from rackline.serving.workload import Workload
from rackline.validation.cases import Case, source_of, workload_of
from rackline.validation.fit_cases import BURST, COMMON, FIRST_TOKEN, POOLS, FitCases, ServingNumbers
from rackline.validation.predict import Predictor
from rackline.validation.resolve import Resolver

FEWEST = 5
"""A parameter of the time to first token with fewer cases takes the value of similar ones; those of pools and of single
batches are not fitted to fewer [cases]."""
_LEAST = {"rank_skew_s": 0.0, "prefill_slowdown": 1.0, "eager_s_per_layer": 0.0}
_ROUNDS = 3
_LINES = 2
_STARTS = (0.02, 0.1, 0.4)
_MOST_STEPS = 8


def fit_numbers(
    cases: FitCases,
    start: ServingNumbers,
    used: Array,
    *,
    fixed: Mapping[str, float] | None = None,
) -> ServingNumbers:
    """Fit the parameters to some of the cases.

    Args:
        start: initial values.
        used: mask of the cases, shape (cases,).
        fixed: parameters with a known value; burst_share applies to every admission.
    """
    given = fixed or {}
    fixed = {name: value for name, value in given.items() if name != BURST}
    fixed |= {f"{BURST}.{admission}": given[BURST] for admission in start.burst_share if BURST in given}
    here = start.changed(fixed)
    rows = np.flatnonzero(used)
    waits = [name for name in (*FIRST_TOKEN, *(f"{BURST}.{key}" for key in start.burst_share)) if name not in fixed]
    felt = [name for name in waits if np.sum(cases.concerned(name) & used & np.isfinite(cases.ttft_s)) >= FEWEST]
    for _ in range(_ROUNDS):
        here = _like(_fit_waits(cases, _fit_common(cases, here, rows, fixed), felt, used), waits, felt)
    return here


def _like(here: ServingNumbers, waits: Sequence[str], felt: Sequence[str]) -> ServingNumbers:
    """Parameters that no case depends on take the value of similar ones: the other constant, the median of the
    shares."""
    values: dict[str, float] = {}
    for name in set(waits) - set(felt):
        if others := [here.get(other) for other in felt if (other in FIRST_TOKEN) == (name in FIRST_TOKEN)]:
            values[name] = float(np.median(others))
    return here.changed(values)


def _fit_common(cases: FitCases, start: ServingNumbers, rows: Array, fixed: Mapping[str, float]) -> ServingNumbers:
    """Fit to the time per output token."""
    free = [name for name in COMMON if name not in fixed]
    measured = cases.tpot_s[rows]
    if not free:
        return start
    parameters = [
        Parameter(
            name=name,
            start=max(start.get(name), _LEAST[name] + 0.02 * COMMON[name]),
            low=_LEAST[name],
            form="plain",
            unit=COMMON[name],
        )
        for name in free
    ]

    def errors(values: Values) -> Array:
        return np.log(cases.predict(start.changed(values), rows).tpot_s[rows] / measured)

    found = fit(parameters, errors, diff_step=0.03, xtol=1e-3, ftol=1e-4, max_nfev=_MOST_STEPS)
    return start.changed(found.values)


def _fit_waits(cases: FitCases, here: ServingNumbers, felt: Sequence[str], used: Array) -> ServingNumbers:
    """Fit to the time to first token, which is nearly linear in its parameters: all at once, by their slopes."""
    rows = np.flatnonzero(used & np.isfinite(cases.ttft_s))
    if not felt or len(rows) < FEWEST:
        return here
    for _ in range(_LINES):
        base = cases.predict(here, rows)
        keep = rows[~base.memory_bound[rows]]
        rest = base.ttft_s[keep].copy()
        slopes: list[Array] = []
        for name in felt:
            value = here.get(name)
            step = 0.02 + 0.1 * value
            own = np.flatnonzero(cases.concerned(name) & used & np.isfinite(cases.ttft_s) & ~base.memory_bound)
            moved = cases.predict(here.changed({name: value + step}), own).ttft_s[own]
            slope = np.zeros(len(cases.cases))
            slope[own] = (moved - base.ttft_s[own]) / step
            slopes.append(slope[keep])
            rest -= slope[keep] * value
        here = here.changed(_best_line(rest, slopes, cases.ttft_s[keep], felt))
    return here


def _best_line(rest: Array, slopes: list[Array], measured: Array, names: Sequence[str]) -> Values:
    """Values from 0 to 1 that minimise the log error of rest + values · slopes against the measurements."""
    lines = np.array(slopes)

    def errors(values: Values) -> Array:
        return np.log(np.maximum(rest + np.array([values[name] for name in names]) @ lines, 1e-6) / measured)

    def begun(first: float, share: float) -> list[Parameter]:
        """All constants and all shares start with equal values."""
        starts = {name: first if name in FIRST_TOKEN else share for name in names}
        return [Parameter(name=name, start=start, low=0.0, high=1.0, form="plain") for name, start in starts.items()]

    found = [fit(begun(first, share), errors) for first in _STARTS for share in _STARTS]
    return min(found, key=lambda one: one.cost).values


Prepared = TypeVar("Prepared")


def prepared(cases: Iterable[Case], prepare: Callable[[Case], Prepared | None]) -> list[Prepared]:
    """Cases as a fit needs them; those that cannot be predicted, or that it cannot use (None), are left out."""
    found: list[Prepared] = []
    for case in cases:
        with suppress(RacklineError):
            one = prepare(case)
            found += [] if one is None else [one]
    return found


NAME = "single_batch_prefill_slowdown"
"""Name of the slowdown of prompt passes of single batches [ratio]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A measured prompt pass of a single batch.

    Args:
        case: that it is of.
        stack: name of the engine.
        kernels_s: its kernels [s].
        launches_s: launches of all layers by the host [s].
        measured_s: prefill_s of the case.
    """

    case: Case
    stack: str
    kernels_s: float
    launches_s: float
    measured_s: float


def prompts_of(cases: Sequence[Case], calibration: str = "auto") -> list[Prompts]:
    """The prompt passes of single batches on engines before CUDA graphs, of the cases that can be predicted."""
    predictor = Predictor(resolver=Resolver(calibration_name=calibration))

    def prompts(case: Case) -> Prompts | None:
        around = predictor.resolver.stack(case)
        if not around.graphs.eager_decode:
            return None
        deployment = predictor.resolver.deployments(case)[0]
        fast = around.with_values({"graphs.prefill_slowdown": 1.0, "graphs.eager_s_per_layer": 0.0})
        alone = predictor.engine(deployment, fast)
        sizes = case.number("batch_size"), case.number("input_len"), 1.0
        return Prompts(
            case=case,
            stack=around.name,
            kernels_s=static_batch(deployment, *sizes, engine=alone).prefill_s,
            launches_s=alone.num_layers * around.graphs.eager_s_per_layer,
            measured_s=case.measured["prefill_s"],
        )

    return prepared((one for one in cases if one.kind == "static-batch" and "prefill_s" in one.measured), prompts)


def fit_prompts(seen: Sequence[Prompts]) -> float:
    """The slowdown that minimises soft L1 of the log error [ratio]."""
    kernels_s, launches_s, measured_s = (
        np.array([getattr(one, name) for one in seen]) for name in ("kernels_s", "launches_s", "measured_s")
    )
    slowdown = Parameter(name=NAME, start=1.3, low=1.0, high=10.0, form="plain")
    return fit([slowdown], lambda values: np.log(behind(values[NAME] * kernels_s, launches_s) / measured_s)).values[
        NAME
    ]


def with_slowdown(slowdown: float, stacks: Collection[str]) -> Callable[[Stack], Stack]:
    """Engines of these names before CUDA graphs with this slowdown; others as they are."""

    def changed(found: Stack) -> Stack:
        concerned = found.graphs.eager_decode and found.name in stacks
        return found.with_values({"graphs.prefill_slowdown": slowdown}) if concerned else found

    return changed


_SIZE = 0.1  # scale of both parameters


def fit_pools(cases: Sequence[Case], numbers: ServingNumbers, calibration: str) -> ServingNumbers:
    """These parameters with those of pools fitted to the cases; unchanged if there are too few cases.

    Args:
        cases: measured cases of pools.
        numbers: parameters, of which those of single engines are kept.
        calibration: "auto" (each case's own stack), a stack or a file.
    """
    alone = numbers.changed(dict.fromkeys(POOLS, 0.0))
    predictor = Predictor(resolver=Resolver(calibration_name=calibration, change=alone.stack))

    def served(case: Case) -> tuple[TwoPools, Workload, float, float]:
        pools, asked = predictor.pools(case), (workload_of(case), case.number("concurrency"))
        pools.closed_loop(*asked)  # refused here where it cannot be predicted
        return pools, *asked, case.measured["ttft_s"]

    ready = prepared((one for one in cases if "ttft_s" in one.measured), served)
    if len(ready) < FEWEST:
        return numbers

    def errors(values: Values) -> Array:
        found: list[float] = []
        for pools, work, users, measured in ready:
            stack = pools.first.stack.with_values({f"arrivals.{name}": value for name, value in values.items()})
            stack = stack.prefill_pool()
            # the copy shares the caches of the pools, which do not depend on these parameters
            loop = replace(pools, first=replace(pools.first, stack=stack)).closed_loop(work, users)
            found.append(float(np.log(loop.ttft_s / measured)))
        return np.array(found)

    parameters = [
        Parameter(name=name, start=max(numbers.get(name), 0.02), low=0.0, high=10.0 * _SIZE, form="plain", unit=_SIZE)
        for name in POOLS
    ]
    found = fit(parameters, errors, diff_step=0.05, xtol=1e-2, ftol=1e-3, max_nfev=_MOST_STEPS)
    return numbers.changed(found.values)


NAMES = ("host_s_per_step", "host_s_per_sequence", "sample_bytes_per_logit", "untuned_slowdown")
SCALE = np.array([1e-3, 3e-5, 400.0, 2.0])
ELSEWHERE = np.array([2.2e-3, 0.0, 2.318e-3 / (128 * 131_072) * 0.75 * 3.35e12, 1.0])
"""What others' measurements alone say: a step of vLLM 0.10 and 0.11 in AMD's batch latencies on MI300X (least cost
between 2.0 and 2.5 ms), the sort in vLLM's pull request 40376 (128 x 131,072 logits in 2.32 ms, its chip taken for an
H100); nothing on hosts per sequence and on untuned experts."""
FEWEST_MEDIANS = 20
"""Cases that the four numbers need [cases]."""
_REACHED = 0.75  # of the memory bandwidth, by kernels that pass over tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A case with the median step's parts that do not depend on the numbers [s]."""

    case: Case
    mixture: bool
    measured_s: float
    kernels_s: float
    untuned_s: float
    bytes_s: float
    launches_s: float
    sequences: float

    def seconds(self, numbers: Array) -> float:
        """The median step under (step, each, bytes, ratio)."""
        step_s, each_s, bytes_per_logit, ratio = numbers.tolist()
        device = self.kernels_s + (ratio - 1.0) * self.untuned_s + bytes_per_logit * self.bytes_s + step_s
        return float(behind(device, self.launches_s + each_s * self.sequences))


def is_of_older_engine(case: Case) -> bool:
    """Whether a case states the median of its times between tokens, to which the four numbers are fitted."""
    return case.kind == "serve" and "tpot_s" in case.measured and source_of(case).tpot == "median"


def steps_of(cases: Sequence[Case], calibration: str = "auto") -> list[Step]:
    """The cases that can be predicted, prepared."""
    return prepared(cases, partial(step_of, Predictor(resolver=Resolver(calibration_name=calibration))))


def step_of(predictor: Predictor, case: Case) -> Step:
    """Prepare a case.

    Raises:
        RacklineError: it cannot be predicted.
    """
    around = predictor.resolver.stack(case)
    bare = with_engine_numbers(around, np.array([0.0, 0.0, 0.0, 1.0]))
    deployment = predictor.resolver.deployments(case, stack=bare)[0]
    model = cast("Model", deployment.model)
    engine, work = predictor.engine(deployment, IDEAL), workload_of(case)
    layout, chip = deployment.layout, deployment.cluster.chip
    b = case.number("concurrency") / (layout.attention_dp * layout.pp * layout.dp)
    batch = Batch(decode_sequences=b, context_len=work.mean_context)
    times = engine.time_table(False)
    kernels = alone = float(engine.seconds(batch, times, two_batch_overlap=False))
    prompts = float(median_prompts(np.array(b / (work.output_len - 1.0)))) * work.new_tokens
    prompts = max(min(prompts, around.scheduler.max_batched_tokens - b), 0.0)
    launched = b + prompts > around.graphs.held_tokens
    if prompts > 0.0:
        chunk = min(work.new_tokens, prompts)
        mixed = replace(batch, prefill_sequences=prompts / chunk, chunk_tokens=chunk)
        extra = float(engine.seconds(mixed, times, two_batch_overlap=False)) - alone
        kernels += (around.graphs.prefill_slowdown if launched else 1.0) * extra
    experts = {row.name: row for row in engine.table.time(batch).rows}.get("experts")
    of = f"{chip.generation} {deployment.precision.expert_weights}"
    untuned = experts.seconds if experts is not None and of in around.experts.untuned else 0.0
    return Step(
        case=case,
        mixture=experts is not None,
        measured_s=case.measured["tpot_s"],
        kernels_s=kernels,
        untuned_s=untuned,
        bytes_s=b * model.vocab_size / (_REACHED * chip.hbm_bytes_per_s),
        launches_s=launched * engine.num_layers * around.graphs.eager_s_per_layer,
        sequences=b,
    )


def fit_engine(steps: Sequence[Step]) -> Array:
    """The numbers that minimise soft L1 of the log error, in the order of NAMES."""
    measured = np.log(np.array([step.measured_s for step in steps]))

    def errors(values: Values) -> Array:
        numbers = np.array(list(values.values()))
        return np.log(np.array([step.seconds(numbers) for step in steps])) - measured

    parameters = [Parameter(name=name, start=float(scale)) for name, scale in zip(NAMES, SCALE, strict=True)]
    return np.array(list(fit(parameters, errors, around=0.0, diff_step=0.03).values.values()))


def with_engine(numbers: Array) -> Callable[[Stack], Stack]:
    """Stacks of the versions that have the four numbers, with these; others as they are."""

    def changed(found: Stack) -> Stack:
        if not found.kernels.sample_bytes_per_logit:
            return found
        return with_engine_numbers(found, numbers)

    return changed


def with_engine_numbers(found: Stack, numbers: Array) -> Stack:
    """Return a stack with the four numbers, in the order of NAMES."""
    step_s, each_s, logit_bytes, slowdown = (float(value) for value in numbers)
    return found.with_values(
        {
            "host.s_per_step": step_s,
            "host.s_per_sequence": each_s,
            "kernels.sample_bytes_per_logit": logit_bytes,
            "experts.untuned_slowdown": slowdown,
        }
    )
