"""Limits of requests, and classes of them: how many of each come, and how urgent they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NotRequired, TypedDict, cast

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.load import Load
from rackline.simulation.requests import RequestClass, Requests
from rackline.simulation.workloads import AnyLengths, gamma
from rackline.units import USUAL_PERCENTILE, format_limit, statistic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTraffic(RequestClass):
    """What comes of a class of requests.

    Args:
        lengths: distribution of prompts and answers.
        share: of the requests of the traffic; None where it has rates of its own, or is offline [1].
        rate_per_s: of its own; None for a share or a load [requests/s].
        load: rates of its own over time; None for a share or a rate.
    """

    lengths: AnyLengths
    share: float | None = None
    rate_per_s: float | None = None
    load: Load | None = None

    def rate_of(self, total_per_s: float) -> float:
        """Its mean rate [requests/s].

        Args:
            total_per_s: of the traffic that is shared [requests/s].
        """
        if self.load is not None:
            return self.load.mean_per_s
        return self.rate_per_s if self.rate_per_s is not None else (self.share or 0.0) * total_per_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassLengths:
    """Lengths of requests of several classes, each drawn with its rate.

    Args:
        kinds: the classes; those that are offline are not drawn.
        rates_per_s: of each [requests/s], (classes,).
    """

    kinds: tuple[ClassTraffic, ...]
    rates_per_s: Array

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len) [tokens], (count,) each."""
        return self.draw_as(rng, self.draw_classes(rng, count))

    def draw_classes(self, rng: np.random.Generator, count: int) -> Array:
        """The class of each request, (count,)."""
        return rng.choice(len(self.kinds), size=count, p=self.rates_per_s / self.rates_per_s.sum())

    def draw_as(self, rng: np.random.Generator, classes: Array) -> tuple[Array, Array]:
        """The same of requests whose class is known.

        Args:
            classes: of each, (count,).
        """
        inputs, outputs = np.ones((2, len(classes)), dtype=np.int64)
        for place, kind in enumerate(self.kinds):
            mine = np.flatnonzero(classes == place)
            inputs[mine], outputs[mine] = kind.lengths.draw(rng, len(mine))
        return inputs, outputs


def lengths_of(kinds: Sequence[ClassTraffic], total_per_s: float) -> ClassLengths:
    """The lengths of classes that are served as they come.

    Args:
        total_per_s: of the traffic that is shared [requests/s].
    """
    rates = [0.0 if one.offline else one.rate_of(total_per_s) for one in kinds]
    return ClassLengths(kinds=tuple(kinds), rates_per_s=np.array(rates))


def loads_of(kinds: Sequence[ClassTraffic], shared: Load) -> list[Load]:
    """The rates over time of each class that is not offline, all of the same length.

    Args:
        shared: of all classes with a share together.
    """
    found: list[Load] = []
    for one in (one for one in kinds if not one.offline):
        if one.load is not None:
            found.append(one.load.lasting(shared.seconds))
        elif one.rate_per_s is not None:
            flat = np.array([one.rate_per_s])
            found.append(Load(edges_s=np.array([0.0, shared.seconds]), rates_per_s=flat, name=one.name))
        else:
            found.append(shared.scaled(shared.mean_per_s * (one.share or 0.0)))
    return found


def lengths_over(kinds: Sequence[ClassTraffic], loads: Sequence[Load]) -> ClassLengths:
    """The lengths of classes whose rates change over time, by their mean rates.

    Args:
        loads: of each class that is not offline, in their order.
    """
    means = iter([one.mean_per_s for one in loads])
    rates = [0.0 if one.offline else next(means) for one in kinds]
    return ClassLengths(kinds=tuple(kinds), rates_per_s=np.array(rates))


def strictest(kinds: Sequence[ClassTraffic]) -> str | None:
    """Return the lowest limit on each latency of any class, at its highest percentile, as `slo` is written."""
    limits = [limit for kind in kinds for limit in kind.limits]
    texts: list[str] = []
    for latency in dict.fromkeys(limit.latency for limit in limits):
        same = [limit for limit in limits if limit.latency == latency]
        percentile = max((limit.percentile for limit in same if limit.percentile is not None), default=None)
        text = format_limit(min(limit.seconds for limit in same), percentile)
        texts.append(f"{latency.removesuffix('_s')}={text}")
    return ",".join(texts) or None


