"""Batch trains: a batch departs every interval, full or not; and the busiest of several peers under random arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rackline.checked import Num, checked, plain
from rackline.errors import require
from rackline.hardware import Chip
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.blackboard import tokens_per_s, train_latency

_MOST_TERMS = 1 << 20
_RARE = 1e-3  # share of the requests that may take longer than `worst_s`
_MOST_STATES = 1500  # of the queue: beyond it, close to saturation, the queue length is taken as exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLine:
    """A line of trains under random arrivals.

    Args:
        interval_s: T, time between departures, and duration of the ride [s].
        capacity: B, places on a train [requests].
        arrivals_per_s: arrival rate of the requests, Poisson [requests/s].
    """

    interval_s: float
    capacity: int
    arrivals_per_s: float

    def __post_init__(self) -> None:
        checked("TrainLine", interval_s=self.interval_s, capacity=self.capacity, arrivals_per_s=self.arrivals_per_s)

    @property
    def load(self) -> float:
        """Arrivals over places; at 1 or more the line is saturated and the queue grows without bound."""
        return self.arrivals_per_s * self.interval_s / self.capacity

    @property
    def saturated(self) -> bool:
        """Whether more requests arrive than the trains can carry."""
        return self.load >= 1.0

    @property
    def left_behind(self) -> float:
        """Mean number of requests that a departing train leaves behind [requests]; infinite at saturation."""
        return mean_left_behind(self.arrivals_per_s * self.interval_s, self.capacity)

    @property
    def mean_s(self) -> float:
        """Mean time from arrival to the end of the ride [s]: 1.5 T as long as trains do not fill up.

        Requests left behind wait a whole interval each time: by Little's law, left_behind / arrivals_per_s on average.
        """
        return float(train_latency(self.interval_s).mean_s) + self.left_behind / self.arrivals_per_s

    @property
    def worst_s(self) -> float:
        """Longest time except for one request in 1,000 [s]; infinite at saturation.

        It is 2 T as long as no train fills up (a train just missed, and the ride), and T more for each full train
        before.
        """
        if self.saturated:
            return float("inf")
        met = np.flatnonzero(np.cumsum(self.trains_missed()) >= 1.0 - _RARE)
        return float(train_latency(self.interval_s).worst_s) + self.interval_s * float(met[0])

    def trains_missed(self) -> NDArray[np.float64]:
        """Shares of the requests for which 0, 1, 2, ... full trains leave before theirs, up to a total of at least 1 -
        1e-6.

        A request that arrives after a share u of an interval is behind those left over and those that arrived earlier
        in the interval, a Poisson number of mean u · a; every B of them fill a train.

        Raises:
            InputError: the line is saturated.

        Assumes: first come, first served.
        """
        require(not self.saturated, what="load", given=self.load, allowed="below 1, else the queue grows without bound")
        arrivals = self.arrivals_per_s * self.interval_s
        waiting = left_behind_shares(arrivals, self.capacity)
        size = int(arrivals + 12.0 * np.sqrt(arrivals) + 12.0)
        from scipy.special import gammainc

        # probability that exactly k arrived before, over u from 0 to 1: P(A > k) / a
        ahead = np.convolve(waiting, gammainc(np.arange(1.0, size + 1.0), arrivals) / arrivals)
        return np.bincount(np.arange(ahead.size) // self.capacity, weights=ahead).astype(np.float64)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of full trains, one token per place [tokens/s]."""
        return tokens_per_s(self.capacity, self.interval_s)


def interval_from_drain_s(chip: Chip) -> float:
    """The natural interval of a chip: the time to read its whole memory once [s].

    T = hbm_bytes / hbm_bytes_per_s

    Sources: lecture C28, C30.

    >>> from rackline.hardware import chip
    >>> round(interval_from_drain_s(chip("h100-sxm")), 4)
    0.0255
    """
    return chip.drain_s


def arrivals_to_fill_per_s(capacity: Num, interval_s: Num) -> Num:
    """Arrivals that fill every train.

    rate = B / T

    Args:
        capacity: B, places on a train [requests], any shape.
        interval_s: T, time between departures [s], broadcasts.

    Returns:
        Requests per second, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: each request takes one place on one train; one that decodes n tokens takes a place on n of them.

    Sources: lecture C31 (2,000 places in 100 ms are 20,000 arrivals a second).

    >>> round(arrivals_to_fill_per_s(2000.0, 0.100), 6)
    20000.0
    """
    b, t = checked("arrivals_to_fill_per_s", capacity=capacity, interval_s=interval_s)
    return plain(b / t)


def fill_s(capacity: Num, arrivals_per_s: Num) -> Num:
    """Time in which arrivals fill one train.

    t = B / rate

    Args:
        capacity: B, places on a train [requests], any shape.
        arrivals_per_s: arrival rate of the requests [requests/s], broadcasts.

    Returns:
        Seconds, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: mean arrivals; requests that are decoding keep their place, so only new ones are counted here.

    Sources: lecture C31.

    >>> fill_s(2000.0, 20_000.0)
    0.1
    """
    b, rate = checked("fill_s", capacity=capacity, arrivals_per_s=arrivals_per_s)
    return plain(b / rate)


