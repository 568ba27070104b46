"""Replicas of a pool as arrays: what each serves, in which time, on how many chips, and which of them to keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.passes.features import Array, FloatLike
from rackline.search.pareto import pareto_front
from rackline.serving.disaggregated import MOST_LOAD, PrefillPasses

_COUNTS = ("evaluated", "fitting")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPoints:
    """Replicas of one pool; arrays of one length.

    Args:
        label: precision of each, as an index into `precisions`.
        mode: scheduler of each, as an index into `modes`.
        row: layout of each, as an index into the list of layouts.
        per_rank: sequences of a rank and micro-batch; 0 in a prefill pool [sequences].
        chips: of one replica [count].
        seconds: time per output token of a decode replica, service time of a prefill replica in full passes [s].
        alone_s: the same with one sequence on a rank, or in passes of one prompt per rank [s].
        requests_per_s: of one replica, no more than its links can send or receive [requests/s].
        link_s: time to send or to receive the KV cache of one prompt [s].
        together: prompts that a prefill replica serves at a time; 1 in a decode pool [requests].
        peers: ranks and micro-batches of a prefill replica among which they are spread; 1 in a decode pool [count].
        cp: ranks that share one context [count].
        input_cv2: variance of the prompts' tokens over the square of their mean [1].
        evaluated: points whose times were computed [count].
        fitting: points among them that fit, whichever are left of them [count].
    """

    label: Array
    mode: Array
    row: Array
    per_rank: Array
    chips: Array
    seconds: Array
    alone_s: Array
    requests_per_s: Array
    link_s: Array
    together: Array
    peers: Array
    cp: Array
    input_cv2: Array
    evaluated: int
    fitting: int

    def passes(self, index: Array | int) -> PrefillPasses:
        """What prompts find at the prefill replicas of an index."""
        return PrefillPasses(
            alone_s=self.alone_s[index],
            full_s=self.seconds[index],
            together=self.together[index],
            peers=self.peers[index],
            input_cv2=self.input_cv2[index],
        )

    def tpot_s(self, index: int, requests_per_s: float) -> float:
        """Time per output token of a decode replica at a rate, which may be less than it could serve [s].

        Assumes: it grows in proportion to the sequences in flight.
        """
        full_s, share = float(self.seconds[index]), min(requests_per_s / float(self.requests_per_s[index]), 1.0)
        alone_s = min(float(self.alone_s[index]), full_s)
        return alone_s / (1.0 - share * (1.0 - alone_s / full_s))

    def load(self, index: Array, transfer_s: Array, slack_s: float | None, in_turn: FloatLike = 1.0) -> Array:
        """Load at which prefill replicas of an index keep the time to first token; MOST_LOAD without a limit.

        Args:
            transfer_s: of the cache [s]; broadcasts with the index.
            slack_s: time to first token less its constant part; None for no limit [s].
            in_turn: replicas of the pool, which get the arrivals round-robin [count].
        """
        if slack_s is None:
            return np.full(np.broadcast_shapes(index.shape, transfer_s.shape), MOST_LOAD)
        return self.passes(index).highest_load(slack_s - transfer_s, in_turn)

    def take(self, index: Array) -> PoolPoints:
        """The points of an index."""
        arrays = {name: getattr(self, name)[index] for name in self.__slots__ if name not in _COUNTS}
        return PoolPoints(**arrays, evaluated=self.evaluated, fitting=self.fitting)

    @classmethod
    def join(cls, parts: list[PoolPoints]) -> PoolPoints:
        """Several pools end to end."""
        names = [name for name in cls.__slots__ if name not in _COUNTS]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        evaluated, fitting = (sum(getattr(part, name) for part in parts) for name in _COUNTS)
        return cls(**arrays, evaluated=evaluated, fitting=fitting)

    def in_order(self) -> PoolPoints:
        """By precision, scheduler, context ranks, layout and batch: the order in which the first of equals counts."""
        return self.take(np.lexsort((self.per_rank, self.row, self.cp, self.mode, self.label)))


def undominated(points: PoolPoints, limit_s: float | None = None) -> PoolPoints:
    """Of each precision and size of a replica, what no other beats in time and in rate.

    Args:
        limit_s: largest time; nothing slower is kept [s].
    """
    keep: list[Array] = []
    usable = np.ones(points.chips.size, dtype=bool) if limit_s is None else points.seconds <= limit_s
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.flatnonzero(usable)
    order = order[np.argsort(kind[order], kind="stable")]
    for group in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        if group.size:
            keep.append(group[pareto_front(points.requests_per_s[group], points.seconds[group])])
    return points.take(np.concatenate(keep) if keep else np.empty(0, dtype=np.int64))


def best_loaded(points: PoolPoints, slack_s: float | None, most: int = 2) -> PoolPoints:
    """Of each precision and size of a prefill replica, the few that serve most requests within the time to first token.

    Args:
        slack_s: time to first token less its constant part; None for no limit [s].
        most: how many of each to keep [count].
    """
    rate = points.requests_per_s * points.load(np.arange(points.chips.size), points.link_s, slack_s)
    kind = points.label * (int(points.chips.max(initial=0)) + 1) + points.chips
    order = np.lexsort((-rate, kind))
    order = order[rate[order] > 0]
    first = np.searchsorted(kind[order], kind[order], side="left")
    return points.take(order[np.arange(order.size) - first < most])
