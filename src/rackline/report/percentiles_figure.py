"""A figure of latency percentiles, of several runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rackline.report.axes import Measure, log_axis
from rackline.report.figure import Figure
from rackline.report.layers import Layer, Row, colour, hovered
from rackline.simulation import Result
from rackline.units import format_seconds

METRICS = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "whole request"}
PERCENTILES = (50, 90, 95, 99)

_LATENCY = Measure(field="latency_s", title="latency", kind="seconds")
_HEIGHT = 22  # of a row [pixels]
_SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")


def percentiles_figure(results: Mapping[str, Result]) -> Figure:
    """A row for each percentile of each latency, runs by colour and shape; a line joins those of one row.

    Args:
        results: name → run.
    """
    rows: list[Row] = []
    for metric, label in METRICS.items():
        for percentile in PERCENTILES:
            for name, result in results.items():
                values = getattr(result, metric)
                values = values[np.isfinite(values) & (values > 0)]
                if len(values):
                    latency_s = float(np.percentile(values, percentile))
                    place = f"{label}, p{percentile}"
                    rows.append({"percentile": place, "run": name, "latency_s": latency_s})
    names = list(results)
    x = log_axis(_LATENCY, [row["latency_s"] for row in rows])
    y: Layer = {
        "field": "percentile",
        "type": "nominal",
        "sort": None,
        "axis": {"title": None, "labelLimit": 260, "domain": False, "ticks": False, "grid": True},
    }
    drawn = [_SHAPES[index % len(_SHAPES)] for index in range(len(names))]
    runs = colour(names, "run")
    shapes: Layer = {**runs, "scale": {"domain": names, "range": drawn}}
    encoding: Layer = {"x": x, "y": y, "color": runs, "shape": shapes}
    measures = [Measure(field="percentile", title="what"), Measure(field="run", title="run"), _LATENCY]
    joined: Layer = {"x": x, "y": y, "detail": {"field": "percentile", "type": "nominal"}}
    layers: list[Layer] = [
        {"mark": {"type": "line", "style": "reference", "strokeWidth": 1.4}, "encoding": joined},
        hovered({"type": "point", "size": 90}, encoding, measures),
    ]
    return Figure(
        title="Latency percentiles",
        subtitle="one row each; a line joins the runs" if len(names) > 1 else "",
        description="Latency percentiles on a log axis. " + _said(rows),
        spec={"data": {"values": rows}, "layer": layers},
        height=_HEIGHT * len({row["percentile"] for row in rows}) + 40,
    )


def _said(rows: list[Row]) -> str:
    """The 99th percentiles in words."""
    found = [
        f"{row['percentile']} of {row['run']}: {format_seconds(row['latency_s'])}."
        for row in rows
        if row["percentile"].endswith("p99")
    ]
    return " ".join(found)
