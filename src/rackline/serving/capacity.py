"""Capacity: what fits on a layout, contexts and requests, and what a train of batches carries under random arrivals.

A batch train departs every interval, full or not (lecture C26 to C33).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rackline.arch import AnyModel
from rackline.checked import Num, checked, plain, positive
from rackline.errors import require
from rackline.hardware import Cluster
from rackline.parallel import SERVER, Layout, LayoutGrid, Precision, ServerMemory, enumerate_layouts, memory_use
from rackline.parallel.memory import FractionOf, fitting_sequences
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.blackboard import train_latency

LONGEST_CONTEXT = 2.0**33
"""Contexts beyond it count as infinite [tokens]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """One layout of one replica.

    Args:
        weights_bytes: weights on the fullest chip [bytes].
        kv_room_bytes: memory left for KV on the fullest chip, in whole blocks; negative if the weights do not fit
            [bytes].
        kv_bytes_per_sequence: KV cache of one sequence on a chip at the requested context, in whole blocks [bytes].
        max_context: longest context with one sequence per rank and micro-batch; infinite if every layer is windowed
            [tokens].
        max_concurrency: sequences of the requested context on one replica [sequences].
        total_concurrency: the same, on all replicas that fit on the cluster [sequences].
        reason: why nothing fits; empty if something does.
    """

    layout: Layout
    weights_bytes: float
    kv_room_bytes: float
    kv_bytes_per_sequence: float
    max_context: float
    max_concurrency: int
    total_concurrency: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Layouts and what fits on them, highest concurrency first.

    Args:
        context_len: requested context [tokens].
        concurrency: requested number of requests on the cluster; None to only count them [requests].
        memory_fraction, fraction_of: of the server, see `rackline.parallel.ServerMemory`.
        rows: one row for each layout that was considered.
    """

    json_keys: ClassVar = (
        "model",
        "cluster",
        "precision",
        "context_len",
        "concurrency",
        "memory_fraction",
        "fraction_of",
        "fits",
        "rows",
    )

    model: str
    cluster: str
    precision: Precision
    context_len: float
    concurrency: int | None
    memory_fraction: float
    fraction_of: FractionOf
    rows: tuple[CapacityRow, ...]

    @property
    def fitting(self) -> tuple[CapacityRow, ...]:
        """Rows that meet the request."""
        least = max(self.concurrency or 1, 1)
        return tuple(row for row in self.rows if row.total_concurrency >= least)

    @property
    def fits(self) -> bool:
        """Whether any layout meets the request."""
        return bool(self.fitting)


def capacity(
    model: AnyModel,
    cluster: Cluster,
    precision: Precision,
    *,
    context_len: float = 8192.0,
    concurrency: int | None = None,
    server: ServerMemory = SERVER,
    layouts: Sequence[Layout] | None = None,
    longest: bool = True,
) -> Capacity:
    """Longest context and highest concurrency of every layout, highest concurrency first, then fewest chips.

    Args:
        context_len: context of each request [tokens].
        server: memory that a server needs besides weights and cache, and the memory fraction.
        layouts: layouts to consider; all that the cluster holds where it is None.
        longest: whether to look for the longest context, which takes most of the time; NaN without.

    Raises:
        InputError: context or memory fraction is out of range.
    """
    require(context_len >= 1, what="context", given=context_len, allowed="at least 1 token", nearest="1")
    fraction = server.memory_fraction
    require(0 < fraction <= 1, what="memory fraction", given=fraction, allowed="above 0 to 1", nearest="0.9")
    options = enumerate_layouts(model, cluster.num_chips) if layouts is None else list(layouts)
    grid, shape = LayoutGrid.of(options), (len(options),)
    use = memory_use(model, grid, precision, cluster.chip, server, sequences_per_rank=1.0, context_len=context_len)

    def sequences(context: FloatLike) -> Array:
        return np.broadcast_to(fitting_sequences(model, grid, precision, cluster.chip, server, context), shape)

    counts = sequences(context_len) * as_array(grid.attention_dp) * as_array(grid.pp)
    contexts = _longest_context(sequences, len(options)) if longest else np.full(shape, np.nan)
    parts = [np.broadcast_to(as_array(part), shape) for part in (use.weight_total, use.kv_room, use.kv_cache)]
    columns = (part.tolist() for part in (*parts, contexts, counts.astype(int)))
    rows = [
        CapacityRow(
            layout=layout,
            weights_bytes=weights,
            kv_room_bytes=room,
            kv_bytes_per_sequence=per_sequence,
            max_context=context,
            max_concurrency=count,
            total_concurrency=count * max(1, cluster.num_chips // layout.chips_per_replica),
            reason=_reason(room, per_sequence, count),
        )
        for layout, weights, room, per_sequence, context, count in zip(options, *columns, strict=True)
    ]
    rows.sort(key=lambda row: (-row.total_concurrency, row.layout.chips_per_replica, row.layout.pp))
    return Capacity(
        model=model.name,
        cluster=cluster.name,
        precision=precision,
        context_len=context_len,
        concurrency=concurrency,
        memory_fraction=fraction,
        fraction_of=server.fraction_of,
        rows=tuple(rows),
    )


def _reason(room: float, per_sequence: float, count: int) -> str:
    """Why nothing fits; empty if something does."""
    if room < 0:
        return f"weights, activations and runtime exceed the usable memory by {-room / 1e9:.3g} GB per chip"
    if count:
        return ""
    return f"one request needs {per_sequence / 1e9:.3g} GB of KV per chip, but {room / 1e9:.3g} GB are left"


def _longest_context(sequences: Callable[[FloatLike], Array], count: int) -> Array:
    """Bisect by powers of two, then to one token; KV grows with the context except in windowed layers."""
    low, high = np.zeros(count), np.full(count, LONGEST_CONTEXT)
    for _ in range(40):
        middle = np.floor((low + high) / 2.0)
        fits = sequences(middle) >= 1
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(low >= LONGEST_CONTEXT - 2.0, np.inf, low)


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


@positive()
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
    return plain(capacity / interval_s)


@positive()
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
    return plain(system_tokens_per_s / fleet_tokens_per_s)


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
