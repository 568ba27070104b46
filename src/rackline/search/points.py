"""The table of operating points: layout × precision × mode × batch with times, memory, rate, cost and what binds.

Estimators (`rackline.search.estimates`) fill its columns, each on a basis of its own, and
`rackline.search.single_engines` picks from it for every question. A search of any size keeps only those points that
can still be in an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rackline.hardware import Cluster, billed_chips, replicas, taken_chips
from rackline.passes.features import Array, FloatLike, as_array
from rackline.system import Constraints

MOST_WAITING = 2**18  # points that are held before they are sorted out
NEAR = 1.1  # times a front: points up to there are kept where they are ranked by another estimate afterwards
MOST_RANKED = 20_000  # cheapest points among which the best of each style are looked for
BETWEEN = 1.5  # times: how far a cost falls between two batches of the grid, at the most


class Columns:
    """A table as a dataclass whose arrays have one length; what is no array is of the table as a whole."""

    __slots__ = ()

    def take(self, rows: Array) -> Self:
        """The rows of an index or a mask."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in type(self).__slots__}
        return type(self)(**{name: one[rows] if np.ndim(one) else one for name, one in columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoints(Columns):
    """Points of a space, arrays of one length; columns that an estimator does not know are 0.

    Args:
        engine: layout, precision and scheduler, see `Numbering`.
        kind: of the layout, its place among `rackline.parallel.layout.KINDS`.
        per_rank: sequences that decode on a rank and micro-batch; their mean number under random arrivals [sequences].
        tpot_s, ttft_s: means [s].
        alone_s: time to first token of a request that waits for no other [s].
        cost: what the answer has the least of, for output tokens: USD or, without a price, chip-hours per million, or
            the energy of one [J].
        rate: output tokens [tokens/s/chip].
        free_bytes: left on the fullest chip; negative does not fit [bytes].
        utilisation: load of the prefill path; from 1 on this number cannot be kept decoding [1].
        prompt_cost_share: share of the engine's time that prompts take [1].
        steepness: growth of the time per output token with the rate, d ln tpot / d ln rate.
    """

    engine: Array
    kind: Array
    per_rank: Array
    tpot_s: Array
    ttft_s: Array
    alone_s: Array
    cost: Array
    rate: Array
    free_bytes: Array
    utilisation: Array
    prompt_cost_share: Array
    steepness: Array

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def serves(self) -> Array:
        """Which fit and can be kept at their number of sequences."""
        return (self.free_bytes >= 0) & (self.utilisation < 1.0)

    def meets(self, limits: Constraints, slack: tuple[float, float] = (1.0, 1.0)) -> Array:
        """Which keep the latency limits, of the mean or of a percentile.

        Args:
            slack: factors on the limits of time per output token and to first token.
        """
        good = np.ones(len(self), dtype=bool)
        tpot_s, ttft_s = limits.of_kinds(self.kind)
        if limits.tpot_s is not None:
            good &= self.tpot_s <= tpot_s * slack[0]
        if limits.ttft_s is not None:
            # waits are nearly exponential: the wait at a percentile of the requests
            longer = max(-np.log1p(-(limits.ttft_percentile or 0.0) / 100.0) - 1.0, 0.0)
            with np.errstate(invalid="ignore"):  # both times are infinite where a point cannot serve
                waits = np.where(self.serves, np.maximum(self.ttft_s - self.alone_s, 0.0), 0.0)
            good &= self.ttft_s + waits * longer <= ttft_s * slack[1]
        return good

    def excesses(self, limits: Constraints) -> dict[str, Array]:
        """How far each point is beyond each limit; 0 where it keeps it. Lower bounds of points give lower bounds."""
        crowded = self.utilisation >= 1.0
        over = {
            "memory": np.maximum(-self.free_bytes, 0.0) / 1e9,
            "prefill": np.where(crowded, np.maximum(self.utilisation - 1.0, 1e-9), 0.0),
        }
        tpot_s, ttft_s = limits.of_kinds(self.kind)
        if limits.tpot_s is not None:
            over["tpot"] = np.maximum(self.tpot_s / tpot_s - 1.0, 0.0)
        if limits.ttft_s is not None:
            finite = np.where(np.isfinite(self.ttft_s), self.ttft_s, 1e9)
            over["ttft"] = np.where(crowded, 0.0, np.maximum(finite / ttft_s - 1.0, 0.0))
        return over

    def violations(self, limits: Constraints) -> dict[str, tuple[Array, Array]]:
        """The points that break each limit alone, and by how much: (positions, excess)."""
        over = self.excesses(limits)
        broken = {name: excess > 0 for name, excess in over.items()}
        single = np.add.reduce(list(broken.values()), dtype=np.int8) == 1
        positions = {name: np.flatnonzero(mask & single) for name, mask in broken.items()}
        return {name: (where, over[name][where]) for name, where in positions.items()}

    @classmethod
    def join(cls, parts: Sequence[OperatingPoints]) -> OperatingPoints:
        """Several sets of points, by engine and number of sequences."""
        columns = {each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)}
        order = np.lexsort((columns["per_rank"], columns["engine"]))
        return cls(**{name: column[order] for name, column in columns.items()})


@dataclass(frozen=True, slots=True)
class Numbering:
    """How the engines of a space are counted: precisions, then modes, then layouts.

    Args:
        modes, layouts: of the whole space [count].
    """

    modes: int
    layouts: int

    def engines(self, label: int, mode: int, start: int, layouts: int) -> Array:
        """Numbers of some layouts that follow each other, shape (layouts,)."""
        first = (label * self.modes + mode) * self.layouts + start
        return np.arange(first, first + layouts)

    def place(self, engine: int) -> tuple[int, int, int]:
        """Indices of the precision, the mode and the layout of an engine."""
        rest, row = divmod(engine, self.layouts)
        label, mode = divmod(rest, self.modes)
        return label, mode, row

    def deployed(self, engine: Array) -> Array:
        """A number for the precision and layout of each engine, of any mode."""
        return engine // (self.modes * self.layouts) * self.layouts + engine % self.layouts


def firsts(keys: Array) -> Array:
    """Where each different key, of rows a whole row, comes first: ascending positions."""
    return np.sort(np.unique(keys, axis=0, return_index=True)[1])


def pareto_front(maximise: Array, minimise: Array) -> NDArray[np.int64]:
    """Indices of the points that no other point beats in one quantity without losing in the other.

    Args:
        maximise, minimise: the two quantities, shape (points,); NaN never enters the front.

    Returns:
        Indices sorted by falling `maximise`; of equal points the first is kept.

    >>> pareto_front(np.array([3.0, 2.0, 2.0, 1.0]), np.array([5.0, 4.0, 6.0, 4.0])).tolist()
    [0, 1]
    """
    usable = np.flatnonzero(np.isfinite(maximise) & np.isfinite(minimise))
    order = usable[np.lexsort((minimise[usable], -maximise[usable]))]
    if order.size == 0:
        return order
    cost = minimise[order]
    before = np.concatenate(([np.inf], np.minimum.accumulate(cost)[:-1]))
    return order[cost < before]


def idle_chips(cluster: Cluster, chips_per_replica: FloatLike) -> tuple[Array, Array]:
    """(chips in use, paid chips that are not) with as many replicas as the cluster holds [count].

    Args:
        chips_per_replica: any shape [count].

    Example:
        >>> from rackline.hardware import cluster
        >>> used, idle = idle_chips(cluster("dgx-h100"), [1, 3, 5, 8])
        >>> used.tolist(), idle.tolist()
        ([8.0, 6.0, 5.0, 8.0], [0.0, 2.0, 3.0, 0.0])
    """
    size, count = as_array(chips_per_replica), as_array(replicas(cluster, chips_per_replica))
    used = count * size
    return used, np.maximum(billed_chips(cluster, count * taken_chips(cluster, size)) - used, 0.0)


def least_cost(cost: Array, rate: Array, used: Array, idle: Array, most_rate: float) -> Array:
    """Cost when the idle chips serve too, each as well as the best chip: no engine on them makes it less.

    A bound for engines that yield at most `most_rate` a chip. The search passes the largest rate among its estimates,
    between whose batches there may be more (`BETWEEN`): there it ranks engines, and what is simulated may cost less.

    Equation:
        cost · used · rate / (used · rate + idle · most_rate): the same rent over all output tokens

    Args:
        cost: without them [USD per million tokens].
        rate: of the chips in use [tokens/s/chip].
        used, idle: chips [count].
        most_rate: of a chip in any engine [tokens/s/chip].

    Example:
        >>> round(float(least_cost(np.array(1.2), np.array(100.0), np.array(6.0), np.array(2.0), 150.0)), 6)
        0.8
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(idle > 0.0, cost * used * rate / (used * rate + idle * most_rate), cost)


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
    def of(cls, points: OperatingPoints, limits: Constraints, near: float) -> Standard | None:
        """The standard that some points set; None where none meets the limits, as then more is asked for.

        Args:
            near: times the front up to which points are kept.
        """
        serves = points.serves
        costs = np.sort(points.cost[serves & points.meets(limits)])
        if not costs.size:
            return None
        broken = points.violations(limits)
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
    _held: list[OperatingPoints] = field(default_factory=list[OperatingPoints])
    _waiting: int = 0
    _standard: Standard | None = None

    def wanted(self, bounds: OperatingPoints) -> Array:
        """Which points can be in the answer, by lower bounds of their times, cost and load."""
        self.looked_at += len(bounds)
        standard = self._standard
        if standard is None:
            return np.ones(len(bounds), dtype=bool)
        over = bounds.excesses(self.limits)
        broken = {name: excess > 0 for name, excess in over.items()}
        count = np.add.reduce(list(broken.values()), dtype=np.int8)
        found = (count == 0) & (bounds.cost <= standard.last_ranked_cost)
        tests = [(bounds.serves, standard.front, -1.0 / bounds.tpot_s)]
        tests += [(count == mask, standard.broken[name], over[name]) for name, mask in broken.items()]
        for possible, stairs, key in tests:
            where = np.flatnonzero(possible & ~found)
            found[where] = ~stairs.beat(key[where], bounds.cost[where])
        return found

    def add(self, points: OperatingPoints) -> None:
        """More points."""
        self._held.append(points)
        self._waiting += len(points)
        if self._waiting > MOST_WAITING:
            self._held = [worth_keeping(self.points(), self.limits, self.near)]
            self._waiting = 0
            self._standard = Standard.of(self._held[0], self.limits, self.near)

    def points(self) -> OperatingPoints:
        """What is left, by engine and number of sequences."""
        return OperatingPoints.join(self._held)


def worth_keeping(points: OperatingPoints, limits: Constraints, near: float = 1.0) -> OperatingPoints:
    """The points without which the answer could change when others are added.

    Those are the fronts of tokens/s/user and of each broken limit against cost, the cheapest that meet the limits, the
    one with most memory left, and the fastest and the soonest that fit.
    """
    serves = np.flatnonzero(points.serves)
    kept = [_front(serves, -1.0 / points.tpot_s[serves], points.cost, near)]
    kept += [_front(where, excess, points.cost) for where, excess in points.violations(limits).values()]
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