def share_of_fleet(system_tokens_per_s: Num, fleet_tokens_per_s: Num) -> Num:
    """Share of a fleet's traffic that one system carries.

    share = system / fleet

    Args:
        system_tokens_per_s: tokens per second of one system [tokens/s], any shape.
        fleet_tokens_per_s: tokens per second of the whole service [tokens/s], broadcasts.

    Returns:
        Share, broadcast shape; its inverse is the number of systems.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: all traffic is decode on equal systems.

    Sources: lecture C33 (128,000 tokens/s against 500 million).

    >>> round(1 / share_of_fleet(128_000.0, 502e6))
    3922
    """
    own, fleet = checked(
        "share_of_fleet", system_tokens_per_s=system_tokens_per_s, fleet_tokens_per_s=fleet_tokens_per_s
    )
    return plain(own / fleet)


def mean_left_behind(arrivals_per_interval: float, capacity: int) -> float:
    """Mean number of requests that a departing train leaves behind, when arrivals are Poisson.

    E[W] = sum over k >= 1 of E[max(A_k - k B, 0)] / k,  A_k Poisson of mean k a
    E[max(A_k - c, 0)] = k a P(A_k >= c) - c P(A_k > c)

    Args:
        arrivals_per_interval: a = rate · T [requests].
        capacity: B [requests].

    Returns:
        Requests; infinite for a of B or more.

    Raises:
        InputError: a value that is not positive and finite, or a capacity that is no whole number.

    Assumes: Poisson arrivals, fixed interval. Where a million terms do not suffice (within about 1e-3 of
        saturation) the diffusion limit a / (2 (B - a)) is returned.

    Sources: Bailey 1954, On queueing processes with bulk service; Spitzer's identity for the waiting time.

    >>> round(mean_left_behind(0.5, 1), 6)
    0.25
    """
    checked("mean_left_behind", arrivals_per_interval=arrivals_per_interval, capacity=capacity)
    require(
        capacity == int(capacity),
        what="capacity",
        given=capacity,
        allowed="a whole number",
        where="mean_left_behind",
        nearest=str(int(capacity)),
    )
    if arrivals_per_interval >= capacity:
        return float("inf")
    from scipy.special import pdtrc  # P(A > c) of a Poisson variable

    total, first, size = 0.0, 1, 64
    while first < _MOST_TERMS:
        k = np.arange(first, first + size, dtype=np.float64)
        mean, places = k * arrivals_per_interval, k * capacity
        over: NDArray[np.float64] = mean * pdtrc(places - 1.0, mean) - places * pdtrc(places, mean)
        terms = np.maximum(over, 0.0) / k
        total += float(terms.sum())
        # terms fall at least as fast as a geometric series over the next block
        if terms[-1] * size <= 1e-12 * total or total == 0.0:
            return total
        first, size = first + size, min(size * 2, 1 << 16)
    return arrivals_per_interval / (2.0 * (capacity - arrivals_per_interval))


def left_behind_shares(arrivals_per_interval: float, capacity: int) -> NDArray[np.float64]:
    """Probabilities that a departing train leaves 0, 1, 2, ... requests behind, when arrivals are Poisson.

    The stationary distribution of W' = max(W + A - B, 0).

    Args:
        arrivals_per_interval: a = rate · T [requests].
        capacity: B [requests].

    Returns:
        Probabilities, (states,), which add up to 1.

    Raises:
        InputError: a value that is not positive and finite, a capacity that is no whole number, or a of B or more.

    Assumes: Poisson arrivals, fixed interval. Where more than 1,500 states matter (close to saturation) the queue is
        taken to be exponential, its limit, with the mean of `mean_left_behind`.

    Sources: Bailey 1954; Kingman 1962 for the limit.

    >>> [round(float(share), 4) for share in left_behind_shares(0.5, 1)[:3]]
    [0.8244, 0.1226, 0.0378]
    """
    mean = mean_left_behind(arrivals_per_interval, capacity)
    require(np.isfinite(mean), what="arrivals_per_interval", given=arrivals_per_interval, allowed=f"below {capacity}")
    from scipy.special import gammaln

    states = int(30.0 * (mean + 1.0)) + 1
    if states > _MOST_STATES:
        tail = np.exp(-np.arange(states) / mean)
        return tail / tail.sum()
    count = np.arange(states + capacity, dtype=np.float64)
    arrive = np.exp(count * np.log(arrivals_per_interval) - arrivals_per_interval - gammaln(count + 1.0))
    moves = np.zeros((states, states))
    for state in range(states):
        enough = max(capacity - state, 0)  # arrivals up to which none is left behind
        moves[state, 0] = arrive[: enough + 1].sum() if state <= capacity else 0.0
        first = max(state - capacity, 1)
        moves[state, first:] = arrive[first + capacity - state : states + capacity - state]
    moves[:, -1] += np.maximum(1.0 - moves.sum(axis=1), 0.0)
    balance = moves.T - np.eye(states)
    balance[-1] = 1.0
    right: NDArray[np.float64] = np.eye(states)[-1]
    shares = np.maximum(np.linalg.solve(balance, right), 0.0)
    return shares / shares.sum()


