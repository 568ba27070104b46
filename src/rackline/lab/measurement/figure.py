"""The figure of a measurement: a panel for each kind of pass and one for requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rackline.lab.measurement.held_out import Compared, Kind
from rackline.lab.measurement.measured import Measured
from rackline.report.axes import Measure, linear_axis, log_axis
from rackline.report.figure import Figure
from rackline.report.layers import SERIES, colour, hovered

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
    rows = [row for kind in _X for row in _rows(found.rows, kind)]
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


def _rows(rows: Sequence[Compared], kind: Kind) -> list[dict[str, Any]]:
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
