"""Why a server is slower than its deployment allows: causes that are simulated, and how likely each makes a run.

What was seen of a run is a vector: the logarithms of the time to the first token and of the time per output token of
each request, and of three percentiles of the time between tokens. For a cause of size x the simulator serves the same
requests on the server that this cause makes (`changed`), so that each cause shifts the vector in its own way d(x):
a lower clock by products, a small cache by waiting, a slow client by what arrives late. Against these stand the errors
that a server without a fault has: the numbers of the calibration, known to within the widths of
`rackline.validation.observed_fit`, shift the vector by J·θ, θ ~ N(0, 1), and every request by noise of its own. So

    y = d(x) + J·θ + s·ε,    ε ~ N(0, D),    1/s² ~ Gamma(a, a)

a Student t with 2a + n degrees of freedom, n the number of independent requests (as in `observed_fit`). Shifts alone
choose the hypotheses that are worth more: nothing, the best single causes, the best two at once. For these θ and x are
fitted by simulation (`_settle`), since a server that waits answers to a slow kernel otherwise than one that does not,
and the evidence is that of Laplace's approximation around the fit. Prior: nothing is wrong `_NOTHING`, two causes
`_SECOND` as likely as one, all causes alike.

The next experiment is a load that is cheap to send and under which the two leading causes differ by most, in standard
deviations of the same model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.errors import InputError, RacklineError
from rackline.fitting.solver import Done
from rackline.passes.features import Array
from rackline.simulation import Result
from rackline.validation.cases import Case
from rackline.validation.causes import (
    Cause,
    Error,
    Experiment,
    Seen,
    causes,
    changed,
    error_when_well,
    exchanging,
    happens,
    next_experiment,
    outside,
    seen_of,
    seen_run,
)
from rackline.validation.observed import KIND, served_run
from rackline.validation.observed_fit import (
    PARAMETERS,
    has_own_numbers,
    independence,
    shipped_numbers,
    with_numbers,
)
from rackline.validation.requests import ServedRun
from rackline.validation.resolve import Resolver

_NOTHING, _SECOND = 0.2, 0.15  # a priori: a server that is asked about is seldom as fast as it should be
_FINER = 5  # steps between two sizes that are simulated
_STEP = 0.5  # for slopes, in widths of the prior
_SHAPE = 4.0  # of the prior of the noise
_LEAST_SHIFT = 0.02  # mean of what is seen [natural logarithm]
_FEWEST = 8
_MOST_STEPS = 4
_SETTLED, _SETTLED_PAIRS = 9, 4  # hypotheses that are fitted
_PAIRS = 4000  # of shifts, the best, among which those of two causes are taken
_EXCHANGE_WIDTH = 0.2  # of collectives, whose numbers are those of measured boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A cause with what speaks for it.

    Args:
        cause: that is suspected.
        probability: that it is at work, alone or with another [1].
        size: mean of its size, in the unit of the cause.
        share_of_gap: of the measured excess of the mean request time, explained by it alone [1].
    """

    json_keys: ClassVar = (
        "cause=cause.key", "title=cause.title", "probability", "size", "unit=cause.unit", "share_of_gap",
        "check=cause.check", "source=cause.source",
    )  # fmt: skip

    cause: Cause
    probability: float
    size: float
    share_of_gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a run was slow.

    Args:
        run_id: of the run.
        suspects: causes, the likeliest first.
        nothing: probability that nothing is wrong [1].
        measured_s, expected_s: mean time of a request, measured and of a server without a fault [s].
        within: where the measured mean lies in the errors of the calibration [standard deviations].
        requests: that were compared [count].
        experiment: that separates the two leading causes; None where no load does better than looking.
        pair: the likeliest two causes at once; None where none of two was fitted.
        pair_probability: of these two [1].
    """

    json_keys: ClassVar = (
        "run_id", "suspects", "nothing", "measured_s", "expected_s", "within", "requests", "experiment", "pair",
        "pair_probability",
    )  # fmt: skip

    run_id: str
    suspects: tuple[Suspect, ...]
    nothing: float
    measured_s: float
    expected_s: float
    within: float
    requests: int
    experiment: Experiment | None = None
    pair: tuple[str, str] | None = None
    pair_probability: float = 0.0


class _Errors:
    """The errors of a server without a fault, and the evidence of shifts under them.

    Args:
        slopes: J, shift of each entry by one standard deviation of each number, (entries, numbers).
        noise: standard deviation of each entry, (entries,).
        independent: number of independent entries.
    """

    def __init__(self, slopes: Array, noise: Array, independent: float) -> None:
        self.slopes = slopes / noise[:, None]
        self.noise = noise
        self.share = independent / max(len(noise), 1)
        self.factor = np.linalg.cholesky(np.eye(slopes.shape[1]) + self.share * self.slopes.T @ self.slopes)

    def products(self, left: Array, right: Array) -> Array:
        """leftᵀ R⁻¹ right, for columns of entries, with R = J Jᵀ + D (Woodbury)."""
        a, b = left / self.noise[:, None], right / self.noise[:, None]
        inside = np.linalg.solve(self.factor, self.slopes.T @ a), np.linalg.solve(self.factor, self.slopes.T @ b)
        return self.share * (a.T @ b) - self.share**2 * inside[0].T @ inside[1]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A server whose calibration is off by some standard deviations of each number.

    Args:
        run: with the shipped numbers.
        has_table: whether kernels were measured on its chip.
    """

    run: ServedRun
    has_table: bool

    @property
    def count(self) -> int:
        """Numbers that may be off."""
        return len(PARAMETERS) + (self.run.deployment.layout.num_chips > 1)

    def at(self, off: Array) -> ServedRun:
        """The server with each number `off` by a number of standard deviations, (count,)."""
        shipped, values = shipped_numbers(self.run), dict[str, float]()
        for one, by in zip(PARAMETERS, off.tolist(), strict=False):
            width = one.width(self.has_table) * by
            value = shipped[one.name]
            values[one.name] = value * math.exp(width) if one.unit == "1" else max(value + width, 0.0)
        found = with_numbers(self.run, values)
        if len(off) == len(PARAMETERS):
            return found
        slower = exchanging(found.deployment.calibration, math.exp(_EXCHANGE_WIDTH * float(off[-1])))
        return replace(found, deployment=replace(found.deployment, calibration=slower))

    def logs(self, off: Array, faults: Sequence[tuple[Cause, float]], usual: Result) -> Array:
        """What a client sees of it with faults of these sizes, (entries,).

        Raises:
            RacklineError: it does not run.
        """
        run = self.at(off)
        for cause, size in faults:
            run = changed(run, cause.act, size, usual)
        result = run.simulated()
        seen = seen_of(result)
        found = seen.logs
        for cause, size in faults:
            if (then := outside(seen, result, cause.act, size)) is not seen:
                found = found + then.logs - seen.logs
        return found

    def slopes(self, around: Array, usual: Result) -> Array:
        """Shift of what is seen by one standard deviation of each number, (entries, count)."""
        return np.array([(self.logs(step, (), usual) - around) / _STEP for step in np.eye(self.count) * _STEP]).T


