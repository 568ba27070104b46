"""What quantities of a sweep over passes change: a table, its coefficients, the batch, or what comes after the result.

Model, precision, stack and the like make another *table*. Layouts, and rates of the chip and its links, are *lanes*:
coefficients of one table as arrays. Batch size and lengths are *points*. A price changes nothing of the pass: it comes
*after*. A rate is a lane only if the records at both ends and in the middle of its range differ in nothing but that
number; else each value is a table of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never, cast

import numpy as np

from rackline.api.explain import ExplainQuestion
from rackline.api.resolve import resolve as resolved
from rackline.api.watch import Watch
from rackline.api.what_if import DERIVED, KEYS, setting
from rackline.errors import RacklineError
from rackline.hardware import Cluster
from rackline.parallel import enumerate_layouts
from rackline.sweeps.expression import Draws
from rackline.sweeps.file import Axis, SweepFile
from rackline.sweeps.space import Level
from rackline.system import System

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
    named = [one for one in others if one.name in ("model", "on", "calibration", "stack")]
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
    found = resolved(question, watch)
    return Lane(system=found, question=question)


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value)) if isinstance(value, float) else str(value)
