"""Figures and files of a simulated run: tails of latency, batch and cache over time, Chrome trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rackline.report.figures import BLUE, GREEN, GREY, ORANGE, Figure
from rackline.report.run_files import PlotKind
from rackline.simulation import Result

_COLORS = (BLUE, ORANGE, GREEN, GREY, "#CC79A7", "#E69F00")
_DASHES = ("solid", "dash", "dot", "dashdot")  # one a run, a color for each metric
_METRICS = {"ttft_s": BLUE, "tpot_s": ORANGE, "e2e_s": GREEN}
_MOST_POINTS = 600
_MICROSECONDS = 1e6
_MOST_EVENTS = 200_000


def run_figure(results: Mapping[str, Result], kind: PlotKind) -> Figure:
    """A figure of one run, or of several that are compared.

    Args:
        results: name → run.
        kind: "cdf" (share of requests that take longer, log axes), "timeline" (latency by time of arrival) or
            "occupancy" (decoding sequences, waiting requests over time).
    """
    if kind == "cdf":
        return _tails(results)
    return _timeline(results) if kind == "timeline" else _occupancy(results)


def _line(name: str, x: Any, y: Any, color: str, mode: str = "lines", dash: str = "solid") -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "mode": mode,
        "x": np.asarray(x, dtype=float).tolist(),
        "y": np.asarray(y, dtype=float).tolist(),
        "marker": {"color": color, "symbol": "circle", "size": 3},
        "line": {"color": color, "dash": dash},
    }


def _layout(title: str, x: str, y: str, kind: str) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "xaxis": {"type": kind, "title": {"text": x}},
        "yaxis": {"type": kind, "title": {"text": y}},
        "shapes": [],
    }


def _tails(results: Mapping[str, Result]) -> Figure:
    data: list[dict[str, Any]] = []
    for index, (name, result) in enumerate(results.items()):
        for metric, color in _METRICS.items():
            values = np.sort(getattr(result, metric))
            values = values[np.isfinite(values) & (values > 0)]
            if not len(values):
                continue
            share = 1.0 - np.arange(len(values)) / len(values)
            keep = np.unique(np.rint(len(values) * (1.0 - np.geomspace(1.0, 1.0 / len(values), 300))).astype(int))
            keep = keep[keep < len(values)]
            label = metric.removesuffix("_s") if len(results) == 1 else f"{metric.removesuffix('_s')}, {name}"
            dash = _DASHES[index % len(_DASHES)]
            data.append(_line(label, values[keep], share[keep], color, dash=dash))
    return {
        "data": data,
        "layout": _layout("Tails of latency", "latency [s]", "share of requests that take longer", "log"),
    }


def _timeline(results: Mapping[str, Result]) -> Figure:
    data: list[dict[str, Any]] = []
    for name, result in results.items():
        for metric in ("ttft_s", "e2e_s"):
            values, times = getattr(result, metric), result.arrival_s
            known = np.flatnonzero(np.isfinite(values))
            known = known[:: max(1, len(known) // _MOST_POINTS)]
            label = metric.removesuffix("_s") if len(results) == 1 else f"{metric.removesuffix('_s')}, {name}"
            data.append(_line(label, times[known], values[known], _COLORS[len(data) % len(_COLORS)], "markers"))
    return {"data": data, "layout": _layout("Latency by time of arrival", "arrival [s]", "latency [s]", "linear")}


def _occupancy(results: Mapping[str, Result]) -> Figure:
    data: list[dict[str, Any]] = []
    for name, result in results.items():
        for column, what in ((2, "decoding"), (3, "waiting or in prefill")):
            rows = result.samples[result.samples[:, 0] == 0]
            rows = rows[:: max(1, len(rows) // _MOST_POINTS)]
            label = what if len(results) == 1 else f"{what}, {name}"
            data.append(_line(label, rows[:, 1], rows[:, column], _COLORS[len(data) % len(_COLORS)]))
    return {"data": data, "layout": _layout("Requests of the first replica", "time [s]", "requests", "linear")}


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
