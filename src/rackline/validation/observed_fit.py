"""The few numbers that observed runs of one server determine, drawn to the shipped ones.

Seven numbers are considered, four of the stack and three of the chip. Each has a prior around its shipped value: narrow
for a chip whose kernels were measured, wide for one that borrows its numbers. They minimise

    Σ_requests w · ρ(ln predicted / measured) + Σ_numbers ρ(S · (x - x_shipped) / width)

over the time to first token and the time per output token of each request, with the soft L1 loss ρ of the fits to
published servings (`serving_fit.least_squares`, scale S). Requests of one run share their server and their queue, so
that a run of n requests counts as n / (1 + c·(n - 1)) independent ones. What is left out of a fit and predicted by it
is a run, or a quarter of the time of a run where there are fewer than three.

How far a number is determined is 1 - (posterior width / prior width)², from the slopes of the errors at the minimum:
1 where the data fix it, 0 where it stays at its prior. Below one half the run does not determine it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.errors import InputError
from rackline.passes import Calibration
from rackline.passes.fallback import best_stack
from rackline.passes.features import Array
from rackline.serving.stack import Stack
from rackline.validation.cases import Case
from rackline.validation.observed import KIND, served_run
from rackline.validation.requests import ServedRun
from rackline.validation.resolve import Resolver
from rackline.validation.serving_fit import SOFT_L1_SCALE, least_squares

METRICS = ("ttft_s", "tpot_s")
DETERMINED = 0.5
"""Share of a number's prior variance that the data must take away."""
_ALIKE = 0.02  # correlation of the errors of two requests of one run
_QUARTERS = 4
_STEP = 0.25  # for slopes, in prior widths: simulated times jump where a request just misses a pass
_SHIFT = 10.0  # of coded numbers in the solver, whose steps are shares of them
_FEWEST = 8
_MOST_STEPS = 8

Done = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number of the fit.

    Args:
        name, of: the number, and whether it is of the stack or the chip.
        meaning: in words.
        unit: "1" for factors on shipped numbers.
        own, borrowed: width of its prior on a chip whose kernels were measured, and on another one [natural logarithm
            for factors, else of the unit].
        is_factor: whether it multiplies; else it is the number itself.
    """

    name: str
    of: str
    meaning: str
    unit: str
    own: float
    borrowed: float
    is_factor: bool = True


PARAMETERS = (
    Parameter(name="memory", of="chip", meaning="time of memory traffic", unit="1", own=0.05, borrowed=0.7),
    Parameter(name="compute", of="chip", meaning="time of products", unit="1", own=0.05, borrowed=0.7),
    Parameter(name="launches", of="chip", meaning="fixed time of kernels", unit="1", own=0.15, borrowed=1.0),
    Parameter(name="prefill_slowdown", of="stack", meaning="prompts over their kernels", unit="1", own=0.2,
              borrowed=0.2),
    Parameter(name="host_s_per_step", of="stack", meaning="host in each step", unit="s", own=2e-3, borrowed=2e-3,
              is_factor=False),
    Parameter(name="host_s_per_sequence", of="stack", meaning="host for each sequence", unit="s", own=50e-6,
              borrowed=50e-6, is_factor=False),
    Parameter(name="first_token_s", of="stack", meaning="first token beyond passes", unit="s", own=0.05,
              borrowed=0.05, is_factor=False),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Runs of one server.

    Args:
        runs: as recorded.
        shipped: value of each number before, in the order of PARAMETERS.
        widths: of the priors.
    """

    runs: tuple[ServedRun, ...]
    shipped: Array
    widths: Array

    @property
    def lengths(self) -> list[int]:
        return [len(run.requests) for run in self.runs]

    def at(self, coded: Array) -> tuple[Array, ...]:
        """ln(predicted / measured) of each run under coded numbers, (metrics, requests); NaN where nothing was."""
        return tuple(_log_errors(with_numbers(run, self.values(coded))) for run in self.runs)

    def values(self, coded: Array) -> Array:
        """Numbers from widths away from the shipped ones."""
        factors = np.array([one.is_factor for one in PARAMETERS])
        moved = coded * self.widths
        return np.where(factors, self.shipped * np.exp(np.where(factors, moved, 0.0)), self.shipped + moved)

    def least(self) -> Array:
        """Lowest coded numbers: none is below zero, no prompt is faster than its kernels."""
        lowest = np.full(len(PARAMETERS), -6.0)
        for index, one in enumerate(PARAMETERS):
            if not one.is_factor:
                lowest[index] = -self.shipped[index] / self.widths[index] - 1e-9
            elif one.name == "prefill_slowdown":
                lowest[index] = min(-math.log(self.shipped[index]) / self.widths[index], 0.0) - 1e-9
        return lowest


