"""Synthetic workloads: open-loop arrivals and a closed loop of users."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol, assert_never

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.simulation.arrivals import DAY_S, diurnal, gamma
from rackline.simulation.requests import Requests

Spread = Literal["fixed", "uniform", "exponential", "lognormal"]
LOGNORMAL_SIGMA = 1.0  # spread of ln(length) in public traces is about 1 (Azure 2023)


class AnyLengths(Protocol):
    """Lengths that are drawn for each request."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len), whole tokens, at least 1, (count,) each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of prompt and output lengths around their means.

    Args:
        input_len, output_len: mean lengths [tokens].
        spread: fixed; uniform from `low` to 2 - `low` times the mean; exponential; or lognormal (a long tail).
        low: least length over the mean for "uniform" [1].
    """

    input_len: float
    output_len: float
    spread: Spread = "fixed"
    low: float = 0.8

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            if not getattr(self, name) >= 1:
                raise InputError(what=name, given=getattr(self, name), allowed="at least 1 token", nearest="1")

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len) in whole tokens, at least 1 [tokens], (count,) each."""
        return self._one(rng, count, self.input_len), self._one(rng, count, self.output_len)

    def _one(self, rng: np.random.Generator, count: int, mean: float) -> Array:
        if self.spread == "fixed":
            return np.full(count, round(mean), dtype=np.int64)
        if self.spread == "uniform":
            values = rng.uniform(self.low * mean, (2.0 - self.low) * mean, count)
        elif self.spread == "exponential":
            values = rng.exponential(mean, count)
        elif self.spread == "lognormal":
            sigma = LOGNORMAL_SIGMA
            values = rng.lognormal(np.log(mean) - 0.5 * sigma**2, sigma, count)
        else:
            assert_never(self.spread)
        return np.maximum(np.rint(values), 1).astype(np.int64)


def open_arrivals(
    rng: np.random.Generator,
    count: int,
    rate_per_s: float,
    lengths: AnyLengths,
    *,
    arrival_cv: float = 1.0,
    diurnal_amplitude: float = 0.0,
    high_priority_share: float = 0.0,
) -> Requests:
    """Open-loop requests, which arrive independently of the server.

    Args:
        count: number of requests; with a daily cycle at most, as it covers whole days [requests].
        rate_per_s: mean arrival rate; infinite for all at once [requests/s].
        lengths: distribution of prompt and output lengths.
        arrival_cv: coefficient of variation of the inter-arrival times, 1 is Poisson; see `gamma` [1].
        diurnal_amplitude: relative amplitude of the daily cycle of the rate; see `diurnal` [1].
        high_priority_share: share of high-priority requests (tier 0; the others are tier 1) [1].

    Raises:
        InputError: too few requests for a day with a daily cycle, or a share outside [0, 1].
    """
    if diurnal_amplitude and not np.isinf(rate_per_s):
        count = _of_whole_days(count, rate_per_s)
    if np.isinf(rate_per_s):
        times = np.zeros(count)
    elif diurnal_amplitude:
        times = diurnal(rng, count, rate_per_s, diurnal_amplitude)
    else:
        times = gamma(rng, count, rate_per_s, arrival_cv)
    inputs, outputs = lengths.draw(rng, count)
    priority = None
    if high_priority_share:
        if not 0.0 <= high_priority_share <= 1.0:
            raise InputError(what="high_priority_share", given=high_priority_share, allowed="0 to 1", nearest="0.1")
        priority = (rng.random(count) >= high_priority_share).astype(np.int64)
    return Requests(
        arrival_s=times,
        input_len=inputs,
        output_len=outputs,
        priority=priority,
        name="synthetic requests",
        process=None if np.isinf(rate_per_s) or diurnal_amplitude else "open",
    )


def _of_whole_days(count: int, rate_per_s: float) -> int:
    """The requests of the whole days among `count`: a part of a day says nothing of the rest, and it begins quietly."""
    a_day = rate_per_s * DAY_S
    if count < round(a_day):
        raise InputError(
            what="requests",
            given=count,
            allowed=f"at least {ceil(a_day)}, a day of the daily cycle at {rate_per_s:g} requests/s",
            nearest=str(ceil(a_day)),
        )
    return round(max(count // a_day, 1.0) * a_day)


def closed_loop_of(
    rng: np.random.Generator, count: int, users: int, lengths: AnyLengths, *, think_s: float = 0.0
) -> Requests:
    """A closed loop: a fixed number of users, each of whom sends the next request when the last one has finished.

    Args:
        count: requests of all users together [requests].
        users: number of users, the most requests in flight [count].
        think_s: mean think time before the next request, exponentially distributed; 0 for none [s]. Users start in the
            middle of it, as they are found at any time of a long run: the rest of an exponential time is distributed
            as all of it.
    """
    if not users >= 1:
        raise InputError(what="users", given=users, allowed="at least 1", nearest="1")
    inputs, outputs = lengths.draw(rng, count)
    index = np.arange(count)
    pause = rng.exponential(think_s, count) if think_s > 0 else np.zeros(count)
    first = index < users
    pause[first] = np.sort(pause[first])
    return Requests(
        arrival_s=pause,
        input_len=inputs,
        output_len=outputs,
        after=np.where(first, -1, index - users),
        name=f"{users} users",
        process="closed",
    )
