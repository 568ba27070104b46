"""Layers that figures have in common: series by colour, limits, the best point, notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from rackline.report.axes import Measure, hover

Row = dict[str, Any]
Layer = dict[str, Any]
SERIES = Measure(field="series", title="series")


def colour(
    names: Sequence[str],
    field: str = SERIES.field,
    *,
    width: int = 640,
    title: str | None = None,
    used: Sequence[str] | None = None,
) -> Layer:
    """The colour channel of named series, in the order of the palette; its legend takes rows where it is long.

    Args:
        names: series in their order.
        field: column of the names.
        width: of the figure [pixels].
        title: of the legend, None for none.
        used: names that are there, where the others keep their colours.
    """
    shown = names if used is None else used
    widest = max((len(name) for name in shown), default=1) * 6.6 + 34.0
    columns = max(1, min(len(shown), int(width // widest)))
    legend: Layer | None = {"title": title, "columns": columns} if len(names) > 1 or title else None
    if legend is not None and used is not None:
        legend["values"] = list(used)
    return {"field": field, "type": "nominal", "scale": {"domain": list(names)}, "legend": legend}


def dashes(names: Sequence[str], field: str = SERIES.field) -> Layer:
    """Dashes of named series, for readers who do not see the colours."""
    patterns = [[1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [12, 3], [1, 2], [5, 2, 1, 2]]
    chosen = [patterns[index % len(patterns)] for index in range(len(names))]
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(names), "range": chosen},
        "legend": None,
    }


def hovered(mark: Layer, encoding: Layer, measures: Sequence[Measure], **more: Any) -> Layer:
    """A layer whose marks show the measures on hover."""
    transforms, tooltip = hover(measures)
    given = more.pop("transform", [])
    return {**more, "transform": [*given, *transforms], "mark": mark, "encoding": {**encoding, "tooltip": tooltip}}


def at(channel: Layer, value: float) -> Layer:
    """A fixed position on the axis of a channel."""
    return {"datum": value, "type": "quantitative", "scale": channel["scale"]}


def place(channel: Layer, value: float) -> float:
    """Where a value lies on an axis, 0 at its low end and 1 at its high end."""
    low, high = channel["scale"]["domain"]
    if channel["scale"].get("type") == "log":
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def limit(axis: Literal["x", "y"], channel: Layer, value: float, text: str, style: str = "limit") -> list[Layer]:
    """A line across the figure at a value, and what it says.

    Args:
        axis: the axis that the value is on.
        channel: of that axis.
        text: beside the line, on the side where there is more room.
        style: "limit" or "reference".
    """
    far = place(channel, value) > 0.6
    words: Layer = {"type": "text", "style": "note" if style == "limit" else "muted-text"}
    if axis == "x":
        words |= {"align": "right" if far else "left", "baseline": "top", "dx": -6 if far else 6}
        other = {"y": {"value": 3}}
    else:
        words |= {"align": "left", "baseline": "top" if far else "bottom", "dy": 5 if far else -5}
        other = {"x": {"value": 4}}
    position = {axis: at(channel, value)}
    return [
        {"data": {"values": [{}]}, "mark": {"type": "rule", "style": style}, "encoding": position},
        *_words(words, {**position, **other}, text),
    ]


def note(
    x: Layer, y: Layer, point: tuple[float, float], text: str, *, style: str = "note", below: bool | None = None
) -> list[Layer]:
    """Words beside a point, on the side where there is more room.

    Args:
        x, y: channels of the axes.
        point: where it lies on them.
        text: what is said.
        style: "note" or "muted-text".
        below: under the point; None for where there is more room.
    """
    right = place(x, point[0]) < 0.6
    under = place(y, point[1]) > 0.85 if below is None else below
    words: Layer = {
        "type": "text",
        "style": style,
        "align": "left" if right else "right",
        "baseline": "top" if under else "bottom",
        "dx": 9 if right else -9,
        "dy": 8 if under else -8,
    }
    return _words(words, {"x": at(x, point[0]), "y": at(y, point[1])}, text)


def _words(mark: Layer, encoding: Layer, text: str) -> list[Layer]:
    """Words with a halo, so that lines behind them do not disturb."""
    halo = {**mark, "style": ["halo"]}
    return [
        {"data": {"values": [{}]}, "mark": each, "encoding": {**encoding, "text": {"value": text}}}
        for each in (halo, mark)
    ]


def thinned(count: int, most: int) -> list[int]:
    """Evenly spread indices, the first and the last among them.

    Args:
        count: of things [count].
        most: indices at most [count].
    """
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
