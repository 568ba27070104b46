"""Figures and files of a simulated run: latency tails, latency and load over time, Chrome trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rackline.report.axes import Measure, linear_axis, log_axis
from rackline.report.figure import Figure
from rackline.report.layers import Layer, Row, colour, dashes, hovered, limit, thinned
from rackline.report.percentiles_figure import METRICS
from rackline.simulation import Result
from rackline.units import format_seconds

_MOST_POINTS = 600
_MOST_STEPS = 300
_MICROSECONDS = 1e6
_MOST_EVENTS = 200_000
_LATENCY = Measure(field="latency_s", title="latency", kind="seconds")


def tails_figure(results: Mapping[str, Result]) -> Figure:
    """Share of requests that take longer than a time, on log axes: one curve a metric, one kind of dashes a run.

    Args:
        results: name → run.
    """
    share = Measure(field="share_above", title="share of requests that take longer", kind="share")
    rows: list[Row] = []
    for name, result in results.items():
        for metric, label in METRICS.items():
            values = np.sort(getattr(result, metric))
            values = values[np.isfinite(values) & (values > 0)]
            count = len(values)
            if not count:
                continue
            keep = np.unique(np.rint(count * (1.0 - np.geomspace(1.0, 1.0 / count, _MOST_STEPS))).astype(int))
            keep = keep[keep < count]
            rows += [
                {"metric": label, "run": name, "latency_s": float(values[index]), "share_above": 1.0 - index / count}
                for index in keep.tolist()
            ]
    metrics = [label for label in METRICS.values() if any(row["metric"] == label for row in rows)]
    x = log_axis(_LATENCY, [row["latency_s"] for row in rows])
    y = log_axis(share, [row["share_above"] for row in rows])
    encoding: Layer = {"x": x, "y": y, "color": colour(metrics, "metric")}
    shown = [Measure(field="metric", title="metric"), Measure(field="run", title="run"), _LATENCY, share]
    if len(results) > 1:
        encoding["strokeDash"] = {**dashes(list(results), "run"), "legend": {"title": None}}
    layers = [
        {"mark": {"type": "line", "interpolate": "step-after"}, "encoding": encoding},
        hovered({"type": "point", "opacity": 0, "size": 60}, {key: encoding[key] for key in ("x", "y")}, shown),
        *(
            part
            for q in (0.5, 0.1, 0.01)
            if y["scale"]["domain"][0] < q
            for part in limit("y", y, q, f"p{100 * (1 - q):g}", "reference")
        ),
    ]
    return Figure(
        title="Latency tails",
        subtitle=_requests(results),
        description="For each latency the share of requests that take longer, on log axes. "
        + " ".join(_percentiles_text(name, result) for name, result in results.items()),
        spec={"data": {"values": rows}, "layer": layers},
    )


def timeline_figure(results: Mapping[str, Result]) -> Figure:
    """Latency of each request over the time of its arrival.

    Args:
        results: name → run.
    """
    arrival = Measure(field="arrival_s", title="arrival", kind="seconds")
    rows: list[Row] = []
    names: list[str] = []
    for name, result in results.items():
        for metric in ("ttft_s", "e2e_s"):
            values, times = getattr(result, metric), result.arrival_s
            known = np.flatnonzero(np.isfinite(values))
            label = METRICS[metric] if len(results) == 1 else f"{METRICS[metric]}, {name}"
            names.append(label)
            rows += [
                {"series": label, "arrival_s": float(times[known[at]]), "latency_s": float(values[known[at]])}
                for at in thinned(len(known), _MOST_POINTS)
            ]
    x = linear_axis(arrival, [row["arrival_s"] for row in rows])
    y = log_axis(_LATENCY, [row["latency_s"] for row in rows])
    encoding = {"x": x, "y": y, "color": colour(names)}
    shown = [Measure(field="series", title="what"), arrival, _LATENCY]
    return Figure(
        title="Latency by arrival time",
        subtitle=_requests(results),
        description="Each request's time to first token and whole time over when it arrived. "
        + " ".join(_percentiles_text(name, result) for name, result in results.items()),
        spec={
            "data": {"values": rows},
            "layer": [hovered({"type": "point", "size": 14, "opacity": 0.75}, encoding, shown)],
        },
    )


def occupancy_figure(results: Mapping[str, Result]) -> Figure:
    """Requests that decode, and that wait or have prompts left, over time, of the first replica.

    Args:
        results: name → run.
    """
    time = Measure(field="time_s", title="time", kind="seconds")
    count = Measure(field="requests", title="requests", kind="count")
    rows: list[Row] = []
    names: list[str] = []
    for name, result in results.items():
        samples = result.samples[result.samples[:, 0] == 0]
        for column, what in ((2, "decoding"), (3, "waiting or in prefill")):
            label = what if len(results) == 1 else f"{what}, {name}"
            names.append(label)
            rows += [
                {"series": label, "time_s": float(samples[at, 1]), "requests": float(samples[at, column])}
                for at in thinned(len(samples), _MOST_POINTS)
            ]
    x = linear_axis(time, [row["time_s"] for row in rows])
    y = linear_axis(count, [row["requests"] for row in rows])
    encoding = {"x": x, "y": y, "color": colour(names)}
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6}
    peaks = {name: max((row["requests"] for row in rows if row["series"] == name), default=0.0) for name in names}
    return Figure(
        title="Requests of the first replica",
        subtitle=_requests(results),
        description="Requests over time. Most at once: "
        + ", ".join(f"{name} {peak:.0f}" for name, peak in peaks.items())
        + ".",
        spec={
            "data": {"values": rows},
            "layer": [
                {"mark": line, "encoding": encoding},
                hovered(
                    {"type": "point", "opacity": 0, "size": 60},
                    {"x": x, "y": y},
                    [Measure(field="series", title="what"), time, count],
                ),
            ],
        },
    )


def _requests(results: Mapping[str, Result]) -> str:
    count = len(next(iter(results.values())).requests)
    return f"{count:,} requests" + (f"; {len(results)} runs" if len(results) > 1 else "")


def _percentiles_text(name: str, result: Result) -> str:
    texts: list[str] = []
    for metric, label in METRICS.items():
        known = getattr(result, metric)[result.window().places]
        known = known[np.isfinite(known)]
        if len(known):
            half, tail = (format_seconds(float(value)) for value in np.percentile(known, (50, 99)))
            texts.append(f"{label} p50 {half}, p99 {tail}")
    return f"{name}: {'; '.join(texts)}."


def chrome_trace_of_run(result: Result) -> dict[str, Any]:
    """Passes of each replica as trace events, and the decoding sequences as a counter."""
    events: list[dict[str, Any]] = []
    for replica, records in enumerate(result.passes_run):
        title = f"replica {replica}"
        events.append({"name": "process_name", "ph": "M", "pid": replica, "tid": 0, "args": {"name": title}})
        for record in list(records)[:_MOST_EVENTS]:
            name = "prompts" if record.prompt_tokens else f"{record.passes} decode steps"
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": replica,
                    "tid": 1,
                    "ts": record.start_s * _MICROSECONDS,
                    "dur": record.duration_s * _MICROSECONDS,
                    "args": {"decoding": record.sequences, "prompt_tokens": record.prompt_tokens},
                }
            )
            events.append(
                {
                    "name": "decoding",
                    "ph": "C",
                    "pid": replica,
                    "ts": record.start_s * _MICROSECONDS,
                    "args": {"sequences": record.sequences},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
