"""Statistics of a run: running ones of a replica, where warm-up ends, and how well percentiles are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log, nan
from typing import ClassVar, NamedTuple, TypedDict

import numpy as np

from rackline.passes.features import Array

CONFIDENCE = 0.95
_BATCHES = 10  # few and long: Schmeiser 1982 finds that 10 to 30 suffice, and fewer are more nearly independent
_MSER_BATCH = 5  # MSER-5: means of five values are examined, not single ones
_LAST_SHARE = 0.1  # of the means: so few at the end lie close together by chance, all the more if they are periodic
LEAST_VALUES = 100  # fewer tell no warm-up from chance


class Interval(TypedDict):
    """Ends of a 95 % confidence interval; NaN where the run is too short to bound that side."""

    low: float
    high: float


UNKNOWN: Interval = {"low": nan, "high": nan}


def warm_up(values: Array) -> tuple[int, bool]:
    """How many values at the start belong to the warm-up, and whether the rest is in steady state.

    MSER-5: the truncation d that minimises Σ_{i > d} (y_i - mean)² / (n - d)², the squared standard error of the mean
    of what is left, over means y of five values. A minimum in the second half means that the run is too short or that
    there is no steady state; then the best d of the first half is returned.

    Args:
        values: in the order of time, (n,).

    Sources: White 1997, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6);
    White, Cobb, Spratt 2000, Winter Simulation Conference, for batches of five; Hoad, Robinson, Davies 2010, J. Oper.
    Res. Soc. 61, for the rule of the second half.

    >>> rng = np.random.default_rng(0)
    >>> series = rng.normal(10.0, 1.0, 2000)
    >>> series[:200] += np.linspace(20.0, 0.0, 200)
    >>> 150 <= warm_up(series)[0] <= 250
    True
    """
    if len(values) < LEAST_VALUES:
        return 0, False
    number = len(values) // _MSER_BATCH
    means = values[: number * _MSER_BATCH].reshape(number, _MSER_BATCH).mean(axis=1)
    means = means - means.mean()  # differences of squares lose no digits
    left = number - np.arange(number)
    total, squares = (np.cumsum(column[::-1])[::-1] for column in (means, means**2))
    error = ((squares - total**2 / left) / left**2)[: number - ceil(_LAST_SHARE * number)]
    half = number // 2
    # values that hardly differ have errors that only rounding tells apart
    error = np.maximum(error, 1e-24 * max(float(np.max(np.abs(values))) ** 2, 1e-300))
    return int(np.argmin(error[: half + 1])) * _MSER_BATCH, int(np.argmin(error)) <= half


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The requests of a run that are measured.

    Args:
        places: their indices in the order of arrival, (m,).
        warm_up, last: requests left out before and behind them [requests].
        steady: whether they are in steady state; None where every request counts.
    """

    places: Array
    warm_up: int = 0
    last: int = 0
    steady: bool | None = None


def percentile_interval(values: Array, percentile: float) -> Interval:
    """95 % confidence interval of a percentile of correlated values.

    The variance of the share of values below the percentile is that of its batch means, at least that of independent
    values. The number of independent values with this variance, p (1 - p) / variance, times (z / t)² for a variance
    that is itself estimated, goes into the interval by order statistics, which needs no density and is as skewed as the
    tail is.

    Args:
        values: in the order of time, (n,).
        percentile: 0 to 100, both excluded.

    Sources: Schmeiser 1982, "Batch size effects in the analysis of simulation output", Operations Research 30, for few
    batches; Woodruff 1952, JASA 47, for the inverted distribution; Korn and Graubard 1998, Survey Methodology 24, for
    the effective number of values with its degrees of freedom.

    >>> ends = percentile_interval(np.random.default_rng(0).exponential(1.0, 4000), 99.0)
    >>> ends["low"] < float(-np.log(0.01)) < ends["high"]
    True
    """
    from scipy import special

    count, share = len(values), percentile / 100.0
    if count < 2 * _BATCHES or not 0.0 < share < 1.0:
        return UNKNOWN
    at = float(np.percentile(values, percentile))
    size = count // _BATCHES
    # values that are equal but for rounding count as equal
    means = (values[count - size * _BATCHES :] <= at + 1e-9 * abs(at)).reshape(_BATCHES, size).mean(axis=1)
    independent = share * (1.0 - share) / count
    variance = max(float(means.var(ddof=1)) / _BATCHES, independent)
    outside = 0.5 * (1.0 - CONFIDENCE)
    shrink = float(special.ndtri(outside) / special.stdtrit(_BATCHES - 1, outside)) ** 2
    effective = floor(max(independent * count * shrink / variance, 1.0))
    below, above = (ceil(float(special.bdtrik(tail, effective, share))) for tail in (outside, 1.0 - outside))
    first = max(floor(below * count / effective), 1) - 1
    last = ceil(min(above + 1, effective) * count / effective) - 1
    ranked = np.partition(values, [first, last])
    return {
        "low": nan if below < 1 else float(ranked[first]),
        "high": nan if above + 1 > effective else float(ranked[last]),
    }


