"""What a sweep has found, as tables and as figures: front, options, sensitivities, a tornado, bands of uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.display.axes import (
    BAR_HEIGHT,
    LONGEST_LABEL,
    Kind,
    Layer,
    Measure,
    Row,
    colour,
    dashes,
    hovered,
    limit,
    linear_axis,
    log_axis,
    name_axis,
    nothing_figure,
)
from rackline.display.column import Column, Sheet, spaced
from rackline.display.figure import Figure
from rackline.display.wording import composed
from rackline.late import late
from rackline.sweeps.file import Sense
from rackline.units import plural, several

with late:
    from rackline.sweeps import read, sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why points have no result or do not fit.

    Args:
        reason: in words.
        rows: points [count].
    """

    reason: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a sweep has found.

    Args:
        title: of the sweep.
        rows: that are there [count].
        feasible_rows: of them, those that have a result, fit and keep all constraints [count].
        shards: of the sweep [count].
        missing: of them, those that are not there yet [count].
        reasons: why points have no result or do not fit, most first.
        objectives: column → whether less or more is better.
        quantities: columns of lists with several values.
        front: rows of the Pareto front, as column → value.
        best: the best row of each group.
        by: columns of the groups.
        binding: what each constraint costs.
        sensitivities: of the first objective, most first; empty where it does not vary.
        tornado: main effects on it, largest first.
        crossovers: the best of each option along a quantity; None where nothing competes.
    """

    title: str
    rows: int
    feasible_rows: int
    shards: int
    missing: int
    reasons: tuple[Reason, ...]
    objectives: Mapping[str, Sense]
    quantities: tuple[str, ...]
    front: tuple[Mapping[str, Any], ...]
    best: tuple[Mapping[str, Any], ...]
    by: tuple[str, ...]
    binding: tuple[read.Binding, ...]
    sensitivities: tuple[sensitivity.Sensitivity, ...]
    tornado: tuple[sensitivity.Effect, ...]
    crossovers: read.Crossovers | None

    @property
    def objective(self) -> str:
        """The first objective."""
        return next(iter(self.objectives))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queried:
    """What SQL has answered.

    Args:
        columns: their names.
        values: rows of values.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[str | float | bool | None, ...], ...]


_MOST_REASONS = 5
_CHOSEN = ("layout", "batch")  # what a rule or a group chooses


