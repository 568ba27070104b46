"""Axes of figures: ranges and ticks chosen from the data, numbers in short notation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

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
                (1e-3, 1e-6, "us"),
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
