"""Statistics of a run in steady state: where its warm-up ends, and how well its percentiles are known.

Latencies of neighbouring requests resemble each other, because they share queue and batch. So the number of requests
says little of how well a percentile is known. Here it is replaced by the number of independent requests that would
know it as well, from the variance of batch means.
"""

from __future__ import annotations

from math import ceil, floor, nan
from typing import TypedDict

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
    ranked = np.sort(values)
    low = nan if below < 1 else float(ranked[max(floor(below * count / effective), 1) - 1])
    high = nan if above + 1 > effective else float(ranked[ceil((above + 1) * count / effective) - 1])
    return {"low": low, "high": high}
