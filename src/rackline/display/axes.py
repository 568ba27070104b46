"""Parts that figures share: axes with round ticks, series, limits and notes, stacked bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from rackline.display.figure import Figure

Kind = Literal["seconds", "usd", "count", "bytes", "bytes_per_s", "flop", "flop_per_s", "share", "power", "number"]
MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86400.0, 365.25 * 86400.0
_FINE_TIMES = (
    *(step * 10.0**e for e in range(-9, 0) for step in (1.0, 2.0, 5.0)),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(MINUTE * n for n in (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)),
    *(HOUR * n for n in (1.0, 2.0, 4.0, 8.0, 12.0)),
    *(DAY * n for n in (1.0, 2.0, 4.0, 7.0, 14.0, 30.0, 90.0, 180.0)),
    *(YEAR * n for n in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)),
)
_COARSE_TIMES = (
    *(10.0**e for e in range(-9, 2)),
    *(MINUTE, 10.0 * MINUTE, HOUR, 10.0 * HOUR, DAY, 10.0 * DAY, 100.0 * DAY, YEAR, 10.0 * YEAR, 100.0 * YEAR),
)
_COARSEST_TIMES = (1e-9, 1e-6, 1e-3, 1.0, MINUTE, HOUR, DAY, 30.0 * DAY, YEAR, 100.0 * YEAR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A column of a figure's rows.

    Args:
        field: its name, with the unit where the noun does not fix it ("ttft_s").
        title: what people read.
        kind: how its values are written; None for text.
    """

    field: str
    title: str
    kind: Kind | None = None


def text_of(kind: Kind, value: str) -> str:
    """A Vega expression that writes a number in SI units with its unit.

    Args:
        value: expression of the number, such as "datum.value".
    """
    si = f"format({value}, '.3~s')"
    match kind:
        case "seconds":
            steps = (
                (1e-6, 1e-9, "ns"),
                (1e-3, 1e-6, "µs"),
                (1.0, 1e-3, "ms"),
                (MINUTE, 1.0, "s"),
                (HOUR, MINUTE, "min"),
                (DAY, HOUR, "h"),
                (YEAR, DAY, "d"),
            )
            text = f"format({value} / {YEAR}, '.3~r') + ' y'"
            for below, factor, unit in reversed(steps):
                edge = below * (1.0 - 1e-9)  # 59.99999999 s is a minute
                text = f"abs({value}) < {edge} ? format({value} / {factor}, '.3~r') + ' {unit}' : {text}"
            return f"{value} == 0 ? '0 s' : {text}"
        case "usd":
            large = f"replace({si}, 'G', 'B')"
            return f"'$' + (abs({value}) >= 1e4 ? {large} : format({value}, ',.3~r'))"
        case "count":
            small, large = f"format({value}, '.3~r')", f"format({value} / 1e12, ',.3~r') + 'T'"
            return f"abs({value}) < 1 ? {small} : abs({value}) >= 1e15 ? {large} : replace({si}, 'G', 'B')"
        case "bytes" | "bytes_per_s" | "flop" | "flop_per_s":
            unit = {"bytes": "B", "bytes_per_s": "B/s", "flop": "FLOP", "flop_per_s": "FLOP/s"}[kind]
            return f"replace({si}, regexp('([a-zA-Z]?)$'), ' $1{unit}')"
        case "share":
            return f"format(100 * {value}, '.3~r') + ' %'"
        case "power":
            return f"replace(format({value}, '.3~e'), 'e+', 'e')"
        case "number":
            return f"format({value}, ',.4~r')"
        case _:
            assert_never(kind)


