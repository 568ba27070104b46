"""Stacked bars: one bar per item, its parts in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rackline.report.axes import Measure, linear_axis
from rackline.report.figure import Figure
from rackline.report.layers import Layer, Row, colour, hovered, limit

BAR_HEIGHT = 26
LONGEST_LABEL = 420


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]],
    parts: Sequence[str],
    measure: Measure,
    *,
    title: str,
    description: str,
    subtitle: str = "",
    marks: Mapping[str, float] | None = None,
    width: int = 560,
) -> Figure:
    """One horizontal bar a thing, from parts that follow each other.

    Args:
        bars: name → part → amount; a part that is missing or 0 is left out.
        parts: all parts in their order.
        measure: of an amount.
        title, description, subtitle: of the figure.
        marks: what a line at an amount says → the amount.
        width: of the area between the axes [pixels].
    """
    name, part = Measure(field="name", title=""), Measure(field="part", title="part")
    share = Measure(field="share", title="share", kind="share")
    rows: list[Row] = []
    for label, amounts in bars.items():
        whole = sum(amounts.values())
        for index, key in enumerate(parts):
            amount = amounts.get(key, 0.0)
            if amount > 0.0 and math.isfinite(amount):
                shares = {"share": amount / whole, "order": index}
                rows.append({"name": label, "part": key, measure.field: amount, **shares})
    used = [key for key in parts if any(row["part"] == key for row in rows)]
    lines = dict(marks or {})
    longest = [sum(amounts.values()) for amounts in bars.values()]
    x = linear_axis(measure, [*longest, *lines.values()])
    y: Layer = {"field": "name", "type": "nominal", "sort": list(bars), "title": None}
    y |= {
        "axis": {"labelLimit": LONGEST_LABEL, "ticks": False, "domain": False},
        "scale": {"paddingInner": 0.25, "paddingOuter": 0.8 if marks else 0.1},
    }
    encoding: dict[str, Any] = {
        "x": {**x, "stack": "zero"},
        "y": y,
        "color": colour(used, "part", width=width + 120),
        "order": {"field": "order", "type": "quantitative"},
    }
    layers = [hovered({"type": "bar"}, encoding, [name, part, measure, share])]
    for text, value in lines.items():
        layers += limit("x", x, value, text)  # above the first bar, in its padding
    return Figure(
        title=title,
        subtitle=subtitle,
        description=description,
        spec={"data": {"values": rows}, "layer": layers},
        width=width,
        height=max(BAR_HEIGHT * len(bars), 2 * BAR_HEIGHT) + (2 * BAR_HEIGHT if lines else 0),
    )


def nothing_figure(title: str, reason: str) -> Figure:
    """A figure that says why there is nothing to see.

    Args:
        title: what was asked.
        reason: why there is no answer.
    """
    return Figure(
        title=title,
        description=f"There is nothing to show: {reason}",
        spec={
            "data": {"values": [{"reason": reason}]},
            "mark": {"type": "text", "style": "note", "limit": 620},
            "encoding": {"text": {"field": "reason"}},
        },
        height=80,
    )