def with_numbers(run: ServedRun, values: Array) -> ServedRun:
    """A run whose server has these numbers, in the order of PARAMETERS."""
    memory, compute, launches, slowdown, step_s, each_s, first_s = values.tolist()
    equal_s = run.stack.first_token_equal_s
    stack = replace(
        run.stack,
        first_token_equal_s=None if equal_s is None else max(equal_s + first_s - run.stack.first_token_s, 0.0),
        prefill_slowdown=max(slowdown, 1.0),
        host_s_per_sequence=max(each_s, 0.0),
        first_token_s=max(first_s, 0.0),
    )
    numbers = scaled(run.deployment.calibration, memory, compute, launches)
    numbers = replace(numbers, host_s_per_step=max(step_s, 0.0))
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
    has_table = best_stack(chip) != "generic"
    shipped = np.array([
        1.0, 1.0, 1.0, first.stack.prefill_slowdown, first.deployment.calibration.host_s_per_step,
        first.stack.host_s_per_sequence, first.stack.first_token_s,
    ])  # fmt: skip
    widths = np.array([one.own if has_table else one.borrowed for one in PARAMETERS])
    ready = _Runs(runs=runs, shipped=shipped, widths=widths)
    folds = _folds(ready.lengths)
    everything = [np.ones(count, dtype=bool) for count in ready.lengths]
    told = done or _ignore
    coded = _fitted(ready, everything)
    told("everything", 1, len(folds) + 1)
    held = [np.full((len(METRICS), count), np.nan) for count in ready.lengths]
    for number, left_out in enumerate(folds):
        kept = [~mask for mask in left_out]
        found = ready.at(_fitted(ready, kept))
        for errors, mask, target in zip(found, left_out, held, strict=True):
            target[:, mask] = errors[:, mask]
        told(f"part {number + 1}", number + 2, len(folds) + 1)
    before, after = ready.at(np.zeros(len(PARAMETERS))), ready.at(coded)
    spread = _posterior(ready, everything, coded)
    numbers = with_numbers(first, ready.values(coded))
    clipped = sum(
        (one.eta_memory == 1.0) + (one.eta_compute == 1.0) for one in numbers.deployment.calibration.operations.values()
    )
    return ObservedFit(
        estimates=tuple(_estimates(ready, coded, spread)),
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


def _ignore(what: str, finished: int, total: int) -> None:
    pass


def _folds(lengths: Sequence[int]) -> list[list[Array]]:
    """What is left out in turn: a run, or a quarter of the time of each where there are fewer than three."""
    count = len(lengths)
    if count >= 3:
        return [[np.full(n, index == out) for index, n in enumerate(lengths)] for out in range(count)]
    return [[np.arange(n) * _QUARTERS // n == out for n in lengths] for out in range(_QUARTERS)]


def _weights(mask: Array) -> float:
    """Root of the weight of a request of a run, whose requests are alike."""
    count = max(int(mask.sum()), 1)
    return math.sqrt(1.0 / (1.0 + _ALIKE * (count - 1)))


def _residuals(ready: _Runs, kept: Sequence[Array], coded: Array) -> Array:
    """Weighted log errors of the kept requests, then the numbers' distances from their priors."""
    parts = [
        np.nan_to_num(errors[:, mask]).ravel() * _weights(mask)
        for errors, mask in zip(ready.at(coded), kept, strict=True)
    ]
    return np.concatenate([*parts, SOFT_L1_SCALE * coded])


def _fitted(ready: _Runs, kept: Sequence[Array]) -> Array:
    least = ready.least() + _SHIFT
    _, coded = least_squares(
        lambda coded: _residuals(ready, kept, np.asarray(coded) - _SHIFT),
        np.maximum(np.full(len(PARAMETERS), _SHIFT), least + 1e-6),
        (least, np.inf),
        diff_step=_STEP / _SHIFT,
        xtol=1e-3,
        ftol=1e-4,
        max_nfev=_MOST_STEPS,
    )
    return np.array(coded) - _SHIFT


def _posterior(ready: _Runs, kept: Sequence[Array], coded: Array) -> Array:
    """Width of each number given data and prior, over that of the prior alone."""
    columns: list[Array] = []
    for step in np.eye(len(coded)) * _STEP:
        columns.append((_residuals(ready, kept, coded + step) - _residuals(ready, kept, coded - step)) / (2.0 * _STEP))
    slopes = np.array(columns).T / SOFT_L1_SCALE  # the prior's rows are the unit matrix
    return np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))


def _estimates(ready: _Runs, coded: Array, spread: Array) -> list[Estimate]:
    values, low, high = (ready.values(coded + shift * spread) for shift in (0.0, -1.0, 1.0))
    return [
        Estimate(
            name=one.name,
            of=one.of,
            meaning=one.meaning,
            unit=one.unit,
            shipped=float(ready.shipped[index]),
            value=max(float(values[index]), 0.0),
            low=max(float(low[index]), 0.0),
            high=float(high[index]),
            determined=float(np.clip(1.0 - spread[index] ** 2, 0.0, 1.0)),
        )
        for index, one in enumerate(PARAMETERS)
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
