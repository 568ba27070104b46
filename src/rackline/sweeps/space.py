"""The points of a sweep: factors, in the order in which their change costs, cut into chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never, cast

import numpy as np
from numpy.typing import NDArray

from rackline.api.answer import Watch
from rackline.api.explain import ExplainQuestion
from rackline.api.resolve import resolve as resolved
from rackline.api.what_if import DERIVED, KEYS, setting
from rackline.errors import RacklineError
from rackline.hardware import Cluster
from rackline.parallel import enumerate_layouts
from rackline.passes.features import Array
from rackline.sweeps.expression import Draws
from rackline.sweeps.file import Axis, Sample, SweepFile
from rackline.system import System

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
                    for rest in blocks(after, max(1, most // (few * (point[1] - point[0])))):
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


POINTS = ("batch", "context", "prefill")
"""Options of a pass that are features of its batch."""
_COMBINATIONS = 32  # of models and clusters on which a rate is considered before it is taken for a lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A number of the chip or its links that only scales coefficients.

    Args:
        of: "hbm", "peak", "link", "latency" or "price".
        which: data type of a peak, number of a level.
    """

    of: Literal["hbm", "peak", "link", "latency", "price"]
    which: str | int = ""

    def value(self, cluster: Cluster) -> float | None:
        """What it is on a cluster, in SI units."""
        match self.of:
            case "hbm":
                return cluster.chip.hbm_bytes_per_s
            case "peak":
                return cluster.chip.peak_flop_per_s.get(str(self.which))
            case "link" | "latency":
                level = cluster.levels[int(self.which)]
                return level.bytes_per_s_each_way if self.of == "link" else level.latency_s
            case "price":
                return cluster.usd_per_chip_hour
            case _:
                assert_never(self.of)

    def put(self, cluster: Cluster, value: Any) -> Cluster:
        """The cluster with another value, or with one a lane: then it is for coefficients alone."""
        chip = cluster.chip
        match self.of:
            case "hbm":
                return replace(cluster, chip=replace(chip, hbm_bytes_per_s=value))
            case "peak":
                peaks = {**chip.peak_flop_per_s, str(self.which): value}
                return replace(cluster, chip=replace(chip, peak_flop_per_s=peaks))
            case "link" | "latency":
                name = "bytes_per_s_each_way" if self.of == "link" else "latency_s"
                levels = list(cluster.levels)
                levels[int(self.which)] = replace(levels[int(self.which)], **{name: value})
                return replace(cluster, levels=tuple(levels))
            case "price":
                return replace(cluster, usd_per_chip_hour=value)
            case _:
                assert_never(self.of)


def levels_of(file: SweepFile) -> dict[str, tuple[Level, Rate | None]]:
    """What each quantity of a sweep over passes changes: its level and, of a lane, its rate."""
    found: dict[str, tuple[Level, Rate | None]] = {}
    for axis in file.axes:
        match axis.place:
            case "input":
                found[axis.name] = ("after", None)
            case "option":
                level: Level = "point" if axis.name in POINTS else "lane" if axis.name == "layout" else "table"
                found[axis.name] = (level, None)
            case "set":
                rate = _rate_of(file, axis)
                found[axis.name] = ("table" if rate is None else "after" if rate.of == "price" else "lane", rate)
            case _:
                assert_never(axis.place)
    return found