def mean_interval(values: Array) -> Interval:
    """Return the 95 % confidence interval of the mean of correlated values, from batch means.

    Args:
        values: in the order of time, (n,).

    Source: Schmeiser 1982, as `percentile_interval`.

    >>> ends = mean_interval(np.random.default_rng(0).exponential(1.0, 4000))
    >>> ends["low"] < 1.0 < ends["high"]
    True
    """
    from scipy import special

    size = len(values) // _BATCHES
    if size < 2 or not np.isfinite(values).all():
        return UNKNOWN
    means = values[len(values) - size * _BATCHES :].reshape(_BATCHES, size).mean(axis=1)
    student = -float(special.stdtrit(_BATCHES - 1, 0.5 * (1.0 - CONFIDENCE)))
    half = student * float(means.std(ddof=1)) / _BATCHES**0.5
    mean = float(np.mean(values))
    return {"low": mean - half, "high": mean + half}


def statistic_interval(values: Array, percentile: float | None) -> Interval:
    """Return the 95 % confidence interval of a percentile, or of the mean for None."""
    return mean_interval(values) if percentile is None else percentile_interval(values, percentile)


def statistic_of(values: Array, percentile: float | None) -> float:
    """Return a percentile of values, or their mean for None."""
    return float(np.mean(values)) if percentile is None else float(np.percentile(values, percentile))


GAPS_PER_E = 200.0  # bins of the histogram of inter-token times per factor of e: half a percent wide
_SAMPLES = 4096


class PassRecord(NamedTuple):
    """Consecutive passes of one kind, for traces: start, duration, number, decoding sequences, prompt tokens."""

    start_s: float
    duration_s: float
    passes: int
    sequences: int
    prompt_tokens: int


class ReplicaStatistics:
    """Running counts and times of one replica."""

    def __init__(self) -> None:
        self.steps = self.passes = 0
        self.busy_s = self.sequence_s = self.used_s = 0.0
        self.prompt_pass_s = self.prompt_rank_s = 0.0  # passes with prompts; times the share of ranks with prompts
        self.gaps = Counter[int]()
        self.samples: list[tuple[float, int, int, int]] = []
        self.next_sample = self.sample_s = 0.0

    def account(self, seconds: float, steps: int, sequences: int, used: float) -> None:
        """Count a pass, or steps without an event in between.

        Args:
            sequences, used: decoding sequences and KV blocks in use, meanwhile [count].
        """
        self.steps += steps
        self.passes += 1
        self.busy_s += seconds
        self.sequence_s += sequences * seconds
        self.used_s += used * seconds

    def gap_of(self, seconds: float, count: int) -> None:
        place = int(log(seconds) * GAPS_PER_E) if seconds > 0 else -10000
        self.gaps[place] += count

    def gaps_of(self, n: int, first: float, slope: float, steps: int, durations: Sequence[float]) -> None:
        """Count the inter-token times of decode steps after the first, from their durations or else their slope."""
        if steps == 1:
            return
        if not durations:
            self.gap_of(first + 0.5 * slope * steps, n * (steps - 1))
        elif steps < 8 or min(durations) <= 0.0:
            for value in durations[1:]:
                self.gap_of(value, n)
        else:
            places = (np.log(durations[1:]) * GAPS_PER_E).astype(int)
            for place, count in zip(*np.unique(places, return_counts=True), strict=True):
                self.gaps[int(place)] += n * int(count)

    def sample(self, now: float, sequences: int, waiting: int, used: int) -> None:
        """Record how full the replica is; when there are too many samples, drop every second."""
        self.samples.append((now, sequences, waiting, used))
        if len(self.samples) >= _SAMPLES:
            self.samples = self.samples[::2]
            span = self.samples[-1][0] - self.samples[0][0]
            self.sample_s = 2.0 * span / _SAMPLES
        self.next_sample = now + self.sample_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Latency:
    """Distribution of one latency over the measured requests [s].

    Args:
        mean, p50, p90, p99: mean and percentiles [s].
        p99_interval: 95 % confidence interval of the p99, as of `simulate` [s].
        values: latency of each request, in the order of arrival [s], (n,).
    """

    json_keys: ClassVar = (
        "mean",
        "p50",
        "p90",
        "p99",
        "p99_interval",
    )

    mean: float
    p50: float
    p90: float
    p99: float
    p99_interval: Interval
    values: Array

    def at(self, percentile: float | None) -> float:
        """A percentile, or the mean for None [s]."""
        return statistic_of(self.values, percentile)


