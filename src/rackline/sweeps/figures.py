"""Figures of a sweep: its front, options along a quantity, sensitivities, a tornado, bands of uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rackline.late import late
from rackline.report.axes import (
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
    nothing_figure,
)
from rackline.report.figure import Figure
from rackline.sweeps.show_report import value_text

with late:
    from rackline.sweeps import show_report


_MOST_POINTS = 2000
_MOST_SERIES = 8


def measure_of(name: str) -> Measure:
    """A column as an axis; its name says the unit."""
    kinds: Mapping[str, Kind] = {"usd": "usd", "bytes_per_s": "bytes_per_s", "flop_per_s": "flop_per_s"}
    kind: Kind | None = next((one for word, one in kinds.items() if word in name), None)
    if kind is None:
        kind = "seconds" if name.endswith("_s") and "per_s" not in name else "bytes" if "bytes" in name else "count"
    return Measure(field=name, title=name, kind=kind)


def _axis(name: str, values: Sequence[float]) -> Layer:
    """A log axis where values span more than a factor of five, else a linear one."""
    kept = [one for one in values if math.isfinite(one)]
    wide = bool(kept) and min(kept) > 0 and max(kept) > 5 * min(kept)
    return log_axis(measure_of(name), kept) if wide else linear_axis(measure_of(name), kept, zero=False)


def _quoted(name: str) -> str:
    """A column as Vega-Lite reads it: dots and brackets are part of the name."""
    return name.replace("\\", "\\\\").replace(".", "\\.").replace("[", "\\[").replace("]", "\\]")


def _plain_rows(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[Row]:
    """Rows with columns under names that need no quoting."""
    return [{new: row[old] for old, new in names.items()} for row in rows]


def _title(found: show_report.Shown) -> str:
    return found.title or "A sweep"


def front_figure(found: show_report.Shown) -> Figure:
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
    x = _axis(second, [row[second] for row in rows])
    y = _axis(first, [row[first] for row in rows])
    x["field"], y["field"] = _quoted(second), _quoted(first)
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


def options_figure(found: show_report.Shown) -> Figure:
    """The best of each option along a quantity, with the crossovers."""
    one = found.crossovers
    if one is None:
        return nothing_figure(_title(found), "no options compete along a list of numbers")
    columns = {one.along: "along", one.objective: "value", one.option: "series"}
    rows = _plain_rows(one.curve, columns)
    for row in rows:
        row["series"] = value_text(row["series"]) if not isinstance(row["series"], str) else row["series"]
    names = sorted({row["series"] for row in rows}, key=_order)
    x, y = _axis(one.along, [row["along"] for row in rows]), _axis(one.objective, [row["value"] for row in rows])
    x["field"], y["field"] = "along", "value"
    place = {"x": x, "y": y}
    shown = [
        Measure(field="series", title=one.option),
        Measure(field="along", title=one.along, kind=measure_of(one.along).kind),
        Measure(field="value", title=one.objective, kind=measure_of(one.objective).kind),
    ]
    coloured = {**place, "color": colour(names, title=one.option), "strokeDash": dashes(names)}
    few = one.points[:4]
    changes = "; ".join(f"{each.after} from {each.at:.3g}" for each in few) or "no crossover"
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


def sensitivity_figure(found: show_report.Shown) -> Figure:
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
    y: Layer = {
        "field": "quantity",
        "type": "nominal",
        "sort": [one.quantity for one in found.sensitivities],
        "title": None,
        "axis": {"labelLimit": LONGEST_LABEL, "ticks": False, "domain": False},
    }
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
    first = next(iter(found.objectives))
    words = "; ".join(f"{one.quantity} {100 * one.first:.3g} %" for one in found.sensitivities)
    return Figure(
        title=_title(found),
        subtitle=f"Sobol' indices of {first}" + ("; lines: 95 % confidence" if rows[0]["low"] is not None else ""),
        description=f"Share of the variance of {first} by quantity, alone: {words}.",
        spec={"data": {"values": rows}, "layer": [hovered({"type": "bar"}, encoding, shown), ends]},
        width=520,
        height=max(2, len(found.sensitivities)) * 2 * BAR_HEIGHT,
    )


def tornado_figure(found: show_report.Shown) -> Figure:
    """Median of the first objective at either end of each quantity."""
    first = next(iter(found.objectives))
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
    x = _axis(first, [value for row in rows for value in (row["start"], row["end"])])
    x["field"] = "start"
    y: Layer = {
        "field": "quantity",
        "type": "nominal",
        "sort": [one.quantity for one in found.tornado],
        "title": None,
        "axis": {"labelLimit": LONGEST_LABEL, "ticks": False, "domain": False},
    }
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
    rows: Sequence[Mapping[str, Any]], found: show_report.Shown, along: str, option: str | None, objective: str
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
    x = _axis(along, [row["along"] for row in made])
    y = _axis(objective, [row[name] for row in made for name in ("p5", "p95")])
    x["field"], y["field"] = "along", "p50"
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
