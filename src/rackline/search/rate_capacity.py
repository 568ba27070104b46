"""The rate of `simulate --capacity`: the highest that a server serves within limits, with its confidence interval.

All rates see the same requests at scaled times, so latency is a smooth function of the rate. With its percentile, both
ends of the percentile's confidence interval are such functions; the rates at which these cross the limit are the ends
of the capacity's interval (a confidence interval by inversion, Fieller 1954).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan, nan, nextafter, sqrt
from typing import ClassVar, Literal, cast

from rackline.errors import require
from rackline.rounding import grid_below
from rackline.simulation import Requests, Result, Slo
from rackline.simulation.classes import Limited
from rackline.units import statistic_name

Serve = Callable[[Requests], Result]


Edge = Literal["low", "at", "high"]
_UNSURE_TOLERANCE = 0.05  # of the ends of the interval, which need not be as sharp as the rate [1]
_FAR = 2.0  # an end beyond this factor of the rate is not looked for


def rate_between(
    low: float, high: float, below: Mapping[str, float], over: Mapping[str, float], tolerance: float, *, held: bool
) -> float:
    """The next rate to try between one that holds and one that does not, of five significant digits [requests/s].

    Latency grows with the rate as A / (1 - r / s), so 1 / latency is about a line. The rate at which the first latency
    reaches its limit is approached from both sides in turn, half of the tolerance away, so that both ends close in.

    Args:
        low, high: the highest that holds, and the lowest that does not [requests/s].
        below, over: latencies over their limits at both, by the same names; infinite where a queue grows [1].
        tolerance: within which both ends shall come [1].
        held: whether the last one that was tried holds.
    """
    ends = [(below[name], above) for name, above in over.items() if above > 1.0 and below[name] < 1.0]
    if high <= low * (1.0 + 3.0 * tolerance) or not ends or inf in over.values():
        return grid_below(sqrt(low * high))
    share = min((1.0 / under - 1.0) / (1.0 / under - 1.0 / above) for under, above in ends)
    aim = (low + (high - low) * share) * (1.0 + (0.5 if held else -0.5) * tolerance)
    inside = 0.1 * (high - low)
    return grid_below(min(max(aim, low + inside), high - inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRate:
    """One rate [requests/s], whether it held, and the limited latencies at the percentile [s].

    Args:
        over: furthest latency over its limit, at the low end of its interval, as it is, and at the high end [1].
    """

    json_keys: ClassVar = (
        "rate_per_s",
        "holds",
        "*values",
    )

    rate_per_s: float
    holds: bool
    values: Limited
    over: Mapping[Edge, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCapacity:
    """Outcome of the search.

    Args:
        slo: the limits.
        rate_per_s: highest rate that held; 0 when none did [requests/s].
        rate_low, rate_high: 95 % confidence interval of the capacity; NaN where the runs are too short to bound it
            within a factor of two [requests/s].
        broken_per_s: lowest rate above it that did not; None when all did [requests/s].
        reason: which limit broke first.
        tried: every rate that was simulated, rising.
        result: the run at `rate_per_s`, None when none held.
    """

    json_keys: ClassVar = (
        "slo",
        "rate_per_s",
        "rate_interval.low=rate_low",
        "rate_interval.high=rate_high",
        "broken_per_s",
        "reason",
        "tried",
    )

    slo: Slo
    rate_per_s: float
    rate_low: float
    rate_high: float
    broken_per_s: float | None
    reason: str
    tried: tuple[TriedRate, ...]
    result: Result | None

    @property
    def half_width(self) -> float:
        """Half of the interval over the rate; infinite where it is unbounded or no rate holds [1]."""
        width = self.rate_high - self.rate_low
        return 0.5 * width / self.rate_per_s if self.rate_per_s > 0 and not isnan(width) else inf


def rate_capacity(
    requests: Requests,
    serve: Serve,
    slo: Slo,
    *,
    near_per_s: float | None = None,
    tolerance: float = 0.02,
    most_runs: int = 24,
) -> RateCapacity:
    """The highest rate within limits, with the same requests at scaled arrival times.

    Args:
        requests: open arrivals; their times are scaled.
        serve: function that simulates them.
        slo: limits with their percentiles.
        near_per_s: rate to begin near to, which is about the capacity; None for that of the requests [requests/s].
        tolerance: relative tolerance of the rate [1].
        most_runs: simulations at most, and as many again for the interval [count].

    Raises:
        InputError: there is no limit, or the requests have no rate because they follow each other or arrive at once.

    Assumes: latency does not improve with the request rate.
    """
    require(slo.limits(), what="capacity", given="no limit", allowed="such as ttft=2s,tpot=50ms@p99")
    own = requests.rate_per_s
    require(
        requests.after is None and own != inf and own > 0,
        what="capacity",
        given=requests.name,
        allowed="open arrivals with a rate (a trace or --rate), two or more",
    )
    search = _Search(requests=requests, serve=serve, slo=slo, own_per_s=own)
    step = 2.0 if not near_per_s else 1.1
    low, high = search.bracket(
        "at", grid_below(near_per_s) if near_per_s else own, step, (own * 1e-4, own * 1e6), tolerance, most_runs
    )
    found = low or high
    ends = (found / _FAR, found * _FAR)
    sure, _ = search.bracket("high", found, 1.1, ends, _UNSURE_TOLERANCE, most_runs)
    _, lost = search.bracket("low", found, 1.1, ends, _UNSURE_TOLERANCE, most_runs)
    broken = None if high == inf else high
    return RateCapacity(
        slo=slo,
        rate_per_s=low,
        rate_low=sure or nan,
        rate_high=nan if lost == inf else lost,
        broken_per_s=broken,
        reason="" if broken is None else _first_broken(search.tried[broken], slo),
        tried=tuple(search.tried[rate] for rate in sorted(search.tried)),
        result=search.kept.get(low),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    requests: Requests
    serve: Serve
    slo: Slo
    own_per_s: float
    tried: dict[float, TriedRate] = field(default_factory=dict[float, TriedRate])
    kept: dict[float, Result] = field(default_factory=dict[float, Result])

    def bracket(
        self, edge: Edge, start: float, step: float, ends: tuple[float, float], tolerance: float, most_runs: int
    ) -> tuple[float, float]:
        """The highest rate that holds by one edge of the interval, and the lowest that does not [requests/s].

        Args:
            start: rate to begin with.
            step: factor of the first step from there; it is squared while no end is found.
            ends: rates beyond which nothing is looked for; then the result is 0 or infinite.
        """
        rate, most = start, len(self.tried) + most_runs
        while True:
            low, high = self._known(edge)
            if low == 0.0 and high == inf:
                pass
            elif high == inf:
                rate, step = low * step, min(step**2, 2.0)
            elif low == 0.0:
                rate, step = high / step, min(step**2, 2.0)
            elif high <= low * (1.0 + tolerance):
                return low, high
            else:
                held = rate in self.tried and self.tried[rate].over[edge] <= 1.0
                below, over = ({"": max(self.tried[one].over[edge], 1e-9)} for one in (low, high))
                rate = rate_between(low, high, below, over, tolerance, held=held)
            if len(self.tried) >= most or not ends[0] <= rate <= ends[1]:
                return low, high
            self._try(rate)

    def _known(self, edge: Edge) -> tuple[float, float]:
        """What the rates that were tried say."""
        high = min((rate for rate, one in self.tried.items() if one.over[edge] > 1.0), default=inf)
        low = max((rate for rate, one in self.tried.items() if one.over[edge] <= 1.0 and rate < high), default=0.0)
        return low, high

    def _try(self, rate: float) -> None:
        result = self.serve(self.requests.scaled(rate / self.own_per_s))
        if result.interrupted:
            raise KeyboardInterrupt
        values: dict[str, float] = {}
        over: dict[Edge, float] = {"low": 0.0, "at": 0.0, "high": 0.0}
        for name, limit in self.slo.limits().items():
            values[name], ends = result.at(name, self.slo.percentile(name))
            over["at"] = max(over["at"], values[name] / limit)
            over["low"] = max(over["low"], 0.0 if isnan(ends["low"]) else ends["low"] / limit)
            over["high"] = max(over["high"], inf if isnan(ends["high"]) else ends["high"] / limit)
        if result.window().steady is False:
            over["high"] = inf
        holds = result.holds(self.slo)
        if not holds:
            over["at"] = max(over["at"], nextafter(1.0, 2.0))
            over["high"] = max(over["high"], over["at"])
            if result.requests.process is not None and result.overload() is not None:
                over["low"] = max(over["low"], over["at"])
        self.tried[rate] = TriedRate(rate_per_s=rate, holds=holds, values=cast("Limited", values), over=over)
        if holds and rate >= max(self.kept, default=0.0):
            self.kept.clear()
        if holds and not self.kept:
            self.kept[rate] = result


def _first_broken(one: TriedRate, slo: Slo) -> str:
    values = cast("Mapping[str, float]", one.values)
    name, limit = max(slo.limits().items(), key=lambda item: values[item[0]] / item[1])
    statistic = statistic_name(slo.percentile(name))
    return f"{name.removesuffix('_s')} {statistic} is {values[name]:.3g} s, the limit is {limit:.3g} s"
