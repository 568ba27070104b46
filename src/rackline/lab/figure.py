"""The figure of an experiment: predictions as lines, measurements as points."""

from __future__ import annotations

from typing import Any

from rackline.lab.experiment import Experiment
from rackline.lab.experiments import entry
from rackline.report.axes import Measure, linear_axis, log_axis
from rackline.report.bars import nothing_figure
from rackline.report.figure import Figure
from rackline.report.layers import SERIES, colour, hovered

_KINDS = {"bytes": "bytes", "seconds": "seconds", "share": "share"}


def experiment_figure(one: Experiment) -> Figure:
    """The curves of one experiment."""
    title = f"{one.name}: {entry(one.name).shows}"
    if not one.curves:
        return nothing_figure(title, "no curves in this result")
    x, y = (_measure(field, text) for field, text in zip(("x", "y"), one.axes, strict=True))
    names = list(dict.fromkeys(curve.name for curve in one.curves))
    rows: list[dict[str, Any]] = [
        {"series": curve.name, "kind": curve.kind, "x": a, "y": b}
        for curve in one.curves
        for a, b in zip(curve.x, curve.y, strict=True)
    ]
    horizontal, vertical = (
        (log_axis if log else linear_axis)(measure, [row[measure.field] for row in rows])
        for log, measure in zip(one.log_axes, (x, y), strict=True)
    )
    encoding = {"x": horizontal, "y": vertical, "color": colour(names)}
    measures = (SERIES, Measure(field="kind", title="kind"), x, y)
    kinds = {kind: [{"filter": f"datum.kind == '{kind}'"}] for kind in ("predicted", "measured")}
    layers = [
        hovered({"type": "line", "strokeDash": [6, 3]}, encoding, measures, transform=kinds["predicted"]),
        hovered({"type": "point", "filled": True, "size": 60}, encoding, measures, transform=kinds["measured"]),
    ]
    return Figure(
        title=title,
        subtitle=f"dashed: predicted; points: measured. Claims {', '.join(one.claims)}: {one.verdict}",
        description=f"{len(names)} series of the experiment {one.name}: {'; '.join(one.findings)}.",
        spec={"data": {"values": rows}, "layer": layers},
    )


def _measure(field: str, title: str) -> Measure:
    """An axis; its unit is the first word of its title that names one."""
    kind = next((kind for word, kind in _KINDS.items() if word in title), "number")
    return Measure(field=field, title=title, kind=kind)  # pyright: ignore[reportArgumentType]
