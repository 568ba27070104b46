"""Figures that the page fills frame by frame with rows and ranges.

A live figure is a `Figure` whose data have names and no rows yet. Ranges and ticks of its axes are parameters of the
specification (`x_range`, `x_ticks`, ...), so that the page changes data and numbers, never the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rackline.display.axes import Layer, Measure, hover, text_of
from rackline.display.figure import Figure

ROWS, MARKS, REGIONS, MEASURED = "rows", "marks", "regions", "measured"
Scale = Literal["log", "linear"]


def live_axis(channel: Literal["x", "y"], measure: Measure, scale: Scale = "log", *, count: int = 5) -> Layer:
    """A position channel whose range and ticks are parameters.

    Args:
        count: characters that its labels take at most, so that the figure does not move when they change.
    """
    return {
        "field": measure.field,
        "type": "quantitative",
        "scale": {"type": scale, "domain": {"expr": f"{channel}_range"}, "nice": False, "zero": False},
        "axis": {
            "title": measure.title,
            "values": {"expr": f"{channel}_ticks"},
            "labelExpr": text_of(measure.kind or "number", "datum.value"),
            "labelOverlap": True,
            **({"minExtent": 8 * count} if channel == "y" else {}),
        },
    }


def live_params(channels: str = "xy", low: float = 1.0, high: float = 10.0) -> list[dict[str, Any]]:
    """The parameters of live axes."""
    found: list[dict[str, Any]] = []
    for channel in channels:
        found += [
            {"name": f"{channel}_range", "value": [low, high]},
            {"name": f"{channel}_ticks", "value": [low, high]},
        ]
    return found


def empty(*names: str) -> dict[str, list[Any]]:
    """Data sets that wait for their rows."""
    return {name: [] for name in names}


def live_lines(
    title: str,
    x: Measure,
    y: Measure,
    *,
    x_scale: Scale = "log",
    y_scale: Scale = "log",
    description: str = "",
) -> Figure:
    """Lines of series, with marked points and regions.

    Rows have x, y, `series`, `style` (0 for the subject, 1 for what it is compared with) and `place` (of the
    colour); marks have x, y and `text`, or only one of the two for a line across; regions have `low`, `high`, `text`;
    measured points have x, y and `text`.
    """
    across, up = live_axis("x", x, x_scale), live_axis("y", y, y_scale)
    place: Layer = {"x": across, "y": up}
    colours = {
        "field": "place",
        "type": "nominal",
        "scale": {"domain": list(range(8))},
        "legend": None,
    }
    lines: Layer = {
        "field": "style",
        "type": "nominal",
        "scale": {"domain": [0, 1], "range": [[1, 0], [5, 4]]},
        "legend": None,
    }
    width = {"field": "style", "type": "nominal", "scale": {"domain": [0, 1], "range": [3, 1.6]}, "legend": None}
    layers: list[Layer] = [
        {
            "data": {"name": REGIONS},
            "mark": {"type": "rect", "style": "band"},
            "encoding": {"x": {**across, "field": "low"}, "x2": {"field": "high"}},
        },
        {
            "data": {"name": ROWS},
            "mark": {"type": "line", "clip": True},
            "encoding": {
                **place,
                "detail": {"field": "series", "type": "nominal"},
                "color": colours,
                "strokeDash": lines,
                "strokeWidth": width,
                "order": {"field": x.field, "type": "quantitative"},
            },
        },
        {
            "data": {"name": MARKS},
            "transform": [{"filter": f"isValid(datum['{x.field}']) && !isValid(datum['{y.field}'])"}],
            "mark": {"type": "rule", "style": "limit"},
            "encoding": {"x": across},
        },
        {
            "data": {"name": MARKS},
            "transform": [{"filter": f"isValid(datum['{y.field}']) && !isValid(datum['{x.field}'])"}],
            "mark": {"type": "rule", "style": "reference"},
            "encoding": {"y": up},
        },
        {
            "data": {"name": MARKS},
            "transform": [{"filter": f"isValid(datum['{x.field}']) && isValid(datum['{y.field}'])"}],
            "mark": {"type": "point", "style": "best"},
            "encoding": place,
        },
        _measured(place),
    ]
    return Figure(
        title=title,
        description=description or title,
        spec={
            "params": live_params(),
            "datasets": empty(ROWS, MARKS, REGIONS, MEASURED),
            "data": {"name": ROWS},
            "layer": layers,
        },
    )


def _measured(place: Layer) -> Layer:
    """Measured points."""
    return {
        "data": {"name": MEASURED},
        "mark": {"type": "point", "shape": "triangle-up", "style": "best", "size": 150},
        "encoding": {**place, "tooltip": {"field": "text"}},
    }


def live_parity(title: str, measured: Measure, predicted: Measure) -> Figure:
    """Predicted over measured values, with the diagonal and a band around it.

    Rows have both, `place` (of the colour) and `text`; `ends` have measured, predicted, `low` and `high`.
    """
    place: Layer = {"x": live_axis("x", measured), "y": live_axis("y", predicted)}
    ends: Layer = {"name": "ends"}
    colours = {"field": "place", "type": "nominal", "scale": {"domain": list(range(8))}, "legend": None}
    layers: list[Layer] = [
        {
            "data": ends,
            "mark": {"type": "area", "style": "band", "clip": True},
            "encoding": {"x": place["x"], "y": {**place["y"], "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": ends,
            "mark": {"type": "line", "style": "reference", "clip": True},
            "encoding": place,
        },
        {
            "data": {"name": ROWS},
            "mark": {"type": "point", "size": 70, "filled": True, "opacity": 0.85},
            "encoding": {**place, "color": colours, "tooltip": {"field": "text"}},
        },
    ]
    return Figure(
        title=title,
        description=title,
        spec={
            "params": live_params(),
            "datasets": empty(ROWS, "ends"),
            "data": {"name": ROWS},
            "layer": layers,
        },
    )


def live_bars(title: str, x: Measure, y: Measure, *, colour_title: str = "", names: Sequence[str] = ()) -> Figure:
    """Bars from `x` to `x2` on rows of `y` in their order, coloured by `kind` where there are names of kinds.

    Args:
        colour_title: what the kinds are.
        names: of the kinds.
    """
    across = live_axis("x", x, "linear")
    kinds = [Measure(field="kind", title=colour_title)] if names else []
    transforms, tooltip = hover([y, *kinds, Measure(field="text", title="what"), x])
    colours: Layer = {"field": "kind", "type": "nominal", "scale": {"domain": list(names)}, "legend": {"title": None}}
    return Figure(
        title=title,
        description=title,
        spec={
            "params": live_params("x", 0.0, 1.0),
            "datasets": empty(ROWS),
            "data": {"name": ROWS},
            "transform": transforms,
            "mark": {"type": "bar", "cornerRadius": 1},
            "encoding": {
                "x": across,
                "x2": {"field": "x2"},
                "y": {
                    "field": y.field,
                    "type": "ordinal",
                    "title": y.title or None,
                    "sort": None,
                    "axis": {"labelLimit": 260, "domain": False, "ticks": False, "labelOverlap": True},
                    "scale": {"paddingInner": 0.15},
                },
                **({"color": colours} if names else {}),
                "tooltip": tooltip,
            },
        },
    )


def live_rows(title: str, measure: Measure, *, scale: Scale = "linear") -> Figure:
    """A point for each of several things, on a line from the low end of the axis.

    Rows have `series`, the name of the thing, and the measure; marks have the measure for a line across, and `series`
    where they stand on a row.

    Args:
        scale: of the measure, which may span orders of magnitude.
    """
    across = live_axis("x", measure, scale)
    up: Layer = {
        "field": "series",
        "type": "ordinal",
        "title": None,
        "sort": None,
        "axis": {"labelLimit": 260, "domain": False, "ticks": False},
    }
    layers: list[Layer] = [
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {"x": across, "x2": {"value": 0}, "y": up}},
        {"mark": {"type": "point", "filled": True, "size": 70}, "encoding": {"x": across, "y": up}},
        {
            "data": {"name": MARKS},
            "transform": [{"filter": "isValid(datum.series)"}],
            "mark": {"type": "point", "style": "best"},
            "encoding": {"x": across, "y": up},
        },
        {
            "data": {"name": MARKS},
            "transform": [{"filter": "!isValid(datum.series)"}],
            "mark": {"type": "rule", "style": "limit"},
            "encoding": {"x": across},
        },
    ]
    return Figure(
        title=title,
        description=title,
        spec={
            "params": live_params("x"),
            "datasets": empty(ROWS, MARKS),
            "data": {"name": ROWS},
            "layer": layers,
        },
    )


def live_matrix(title: str, measure: Measure, *, x: str, y: str) -> Figure:
    """A square matrix: colour says how much goes from row to column."""
    transforms, tooltip = hover([Measure(field="from", title=y), Measure(field="to", title=x), measure])
    axis = {"labelOverlap": True, "ticks": False, "domain": False}
    return Figure(
        title=title,
        description=title,
        spec={
            "datasets": empty(ROWS),
            "data": {"name": ROWS},
            "transform": transforms,
            "mark": {"type": "rect"},
            "encoding": {
                "x": {"field": "to", "type": "ordinal", "title": x, "axis": {**axis, "orient": "top", "labelAngle": 0}},
                "y": {"field": "from", "type": "ordinal", "title": y, "axis": axis},
                "color": {
                    "field": measure.field,
                    "type": "quantitative",
                    "legend": {"title": measure.title, "labelExpr": text_of(measure.kind or "number", "datum.value")},
                },
                "tooltip": tooltip,
            },
        },
    )