@dataclass(frozen=True, slots=True)
class _Settled:
    """A hypothesis where it agrees best with what was seen.

    Args:
        causes: none, one or two.
        sizes: of each.
        log_evidence: of what was seen, over sizes and numbers.
    """

    causes: tuple[Cause, ...]
    sizes: tuple[float, ...]
    log_evidence: float


def _settle(
    numbers: _Numbers,
    usual: Result,
    logs: Array,
    noise: Array,
    independent: float,
    start: Sequence[tuple[Cause, float]],
) -> _Settled | None:
    """Numbers and sizes that agree best with what was seen, by Gauss and Newton, and the evidence around them.

    Numbers have their normal prior, the place of a size in its range a uniform one (as a normal one of its variance),
    the variance of the noise an inverse gamma one; the evidence is that of Laplace's approximation.
    """
    of = tuple(cause for cause, _ in start)
    free = [index for index, cause in enumerate(of) if cause.high > cause.low]
    share = independent / len(noise)

    def sizes(at: Array) -> tuple[float, ...]:
        places = dict(zip(free, np.clip(at[numbers.count :], 0.0, 1.0).tolist(), strict=True))
        return tuple(cause.low * (cause.high / cause.low) ** places.get(i, 0.0) for i, cause in enumerate(of))

    def residual(at: Array) -> Array:
        found = numbers.logs(at[: numbers.count], list(zip(of, sizes(at), strict=True)), usual)
        return np.nan_to_num((logs - found) / noise, nan=0.0)

    center = np.concatenate([np.zeros(numbers.count), np.full(len(free), 0.5)])
    precision = np.concatenate([np.ones(numbers.count), np.full(len(free), 12.0)])
    at = center.copy()
    for place, index in enumerate(free):
        cause, size = start[index]
        at[numbers.count + place] = math.log(size / cause.low) / math.log(cause.high / cause.low)
    steps = np.concatenate([np.full(numbers.count, _STEP), np.full(len(free), 0.05)])

    def variance(square: float) -> float:
        return (2.0 * _SHAPE + share * square) / (2.0 * _SHAPE + independent)

    def cost(found: Array, place: Array) -> float:
        square = float(found @ found)
        s2 = variance(square)
        return 0.5 * ((2.0 * _SHAPE + share * square) / s2 + (independent + 2.0 * _SHAPE) * math.log(s2)
                      + float((precision * (place - center) ** 2).sum()))  # fmt: skip

    try:
        left = residual(at)
        now = cost(left, at)
        curve = np.diag(precision)
        for _ in range(_MOST_STEPS):
            slopes = np.empty((len(left), len(at)))
            for column, step in enumerate(steps):
                there = at.copy()
                there[column] += step if column < numbers.count or there[column] + step <= 1.0 else -step
                slopes[:, column] = (left - residual(there)) / (there[column] - at[column])
            weight = share / variance(float(left @ left))
            curve = np.diag(precision) + weight * slopes.T @ slopes
            way = np.linalg.solve(curve, weight * slopes.T @ left - precision * (at - center))
            for _ in range(3):
                there = at + way
                there[numbers.count :] = np.clip(there[numbers.count :], 0.0, 1.0)
                then = residual(there)
                if (value := cost(then, there)) < now:
                    break
                way = 0.3 * way
            else:
                break
            gained = now - value
            at, left, now = there, then, value
            if gained < 0.3:
                break
        for place in range(numbers.count, len(at)):  # times jump with a size where requests wait for room
            for width in (0.06, 0.015):
                for there in at + np.eye(len(at))[place] * width * np.arange(-4, 5)[:, None]:
                    if 0.0 <= there[place] <= 1.0 and (value := cost(then := residual(there), there)) < now:
                        at, left, now = there, then, value
    except RacklineError:
        return None
    volume = float(np.linalg.slogdet(curve)[1]) - float(np.log(precision).sum())
    return _Settled(of, sizes(at), -now - 0.5 * volume)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shift:
    """What a cause of one size does to what is seen."""

    cause: Cause
    size: float
    logs: Array
    mean_s: float


