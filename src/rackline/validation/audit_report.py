"""Figures of audits: measured over predicted, row by row, by verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rackline.report.axes import Layer, Measure, Row, colour, hovered, log_axis, nothing_figure
from rackline.report.figure import Figure
from rackline.validation.audit import VERDICTS, Audited

_RATIO = Measure(field="ratio", title="measured over predicted", kind="number")
_TITLE = "Results against their predictions"


def audit_figure(rows: Sequence[Audited]) -> Figure:
    """Measured over predicted of each row and quantity, coloured by the verdict on the row."""
    points: list[Row] = [
        {"row": one.row.row_id, "quantity": key, "ratio": ratio, "verdict": one.verdict,
         "why": one.findings[0].text if one.findings else ""}
        for one in rows for key, ratio in one.ratios.items()
    ]  # fmt: skip
    if not points:
        return nothing_figure(_TITLE, "no row says enough of its deployment to be predicted")
    x = log_axis(_RATIO, [*(point["ratio"] for point in points), 0.5, 2.0])
    y: Layer = {"field": "quantity", "type": "nominal", "title": None, "axis": {"ticks": False}}
    spread: Layer = {"field": "row", "type": "nominal", "axis": None}
    encoding: Layer = {"x": x, "y": y, "yOffset": spread, "color": colour(VERDICTS, "verdict")}
    shown = [Measure(field="row", title="row"), Measure(field="verdict", title="verdict"), _RATIO,
             Measure(field="why", title="because")]  # fmt: skip
    words = ", ".join(f"{sum(one.verdict == name for one in rows)} {name}" for name in VERDICTS)
    return Figure(
        title=_TITLE,
        subtitle="one point a row and quantity; 1 is as predicted",
        description=f"Measured over predicted of {len(rows)} rows: {words}.",
        spec={"data": {"values": points}, "layer": [hovered({"type": "point", "filled": True}, encoding, shown)]},
        width=520,
        height=110 * len({point["quantity"] for point in points}),
    )
