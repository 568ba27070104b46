"""Arrival times: Poisson, bursty, with a daily cycle, all at once."""

from __future__ import annotations

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array

DAY_S = 86400.0


def poisson(rng: np.random.Generator, count: int, rate_per_s: float) -> Array:
    """Independent arrivals at a mean rate [s], (count,), rising.

    Args:
        count: how many [requests].
        rate_per_s: mean rate [requests/s].

    Raises:
        InputError: a rate that is not above 0.

    >>> times = poisson(np.random.default_rng(0), 10_000, 5.0)
    >>> round(float(times[-1]) / 2000, 1)
    1.0
    """
    return gamma(rng, count, rate_per_s, 1.0)


def gamma(rng: np.random.Generator, count: int, rate_per_s: float, arrival_cv: float) -> Array:
    """Arrivals whose gaps are gamma distributed with a coefficient of variation [s], (count,), rising.

    Args:
        count: how many [requests].
        rate_per_s: mean rate [requests/s].
        arrival_cv: standard deviation of the gaps over their mean; 1 is Poisson, more is burstier, 0 is even.

    Raises:
        InputError: a rate that is not above 0, a negative coefficient of variation.

    Sources: Vidur (arXiv:2405.05465) and vLLM's benchmark (--burstiness is 1 / cv²) draw gaps in this way.
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
    """Poisson arrivals whose rate follows a sine over the day [s], (count,), rising.

    rate(t) = rate · (1 - amplitude · cos(2 pi t / period))

    Args:
        count: how many [requests].
        rate_per_s: mean rate [requests/s].
        amplitude: 0 (even) to 1 (nothing at the quietest time).
        period_s: of the sine, which starts at its quietest time [s].

    Raises:
        InputError: an amplitude outside [0, 1], a rate or period that is not above 0.
    """
    if not 0.0 <= amplitude <= 1.0:
        raise InputError(what="amplitude", given=amplitude, allowed="0 to 1", nearest="0.5")
    if not period_s > 0:
        raise InputError(what="period", given=period_s, allowed="above 0 s", nearest="86400")
    even = poisson(rng, count, 1.0) / rate_per_s if rate_per_s > 0 else poisson(rng, count, rate_per_s)
    # the inverse of the cumulated rate turns even arrivals into uneven ones
    last = float(even[-1])
    grid: Array = np.linspace(0.0, last + 2.0 * period_s, int(2000 * (last / period_s + 2.0)), dtype=np.float64)
    angle = 2.0 * np.pi / period_s
    cumulated: Array = grid - amplitude * np.sin(angle * grid) / angle
    return np.interp(even, cumulated, grid)
