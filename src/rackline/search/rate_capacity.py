"""The highest request rate that a deployment serves within latency limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar, cast

import numpy as np

from rackline.errors import InputError
from rackline.simulation import Requests, Result, Slo
from rackline.simulation.metrics import Limited

Serve = Callable[[Requests], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRate:
    """One rate [requests/s], whether it held, and the limited latencies at the percentile [s]."""

    json_keys: ClassVar = (
        "rate_per_s",
        "holds",
        "*values",
    )

    rate_per_s: float
    holds: bool
    values: Limited


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCapacity:
    """Outcome of the search.

    Args:
        slo: the limits.
        rate_per_s: highest rate that held; 0 when none did [requests/s].
        broken_per_s: lowest rate above it that did not; None when all did [requests/s].
        reason: which limit broke first.
        tried: every rate that was simulated, rising.
        result: the run at `rate_per_s`, None when none held.
    """

    json_keys: ClassVar = (
        "slo",
        "rate_per_s",
        "broken_per_s",
        "reason",
        "tried",
    )

    slo: Slo
    rate_per_s: float
    broken_per_s: float | None
    reason: str
    tried: tuple[TriedRate, ...]
    result: Result | None


def rate_capacity(
    requests: Requests, serve: Serve, slo: Slo, *, tolerance: float = 0.02, most_runs: int = 24
) -> RateCapacity:
    """Bisect the highest rate within limits, with the same requests at scaled arrival times.

    Args:
        requests: open arrivals; their times are scaled.
        serve: function that simulates them.
        slo: limits with their percentile.
        tolerance: relative tolerance of the rate [1].
        most_runs: simulations at most [count].

    Raises:
        InputError: there is no limit, or the requests have no rate because they follow each other or arrive at once.

    Assumes: latency does not improve with the request rate.
    """
    if not slo.limits():
        raise InputError(what="capacity", given="no limit", allowed="such as ttft=2s,tpot=50ms@p99")
    own = requests.rate_per_s
    if requests.after is not None or own == inf or not own > 0:
        raise InputError(
            what="capacity", given=requests.name, allowed="open arrivals with a rate (a trace or --rate), two or more"
        )
    tried: dict[float, TriedRate] = {}
    kept: dict[float, Result] = {}

    def holds(rate: float) -> bool:
        result = serve(requests.scaled(rate / own))
        if result.interrupted:
            raise KeyboardInterrupt
        found = result.holds(slo)
        tried[rate] = TriedRate(rate_per_s=rate, holds=found, values=cast("Limited", _values(result, slo)))
        if found:
            kept.clear()
            kept[rate] = result
        return found

    low, high = 0.0, inf
    rate = own
    while len(tried) < most_runs and not (low > 0 and high < inf and high <= low * (1.0 + tolerance)):
        if holds(rate):
            low = rate
        else:
            high = rate
        if high == inf:
            rate = 2.0 * low
            if rate > own * 1e6:
                break
        elif low == 0.0:
            rate = 0.5 * high
            if rate < own * 1e-4:
                break
        else:
            rate = sqrt(low * high)
    broken = None if high == inf else high
    reason = "" if broken is None else _first_broken(tried[broken], slo)
    return RateCapacity(
        slo=slo,
        rate_per_s=low,
        broken_per_s=broken,
        reason=reason,
        tried=tuple(tried[rate] for rate in sorted(tried)),
        result=kept.get(low),
    )


def _values(result: Result, slo: Slo) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in slo.limits():
        values = np.where(result.finished, getattr(result, name), np.inf)
        values = values[~np.isnan(values)]
        found[name] = float(np.percentile(values, slo.percentile, method="higher")) if len(values) else 0.0
    return found


def _first_broken(one: TriedRate, slo: Slo) -> str:
    values = cast("Mapping[str, float]", one.values)
    worst = max(slo.limits().items(), key=lambda item: values[item[0]] / item[1])
    name = worst[0].removesuffix("_s")
    return f"{name} p{slo.percentile:g} is {values[worst[0]]:.3g} s, the limit is {worst[1]:.3g} s"