def _shifts(run: ServedRun, usual: Result, of: Sequence[Cause], done: Done | None) -> list[_Shift]:
    """The shifts of all causes, finely between the sizes that are simulated."""
    around = seen_of(usual).logs
    found: list[_Shift] = []
    lengths = run.requests.output_len.astype(float)
    for number, cause in enumerate(of, start=1):
        rows: list[tuple[float, Array, float]] = []
        for size in cause.sizes:
            try:
                result = changed(run, cause.act, size, usual).simulated()
            except RacklineError:
                continue  # a server so bad does not run at all
            seen = seen_of(result, cause.act, size)
            if float(np.nanmean(np.abs(seen.logs - around))) < _LEAST_SHIFT:
                continue  # nobody could tell it from a server without a fault
            rows.append((size, seen.logs - around, float(np.nanmean(seen.e2e_s(lengths)))))
        found += [_Shift(cause=cause, size=size, logs=logs, mean_s=mean) for size, logs, mean in _finer(rows)]
        if done is not None:
            done(cause.key, number, len(of))
    return found


def _finer(rows: Sequence[tuple[float, Array, float]]) -> Iterator[tuple[float, Array, float]]:
    """Rows with others between each two, linear in the logarithm of the size."""
    for (size, logs, mean), (to, logs_to, mean_to) in itertools.pairwise(rows):
        for part in np.arange(_FINER) / _FINER:
            way = size * (to / size) ** part, logs + part * (logs_to - logs), mean * (mean_to / mean) ** part
            yield float(way[0]), way[1], float(way[2])
    yield from rows[-1:]


