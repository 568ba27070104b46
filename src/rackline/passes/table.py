"""The pass table, a row for each operation with entries linear in the features, and its time at millions of points.

For a row with two resources, max(a, b) + x min(a, b) = (1 + x)/2 (a + b) + (1 - x)/2 |a - b|. The first term is linear
in the features, so all rows of a stream add up to one vector for any batch; the second is one matrix product, an
absolute value and a sum. The work per point is thus one matrix product of (rows × features).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

import numpy as np

from rackline.errors import require
from rackline.hardware import Chip, Cluster
from rackline.passes.breakdown import Breakdown, PassTime, joule_numbers
from rackline.passes.calibration import POLICIES, Calibration, StepPolicy
from rackline.passes.features import AdapterLaw, Array, Batch, ExpertLaw, FloatLike, ReadLaw, as_array
from rackline.passes.row import (
    RESOURCES,
    PassNumbers,
    Row,
    RowNumbers,
    coefficients,
    feature_names,
    lane,
    row_numbers,
    shortest_on_the_wire,
)

TILE_VALUES = 2**14  # layouts × points per tile, so that the values of their rows fit in the cache
TILE_POINTS = 2**12  # points among them, at most

Tile = tuple[slice, slice]  # layouts, points


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """Kernels for one job, of which the fastest runs; (layouts, kernels, features), ramp (layouts, kernels, 1)."""

    linear: Array
    difference: Array
    ramp: Array
    overhead: Array

    def take(self, layouts: slice | Array) -> Alternatives:
        """The alternatives of some layouts."""
        return Alternatives(
            linear=self.linear[layouts],
            difference=self.difference[layouts],
            ramp=self.ramp[layouts],
            overhead=self.overhead[layouts],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Rows that follow each other, as arrays with a leading axis of layouts.

    Args:
        linear: (layouts, 1, features) [s per unit of feature].
        difference: (layouts, rows, features).
        choices: groups of alternatives.
    """

    linear: Array
    difference: Array
    choices: tuple[Alternatives, ...]

    def take(self, layouts: slice | Array) -> Stream:
        """The stream of some layouts."""
        return Stream(
            linear=self.linear[layouts],
            difference=self.difference[layouts],
            choices=tuple(choice.take(layouts) for choice in self.choices),
        )

    def seconds(self, features: Array) -> Array:
        """(layouts, features, points) → (layouts, points)."""
        total = np.matmul(self.linear, features)[:, 0, :]
        if self.difference.shape[1]:
            gap = np.matmul(self.difference, features)
            np.abs(gap, out=gap)
            total = total + gap.sum(axis=1)
        for choice in self.choices:
            linear = np.matmul(choice.linear, features)
            gap = np.abs(np.matmul(choice.difference, features))
            each = linear + gap
            if np.any(choice.ramp):
                overhead = np.matmul(choice.overhead, features)
                each = each + choice.ramp * np.sqrt(overhead * np.maximum(each - overhead, 0.0))
            total = total + each.min(axis=1)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTable:
    """A pass table with all rates; see `PassTable.time_table`."""

    feature_names: tuple[str, ...]
    streams: tuple[Stream, ...]
    host_s: float
    policy: StepPolicy
    num_layouts: int | None
    _selected: dict[tuple[int, ...], tuple[Stream, ...]] = field(
        default_factory=dict[tuple[int, ...], tuple[Stream, ...]], init=False, repr=False, compare=False
    )

    @classmethod
    def build(cls, numbers: PassNumbers, policy: StepPolicy) -> TimeTable:
        """Put peaks, efficiencies and overheads into the coefficients."""
        rows = numbers.in_use()
        names = feature_names(one.row for one in rows)
        layouts = numbers.num_layouts or 1
        match policy:
            case "blackboard":
                streams = _resource_streams(rows, names, layouts)
            case "overlap":
                labels = sorted({one.row.stream for one in rows}) or [""]
                streams = tuple(
                    _stream([one for one in rows if one.row.stream == label], names, layouts) for label in labels
                )
            case "serial":
                streams = (_stream(rows, names, layouts),)
            case _:
                assert_never(policy)
        return cls(
            feature_names=names,
            streams=streams,
            host_s=numbers.calibration.host_s_per_step,
            policy=policy,
            num_layouts=numbers.num_layouts,
        )

    def take(self, layouts: Array) -> TimeTable:
        """The table of some layouts of several."""
        return replace(self, streams=tuple(stream.take(layouts) for stream in self.streams), num_layouts=len(layouts))

    def _streams_of(self, columns: tuple[int, ...]) -> tuple[Stream, ...]:
        """The streams with some of the features."""
        if len(columns) == len(self.feature_names):
            return self.streams
        if columns not in self._selected:
            self._selected[columns] = tuple(_select(stream, columns) for stream in self.streams)
        return self._selected[columns]

    def seconds(self, features: Mapping[str, FloatLike], *, threads: int = 1) -> Array:
        """Time of the pass at every point [s].

        Args:
            features: name → value. One layout: any shape. Several: (), (points,) or (layouts or 1, points...).
                Names that the table does not use are ignored, names that are missing are 0.
            threads: chunks evaluated side by side.

        Returns:
            (points...) or, with several layouts, (layouts, points...).
        """
        used = [name for name in self.feature_names if name in features]
        columns = [self.feature_names.index(name) for name in used]
        values = [as_array(features[name]) for name in used]
        shape = np.broadcast_shapes(*(value.shape for value in values))
        if self.num_layouts is None:
            flat = [np.broadcast_to(value, shape).reshape(1, -1) for value in values]
            points = int(np.prod(shape))
            result = np.empty((1, points))
        else:
            shape = (1, *shape) if len(shape) < 2 else shape
            require(
                shape[0] in (1, self.num_layouts),
                what="batch shape",
                given=shape,
                allowed=f"(), (points,) or ({self.num_layouts} layouts, points...)",
            )
            points = int(np.prod(shape[1:]))
            flat = [_by_layout(value, shape) for value in values]
            result = np.empty((self.num_layouts, points))
        streams = self._streams_of(tuple(columns))

        def work(tile: Tile) -> None:
            layouts, some = tile
            here = [_part(value, layouts, some) for value in flat]
            block = np.empty((max(value.shape[0] for value in here), len(used), result[tile].shape[1]))
            for index, value in enumerate(here):
                block[:, index, :] = value
            slowest, *others = [stream.take(layouts).seconds(block) for stream in streams]
            for other in others:
                slowest = np.maximum(slowest, other)
            result[tile] = slowest + self.host_s

        _run(work, _tiles(*result.shape), threads)
        if self.num_layouts is None:
            return result.reshape(shape)
        return result.reshape((self.num_layouts, *shape[1:]))


