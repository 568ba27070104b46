"""The points that can still be in the answer of a plan, so that a search of any size takes little time and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rackline.passes.features import Array
from rackline.search.points import Points
from rackline.search.rejected import excesses, violations
from rackline.system import Constraints

MOST_WAITING = 2**18  # points that are held before they are sorted out
NEAR = 1.1  # times a front: points up to there are kept where they are ranked by another estimate afterwards
MOST_RANKED = 20_000  # cheapest points among which the best of each style are looked for


@dataclass(frozen=True, slots=True)
class Stairs:
    """A front: the least cost of all whose key is below a value.

    Args:
        key: ascending, such as the time per output token.
        cost: the least so far.
    """

    key: Array
    cost: Array

    @classmethod
    def of(cls, key: Array, cost: Array) -> Stairs:
        """The front of some points."""
        order = np.argsort(key)
        return cls(key[order], np.minimum.accumulate(cost[order]))

    def beat(self, key: Array, cost: Array) -> Array:
        """Which points, by lower bounds of key and cost, have one on the front of smaller key at no more cost."""
        least = np.concatenate(([np.inf], self.cost))
        return least[np.searchsorted(self.key, key)] <= cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """What a point has to beat to be in the answer.

    Args:
        front: of those that fit and can be kept full, by -tokens/s/user.
        broken: by limit, of those that break it alone, by how much.
        last_ranked_cost: cost of the last that is ranked.
    """

    front: Stairs
    broken: dict[str, Stairs]
    last_ranked_cost: float

    @classmethod
    def of(cls, points: Points, limits: Constraints, near: float) -> Standard | None:
        """The standard that some points set; None where none meets the limits, as then more is asked for.

        Args:
            near: times the front up to which points are kept.
        """
        serves = points.serves
        costs = np.sort(points.cost[serves & points.meets(limits)])
        if not costs.size:
            return None
        broken = violations(points, limits)
        return cls(
            front=Stairs.of(-1.0 / points.tpot_s[serves], near * points.cost[serves]),
            broken={name: Stairs.of(excess, points.cost[where]) for name, (where, excess) in broken.items()},
            last_ranked_cost=float(costs[MOST_RANKED - 1]) if costs.size >= MOST_RANKED else np.inf,
        )


@dataclass(slots=True, kw_only=True)
class Shortlist:
    """The points added so far that the answer can need; they may come in any order.

    Args:
        limits: of the plan.
        near: times the front of speed against cost up to which points are kept.
        looked_at: points so far, with those whose bounds were enough [count].
    """

    limits: Constraints
    near: float = 1.0
    looked_at: int = 0
    _held: list[Points] = field(default_factory=list[Points])
    _waiting: int = 0
    _standard: Standard | None = None

    def wanted(self, bounds: Points) -> Array:
        """Which points can be in the answer, by lower bounds of their times, cost and load."""
        self.looked_at += len(bounds)
        standard = self._standard
        if standard is None:
            return np.ones(len(bounds), dtype=bool)
        over = excesses(bounds, self.limits)
        broken = {name: excess > 0 for name, excess in over.items()}
        count = np.add.reduce(list(broken.values()), dtype=np.int8)
        found = (count == 0) & (bounds.cost <= standard.last_ranked_cost)
        tests = [(bounds.serves, standard.front, -1.0 / bounds.tpot_s)]
        tests += [(count == mask, standard.broken[name], over[name]) for name, mask in broken.items()]
        for possible, stairs, key in tests:
            where = np.flatnonzero(possible & ~found)
            found[where] = ~stairs.beat(key[where], bounds.cost[where])
        return found

    def add(self, points: Points) -> None:
        """More points."""
        self._held.append(points)
        self._waiting += len(points)
        if self._waiting > MOST_WAITING:
            self._held = [worth_keeping(self.points(), self.limits, self.near)]
            self._waiting = 0
            self._standard = Standard.of(self._held[0], self.limits, self.near)

    def points(self) -> Points:
        """What is left, in the order of the index."""
        return Points.join(self._held)


def worth_keeping(points: Points, limits: Constraints, near: float = 1.0) -> Points:
    """The points without which the answer could change when others are added.

    Those are the fronts of tokens/s/user and of each broken limit against cost, the cheapest that meet the limits, the
    one with most memory left, and the fastest and the soonest that fit.
    """
    serves = np.flatnonzero(points.serves)
    kept = [_front(serves, -1.0 / points.tpot_s[serves], points.cost, near)]
    kept += [_front(where, excess, points.cost) for where, excess in violations(points, limits).values()]
    good = serves[points.meets(limits)[serves]]
    kept.append(good[np.argsort(points.cost[good], kind="stable")[:MOST_RANKED]])
    kept.append(np.array([np.argmax(points.free_bytes)]))
    if serves.size:
        kept += [serves[[np.argmin(seconds[serves])]] for seconds in (points.tpot_s, points.ttft_s)]
    return points.take(np.unique(np.concatenate(kept)))


def _front(positions: Array, key: Array, cost: Array, near: float = 1.0) -> Array:
    """Positions that no other of a smaller key, or of the same key and before it, is as cheap as, times `near`."""
    order = np.argsort(key, kind="stable")
    costs = cost[positions[order]]
    before = np.concatenate(([np.inf], np.minimum.accumulate(costs)[:-1]))
    return positions[order[costs < near * before]]
