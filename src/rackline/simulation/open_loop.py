"""An open loop in steady state: random arrivals at servers that are already busy, and the measurement window."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar, Protocol

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.metrics import Result
from rackline.simulation.requests import Requests, gamma
from rackline.simulation.statistics import Interval, percentile_interval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Latency:
    """Distribution of one latency over the measured requests [s].

    Args:
        mean, p50, p90, p99: mean and percentiles [s].
        p99_interval: 95 % confidence interval of the p99, as of `simulate` [s].
        values: latency of each request, in the order of arrival [s], (n,).
        runs: independent runs that they are from, equally many of each [count].
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
    runs: int = 1

    def at(self, percentile: float | None) -> float:
        """A percentile, or the mean for None [s]."""
        return self.mean if percentile is None else float(np.percentile(self.values, percentile))


class DrawnLengths(Protocol):
    """Several lengths, each with its share of the requests."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len) of requests that arrive, (count,) each [tokens]."""
        ...

    def draw_decoding(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """The same of requests that are decoding at some time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests with random arrivals, of one length or of several, as seen by one of several equal servers.

    When the run begins, some requests are decoding already, at evenly spread positions of their outputs. Then come
    warm-up requests, the measured ones, and enough others after them to keep the servers busy until the last measured
    one has finished.

    Args:
        input_len, output_len: lengths of each request [tokens].
        cached_tokens: prompt tokens that are cached on arrival [tokens].
        lengths: drawn for each request, of which input_len and output_len are then the means; None for one length.
        measured: requests in the measurement window [requests].
        warm_up: requests before the window [requests].
        servers: servers that receive the arrivals round-robin; one of them is simulated [count].
        seed: random seed. The same seed gives the same inter-arrival times, scaled by the rate.
    """

    input_len: int
    output_len: int
    cached_tokens: int = 0
    lengths: DrawnLengths | None = None
    measured: int = 4000
    warm_up: int = 1000
    servers: int = 1
    seed: int = 1

    def requests(self, rate_per_s: float, begun: int, decode_s: float) -> Requests:
        """The requests of one server.

        Args:
            rate_per_s: arrival rate at this server [requests/s].
            begun: requests that are decoding when the run begins [requests].
            decode_s: approximate time that a request takes to decode [s].
        """
        rng = np.random.default_rng(self.seed)
        behind = ceil(1.1 * rate_per_s * decode_s + 3.0 * sqrt(rate_per_s * decode_s)) + 20
        if self.lengths is not None:
            behind *= 2  # some answers are longer than the mean
        count = self.warm_up + self.measured + behind
        # every n-th arrival of a Poisson process: inter-arrival times are sums of n exponential ones
        gaps = gamma(rng, count, 1.0, 1.0 / sqrt(self.servers))
        gaps *= count / (gaps[-1] * rate_per_s)  # exactly the mean rate over the run
        place = np.random.default_rng(self.seed + 1).permutation(begun)
        prompts, answers = np.full(count, self.input_len), np.full(count, self.output_len)
        begun_prompts, begun_answers = np.full(begun, self.input_len), np.full(begun, self.output_len)
        if self.lengths is not None:
            drawn = np.random.default_rng(self.seed + 2)
            prompts, answers = self.lengths.draw(drawn, count)
            begun_prompts, begun_answers = self.lengths.draw_decoding(drawn, begun)
        # cached tokens of an answer that has one more already, and at least one to come
        written = place * (begun_answers - 1) // max(begun, 1)
        inputs = np.concatenate([begun_prompts + written, prompts])
        outputs = np.concatenate([begun_answers - written, answers])
        cached = prompts * self.cached_tokens // max(self.input_len, 1)
        computed = np.concatenate([begun_prompts + written, cached])
        return Requests(
            arrival_s=np.concatenate([np.zeros(begun), gaps]),
            input_len=inputs,
            output_len=outputs,
            computed=computed if begun or self.cached_tokens else None,
            name="random arrivals",
        )

    def measured_part(self, result: Result) -> slice:
        """The measurement window of a run, as a slice of its requests."""
        begun = int(np.sum(result.arrival_s <= 0.0))
        return slice(begun + self.warm_up, begun + self.warm_up + self.measured)


def queue_grows(arrival_s: Array, finish_s: Array) -> bool:
    """Whether the queue keeps growing: requests complete over 10 % slower than they arrive.

    Looks at the middle four fifths of a run, so that a queue that was there from the start does not count.

    Args:
        arrival_s, finish_s: arrival and end of each request, in the order of arrival [s], (n,).
    """
    cut = len(arrival_s) // 10
    ends = np.sort(finish_s)
    took, came = (float(times[-1 - cut] - times[cut]) for times in (ends, arrival_s))
    return took > 1.1 * came


def latency(values: Array, runs: int = 1) -> Latency:
    """Mean and percentiles of a latency, with an interval for the p99.

    Args:
        values: latency of each request, in the order of arrival, one run after another [s], (n,).
        runs: independent runs that they are from, equally many of each [count].
    """
    p50, p90, p99 = (float(value) for value in np.percentile(values, (50.0, 90.0, 99.0)))
    return Latency(
        mean=float(values.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        p99_interval=percentile_interval(values, 99.0),
        values=values,
        runs=runs,
    )
