"""Arrival times: Poisson, bursty, with a daily cycle, all at once."""

from __future__ import annotations

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array

DAY_S = 86400.0


def poisson(rng: np.random.Generator, count: int, rate_per_s: float) -> Array:
    """Poisson arrival times at a mean rate [s], (count,), ascending.

    Args:
        count: number of arrivals [requests].
        rate_per_s: mean rate [requests/s].

    Raises:
        InputError: the rate is not above 0.

    >>> times = poisson(np.random.default_rng(0), 10_000, 5.0)
    >>> round(float(times[-1]) / 2000, 1)
    1.0
    """
    return gamma(rng, count, rate_per_s, 1.0)


def gamma(rng: np.random.Generator, count: int, rate_per_s: float, arrival_cv: float) -> Array:
    """Arrival times with gamma-distributed inter-arrival times [s], (count,), ascending.

    Args:
        count: number of arrivals [requests].
        rate_per_s: mean rate [requests/s].
        arrival_cv: coefficient of variation of the inter-arrival times (standard deviation over mean): 1 is Poisson,
            more is burstier, 0 is evenly spaced [1].

    Raises:
        InputError: the rate is not above 0, or the coefficient of variation is negative.

    Sources: Vidur (arXiv:2405.05465) and vLLM's benchmark, whose --burstiness is 1 / cv², draw inter-arrival times in
    this way.
    """
    if not rate_per_s > 0:
        raise InputError(what="rate", given=rate_per_s, allowed="above 0 requests/s", nearest="1")
    if not arrival_cv >= 0:
        raise InputError(what="arrival_cv", given=arrival_cv, allowed="0 or more", nearest="1")
    if arrival_cv == 0:
        return np.arange(count) / rate_per_s
    shape = 1.0 / arrival_cv**2
    return np.cumsum(rng.gamma(shape, 1.0 / (rate_per_s * shape), count))


def diurnal(
    rng: np.random.Generator, count: int, rate_per_s: float, amplitude: float, period_s: float = DAY_S
) -> Array:
    """Arrival times of a Poisson process whose rate follows a daily sine [s], (count,), ascending.

    rate(t) = rate · (1 - amplitude · cos(2 pi t / period))

    Args:
        count: number of arrivals [requests].
        rate_per_s: mean rate [requests/s].
        amplitude: relative amplitude of the rate, 0 (constant) to 1 (no arrivals at the quietest time) [1].
        period_s: period of the sine, which starts at the quietest time [s].

    Raises:
        InputError: the amplitude is outside [0, 1], or the rate or period is not above 0.
    """
    if not 0.0 <= amplitude <= 1.0:
        raise InputError(what="amplitude", given=amplitude, allowed="0 to 1", nearest="0.5")
    if not period_s > 0:
        raise InputError(what="period", given=period_s, allowed="above 0 s", nearest="86400")
    even = poisson(rng, count, 1.0) / rate_per_s if rate_per_s > 0 else poisson(rng, count, rate_per_s)
    # inverse of the cumulative rate: maps arrivals of a constant rate to those of the varying one
    last = float(even[-1])
    grid: Array = np.linspace(0.0, last + 2.0 * period_s, int(2000 * (last / period_s + 2.0)), dtype=np.float64)
    angle = 2.0 * np.pi / period_s
    cumulated: Array = grid - amplitude * np.sin(angle * grid) / angle
    return np.interp(even, cumulated, grid)