_FEWEST, _MOST, _POINTS = 1e-3, 1e2, 101


def busiest_share(mean: FloatLike, peers: FloatLike) -> Array:
    """Arrivals at the busiest of several peers over the mean of those peers that have any.

    With N_i arrivals at peer i, Poisson and independent: E[max N] / P(max N > 0) over E[N] / P(N > 0). It is 1 for one
    peer, and near 1 where arrivals are rare (a peer has at most one) and where they are many.

    Args:
        mean: arrivals at each peer [count], broadcast with `peers`.
        peers: number of peers [count].

    Returns:
        The factor, at least 1, in the broadcast shape [1].

    Assumes: interpolated between 101 points with means a factor of 1.12 apart, within 0.5 % of the exact sum; above
    100 arrivals, the factor at 100.
    Sources: E[max] = sum over k of 1 - (1 - P(N >= k))^peers, the tail sum of a maximum of independent variables.

    >>> round(float(busiest_share(0.3, 4)), 3)
    1.056
    """
    means, counts = as_array(mean), as_array(peers)
    shape = np.broadcast_shapes(means.shape, counts.shape)
    logs = np.broadcast_to(np.log(np.maximum(means, _FEWEST)), shape)
    found = np.ones(shape)
    by_row = counts.ndim == len(shape) > 0 and counts.shape == (*shape[:-1], 1)  # one number of peers per layout
    for count in np.unique(counts):
        if count > 1:
            here = counts == count
            here = here[..., 0] if by_row else np.broadcast_to(here, shape)
            found[here] = np.interp(logs[here], *_curve(float(count)))
    return found


def most_of(mean: FloatLike, peers: FloatLike, chance: FloatLike = 1.0) -> Array:
    """Arrivals at the busiest of several peers over the mean of one.

    E[max N] / mean, interpolated between random assignment and the most even one, where the total is divided by the
    number of peers and rounded up.

    Args:
        mean: arrivals at each peer [count], broadcast with `peers`.
        peers: number of peers [count].
        chance: 1 if each arrival goes to a random peer, 0 if it goes to the peer with the fewest [1].

    Returns:
        The factor, 1 to `peers`, in the broadcast shape [1].

    Assumes: Poisson arrivals; interpolated between 101 points with means a factor of 1.12 apart.

    >>> most_of(1e-3, 4).round(2), most_of(3.0, 4).round(2), most_of(3.0, 4, 0.0).round(2)
    (np.float64(3.99), np.float64(1.61), np.float64(1.13))
    """
    counts = as_array(peers)
    kinds, row = np.unique(counts, return_inverse=True)
    by_chance, evenly = (
        np.stack(curves) for curves in zip(*(_most_curves(float(kind)) for kind in kinds), strict=True)
    )
    place = np.log(np.clip(as_array(mean), _FEWEST, _MOST) / _FEWEST) * ((_POINTS - 1) / np.log(_MOST / _FEWEST))
    left = np.minimum(place.astype(np.int64), _POINTS - 2)
    part = place - left
    at = row.reshape(counts.shape) * _POINTS + left
    found = np.take(evenly, at) * (1.0 - part) + np.take(evenly, at + 1) * part
    return found + as_array(chance) * (
        np.take(by_chance, at) * (1.0 - part) + np.take(by_chance, at + 1) * part - found
    )


@cache
def _most_curves(peers: float) -> tuple[Array, Array]:
    """(E[max N], E[total over peers, rounded up]), each over the mean of one peer, (101,) each."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    return busiest_share(means, peers) * np.expm1(-means * peers) / np.expm1(-means), _even_curve(peers)


@cache
def _even_curve(peers: float) -> Array:
    """E[total over peers, rounded up] over the mean of one, (101,)."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    factors = np.empty(_POINTS)
    for index, mean in enumerate(means):
        total = mean * peers
        counts = np.arange(1, int(total + 12.0 * np.sqrt(total) + 12.0))
        log_terms = counts * np.log(total) - total - np.cumsum(np.log(counts))
        factors[index] = float(np.sum(np.exp(log_terms) * np.ceil(counts / peers))) / mean
    return factors


@cache
def _curve(peers: float) -> tuple[Array, Array]:
    """(log of the mean, factor), (101,) each."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    factors = np.empty(_POINTS)
    for index, mean in enumerate(means):
        far = int(mean + 12.0 * np.sqrt(mean) + 12.0)
        steps = np.arange(far)
        log_terms = steps * np.log(mean) - mean - np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, far)))])
        tails = np.clip(1.0 - np.cumsum(np.exp(log_terms)), 0.0, 1.0)  # P(N >= 1), P(N >= 2), ...
        # tails below 1e-12 are rounding errors, which `peers` would multiply
        some = -np.expm1(peers * np.log1p(-np.minimum(np.where(tails > 1e-12, tails, 0.0), 1.0 - 1e-15)))
        factors[index] = some.sum() / some[0] * -np.expm1(-mean) / mean
    return np.log(means), np.maximum(factors, 1.0)