_MOST_BEHIND, _LEAST_BEHIND, _LEFT_BEHIND = 0.1, 0.01, 400
"""Requests by which completions may fall behind arrivals: 400, but from 1 to 10 % of all [1, 1, count]."""


def queue_grows(arrival_s: Array, finish_s: Array) -> bool:
    """Check whether the queue keeps growing: requests complete slower than they arrive.

    They may fall behind by 10 % in runs of up to 4,000 requests, and by 1 % in runs of 40,000 and more, since the
    queue of a stable server, too, is longer at one time than at another. Looks at the middle four fifths of a run, so
    that a queue that was there from the start does not count.

    Args:
        arrival_s, finish_s: arrival and end of each request, in the order of arrival [s], (n,).
    """
    cut = len(arrival_s) // 10
    ends = np.sort(finish_s)
    took, came = (float(times[-1 - cut] - times[cut]) for times in (ends, arrival_s))
    behind = min(max(_LEFT_BEHIND / len(arrival_s), _LEAST_BEHIND), _MOST_BEHIND)
    return took > (1.0 + behind) * came


def latency(values: Array) -> Latency:
    """Return the mean and percentiles of a latency, with an interval for the p99.

    Args:
        values: latency of each request, in the order of arrival [s], (n,).
    """
    p50, p90, p99 = (float(value) for value in np.percentile(values, (50.0, 90.0, 99.0)))
    return Latency(
        mean=float(values.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        p99_interval=percentile_interval(values, 99.0),
        values=values,
    )


PERCENTILES = (50.0, 90.0, 99.0)


class Spread(TypedDict):
    """Mean and percentiles."""

    mean: float
    p50: float
    p90: float
    p99: float


class KnownSpread(Spread):
    """Mean and percentiles, each percentile with its 95 % confidence interval."""

    p50_interval: Interval
    p90_interval: Interval
    p99_interval: Interval


_UNKNOWN: Spread = {"mean": nan, "p50": nan, "p90": nan, "p99": nan}


def percentiles(values: Array) -> Spread:
    """Mean, p50, p90 and p99 of the values that are not NaN."""
    known = values[np.isfinite(values)]
    if not len(known):
        return _UNKNOWN
    p50, p90, p99 = (float(value) for value in np.percentile(known, PERCENTILES))
    return {"mean": float(known.mean()), "p50": p50, "p90": p90, "p99": p99}


def known_percentiles(values: Array) -> KnownSpread:
    """Mean and percentiles of the values that are not NaN, with the interval of each percentile.

    Args:
        values: in the order of arrival, (n,).
    """
    known = values[np.isfinite(values)]
    low, middle, high = (percentile_interval(known, percentile) for percentile in PERCENTILES)
    return {**percentiles(known), "p50_interval": low, "p90_interval": middle, "p99_interval": high}


def spread_of_gaps(gaps: Mapping[int, int]) -> Spread:
    """Mean and percentiles of inter-token times [s].

    Args:
        gaps: histogram: bin of the logarithm → count.
    """
    if not gaps:
        return _UNKNOWN
    places, counts = np.array(sorted(gaps.items()), dtype=float).T
    values = np.exp((places + np.where(places < 0, -0.5, 0.5)) / GAPS_PER_E)
    share = np.cumsum(counts) / counts.sum()
    p50, p90, p99 = (float(values[np.searchsorted(share, q / 100.0)]) for q in PERCENTILES)
    return {"mean": float((values * counts).sum() / counts.sum()), "p50": p50, "p90": p90, "p99": p99}