def _rate_of(file: SweepFile, axis: Axis) -> Rate | None:
    """The rate that a setting is; None where it changes anything else."""
    values = axis.values
    ends = (
        [float(one) for one in values.at(np.array([1e-9, 0.5, 1.0 - 1e-9]))]
        if isinstance(values, Draws)
        else [values[0], values[len(values) // 2], values[-1], *_extremes(values)]
    )
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in ends):
        return None
    others = [one for one in file.axes if one is not axis]
    named = [one for one in others if one.name in ("model", "on", "engine", "calibration")]
    base = {one.name: _first(one) for one in others if one not in named and one.place != "input"}
    choices = [[(one.name, value) for value in cast("Sequence[Any]", one.values)] for one in named]
    rates: set[Rate | None] = set()
    for chosen in itertools.islice(itertools.product(*choices), _COMBINATIONS):
        rates.add(_same_but(file, {**base, **dict(chosen)}, axis.name, ends))
        if None in rates or len(rates) > 1:
            return None
    return rates.pop() if rates else None


def _extremes(values: Sequence[Any]) -> list[Any]:
    numbers = [one for one in values if isinstance(one, int | float)]
    return [min(numbers), max(numbers)] if numbers else []


def _first(axis: Axis) -> Any:
    return float(axis.values.at(np.array(0.5))) if isinstance(axis.values, Draws) else axis.values[0]


def _same_but(file: SweepFile, base: Mapping[str, Any], name: str, values: Sequence[float]) -> Rate | None:
    """The rate in which the records at some values of a setting differ, if they differ in nothing else."""
    try:
        found = [resolve(file, {**base, name: value}) for value in values]
    except RacklineError:
        return None
    first = found[0]
    clusters = [one.system.cluster for one in found]
    candidates = [
        rate
        for rate in _rates(clusters[0])
        if all(rate.value(one) == float(value) for one, value in zip(clusters, values, strict=True))
    ]
    for rate in candidates:
        here = rate.value(clusters[0])
        same = all(
            _bare(rate.put(one, here)) == _bare(clusters[0])
            and other.system.stack == first.system.stack
            and other.system.model == first.system.model
            and repr(other.system.calibration) == repr(first.system.calibration)  # it holds NaN
            and other.system.precision == first.system.precision
            for one, other in zip(clusters, found, strict=True)
        )
        if same and (rate.of == "price" or _same_rows(found)):
            return rate
    return None


def _rates(cluster: Cluster) -> list[Rate]:
    return [
        Rate(of="price"),
        Rate(of="hbm"),
        *(Rate(of="peak", which=dtype) for dtype in cluster.chip.peak_flop_per_s),
        *(Rate(of="link", which=number) for number in range(len(cluster.levels))),
        *(Rate(of="latency", which=number) for number in range(len(cluster.levels))),
    ]


def _bare(cluster: Cluster) -> Cluster:
    """A cluster without what only says where its numbers come from, and without prices of the chip."""
    # a sweep of passes has no energies; only under a cap do times depend on the chip's power
    power = None if cluster.chip.power_cap_w is None else cluster.chip.power
    chip = replace(cluster.chip, sources=(), usd_per_chip_hour=None, rent_kind=None, power=power)
    return replace(cluster, chip=chip, sources=(), rent="")


def _same_rows(found: Sequence[Lane]) -> bool:
    """Whether operations are the same at all values, on the first and the last layout."""
    options = enumerate_layouts(found[0].system.model, found[0].system.cluster.num_chips)
    for layout in (options[0], options[-1]) if options else ():
        tables = [one.system.table(layout).rows for one in found]
        if any(rows != tables[0] for rows in tables):
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one table is made of.

    Args:
        question: as `explain` reads it.
    """

    system: System
    question: ExplainQuestion


def resolve(file: SweepFile, values: Mapping[str, Any]) -> Lane:
    """The records of a table.

    Args:
        values: of the quantities that have several, by name.

    Raises:
        RacklineError: what `explain` raises for the same options.
    """
    asked: dict[str, Any] = {**file.fixed}
    settings: dict[str, Any] = {**file.settings}
    places = {"option": asked, "set": settings}
    for axis in file.axes:
        into = places.get(axis.place)
        if into is not None and axis.name in values:
            into[axis.name] = values[axis.name]
    for name in ("batch", "context"):
        asked.setdefault(name, 1)
    asked.pop("layout", None)
    derived = {name: settings.pop(name) for name in list(settings) if name in DERIVED}
    texts = [f"{KEYS.get(name, name)}={_written(value)}" for name, value in settings.items()]
    watch = Watch()
    question = ExplainQuestion(**asked, set=tuple(texts))
    if derived:
        model = resolved(question, watch).model
        texts += [setting(name, _written(value), model) for name, value in derived.items()]
        question = replace(question, set=tuple(texts))
    return Lane(system=resolved(question, watch), question=question)


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value)) if isinstance(value, float) else str(value)