def value_text(value: Any) -> str:
    """A value of a row for readers: four digits, texts as they are."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    if not isinstance(value, float):
        return str(value)
    text = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return text if "e" not in text else f"{value:.10f}".rstrip("0")


def rows_table(
    rows: Sequence[Mapping[str, Any]], title: str, most: int, columns: Sequence[str]
) -> Sheet[Mapping[str, Any]]:
    """Rows as a table; columns that are the same everywhere are left out and said below it.

    Args:
        most: rows that are shown [count].
        columns: that are shown, in the order of the rows.
    """
    names = [name for name in rows[0] if name in columns] if rows else list[str]()
    same = [name for name in names if len(rows) > 1 and all(row[name] == rows[0][name] for row in rows)]
    said = [f"{name} {value_text(rows[0][name])}" for name in same]
    more = [f"{len(rows) - most:,} more {plural(len(rows) - most, 'row')}"] if len(rows) > most else []
    caption = "; ".join([*more, *([f"all: {', '.join(said)}"] if said else [])])
    shown = [_column(name, rows[:most]) for name in names if name not in same]
    return Sheet("rows", shown, rows[:most], title, caption)


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> Column[Mapping[str, Any]]:
    unit = "words" if any(isinstance(row[name], str) for row in rows) else "figures"
    return Column(name, name, unit, lambda row: value_text(row[name]))


def queried_report(found: Queried) -> RenderableType:
    """The answer to SQL."""
    rows = [dict(zip(found.columns, values, strict=True)) for values in found.values]
    return rows_table(rows, "", len(rows), found.columns) if rows else Text("no rows")


def shown_report(found: Shown, most: int) -> RenderableType:
    """Everything that `sweep show` prints.

    Args:
        most: rows of each table [count].
    """
    wanted = ", ".join(f"{name} ({sense})" for name, sense in found.objectives.items())
    if not found.feasible_rows:
        return spaced([_head(found), Text("nothing is feasible", style="yellow"), _binding(found)])
    columns, best_of = (*found.quantities, *_CHOSEN, *found.objectives), f"best {found.objective} for each "
    return spaced(
        [
            _head(found),
            rows_table(found.front, f"Pareto front of {wanted}", most, columns),
            rows_table(found.best, best_of + ", ".join(found.by), most, (*found.by, *columns)) if found.by else None,
            _binding(found),
            _sensitivities(found) if found.sensitivities else None,
            _tornado(found) if found.tornado else None,
            None if found.crossovers is None else _crossovers(found.crossovers),
        ]
    )


def _head(found: Shown) -> RenderableType:
    missing = f"; {found.missing:,} of {found.shards:,} shards are not there yet" if found.missing else ""
    more = len(found.reasons) - _MOST_REASONS
    return composed(
        (f"{found.title}\n", "bold") if found.title else None,
        f"{found.rows:,} points, {found.feasible_rows:,} of them feasible",
        (missing, "yellow"),
        *((f"\n{several(one.rows, 'point')}: {one.reason}", "dim") for one in found.reasons[:_MOST_REASONS]),
        (f"\n{more:,} more reasons", "dim") if more > 0 else None,
    )


def _binding(found: Shown) -> Sheet[read.Binding]:
    columns: list[Column[read.Binding]] = [
        Column("constraint", "constraint", "words", lambda one: ": ".join(filter(None, (one.constraint, one.text)))),
        Column("broken", "broken by", "share"),
        Column("alone", "by it alone", "share"),
        Column("best", "best with all", "figures", lambda one: value_text(one.best)),
        Column("best_without", "without it", "figures", lambda one: value_text(one.best_without)),
    ]
    return Sheet("binding", columns, found.binding, title=f"where constraints bind (best {found.objective})")


def _sensitivities(found: Shown) -> RenderableType:
    how = {
        "saltelli": "Saltelli's design, 95 % confidence",
        "grid": "on the grid; approximate where points have no result",
        "bins": "bins of the draws, 95 % confidence",
    }[found.sensitivities[0].how]
    columns: list[Column[sensitivity.Sensitivity]] = [
        Column("quantity", "quantity", "words"),
        Column("first", "alone", "share"),
        Column("first_low", "from", "share", priority=1),
        Column("first_high", "to", "share", priority=1),
        Column("total", "with interactions", "share"),
        Column("total_low", "from", "share", priority=1),
        Column("total_high", "to", "share", priority=1),
    ]
    title = f"Sobol' indices of {found.objective}"
    return Sheet("sensitivities", columns, found.sensitivities, title, f"{how}; all points with a result")


def _tornado(found: Shown) -> Sheet[sensitivity.Effect]:
    columns: list[Column[sensitivity.Effect]] = [
        Column("quantity", "quantity", "words"),
        Column("low", "from", "figures"),
        Column("high", "to", "figures"),
        Column("at_low", "there", "figures", lambda one: value_text(one.at_low)),
        Column("at_high", "and there", "figures", lambda one: value_text(one.at_high)),
    ]
    title = f"tornado: median {found.objective} at the ends of each quantity"
    return Sheet("tornado", columns, found.tornado, title)


def _crossovers(one: read.Crossovers) -> RenderableType:
    head = f"best {one.objective} by {one.option} along {one.along}"
    if not one.points:
        best = {row[one.option] for row in one.curve}
        return Text(f"{head}: no crossover between {', '.join(sorted(map(str, best)))}")
    where = (f"from {point.before} to {point.after} at {one.along} {value_text(point.at)}" for point in one.points)
    return Group(*(Text(f"{head}: {place}") for place in where))


_MOST_POINTS = 2000
_MOST_SERIES = 8


def measure_of(name: str) -> Measure:
    """A column as an axis; its name says the unit."""
    kinds: Mapping[str, Kind] = {"usd": "usd", "bytes_per_s": "bytes_per_s", "flop_per_s": "flop_per_s"}
    kind: Kind | None = next((one for word, one in kinds.items() if word in name), None)
    if kind is None:
        kind = "seconds" if name.endswith("_s") and "per_s" not in name else "bytes" if "bytes" in name else "count"
    return Measure(field=name, title=name, kind=kind)


def _axis(name: str, values: Sequence[float], field: str) -> Layer:
    """The axis of a column, whose values stand in a field: a log axis where they span more than a factor of five."""
    kept = [one for one in values if math.isfinite(one)]
    wide = bool(kept) and min(kept) > 0 and max(kept) > 5 * min(kept)
    axis = log_axis(measure_of(name), kept) if wide else linear_axis(measure_of(name), kept, zero=False)
    return {**axis, "field": field}


def _quoted(name: str) -> str:
    """A column as Vega-Lite reads it: dots and brackets are part of the name."""
    return name.replace("\\", "\\\\").replace(".", "\\.").replace("[", "\\[").replace("]", "\\]")


def _title(found: Shown) -> str:
    return found.title or "A sweep"


def front_figure(found: Shown) -> Figure:
    """The front of the first two objectives, coloured by the first quantity of names."""
    objectives = list(found.objectives)
    if not found.front:
        return nothing_figure(_title(found), "nothing is feasible")
    if len(objectives) < 2:
        return nothing_figure(_title(found), "a front needs two objectives")
    second, first = objectives[1], objectives[0]
    by = next((name for name in found.by if len({row[name] for row in found.front}) > 1), None)
    by = by or ("layout" if "layout" in found.front[0] else None)
    rows: list[Row] = [{**row, "series": str(row[by]) if by else ""} for row in found.front[:_MOST_POINTS]]
    names = list(dict.fromkeys(row["series"] for row in rows))
    if len(names) > _MOST_SERIES:
        kept = names[: _MOST_SERIES - 1]
        rows = [{**row, "series": row["series"] if row["series"] in kept else "others"} for row in rows]
        names = [*kept, "others"]
    x, y = (_axis(name, [row[name] for row in rows], _quoted(name)) for name in (second, first))
    hidden = ("reason", "feasible", "series", first, second)
    shown = [measure_of(second), measure_of(first)]
    shown += [
        Measure(field=name, title=name, kind=measure_of(name).kind if isinstance(rows[0][name], float) else None)
        for name in rows[0]
        if name not in hidden and "." not in name
    ]
    place = {"x": x, "y": y}
    colours = colour(names, title=by)
    senses = ", ".join(f"{name} {'low' if sense == 'min' else 'high'}" for name, sense in found.objectives.items())
    return Figure(
        title=_title(found),
        subtitle=f"Pareto front ({senses}): {len(found.front):,} of {found.feasible_rows:,} feasible points",
        description=f"Pareto front of {first} against {second}"
        + (f" by {by}: {', '.join(names)}" if by else "")
        + f"; {first} from {value_text(rows[0][first])}.",
        spec={
            "data": {"values": rows},
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 1, "opacity": 0.35}, "encoding": place},
                hovered({"type": "point", "size": 60}, {**place, "color": colours}, shown),
            ],
        },
    )


def options_figure(found: Shown) -> Figure:
    """The best of each option along a quantity, with the crossovers."""
    one = found.crossovers
    if one is None:
        return nothing_figure(_title(found), "no options compete along a list of numbers")
    rows: list[Row] = [  # under names that need no quoting
        {"along": row[one.along], "value": row[one.objective], "series": value_text(row[one.option])}
        for row in one.curve
    ]
    names = sorted({row["series"] for row in rows}, key=_order)
    x = _axis(one.along, [row["along"] for row in rows], "along")
    y = _axis(one.objective, [row["value"] for row in rows], "value")
    place = {"x": x, "y": y}
    shown = [
        Measure(field="series", title=one.option),
        Measure(field="along", title=one.along, kind=measure_of(one.along).kind),
        Measure(field="value", title=one.objective, kind=measure_of(one.objective).kind),
    ]
    coloured = {**place, "color": colour(names, title=one.option), "strokeDash": dashes(names)}
    changes = "; ".join(f"{each.after} from {each.at:.3g}" for each in one.points[:4]) or "no crossover"
    layers: list[Layer] = [
        {"mark": {"type": "line"}, "encoding": coloured},
        hovered({"type": "point", "size": 22}, {**place, "color": colour(names, title=one.option)}, shown),
    ]
    if len(one.points) == 1:  # words of several would lie on each other
        layers += limit("x", x, one.points[0].at, f"{one.points[0].after} from {value_text(one.points[0].at)}")
    return Figure(
        title=_title(found),
        subtitle=f"best {one.objective} by {one.option}, over all other quantities; {changes}",
        description=f"Best {one.objective} against {one.along} for {', '.join(names)}: {changes}.",
        spec={"data": {"values": rows}, "layer": layers},
    )


def _order(name: str) -> tuple[int, float, str]:
    """Names that are numbers by their size, then others."""
    try:
        return 0, float(name.replace(",", "")), name
    except ValueError:
        return 1, 0.0, name


def sensitivity_figure(found: Shown) -> Figure:
    """First and total indices of each quantity, with confidence where there is one."""
    if not found.sensitivities:
        return nothing_figure(_title(found), "the first objective does not vary, or shards are missing")
    rows: list[Row] = []
    for one in found.sensitivities:
        each = (("alone", one.first, one.first_low, one.first_high),)
        if one.total is not None:
            each = (*each, ("with interactions", one.total, one.total_low, one.total_high))
        rows += [
            {"quantity": one.quantity, "series": kind, "share": share, "low": low, "high": high}
            for kind, share, low, high in each
        ]
    names = list(dict.fromkeys(row["series"] for row in rows))
    measure = Measure(field="share", title="share of the variance", kind="share")
    x = linear_axis(measure, [0.0, 1.0, *(row["share"] for row in rows), *(row["high"] or 0.0 for row in rows)])
    y = _by_quantity(found.sensitivities)
    offset: Layer = {"field": "series", "type": "nominal", "sort": names, "scale": {"paddingInner": 0.15}}
    encoding: Layer = {"x": x, "y": y, "yOffset": offset, "color": colour(names)}
    shown = [Measure(field="quantity", title="quantity"), Measure(field="series", title="index"), measure]
    ends: Layer = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "style": "limit", "strokeDash": [1, 0]},
        "encoding": {
            "x": {"field": "low", "type": "quantitative", "scale": x["scale"]},
            "x2": {"field": "high"},
            "y": y,
            "yOffset": offset,
        },
    }
    words = "; ".join(f"{one.quantity} {100 * one.first:.3g} %" for one in found.sensitivities)
    return Figure(
        title=_title(found),
        subtitle=f"Sobol' indices of {found.objective}"
        + ("; lines: 95 % confidence" if rows[0]["low"] is not None else ""),
        description=f"Share of the variance of {found.objective} by quantity, alone: {words}.",
        spec={"data": {"values": rows}, "layer": [hovered({"type": "bar"}, encoding, shown), ends]},
        width=520,
        height=max(2, len(found.sensitivities)) * 2 * BAR_HEIGHT,
    )


def _by_quantity(rows: Sequence[sensitivity.Sensitivity | sensitivity.Effect]) -> Layer:
    names = [one.quantity for one in rows]
    return name_axis("quantity", names, axis={"labelLimit": LONGEST_LABEL, "domain": False})


def tornado_figure(found: Shown) -> Figure:
    """Median of the first objective at either end of each quantity."""
    first = found.objective
    if not found.tornado:
        return nothing_figure(_title(found), "no quantity moves the first objective")
    rows: list[Row] = [
        {
            "quantity": one.quantity,
            "start": one.at_low,
            "end": one.at_high,
            "low": one.low,
            "high": one.high,
            "series": "rises" if one.at_high >= one.at_low else "falls",
            "far": max(one.at_low, one.at_high),
            "words": f"{one.low} to {one.high}",
        }
        for one in found.tornado
    ]
    measure = measure_of(first)
    x = _axis(first, [value for row in rows for value in (row["start"], row["end"])], "start")
    y = _by_quantity(found.tornado)
    shown = [
        Measure(field="quantity", title="quantity"),
        Measure(field="low", title="from"),
        Measure(field="start", title=f"{first} there", kind=measure.kind),
        Measure(field="high", title="to"),
        Measure(field="end", title=f"{first} there", kind=measure.kind),
    ]
    names = list(dict.fromkeys(row["series"] for row in rows))
    layers: list[Layer] = [
        hovered({"type": "bar", "height": 14}, {"x": x, "x2": {"field": "end"}, "y": y, "color": colour(names)}, shown),
        {
            "mark": {"type": "text", "style": "muted-text", "align": "left", "dx": 6, "fontSize": 11},
            "encoding": {
                "x": {"field": "far", "type": "quantitative", "scale": x["scale"]},
                "y": y,
                "text": {"field": "words"},
            },
        },
    ]
    words = "; ".join(f"{one.quantity} {value_text(one.at_low)} to {value_text(one.at_high)}" for one in found.tornado)
    return Figure(
        title=_title(found),
        subtitle=f"median {first} with a quantity at either end, the others as they come",
        description=f"Median {first} from one end of each quantity to the other: {words}.",
        spec={"data": {"values": rows}, "layer": layers},
        width=520,
        height=max(2, len(rows)) * 2 * BAR_HEIGHT,
    )


def bands_figure(
    rows: Sequence[Mapping[str, Any]], found: Shown, along: str, option: str | None, objective: str
) -> Figure:
    """Quantiles of an objective over the draws, along a quantity.

    Args:
        rows: of along, option and p5 to p95.
        along, option, objective: their columns; option None for one band.
    """
    made: list[Row] = [
        {
            "along": row[along],
            "series": str(row[option]) if option else objective,
            **{name: row[name] for name in ("p5", "p25", "p50", "p75", "p95")},
        }
        for row in rows
    ]
    names = sorted({row["series"] for row in made}, key=_order)
    x = _axis(along, [row["along"] for row in made], "along")
    y = _axis(objective, [row[name] for row in made for name in ("p5", "p95")], "p50")
    colours = colour(names, title=option)
    kind = measure_of(objective).kind
    shown = [Measure(field="series", title=option or "result"), Measure(field="along", title=along, kind="count")]
    shown += [Measure(field=name, title=name, kind=kind) for name in ("p5", "p25", "p50", "p75", "p95")]

    def area(low: str, high: str, opacity: float) -> Layer:
        return {
            "mark": {"type": "area", "opacity": opacity},
            "encoding": {"x": x, "y": {**y, "field": low}, "y2": {"field": high}, "color": colours},
        }

    return Figure(
        title=_title(found),
        subtitle=f"{objective}: median, half and nine tenths of the draws",
        description=f"Median and bands of {objective} along {along} for {', '.join(names)}.",
        spec={
            "data": {"values": made},
            "layer": [
                area("p5", "p95", 0.18),
                area("p25", "p75", 0.28),
                hovered({"type": "line", "point": True}, {"x": x, "y": y, "color": colours}, shown),
            ],
        },
    )
