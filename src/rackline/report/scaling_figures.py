"""The figure of a fleet that follows a load: rate, replicas, queue and time to the first token, one above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackline.report.axes import SERIES, Layer, Measure, Row, colour, dashes, hovered, linear_axis, log_axis
from rackline.report.figure import Figure
from rackline.report.simulate_figures import NOW
from rackline.report.wording import written
from rackline.simulation.fleet_run import WindowRow

_TIME = Measure(field="start_s", title="time", kind="seconds")
_PANELS = (
    (Measure(field="rate_per_s", title="requests/s", kind="count"), 90),
    (Measure(field="replicas", title="replicas", kind="count"), 130),
    (Measure(field="waiting", title="waiting", kind="count"), 90),
    (Measure(field="ttft_p99_s", title="TTFT p99", kind="seconds"), 120),
)
_WIDTH = 640
_OF_CLASSES = (
    (Measure(field="rate_per_s", title="requests/s", kind="count"), 120),
    (Measure(field="ttft_p99_s", title="TTFT p99", kind="seconds"), 130),
    (Measure(field="tpot_p99_s", title="TPOT p99", kind="seconds"), 130),
)


def classes_figure(classes: Mapping[str, Sequence[WindowRow]]) -> Figure:
    """Rates and latencies of each class over time.

    Args:
        classes: name → windows.
    """
    peaks = [f"{name}: up to {written(max(row.rate_per_s for row in rows))}/s." for name, rows in classes.items()]
    return Figure(
        title="Classes of requests over time",
        subtitle="by windows of the arrivals; a class without requests in a window has no latency there",
        description="Requests and 99th percentiles of latencies of each class. " + " ".join(peaks),
        spec={"vconcat": _panels(list(classes.items()), {}, _OF_CLASSES), "spacing": 8},
        height=sum(height + 8 for _, height in _OF_CLASSES),
        width=_WIDTH,
    )


def over_time_figure(runs: Sequence[tuple[str, Sequence[WindowRow]]], limits: Mapping[str, float]) -> Figure:
    """The run of each policy by windows.

    The parameter `now` is the time up to which the lines are drawn, so that a page can play what happened.

    Args:
        runs: policy and its windows.
        limits: of latencies by name [s]; that of the time to the first token is drawn.
    """
    panels = _panels(runs, limits, _PANELS)
    said = [
        f"{name}: {written(sum(row.replicas for row in windows) / max(len(windows), 1))} replicas on average."
        for name, windows in runs
    ]
    end_s = max((window.end_s for _, windows in runs for window in windows), default=0.0)
    peak = max((row.rate_per_s for row in runs[0][1]), default=0.0)
    return Figure(
        title="Load, replicas, queue and latency over time",
        subtitle="by windows of the arrivals; the dashed line is the limit of the time to the first token",
        description=f"Requests up to {written(peak)}/s, and the replicas that follow them. " + " ".join(said),
        spec={"params": [{"name": NOW, "value": end_s}], "vconcat": panels, "spacing": 8},
        height=sum(height + 8 for _, height in _PANELS),
        width=_WIDTH,
    )


def _panels(
    runs: Sequence[tuple[str, Sequence[WindowRow]]],
    limits: Mapping[str, float],
    rows_of: Sequence[tuple[Measure, int]],
) -> list[Layer]:
    """Measures one above the other, a line for each run; the load of policies is the same for all."""
    is_load = rows_of is _PANELS
    names = [name for name, _ in runs]
    panels: list[Layer] = []
    for measure, height in rows_of:
        shown = runs[:1] if is_load and measure.field == "rate_per_s" else runs
        rows: list[Row] = []
        for name, windows in shown:
            for window in windows:
                value = getattr(window, measure.field)
                ends = (window.start_s, window.end_s) if window is windows[-1] else (window.start_s,)
                rows += [{SERIES.field: name, _TIME.field: at, measure.field: value} for at in ends]
        values = [row[measure.field] for row in rows if row[measure.field] is not None]
        x = linear_axis(_TIME, [row[_TIME.field] for row in rows], most=9)
        is_last = measure is rows_of[-1][0]
        if not is_last:
            x = {**x, "axis": {**x["axis"], "title": None, "labels": False}}
        wanted = [limits["ttft_s"]] if "ttft_s" in limits else []
        is_time = measure.kind == "seconds"
        y = log_axis(measure, [*values, *wanted], most=5) if is_time else linear_axis(measure, values, most=4)
        line: Layer = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.8}
        encoding: Layer = {"x": x, "y": y, "color": colour(names, width=_WIDTH)}
        if is_load and measure.field == "rate_per_s":
            line, encoding = {**line, "style": "muted", "fill": None}, {"x": x, "y": y}
        else:
            encoding["strokeDash"] = dashes(names)
        layers = [hovered(line, encoding, [SERIES, _TIME, measure])]
        if is_last and wanted:
            layers.append(
                {
                    "data": {"values": [{measure.field: wanted[0]}]},
                    "mark": {"type": "rule", "style": "limit"},
                    "encoding": {"y": {"field": measure.field, "type": "quantitative"}},
                }
            )
        if is_load:
            layers[0] = {"transform": [{"filter": f"datum.{_TIME.field} <= {NOW}"}], "layer": layers[:1]}
        panels.append({"width": _WIDTH, "height": height, "data": {"values": rows}, "layer": layers})
    return panels
