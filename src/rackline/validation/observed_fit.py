"""The few numbers that observed runs of one server determine, drawn to the shipped ones.

Seven numbers are considered, four of the stack and three of the chip. Each has a prior around its shipped value: narrow
for a chip whose kernels were measured, wide for one that borrows its numbers. They minimise

    Σ_requests w · ρ(ln predicted / measured) + Σ_numbers ρ(S · (x - x_shipped) / width)

over the time to first token and the time per output token of each request, with the soft L1 loss ρ of the fits to
published servings (`rackline.fitting.solver`, scale S). Requests of one run share their server and their queue, so
that a run of n requests counts as n / (1 + c·(n - 1)) independent ones. What is left out of a fit and predicted by it
is a run, or a quarter of the time of a run where there are fewer than three.

How far a number is determined is 1 - (posterior width / prior width)², from the slopes of the errors at the minimum:
1 where the data fix it, 0 where it stays at its prior. Below one half the run does not determine it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.errors import InputError
from rackline.fitting.solver import Done, Fit, Parameter, Values, fit, leave_out, values_of
from rackline.passes import Calibration
from rackline.passes.fallback import best_stack
from rackline.passes.features import Array
from rackline.serving.stack import Stack
from rackline.validation.cases import Case
from rackline.validation.observed import KIND, served_run
from rackline.validation.requests import ServedRun
from rackline.validation.resolve import Resolver

METRICS = ("ttft_s", "tpot_s")
DETERMINED = 0.5
"""Share of a number's prior variance that the data must take away."""
_ALIKE = 0.02  # correlation of the errors of two requests of one run
_QUARTERS = 4
_STEP = 0.25  # for slopes, in prior widths: simulated times jump where a request just misses a pass
_SHIFT = 10.0  # of coded numbers in the solver, whose steps are shares of them
_FEWEST = 8
_MOST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Observable:
    """A number that observed runs may determine.

    Args:
        name, of: the number, and whether it is of the stack or the chip.
        meaning: in words.
        unit: "1" for factors on shipped numbers.
        own, borrowed: width of its prior on a chip whose kernels were measured, and on another one [natural logarithm
            for factors, else of the unit].
    """

    name: str
    of: str
    meaning: str
    unit: str
    own: float
    borrowed: float

    def width(self, has_table: bool) -> float:
        """Width of its prior on a chip whose kernels were measured, or on another one."""
        return self.own if has_table else self.borrowed

    def parameter(self, shipped: float, has_table: bool) -> Parameter:
        """The parameter as the fit knows it: none is below zero, no prompt is faster than its kernels."""
        width = self.width(has_table)
        if self.unit != "1":
            low = -1e-9 * width
        elif self.name == "prefill_slowdown":
            low = min(shipped * math.exp(-1e-9 * width), math.exp(-1e-9 * width))
        else:
            low = shipped * math.exp(-6.0 * width)
        return Parameter(
            name=self.name, start=shipped, spread=1.0, low=low, form="log" if self.unit == "1" else "plain", unit=width
        )