def _tiles(layouts: int, points: int) -> list[Tile]:
    """Parts of a grid that are worked on at a time."""
    across = max(1, min(points, TILE_POINTS, TILE_VALUES // min(layouts, TILE_VALUES // 64)))
    down = max(1, TILE_VALUES // across)
    return [
        (slice(row, row + down), slice(column, column + across))
        for row in range(0, layouts, down)
        for column in range(0, points, across)
    ]


def _part(value: Array, layouts: slice, points: slice) -> Array:
    """What a tile needs of (1 or layouts, 1 or points)."""
    return value[layouts if value.shape[0] > 1 else slice(None), points if value.shape[1] > 1 else slice(None)]


def _run(work: Callable[[Tile], None], parts: Sequence[Tile], threads: int) -> None:
    if threads <= 1 or len(parts) <= 1:
        for part in parts:
            work(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, parts))


def _by_layout(value: Array, shape: tuple[int, ...]) -> Array:
    """(points...), (1 or layouts, points...) → (1 or layouts, points or 1)."""
    if value.ndim == 0:
        return value.reshape(1, 1)
    if value.ndim < len(shape):
        return np.broadcast_to(value, shape[1:]).reshape(1, -1)
    return np.broadcast_to(value, (value.shape[0], *shape[1:])).reshape(value.shape[0], -1)


def _select(stream: Stream, columns: tuple[int, ...]) -> Stream:
    def pick(coefficients: Array) -> Array:
        return np.ascontiguousarray(coefficients[:, :, list(columns)])

    return Stream(
        linear=pick(stream.linear),
        difference=pick(stream.difference),
        choices=tuple(
            Alternatives(
                linear=pick(choice.linear),
                difference=pick(choice.difference),
                ramp=choice.ramp,
                overhead=pick(choice.overhead),
            )
            for choice in stream.choices
        ),
    )


def _row_terms(numbers: RowNumbers, names: tuple[str, ...], layouts: int) -> tuple[Array, Array, Array]:
    """(linear, difference, overhead) of one row."""
    first, second = (lane(numbers, resource, names, layouts) for resource in numbers.row.resources)
    exposed = numbers.exposed
    overhead = coefficients(numbers.overhead_s, names, layouts)
    return (1 + exposed) / 2 * (first + second) + overhead, (1 - exposed) / 2 * (first - second), overhead


def _stream(rows: Sequence[RowNumbers], names: tuple[str, ...], layouts: int) -> Stream:
    linear = np.zeros((layouts, 1, len(names)))
    difference: list[Array] = []
    choices: dict[str, list[tuple[Array, Array, Array, Array]]] = {}
    for index, numbers in enumerate(rows):
        row_linear, row_difference, overhead = _row_terms(numbers, names, layouts)
        ramp = np.broadcast_to(as_array(numbers.ramp), (layouts,))
        if numbers.row.choice or np.any(ramp):
            job = numbers.row.choice or f"#{index}"
            choices.setdefault(job, []).append((row_linear, row_difference, overhead, ramp))
            continue
        one_sided = np.all(row_difference >= 0, axis=1) | np.all(row_difference <= 0, axis=1)
        if np.all(one_sided):  # |d·f| = ±d·f for features that are never negative: the row stays linear
            linear[:, 0, :] += row_linear + np.abs(row_difference)
        else:
            linear[:, 0, :] += row_linear
            difference.append(row_difference)
    return Stream(
        linear=linear,
        difference=np.stack(difference, axis=1) if difference else np.zeros((layouts, 0, len(names))),
        choices=tuple(
            Alternatives(
                linear=np.stack([term[0] for term in terms], axis=1),
                difference=np.stack([term[1] for term in terms], axis=1),
                overhead=np.stack([term[2] for term in terms], axis=1),
                ramp=np.stack([term[3] for term in terms], axis=1)[:, :, None],
            )
            for terms in choices.values()
        ),
    )


def _resource_streams(rows: Sequence[RowNumbers], names: tuple[str, ...], layouts: int) -> tuple[Stream, ...]:
    """Blackboard: one stream a resource, the sum of its lane over the rows; overheads count in each."""
    lanes = {resource: np.zeros((layouts, len(names))) for resource in RESOURCES}
    fixed = np.zeros((layouts, len(names)))
    for numbers, of_layout in zip(rows, shortest_on_the_wire(rows, names, layouts), strict=True):
        fixed += of_layout[:, None] * coefficients(numbers.overhead_s, names, layouts)
        for resource in numbers.row.resources:
            lanes[resource] += of_layout[:, None] * lane(numbers, resource, names, layouts)
    none = np.zeros((layouts, 0, len(names)))
    return tuple(
        Stream(linear=(lanes[resource] + fixed)[:, None, :], difference=none, choices=()) for resource in RESOURCES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTable:
    """All rows of a pass on one chip of a deployment (or of many layouts at once).

    Args:
        rows: the operations.
        chip, cluster: peaks and links; cluster None for a single chip.
        calibration: the numbers of the line; its step policy is the default policy.
        kinds: attention kinds by label, for the features.
        experts: law of the busiest expert-parallel rank, None for dense models.
        adapters: law of the adapters that sequences use, None where there is at most one.
        num_layouts: None for scalar coefficients, else the length of every coefficient array.
        assumptions: assumptions of the table.
    """

    rows: tuple[Row, ...]
    chip: Chip
    cluster: Cluster | None
    calibration: Calibration
    kinds: Mapping[str, ReadLaw]
    experts: ExpertLaw | None = None
    adapters: AdapterLaw | None = None
    num_layouts: int | None = None
    assumptions: tuple[str, ...] = ()
    # cached forms, derived from the other fields
    _breakdowns: dict[StepPolicy, Breakdown] = field(
        default_factory=dict[StepPolicy, Breakdown], init=False, repr=False, compare=False
    )
    _time_tables: dict[StepPolicy | Literal["joules"], TimeTable] = field(
        default_factory=dict[StepPolicy | Literal["joules"], TimeTable], init=False, repr=False, compare=False
    )

    def with_calibration(self, calibration: Calibration) -> PassTable:
        """The same rows under another calibration."""
        return replace(self, calibration=calibration)

    def row_numbers(self, row: Row) -> RowNumbers:
        """A row with its rates and overheads."""
        return row_numbers(row, self.calibration, self.chip, self.cluster)

    def numbers(self) -> PassNumbers:
        """All rows with their rates and overheads."""
        return PassNumbers(
            rows=tuple(self.row_numbers(row) for row in self.rows),
            calibration=self.calibration,
            num_layouts=self.num_layouts,
        )

    def time_table(self, policy: StepPolicy | None = None) -> TimeTable:
        """Resolve rates and efficiencies: the form that evaluates millions of points."""
        chosen = self._policy(policy)
        if chosen not in self._time_tables:
            self._time_tables[chosen] = TimeTable.build(self.numbers(), chosen)
        return self._time_tables[chosen]

    def breakdown(self, policy: StepPolicy | None = None) -> Breakdown:
        """Resolve rates and efficiencies: the form that breaks down one point after another, row by row."""
        chosen = self._policy(policy)
        if chosen not in self._breakdowns:
            self._breakdowns[chosen] = Breakdown.of(self.numbers(), chosen, self.assumptions)
        return self._breakdowns[chosen]

    def joule_table(self) -> TimeTable:
        """The form that evaluates the energy of millions of points, without what the chip draws idle [J]."""
        if "joules" not in self._time_tables:
            self._time_tables["joules"] = TimeTable.build(joule_numbers(self.numbers(), self.chip), "serial")
        return self._time_tables["joules"]

    def kernel_joules(self, batch: Batch) -> Array:
        """Energy that the kernels of a pass take on one chip beyond what it draws idle [J]; shapes as `seconds`."""
        return self.joule_table().seconds(self.features(batch))

    def features(self, batch: Batch) -> dict[str, FloatLike]:
        """Features of a batch for this table."""
        return batch.in_blocks(self.calibration.context_block).features(self.kinds, self.experts, self.adapters)

    def seconds(self, batch: Batch, policy: StepPolicy | None = None) -> Array:
        """Time of the pass [s].

        Args:
            batch: fields of shape (), (points,) or (layouts, points).

        Returns:
            Shape of the batch, with a leading axis of layouts when the table has several.
        """
        return self.time_table(policy).seconds(self.features(batch))

    def time(self, batch: Batch, policy: StepPolicy | None = None) -> PassTime:
        """Break one pass down row by row. Raises InputError when the table or batch has more than one point."""
        return self.breakdown(policy).time(self.features(batch))

    def layout(self, index: int) -> PassTable:
        """The scalar table of one layout of several."""
        if self.num_layouts is None:
            return self
        select = getattr(self.experts, "layout", None)
        experts = select(index) if select is not None else self.experts
        return replace(self, rows=tuple(row.take(index) for row in self.rows), experts=experts, num_layouts=None)

    def take(self, layouts: Array) -> PassTable:
        """The table of some layouts of several, shape (layouts,) of indices."""
        select = getattr(self.experts, "take", None)
        found = replace(
            self,
            rows=tuple(row.take(layouts) for row in self.rows),
            experts=select(layouts) if select is not None else self.experts,
            num_layouts=len(layouts),
        )
        found._time_tables.update({key: each.take(layouts) for key, each in self._time_tables.items()})
        return found

    def _policy(self, policy: StepPolicy | None) -> StepPolicy:
        chosen = self.calibration.step_policy if policy is None else policy
        require(chosen in POLICIES, what="step policy", given=chosen, allowed=", ".join(POLICIES))
        return chosen