def hover(measures: Sequence[Measure]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is shown when the pointer rests on a mark.

    Returns:
        Transforms that write the numbers, and the tooltip channel.
    """
    transforms: list[dict[str, Any]] = []
    channel: list[dict[str, Any]] = []
    for measure in measures:
        field = measure.field
        if measure.kind is not None:
            field = f"{measure.field} as text"
            written = text_of(measure.kind, f"datum['{measure.field}']")
            known = f"isValid(datum['{measure.field}'])"
            transforms.append({"calculate": f"{known} ? {written} : '-'", "as": field})
        channel.append({"field": field, "type": "nominal", "title": measure.title})
    return transforms, channel


def log_ticks(kind: Kind, low: float, high: float, most: int = 9) -> list[float]:
    """Round values in a range of a log axis, as many as fit.

    Args:
        low, high: ends of the range, above 0.
        most: ticks at most [count].
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))

    def steps(factors: Sequence[float], every: int = 1) -> list[float]:
        return [float(f"{f}e{e}") for e in range(first - first % every, last + 1, every) for f in factors]

    finest: list[list[float]] = [
        steps([1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0]),
        steps([1.0, 1.5, 2.0, 3.0, 5.0, 7.0]),
    ]
    if kind == "seconds":
        scales = [list(_FINE_TIMES), list(_COARSE_TIMES), list(_COARSEST_TIMES)]
        if high <= MINUTE:
            scales = [*finest, steps([1.0, 2.0, 5.0]), steps([1.0, 3.0]), steps([1.0]), *scales[2:]]
    else:
        scales = [*finest, steps([1.0, 2.0, 5.0]), steps([1.0, 3.0])]
        scales += [steps([1.0], every) for every in (1, 2, 3, 6, 12)]
    found: list[float] = []
    for scale in scales:
        found = [value for value in scale if low * (1.0 - 1e-9) <= value <= high * (1.0 + 1e-9)]
        if len(found) <= most:
            break
    if len(found) >= 3:
        return found[:: math.ceil(len(found) / most)]
    return linear_ticks(kind, low, high, most=6)


def linear_ticks(kind: Kind, low: float, high: float, most: int = 7) -> list[float]:
    """Round values in a range of a linear axis, at even steps.

    Args:
        low, high: ends of the range.
        most: ticks at most [count].
    """
    if not high > low:
        return [low]
    least = (high - low) / most
    if kind == "seconds" and high > MINUTE:
        step = next((value for value in _FINE_TIMES if value >= least and value >= 1.0), YEAR)
    else:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= least * (1 - 1e-9))
    return [
        float(f"{step * index:.12g}")
        for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def log_axis(measure: Measure, values: Iterable[float], *, most: int = 9, margin: float = 0.04) -> dict[str, Any]:
    """A position channel on a log axis that spans the values.

    Args:
        values: numbers that must lie inside; those that are not above 0 and finite are left out.
        most: ticks at most [count].
        margin: room beyond the values, as a share of the span of their logarithms.
    """
    kept = [value for value in values if value > 0.0 and math.isfinite(value)] or [1.0, 10.0]
    low, high = min(kept), max(kept)
    room = max(math.log(high / low) * margin, 0.05)
    low, high = low * math.exp(-room), high * math.exp(room)
    return _channel(measure, {"type": "log", "domain": [low, high], "nice": False}, log_ticks, low, high, most)


def linear_axis(
    measure: Measure, values: Iterable[float], *, most: int = 7, zero: bool = True, margin: float = 0.04
) -> dict[str, Any]:
    """A position channel on a linear axis that spans the values, and 0 if wanted.

    Args:
        values: numbers that must lie inside; those that are not finite are left out.
        most: ticks at most [count].
        zero: begin at 0.
        margin: room beyond the largest value, as a share of the span.
    """
    kept = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(kept), max(kept)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        high = low + (abs(low) or 1.0)
    high += (high - low) * margin
    return _channel(measure, {"domain": [low, high], "nice": False, "zero": False}, linear_ticks, low, high, most)


def _channel(measure: Measure, scale: dict[str, Any], ticks: Any, low: float, high: float, most: int) -> dict[str, Any]:
    kind = measure.kind or "number"
    return {
        "field": measure.field,
        "type": "quantitative",
        "scale": scale,
        "axis": {
            "title": measure.title,
            "values": ticks(kind, low, high, most),
            "labelExpr": text_of(kind, "datum.value"),
        },
    }


Row = dict[str, Any]
Layer = dict[str, Any]
SERIES = Measure(field="series", title="series")
SHARE = Measure(field="share", title="share", kind="share")


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
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(names), "range": [patterns[index % len(patterns)] for index in range(len(names))]},
        "legend": None,
    }


