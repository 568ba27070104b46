"""A measurement as shown: device and rates, predicted against measured, as tables and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from rackline.lab.measurement.engine import WORK_KINDS
from rackline.lab.measurement.fitted import Compared, Kind
from rackline.lab.measurement.measured import Measured
from rackline.lab.measurement.rates import Rate
from rackline.report.axes import SERIES, Measure, colour, hovered, linear_axis, log_axis
from rackline.report.column import Column, Sheet
from rackline.report.figure import Figure
from rackline.units import format_bytes, format_flop_rate, format_seconds


def measured_report(found: Measured, width: int) -> Iterable[RenderableType]:
    """Device, rates, passes and requests, errors.

    Args:
        width: of the terminal [characters].
    """
    device = found.device
    clock = f", {device.clock_hz / 1e9:.2f} GHz" if device.clock_hz else ""
    many = f"{device.count} × " if device.count > 1 else ""
    yield Text(
        f"{many}{device.name}: {device.cores} cores{clock}, last-level cache {format_bytes(device.cache_bytes)}, "
        f"memory {format_bytes(device.memory_bytes)}"
    )
    yield _rates(found.rates)
    yield _rows(found.rows)
    yield _scores(found)
    if found.is_busy:
        yield Text(
            f"measured on a busy machine: medians of passes are known to {found.uncertainty:.0%}, repeats spread by "
            f"{found.spread:.0%}",
            style="yellow",
        )


def _rates(rates: Iterable[Rate]) -> Sheet[Rate]:
    def name(rate: Rate) -> str:
        size = f" {rate.rows} × {rate.inputs} × {rate.outputs}" if rate.rows else _footprint(rate)
        return f"{rate.name}{size}"

    columns: list[Column[Rate]] = [
        Column("name", "", getter=name),
        Column("dtype", "type"),
        Column("value", "rate", "figures", _value),
        Column("spread", "spread", "share"),
    ]
    return Sheet("rates", columns, list(rates), title="reached without the engine")


def _footprint(rate: Rate) -> str:
    return f", {format_bytes(rate.footprint_bytes)}" if rate.footprint_bytes else ""


def _value(rate: Rate) -> str:
    match rate.unit:
        case "s":
            return format_seconds(rate.value)
        case "FLOP/s":
            return format_flop_rate(rate.value)
        case _:
            return f"{format_bytes(rate.value)}/s"


def _rows(rows: Iterable[Compared]) -> Sheet[Compared]:
    def amount(key: str, title: str) -> Column[Compared]:
        return Column(key, title, "whole", lambda row: getattr(row, key) or "")

    columns: list[Column[Compared]] = [
        Column("kind", "", getter=lambda row: f"{row.kind}{' *' if row.is_fitted else ''}"),
        amount("sequences", "sequences"),
        amount("context_len", "context"),
        amount("prompt_tokens", "prompt"),
        Column("predicted_s", "predicted", "s"),
        Column("measured_s", "measured", "s"),
        Column("error", "error", "error"),
    ]
    shown = [row for row in rows if row.kind in WORK_KINDS]
    return Sheet("passes", columns, shown, "passes", "* fitted")


def _scores(found: Measured) -> Sheet[Any]:
    rows = [(kind, one.n, one.median_abs_error, one.p90_abs_error) for kind, one in found.held_out.items()]
    columns: list[Column[Any]] = [
        Column("kind"),
        Column("n", "n", "whole"),
        Column("median_abs_error", "median error", "share"),
        Column("p90_abs_error", "p90", "share"),
    ]
    return Sheet("held_out", columns, rows, title="not fitted: predicted against measured")


_X: dict[Kind, Measure] = {
    "decode": Measure(field="x", title="context [tokens]", kind="count"),
    "prefill": Measure(field="x", title="prompt [tokens]", kind="count"),
    "mixed": Measure(field="x", title="prompt in the pass [tokens]", kind="count"),
    "served": Measure(field="x", title="request rate over the highest", kind="share"),
}
_FIELDS: dict[Kind, str] = {
    "decode": "context_len", "prefill": "prompt_tokens", "mixed": "prompt_tokens", "served": "load",
}  # fmt: skip
_Y = Measure(field="seconds", title="time", kind="seconds")


def measured_figure(found: Measured) -> Figure:
    """Predicted and measured times of passes and requests."""
    rows = [row for kind in _X for row in _figure_rows(found.rows, kind)]
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    panels = [_panel(rows, kind, names) for kind in _X if any(row["kind"] == kind for row in rows)]
    busy = "; the machine was busy" if found.is_busy else ""
    return Figure(
        title=f"{found.engine} on {found.device.name}: predicted and measured",
        subtitle=f"lines: predicted; points: measured, filled where they were not fitted. {found.date[:10]}{busy}",
        description="Time of decode steps against context by batch, of prompts, of passes with both, and median time "
        "of a served request against the rate.",
        spec={"data": {"values": rows}, "hconcat": panels},
    )


def _figure_rows(rows: Sequence[Compared], kind: Kind) -> list[dict[str, Any]]:
    points: dict[tuple[str, float, bool], list[Compared]] = {}
    for row in sorted(rows, key=lambda row: (row.sequences, row.context_len, row.prompt_tokens, row.load)):
        if row.kind == kind:
            points.setdefault((_series(row), float(getattr(row, _FIELDS[kind])), row.is_fitted), []).append(row)
    return [
        {
            "kind": kind,
            "series": series,
            "x": x,
            "which": which,
            "seconds": float(np.median([getattr(row, f"{which}_s") for row in some])),
            "fitted": is_fitted,
        }
        for (series, x, is_fitted), some in points.items()
        for which in ("predicted", "measured")
    ]


def _series(row: Compared) -> str:
    if row.load:
        return "requests"
    return f"batch {row.sequences}" if row.sequences else "prompt"


def _panel(rows: Sequence[dict[str, Any]], kind: Kind, names: Sequence[str]) -> dict[str, Any]:
    some = [row for row in rows if row["kind"] == kind]
    x = (linear_axis if _FIELDS[kind] == "load" else log_axis)(_X[kind], [row["x"] for row in some])
    y = log_axis(_Y, [row["seconds"] for row in some])
    used = list(dict.fromkeys(str(row["series"]) for row in some))
    encoding = {"x": x, "y": y, "color": colour(names, width=260, used=used)}
    measures = (SERIES, Measure(field="which", title=kind), _X[kind], _Y)
    only = [{"filter": f"datum.kind == '{kind}'"}]

    def those(which: str, *more: str) -> list[dict[str, Any]]:
        return [*only, {"filter": f"datum.which == '{which}'"}, *({"filter": text} for text in more)]

    return {
        "title": kind,
        "width": 220,
        "height": 280,
        "layer": [
            hovered({"type": "line"}, encoding, measures, transform=those("predicted")),
            hovered(
                {"type": "point", "filled": True, "size": 50},
                encoding,
                measures,
                transform=those("measured", "!datum.fitted"),
            ),
            hovered({"type": "point", "size": 50}, encoding, measures, transform=those("measured", "datum.fitted")),
        ],
    }