PARAMETERS = (
    Observable(name="memory", of="chip", meaning="time of memory traffic", unit="1", own=0.05, borrowed=0.7),
    Observable(name="compute", of="chip", meaning="time of products", unit="1", own=0.05, borrowed=0.7),
    Observable(name="launches", of="chip", meaning="fixed time of kernels", unit="1", own=0.15, borrowed=1.0),
    Observable(name="prefill_slowdown", of="stack", meaning="prompts over their kernels", unit="1", own=0.2,
              borrowed=0.2),
    Observable(name="host_s_per_step", of="stack", meaning="host in each step", unit="s", own=2e-3, borrowed=2e-3),
    Observable(name="host_s_per_sequence", of="stack", meaning="host for each sequence", unit="s", own=50e-6,
              borrowed=50e-6),
    Observable(name="first_token_s", of="stack", meaning="first token beyond passes", unit="s", own=0.05,
              borrowed=0.05),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number as fitted.

    Args:
        name, of, meaning, unit: as of its parameter.
        shipped: before; 1 for a factor.
        value: after.
        low, high: its interval of 68 %, prior and data together.
        determined: share of the prior's variance that the data took away, 0 to 1.
    """

    json_keys: ClassVar = ("name", "of", "meaning", "unit", "shipped", "value", "low", "high", "determined")

    name: str
    of: str
    meaning: str
    unit: str
    shipped: float
    value: float
    low: float
    high: float
    determined: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricErrors:
    """|predicted / measured - 1| of a metric, median and 90th percentile.

    Args:
        metric: ttft_s, tpot_s or e2e_s.
        n: requests [count].
        shipped_median, shipped_p90: with the shipped numbers [1].
        fitted_median, fitted_p90: on the requests that were fitted [1].
        held_out_median, held_out_p90: on requests that were left out of the fit [1].
    """

    metric: str
    n: int
    shipped_median: float
    shipped_p90: float
    fitted_median: float
    fitted_p90: float
    held_out_median: float
    held_out_p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFit:
    """Numbers fitted to observed runs.

    Args:
        estimates: of each number.
        errors: by metric.
        calibration, stack: with the fitted numbers.
        chip: that they belong to.
        has_table: whether kernels were measured on that chip.
        runs, requests: that were fitted [count].
        folds: parts that were left out in turn [count].
        clipped: efficiencies that stand at the peak of the chip [count].
    """

    json_keys: ClassVar = ("estimates", "errors", "chip", "has_table", "runs", "requests", "folds", "clipped")

    estimates: tuple[Estimate, ...]
    errors: tuple[MetricErrors, ...]
    calibration: Calibration
    stack: Stack
    chip: str
    has_table: bool
    runs: int
    requests: int
    folds: int
    clipped: int

    @property
    def undetermined(self) -> tuple[str, ...]:
        """Numbers that the data do not determine."""
        return tuple(one.name for one in self.estimates if one.determined < DETERMINED)


def shipped_numbers(run: ServedRun) -> dict[str, float]:
    """The shipped numbers of a run's server, by the names of PARAMETERS."""
    return {
        "memory": 1.0,
        "compute": 1.0,
        "launches": 1.0,
        "prefill_slowdown": run.stack.graphs.prefill_slowdown,
        "host_s_per_step": run.deployment.calibration.host_s_per_step,
        "host_s_per_sequence": run.stack.host.s_per_sequence,
        "first_token_s": run.stack.arrivals.first_token_s,
    }


def has_own_numbers(run: ServedRun) -> bool:
    """Whether kernels were measured on the chip of a run's server."""
    return best_stack(run.deployment.cluster.chip) != "generic"


def independence(count: int) -> float:
    """Independent requests over all of a run, whose requests are alike [1]."""
    return 1.0 / (1.0 + _ALIKE * (count - 1))


def with_numbers(run: ServedRun, values: Values) -> ServedRun:
    """A run whose server has these numbers, by the names of PARAMETERS."""
    first_s, before = values["first_token_s"], run.stack.arrivals
    equal_s = before.first_token_equal_s
    stack = run.stack.with_values(
        {
            "arrivals.first_token_s": max(first_s, 0.0),
            "arrivals.first_token_equal_s": (
                None if equal_s is None else max(equal_s + first_s - before.first_token_s, 0.0)
            ),
            "graphs.prefill_slowdown": max(values["prefill_slowdown"], 1.0),
            "host.s_per_sequence": max(values["host_s_per_sequence"], 0.0),
        }
    )
    numbers = scaled(run.deployment.calibration, values["memory"], values["compute"], values["launches"])
    numbers = replace(numbers, host_s_per_step=max(values["host_s_per_step"], 0.0))
    return replace(run, stack=stack, deployment=replace(run.deployment, calibration=numbers))


def scaled(numbers: Calibration, memory: float, compute: float, launches: float) -> Calibration:
    """A calibration whose kernels take `memory`, `compute` and `launches` times as long in each of these [ratio].

    None reaches more than the peak of the chip.
    """
    operations = {
        key: replace(
            one,
            eta_memory=min(one.eta_memory / memory, 1.0),
            eta_compute=min(one.eta_compute / compute, 1.0),
            overhead_s=one.overhead_s * launches,
            depth_s=one.depth_s * launches,
            tile_s=one.tile_s * launches,
        )
        for key, one in numbers.operations.items()
    }
    return replace(numbers, operations=operations)


def _log_errors(run: ServedRun) -> Array:
    result = run.simulated()
    rows: list[Array] = []
    for name in METRICS:
        predicted, measured = np.asarray(getattr(result, name)), run.measured[name]
        known = np.isfinite(predicted) & np.isfinite(measured) & (measured > 0) & (predicted > 0)
        rows.append(np.log(np.where(known, predicted, np.nan) / np.where(known, measured, np.nan)))
    return np.array(rows)


def fit_observed(cases: Sequence[Case], calibration: str = "auto", done: Done | None = None) -> ObservedFit:
    """Fit the numbers of one server to its observed runs.

    Args:
        cases: of kind observed or requests, all of one chip and one stack.
        calibration: to start from: "auto" (that of the runs' stack), a name or a file.
        done: called with (what, finished, all) after the fit and each fold.

    Raises:
        InputError: no run, runs of several chips or stacks, too few requests.
        RacklineError: what was served is not said, or does not run.
    """
    own = [case for case in cases if case.kind in (KIND, "requests")]
    if not own:
        raise InputError(what="observed", given="no observed run", allowed="runs that observe wrote, or a runs.json")
    servers = list(dict.fromkeys((case.chip, case.stack, case.stack_version) for case in own))
    if len(servers) > 1:
        shown = "; ".join(" ".join(part for part in server if part) for server in servers)
        raise InputError(what="observed", given=shown, allowed="runs of one chip and one stack")
    resolver = Resolver(calibration_name=calibration)
    runs = tuple(served_run(resolver, case) for case in own)
    total = sum(len(run.requests) for run in runs)
    if total < _FEWEST:
        raise InputError(what="observed", given=f"{total} finished requests", allowed=f"at least {_FEWEST}")
    first = runs[0]
    chip = first.deployment.cluster.chip
    has_table = has_own_numbers(first)
    shipped = shipped_numbers(first)
    parameters = [one.parameter(shipped[one.name], has_table) for one in PARAMETERS]

    def errors(values: Values) -> list[Array]:
        """ln(predicted / measured) of each run, (metrics, requests); NaN where nothing was."""
        return [_log_errors(with_numbers(run, values)) for run in runs]

    def fitted(left_out: Sequence[Array]) -> Fit:
        def kept(values: Values) -> Array:
            # each counts by the root of its weight: requests of a run are alike
            parts = (np.nan_to_num(own[:, ~mask]) for own, mask in zip(errors(values), left_out, strict=True))
            return np.concatenate([own.ravel() * math.sqrt(independence(max(own.shape[1], 1))) for own in parts])

        # simulated times jump where a request just misses a pass, so that the steps of slopes are large
        return fit(
            parameters,
            kept,
            around=_SHIFT,
            diff_step=_STEP / _SHIFT,
            xtol=1e-3,
            ftol=1e-4,
            max_nfev=_MOST_STEPS,
        )

    def scored(found: Fit, left_out: Sequence[Array]) -> list[Array]:
        return [np.where(mask, own, np.nan) for own, mask in zip(errors(found.values), left_out, strict=True)]

    lengths = [len(run.requests) for run in runs]
    nothing, parts = [np.zeros(count, dtype=bool) for count in lengths], _folds(lengths)
    whole, *folds = leave_out({"everything": nothing, **parts}, fitted, scored, done)
    held = [np.fmax.reduce(own) for own in zip(*(fold.scored for fold in folds), strict=True)]
    before, after = errors(shipped), errors(whole.fitted.values)
    numbers = with_numbers(first, whole.fitted.values)
    clipped = sum(
        (one.eta_memory == 1.0) + (one.eta_compute == 1.0) for one in numbers.deployment.calibration.operations.values()
    )
    return ObservedFit(
        estimates=tuple(_estimates(parameters, whole.fitted)),
        errors=tuple(
            _errors(name, *(np.concatenate([one[index] for one in each]) for each in (before, after, held)))
            for index, name in enumerate(METRICS)
        ),
        calibration=numbers.deployment.calibration,
        stack=numbers.stack,
        chip=chip.name,
        has_table=has_table,
        runs=len(runs),
        requests=total,
        folds=len(folds),
        clipped=clipped,
    )


def _folds(lengths: Sequence[int]) -> dict[str, list[Array]]:
    """What is left out in turn: a run, or a quarter of the time of each where there are fewer than three."""
    if (count := len(lengths)) >= 3:
        return {f"part {out + 1}": [np.full(n, i == out) for i, n in enumerate(lengths)] for out in range(count)}
    return {f"part {out + 1}": [np.arange(n) * _QUARTERS // n == out for n in lengths] for out in range(_QUARTERS)}


def _estimates(parameters: Sequence[Parameter], found: Fit) -> list[Estimate]:
    spread = found.spreads(_STEP)
    low, high = (values_of(parameters, found.x + shift * spread) for shift in (-1.0, 1.0))
    return [
        Estimate(
            name=one.name,
            of=one.of,
            meaning=one.meaning,
            unit=one.unit,
            shipped=parameter.start,
            value=max(found.values[one.name], 0.0),
            low=max(low[one.name], 0.0),
            high=high[one.name],
            determined=float(np.clip(1.0 - width**2, 0.0, 1.0)),
        )
        for one, parameter, width in zip(PARAMETERS, parameters, spread.tolist(), strict=True)
    ]


def _errors(metric: str, before: Array, after: Array, held: Array) -> MetricErrors:
    def stats(logs: Array) -> tuple[float, float]:
        errors = np.abs(np.expm1(logs[np.isfinite(logs)]))
        return (float(np.median(errors)), float(np.percentile(errors, 90))) if len(errors) else (math.nan, math.nan)

    (a, b), (c, d), (e, f) = stats(before), stats(after), stats(held)
    return MetricErrors(
        metric=metric, n=int(np.isfinite(after).sum()), shipped_median=a, shipped_p90=b, fitted_median=c, fitted_p90=d,
        held_out_median=e, held_out_p90=f,
    )  # fmt: skip