def steady(
    rng: np.random.Generator, kinds: Sequence[ClassTraffic], count: int, total_per_s: float, arrival_cv: float = 1.0
) -> Requests:
    """Requests at constant rates, and the backlogs.

    Args:
        count: requests that come, of all classes together [requests].
        total_per_s: of the traffic that is shared [requests/s].
        arrival_cv: of all of them together [1].
    """
    lengths = lengths_of(kinds, total_per_s)
    times = gamma(rng, count, float(lengths.rates_per_s.sum()), arrival_cv)
    return _requests(rng, lengths, times, lengths.draw_classes(rng, count), "classes of requests")


def over_time(
    rng: np.random.Generator, kinds: Sequence[ClassTraffic], loads: Sequence[Load], arrival_cv: float = 1.0
) -> Requests:
    """Requests at the rates of each class, and the backlogs.

    Args:
        loads: of each class that is not offline, in their order.
    """
    online = [place for place, one in enumerate(kinds) if not one.offline]
    each = [load.arrivals(rng, arrival_cv) for load in loads]
    times = np.concatenate(each)
    classes = np.repeat(online, [len(one) for one in each])
    order = np.argsort(times, kind="stable")
    lengths = lengths_of(kinds, 1.0)
    return replace(_requests(rng, lengths, times[order], classes[order], "classes of requests"), process=None)


def _requests(rng: np.random.Generator, lengths: ClassLengths, times: Array, classes: Array, name: str) -> Requests:
    kinds = lengths.kinds
    waiting = np.repeat(np.arange(len(kinds)), [one.requests for one in kinds])
    classes = np.concatenate([waiting, classes]).astype(np.int64)
    inputs, outputs = lengths.draw_as(rng, classes)
    return Requests(
        arrival_s=np.concatenate([np.zeros(len(waiting)), times]),
        input_len=inputs,
        output_len=outputs,
        priority=np.array([one.priority for one in kinds])[classes],
        classes=classes,
        kinds=kinds,
        name=name,
        process=None if len(waiting) else "open",
    )


LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


class Limited(TypedDict):
    """The latencies that have a limit [s]."""

    ttft_s: NotRequired[float]
    tpot_s: NotRequired[float]
    e2e_s: NotRequired[float]


class Limits(Limited):
    """Latency limits [s], and the percentile of each; None for the mean."""

    ttft_percentile: NotRequired[float | None]
    tpot_percentile: NotRequired[float | None]
    e2e_percentile: NotRequired[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency limits of a request; None is no limit.

    Args:
        ttft_s, tpot_s, e2e_s: [s].
        ttft_percentile, tpot_percentile, e2e_percentile: share of the requests that must stay below each; None limits
            the mean [%].
    """

    json_keys: ClassVar = ("*data",)

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    ttft_percentile: float | None = USUAL_PERCENTILE
    tpot_percentile: float | None = USUAL_PERCENTILE
    e2e_percentile: float | None = USUAL_PERCENTILE

    def limits(self) -> dict[str, float]:
        """Return the limits that are set [s], by latency."""
        return {name: value for name in LATENCIES if (value := getattr(self, name)) is not None}

    def percentile(self, latency: str) -> float | None:
        """Return the percentile at which a latency, such as ttft_s, is limited; None for its mean."""
        return getattr(self, f"{latency.removesuffix('_s')}_percentile")

    @property
    def statistics(self) -> str:
        """Statistics that the limits are of: "p99", or each by name where they differ."""
        names = {name.removesuffix("_s"): statistic_name(self.percentile(name)) for name in self.limits()}
        if len(set(names.values())) == 1:
            return next(iter(names.values()))
        return ", ".join(f"{statistic} of {name}" for name, statistic in names.items())

    @property
    def data(self) -> Limits:
        """The limits that are set [s], and their percentiles."""
        percentiles = {f"{name.removesuffix('_s')}_percentile": self.percentile(name) for name in self.limits()}
        return cast("Limits", self.limits() | percentiles)
