"""The points of a sweep: factors, in the order in which their change costs, cut into chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from rackline.passes.features import Array
from rackline.sweeps.expression import Draws
from rackline.sweeps.file import Axis, Sample

Level = Literal["table", "lane", "point", "after"]
LEVELS: tuple[Level, ...] = ("table", "lane", "point", "after")
"""What a quantity changes, the most expensive first: the table (or the question), coefficients of the table, features
of the batch, or only what is computed from the result."""
DRAW = "sample"
_NEAR_ENDS = 1e-12  # quantiles 0 and 1 of a normal distribution are infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Quantities that change together.

    Args:
        columns: name → values, all of one length; arrays of numbers, or lists.
        level: the most expensive of theirs.
    """

    columns: Mapping[str, Sequence[Any] | Array]
    level: Level

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of the points: tables × lanes × points × values after them.

    Args:
        tables, lanes, points, after: (first, behind the last) of each.
    """

    tables: tuple[int, int]
    lanes: tuple[int, int]
    points: tuple[int, int]
    after: tuple[int, int]

    @property
    def num_points(self) -> int:
        """Points of the chunk, each layout of a table counted once [count]."""
        return math.prod(last - first for first, last in (self.tables, self.lanes, self.points, self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one level of a chunk holds.

    Args:
        num: of combinations [count].
        columns: name → (distinct values, index of each combination's value, shape (num,)).
    """

    num: int
    columns: Mapping[str, tuple[Sequence[Any] | Array, NDArray[np.int64]]]

    def values(self, name: str) -> Array:
        """Numbers of one quantity, (num,)."""
        distinct, index = self.columns[name]
        return np.asarray(distinct, dtype=np.float64)[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All points of a sweep: the product of its factors.

    Args:
        factors: in the order of the levels.
    """

    factors: tuple[Factor, ...]

    def of(self, level: Level) -> tuple[Factor, ...]:
        """The factors of one level."""
        return tuple(one for one in self.factors if one.level == level)

    def num(self, level: Level) -> int:
        """Combinations of one level [count]."""
        return math.prod(len(one) for one in self.of(level))

    @property
    def num_points(self) -> int:
        """Points of the sweep, each layout of a table counted once [count]."""
        return math.prod(len(one) for one in self.factors)

    def part(self, level: Level, bounds: tuple[int, int]) -> Part:
        """Some of the combinations of one level, the last factor changing first."""
        first, last = bounds
        number = np.arange(first, last)
        columns: dict[str, tuple[Sequence[Any] | Array, NDArray[np.int64]]] = {}
        inner = self.num(level)
        for one in self.of(level):
            inner //= len(one)
            index = number // inner % len(one)
            columns.update({name: (values, index) for name, values in one.columns.items()})
        return Part(num=last - first, columns=columns)

    def chunks(self, rows: int, layouts: int = 1) -> Iterator[Chunk]:
        """The points in chunks of about `rows` points; tables stay together where they are small.

        Args:
            rows: points of a chunk, about [count].
            layouts: rows of a point [count].
        """
        tables, lanes, points, after = (self.num(level) for level in LEVELS)
        most = max(1, rows // max(layouts, 1))
        whole = lanes * points * after
        if whole <= most:
            for first, last in blocks(tables, max(1, most // whole)):
                yield Chunk(tables=(first, last), lanes=(0, lanes), points=(0, points), after=(0, after))
            return
        for table in range(tables):
            for lane in blocks(lanes, max(1, most // (points * after))):
                few = lane[1] - lane[0]
                for point in blocks(points, max(1, most // (few * after))):
                    some = few * (point[1] - point[0])
                    for rest in blocks(after, max(1, most // some)):
                        yield Chunk(tables=(table, table + 1), lanes=lane, points=point, after=rest)


def blocks(num: int, size: int) -> Iterator[tuple[int, int]]:
    """Parts of a range: (first, behind the last).

    >>> list(blocks(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    for first in range(0, num, size):
        yield first, min(first + size, num)


def space_of(axes: Sequence[Axis], sample: Sample, level_of: Callable[[Axis], Level]) -> Space:
    """The space of quantities: each list is a factor, all draws together are one.

    Args:
        level_of: what a quantity changes.
    """
    factors: list[Factor] = []
    drawn = [one for one in axes if isinstance(one.values, Draws)]
    for one in axes:
        if not isinstance(one.values, Draws):
            factors.append(Factor(columns={one.name: one.values}, level=level_of(one)))
        elif one is drawn[0]:
            quantiles = draw(len(drawn), sample)
            columns: dict[str, Any] = {
                each.name: each.values.at(quantiles[:, place])
                for place, each in enumerate(drawn)
                if isinstance(each.values, Draws)
            }
            columns[DRAW] = np.arange(len(quantiles))
            factors.append(Factor(columns=columns, level=min(map(level_of, drawn), key=LEVELS.index)))
    factors.sort(key=lambda one: LEVELS.index(one.level))
    return Space(factors=tuple(factors))


def draw(quantities: int, sample: Sample) -> Array:
    """Quantiles of a sample, (draws, quantities), each strictly between 0 and 1.

    Saltelli's design is A, B and, for each quantity, A with its column from B: (quantities + 2) · num draws.

    Args:
        quantities: that are drawn together [count].

    Sources: I. Sobol', USSR Comput. Math. Math. Phys. 7, 86 (1967); M. McKay, R. Beckman, W. Conover, Technometrics
        21, 239 (1979); A. Saltelli et al., Comput. Phys. Commun. 181, 259 (2010).
    """
    from scipy.stats import qmc

    rng = np.random.default_rng(sample.seed)
    match sample.method:
        case "sobol":
            found = qmc.Sobol(quantities, rng=rng).random_base2(sample.num.bit_length() - 1)
        case "latin_hypercube":
            found = qmc.LatinHypercube(quantities, rng=rng).random(sample.num)
        case "random":
            found = rng.random((sample.num, quantities))
        case "saltelli":
            both = qmc.Sobol(2 * quantities, rng=rng).random_base2(sample.num.bit_length() - 1)
            a, b = both[:, :quantities], both[:, quantities:]
            mixed: list[Array] = []
            for place in range(quantities):
                one = a.copy()
                one[:, place] = b[:, place]
                mixed.append(one)
            found = np.concatenate([a, b, *mixed])
        case _:
            assert_never(sample.method)
    return np.clip(found, _NEAR_ENDS, 1.0 - _NEAR_ENDS)