def diagnose(
    case: Case,
    calibration: str = "auto",
    well: Sequence[Case] = (),
    done: Done | None = None,
) -> Diagnosis:
    """Find why a run was slow.

    Args:
        case: an observed run, or one of a `runs.json`, with its deployment.
        calibration: of the server without a fault: "auto" (that of the run's stack), a name or a file.
        well: runs of the server when it was well, which say how far it is from its simulation then.
        done: called with (what, finished, all) after each cause.

    Raises:
        InputError: not a run with its requests, or too few of them.
        RacklineError: what was served is not said, or does not run.
    """
    if case.kind not in (KIND, "requests"):
        allowed = "a run with its requests, as `rackline observe --save` writes"
        raise InputError(what=case.case_id, given=f"a case of kind {case.kind}", allowed=allowed, where=case.where)
    resolver = Resolver(calibration_name=calibration)
    run = served_run(resolver, case)
    if len(run.requests) < _FEWEST:
        given = f"{len(run.requests)} finished requests"
        raise InputError(what=case.case_id, given=given, allowed=f"at least {_FEWEST}", where=case.where)
    healthy = [(served_run(resolver, one), one) for one in well]
    error = error_when_well([(one, seen_run(one, of)) for one, of in healthy]) if healthy else None
    return explained(case.case_id, run, seen_run(run, case), done, error)


def explained(name: str, run: ServedRun, seen: Seen, done: Done | None = None, error: Error | None = None) -> Diagnosis:
    """Why what was seen of a run differs from its simulation; see `diagnose`.

    Args:
        error: by how much this server differed from it when it was well, whose numbers are then known as those of a
            chip whose kernels were measured; by default that of any server.
    """
    is_known = error is not None or has_own_numbers(run)
    error = error or Error()
    usual = run.simulated()
    expected = seen_of(usual)
    around, logs = expected.logs, seen.logs - error.shift(len(run.requests))
    possible = [cause for cause in causes() if happens(cause, run)]
    shifts = _shifts(run, usual, possible, done)
    numbers = _Numbers(run, is_known)
    slopes = numbers.slopes(around, usual)
    every = np.column_stack([slopes, *(one.logs for one in shifts)])
    known = np.isfinite(logs - around) & np.isfinite(every).all(axis=1)
    count = len(run.requests)
    noise = error.noise(count)
    independent = float(known.sum()) * independence(count)
    errors = _Errors(slopes[known], noise[known], independent)
    y, d = (logs - around)[known][:, None], np.column_stack([one.logs for one in shifts])[known]
    yy, yd, dd = float(errors.products(y, y)[0, 0]), errors.products(y, d)[0], errors.products(d, d)
    alone = yy - 2.0 * yd + np.diag(dd)
    seen_logs = np.where(known, logs, np.nan)
    settled = [
        found
        for start in _starts(shifts, alone, alone[:, None] + alone[None, :] - yy + 2.0 * dd)
        if (found := _settle(numbers, usual, seen_logs, noise, independent, start)) is not None
    ]
    chances = _chances(settled, len(possible))
    lengths = run.requests.output_len.astype(float)
    ok = np.isfinite(seen.ttft_s)
    measured_s = float(seen.e2e_s(lengths)[ok].mean())
    expected_s = float(np.nanmean(expected.e2e_s(lengths)[ok]))
    suspects = tuple(
        sorted(
            (_suspect(cause, settled, chances, shifts, measured_s, expected_s) for cause in possible),
            key=lambda one: (-round(one.probability, 1), -one.share_of_gap, -one.probability),
        )
    )
    spread = math.sqrt(float((np.nanmean(slopes[: 2 * count], axis=0) ** 2).sum()) + float(error.requests.mean()) ** 2)
    pairs = [
        (chance, (one.causes[0].key, one.causes[1].key))
        for chance, one in zip(chances, settled, strict=True)
        if len(one.causes) == 2
    ]
    chance, pair = max(pairs, default=(0.0, None))
    leading = [(one.cause, one.size) for one in suspects[:2] if one.probability]
    return Diagnosis(
        run_id=name,
        suspects=suspects,
        nothing=sum(chance for chance, one in zip(chances, settled, strict=True) if not one.causes),
        measured_s=measured_s,
        expected_s=expected_s,
        within=math.log(measured_s / expected_s) / spread,
        requests=count,
        experiment=next_experiment(run, usual, leading, error) if len(leading) == 2 else None,
        pair=pair,
        pair_probability=chance,
    )