def shapes(names: Sequence[str], field: str, drawn: Sequence[str]) -> Layer:
    """The shape channel of named series; `drawn` are the shapes, which begin again where there are more series."""
    chosen = [drawn[index % len(drawn)] for index in range(len(names))]
    return {**colour(names, field), "scale": {"domain": list(names), "range": chosen}}


def hovered(mark: Layer, encoding: Layer, measures: Sequence[Measure], **more: Any) -> Layer:
    """A layer whose marks show the measures on hover."""
    transforms, tooltip = hover(measures)
    given = more.pop("transform", [])
    return {**more, "transform": [*given, *transforms], "mark": mark, "encoding": {**encoding, "tooltip": tooltip}}


UNSEEN: Layer = {"type": "point", "opacity": 0, "size": 60}
"""A mark that only answers the pointer."""


def marked(rows: Sequence[Row], encoding: Layer, **mark: Any) -> Layer:
    """A layer of marks, points unless another type is named, with rows of its own."""
    return {"data": {"values": rows}, "mark": {"type": "point", **mark}, "encoding": encoding}


def layered(rows: Sequence[Row], *layers: Layer, **more: Any) -> dict[str, Any]:
    """The specification of layers over the same rows."""
    return {**more, "data": {"values": rows}, "layer": list(layers)}


def name_axis(field: str, names: Sequence[str] | None, *, axis: Layer, **scale: float) -> Layer:
    """A position channel of names in their order, one below the other.

    Args:
        field: column of the names.
        names: in their order; None for that of the rows.
        axis: how it is drawn, beside being without ticks.
        scale: room between the names.
    """
    found = {"field": field, "type": "nominal", "sort": names, "axis": {"ticks": False, **axis}}
    return {**found, **({} if names is None else {"title": None}), **({"scale": scale} if scale else {})}


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
    else:
        words |= {"align": "left", "baseline": "top" if far else "bottom", "dy": 5 if far else -5}
    position = {axis: at(channel, value)}
    other = {"y": {"value": 3}} if axis == "x" else {"x": {"value": 4}}
    return [marked([{}], position, type="rule", style=style), *_words(words, {**position, **other}, text)]


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
    words = {
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
    return [
        {"data": {"values": [{}]}, "mark": each, "encoding": {**encoding, "text": {"value": text}}}
        for each in ({**mark, "style": ["halo"]}, mark)
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
    """A horizontal bar for each thing, made of parts that follow each other.

    Args:
        bars: name → part → amount; a part that is missing or 0 is left out.
        parts: all parts in their order.
        measure: of an amount.
        title, description, subtitle: of the figure.
        marks: what a line at an amount says → the amount.
        width: of the area between the axes [pixels].
    """
    wholes = {label: sum(amounts.values()) for label, amounts in bars.items()}
    rows: list[Row] = [
        {"name": label, "part": key, measure.field: amount, "share": amount / wholes[label], "order": index}
        for label, amounts in bars.items()
        for index, key in enumerate(parts)
        if (amount := amounts.get(key, 0.0)) > 0.0 and math.isfinite(amount)
    ]
    used = [key for key in parts if any(row["part"] == key for row in rows)]
    lines = dict(marks or {})
    x = linear_axis(measure, [*wholes.values(), *lines.values()])
    axis = {"labelLimit": LONGEST_LABEL, "domain": False}
    y = name_axis("name", list(bars), axis=axis, paddingInner=0.25, paddingOuter=0.8 if marks else 0.1)
    encoding: dict[str, Any] = {
        "x": {**x, "stack": "zero"},
        "y": y,
        "color": colour(used, "part", width=width + 120),
        "order": {"field": "order", "type": "quantitative"},
    }
    shown = [Measure(field="name", title=""), Measure(field="part", title="part"), measure, SHARE]
    return Figure(
        title=title,
        subtitle=subtitle,
        description=description,
        spec=layered(
            rows,
            hovered({"type": "bar"}, encoding, shown),
            # above the first bar, in its padding
            *(part for text, value in lines.items() for part in limit("x", x, value, text)),
        ),
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