def _starts(shifts: Sequence[_Shift], alone: Array, both: Array) -> Iterator[list[tuple[Cause, float]]]:
    """Hypotheses that are worth a closer look, by shifts alone: none, the best single causes, the best two."""
    yield []
    best: dict[str, int] = {}
    order: list[int] = np.argsort(alone).tolist()
    for index in order:
        best.setdefault(shifts[index].cause.key, index)
    for index in list(best.values())[:_SETTLED]:
        yield [(shifts[index].cause, shifts[index].size)]
    keys = np.array([one.cause.key for one in shifts])
    rows, columns = np.nonzero(keys[:, None] < keys[None, :])  # two of different causes, each once
    pairs: dict[tuple[str, str], tuple[int, int]] = {}
    for place in np.argsort(both[rows, columns], kind="stable")[:_PAIRS]:
        row, column = int(rows[place]), int(columns[place])
        pairs.setdefault((shifts[row].cause.key, shifts[column].cause.key), (row, column))
    for pair in list(pairs.values())[:_SETTLED_PAIRS]:
        yield [(shifts[index].cause, shifts[index].size) for index in pair]


def _chances(settled: Sequence[_Settled], possible: int) -> list[float]:
    """Probability of each hypothesis."""
    several = max(possible * (possible - 1) / 2.0, 1.0)
    prior = (_NOTHING, (1.0 - _NOTHING) * (1.0 - _SECOND) / possible, (1.0 - _NOTHING) * _SECOND / several)
    logs = np.array([one.log_evidence + math.log(prior[len(one.causes)]) for one in settled])
    weights = np.exp(logs - logs.max())
    return (weights / weights.sum()).tolist()


def _suspect(
    cause: Cause,
    settled: Sequence[_Settled],
    chances: Sequence[float],
    shifts: Sequence[_Shift],
    measured_s: float,
    expected_s: float,
) -> Suspect:
    mine = [
        (chance, one.sizes[one.causes.index(cause)])
        for chance, one in zip(chances, settled, strict=True)
        if cause in one.causes
    ]
    total = sum(chance for chance, _ in mine)
    order = sorted((one for one in shifts if one.cause is cause), key=lambda one: one.size)
    if not total or not order:
        return Suspect(cause=cause, probability=0.0, size=math.nan, share_of_gap=0.0)
    size = math.exp(sum(chance * math.log(found) for chance, found in mine) / total)
    mean_s = float(np.interp(math.log(size), [math.log(one.size) for one in order], [one.mean_s for one in order]))
    gap_s = measured_s - expected_s
    share = (mean_s - expected_s) / gap_s if gap_s > 0.0 else 0.0
    return Suspect(cause=cause, probability=total, size=size, share_of_gap=min(max(share, 0.0), 1.0))
