"""Figures of simulated service: answers and latencies, the fleet that follows a load, tasks in progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from rackline.display.axes import (
    SERIES,
    UNSEEN,
    Layer,
    Measure,
    Row,
    colour,
    dashes,
    hovered,
    layered,
    limit,
    linear_axis,
    log_axis,
    marked,
    name_axis,
    shapes,
    thinned,
)
from rackline.display.figure import Figure
from rackline.display.wording import percent, written
from rackline.simulation import Result
from rackline.simulation.fleet_run import WindowRow
from rackline.units import format_seconds

Floats = NDArray[np.float64]
METRICS = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "whole request"}
PERCENTILES = (50, 90, 95, 99)

_LATENCY = Measure(field="latency_s", title="latency", kind="seconds")
_HEIGHT = 22  # of a row [pixels]
_SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")


def percentiles_figure(results: Mapping[str, Result], what: str = "runs") -> Figure:
    """A row for each percentile of each latency, runs by colour and shape; a line joins those of one row.

    Args:
        results: name → run.
        what: they are.
    """
    rows: list[Row] = [
        {"percentile": f"{label}, p{percentile}", "run": name, "latency_s": float(np.percentile(values, percentile))}
        for metric, label in METRICS.items()
        for percentile in PERCENTILES
        for name, result in results.items()
        if len(values := _positive(getattr(result, metric)))
    ]
    names = list(results)
    place = {
        "x": log_axis(_LATENCY, [row["latency_s"] for row in rows]),
        "y": name_axis("percentile", None, axis={"title": None, "labelLimit": 260, "domain": False, "grid": True}),
    }
    encoding: Layer = {**place, "color": colour(names, "run"), "shape": shapes(names, "run", _SHAPES)}
    joined: Layer = {**place, "detail": {"field": "percentile", "type": "nominal"}}
    measures = [Measure(field="percentile", title="what"), Measure(field="run", title="run"), _LATENCY]
    tails = (
        f"{row['percentile']} of {row['run']}: {format_seconds(row['latency_s'])}."
        for row in rows
        if row["percentile"].endswith("p99")
    )
    return Figure(
        title="Latency percentiles",
        subtitle=f"one row each; a line joins the {what}" if len(names) > 1 else "",
        description="Latency percentiles on a log axis. " + " ".join(tails),
        spec=layered(
            rows,
            {"mark": {"type": "line", "style": "reference", "strokeWidth": 1.4}, "encoding": joined},
            hovered({"type": "point", "size": 90}, encoding, measures),
        ),
        height=_HEIGHT * len({row["percentile"] for row in rows}) + 40,
    )


def _positive(values: Floats) -> Floats:
    return values[np.isfinite(values) & (values > 0)]


_MOST_POINTS = 600
_MOST_STEPS = 300


def tails_figure(results: Mapping[str, Result]) -> Figure:
    """Share of requests that take longer than a time, on log axes: one curve a metric, one kind of dashes a run.

    Args:
        results: name → run.
    """
    share = Measure(field="share_above", title="share of requests that take longer", kind="share")
    rows: list[Row] = []
    for name, result in results.items():
        for metric, label in METRICS.items():
            values = np.sort(_positive(getattr(result, metric)))
            count = max(len(values), 1)
            keep = np.unique(np.rint(count * (1.0 - np.geomspace(1.0, 1.0 / count, _MOST_STEPS))).astype(int))
            rows += [
                {"metric": label, "run": name, "latency_s": float(values[index]), "share_above": 1.0 - index / count}
                for index in keep.tolist()
                if index < len(values)
            ]
    metrics = [label for label in METRICS.values() if any(row["metric"] == label for row in rows)]
    y = log_axis(share, [row["share_above"] for row in rows])
    place = {"x": log_axis(_LATENCY, [row["latency_s"] for row in rows]), "y": y}
    encoding: Layer = {**place, "color": colour(metrics, "metric")}
    if len(results) > 1:
        encoding["strokeDash"] = {**dashes(list(results), "run"), "legend": {"title": None}}
    shown = [Measure(field="metric", title="metric"), Measure(field="run", title="run"), _LATENCY, share]
    tails = [(q, f"p{100 * (1 - q):g}") for q in (0.5, 0.1, 0.01) if y["scale"]["domain"][0] < q]
    return Figure(
        title="Latency tails",
        subtitle=_requests(results),
        description="For each latency the share of requests that take longer, on log axes. "
        + _percentiles_text(results),
        spec=layered(
            rows,
            {"mark": {"type": "line", "interpolate": "step-after"}, "encoding": encoding},
            hovered(UNSEEN, place, shown),
            *(part for q, text in tails for part in limit("y", y, q, text, "reference")),
        ),
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
    encoding = {
        "x": linear_axis(arrival, [row["arrival_s"] for row in rows]),
        "y": log_axis(_LATENCY, [row["latency_s"] for row in rows]),
        "color": colour(names),
    }
    shown = [Measure(field="series", title="what"), arrival, _LATENCY]
    return Figure(
        title="Latency by arrival time",
        subtitle=_requests(results),
        description="Each request's time to first token and whole time over when it arrived. "
        + _percentiles_text(results),
        spec=layered(rows, hovered({"type": "point", "size": 14, "opacity": 0.75}, encoding, shown)),
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
    place = {
        "x": linear_axis(time, [row["time_s"] for row in rows]),
        "y": linear_axis(count, [row["requests"] for row in rows]),
    }
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6}
    peaks = [
        f"{name} {max((row['requests'] for row in rows if row['series'] == name), default=0.0):.0f}"
        for name in dict.fromkeys(names)
    ]
    return Figure(
        title="Requests of the first replica",
        subtitle=_requests(results),
        description=f"Requests over time. Most at once: {', '.join(peaks)}.",
        spec=layered(
            rows,
            {"mark": line, "encoding": {**place, "color": colour(names)}},
            hovered(UNSEEN, place, [Measure(field="series", title="what"), time, count]),
        ),
    )


def _requests(results: Mapping[str, Result]) -> str:
    text = f"{len(next(iter(results.values())).requests):,} requests"
    return f"{text}; {len(results)} runs" if len(results) > 1 else text


def _percentiles_text(results: Mapping[str, Result]) -> str:
    """Median and 99th percentile of each latency of each run, in words."""
    said: list[str] = []
    for name, result in results.items():
        texts: list[str] = []
        for metric, label in METRICS.items():
            known = getattr(result, metric)[result.window().places]
            known = known[np.isfinite(known)]
            if len(known):
                half, tail = (format_seconds(float(value)) for value in np.percentile(known, (50, 99)))
                texts.append(f"{label} p50 {half}, p99 {tail}")
        said.append(f"{name}: {'; '.join(texts)}.")
    return " ".join(said)


PHASES = ("waiting", "prefill", "decode")
MOST_REQUESTS = 60
NOW = "now"
"""The parameter up to which bars are drawn [s]; at first the end."""

_GAP = 4  # rows between two runs


def served_figure(results: Mapping[str, Result]) -> Figure:
    """Requests in a row around the one that waits longest for its first token, in all runs the same.

    The parameter `now` is the time up to which the bars are drawn, so that a page can play what happened.

    Args:
        results: name → run, of the same requests.
    """
    first = next(iter(results.values()))
    shown = _window(first)
    start_s = float(first.arrival_s[shown[0]])
    rows: list[Row] = []
    names: list[Row] = []
    for number, (name, result) in enumerate(results.items()):
        lane = number * (len(shown) + _GAP)
        names.append({"run": name, "lane": lane - 0.6, "start_s": 0.0})
        times = np.stack([result.arrival_s, result.admitted_s, result.first_s, result.finish_s])[:, shown] - start_s
        rows += [
            {
                "run": name,
                "request": request + 1,
                "phase": phase,
                "start_s": float(begin),
                "end_s": float(end),
                "lane": lane + place,
            }
            for place, request in enumerate(shown)
            for phase, begin, end in zip(PHASES, times[:-1, place], times[1:, place], strict=True)
            if end > begin  # not where a time is unknown
        ]
    end_s = max((row["end_s"] for row in rows), default=1.0)
    time = Measure(field="start_s", title="time since the first of them arrived", kind="seconds")
    x = linear_axis(time, [0.0, end_s])
    y: Layer = {
        "field": "lane",
        "type": "quantitative",
        "scale": {"domain": [(len(results) * (len(shown) + _GAP) - _GAP), -3.0], "nice": False, "zero": False},
        "axis": None,
    }
    measures = [
        Measure(field="run", title="run"),
        Measure(field="request", title="request", kind="count"),
        Measure(field="phase", title="phase"),
        Measure(field="start_s", title="from", kind="seconds"),
        Measure(field="duration_s", title="for", kind="seconds"),
    ]
    until = [
        {"calculate": "datum.end_s - datum.start_s", "as": "duration_s"},
        {"filter": f"datum.start_s <= {NOW}"},
        {"calculate": f"min(datum.end_s, {NOW})", "as": "until_s"},
        {"calculate": "datum.lane + 0.82", "as": "lane_end"},
    ]
    bars: Layer = {
        "x": x,
        "x2": {"field": "until_s"},
        "y": y,
        "y2": {"field": "lane_end"},
        "color": colour(PHASES, "phase"),
    }
    words = f"requests {shown[0] + 1:,} to {shown[-1] + 1:,} of {len(first.arrival_s):,}"
    return Figure(
        title="Requests as they are served",
        subtitle=f"{words}, around the longest wait for a first token; one row each, by arrival",
        description=f"Bars over time, a row for each request: {', '.join(PHASES)}. "
        + " ".join(_waits_in_words(results, shown)),
        spec=layered(
            rows,
            hovered({"type": "rect"}, bars, measures, transform=until),
            marked(
                names,
                {"x": x, "y": y, "text": {"field": "run"}},
                type="text",
                align="left",
                baseline="bottom",
                style="note",
            ),
            {
                **marked([{}], {"x": x}, type="rule", style="reference"),
                "transform": [{"calculate": NOW, "as": "start_s"}, {"filter": f"{NOW} < {end_s!r}"}],
            },
            params=[{"name": NOW, "value": end_s}],
        ),
        height=190 * len(results) + 40,
    )


def _window(result: Result) -> list[int]:
    """Requests in a row around the one with the longest time to its first token."""
    count = len(result.arrival_s)
    centre = int(np.argmax(np.where(np.isfinite(result.ttft_s), result.ttft_s, -1.0))) if count else 0
    low = min(max(centre - MOST_REQUESTS // 2, 0), max(count - MOST_REQUESTS, 0))
    return list(range(low, min(low + MOST_REQUESTS, count)))


def _waits_in_words(results: Mapping[str, Result], shown: list[int]) -> list[str]:
    """How long they waited, in words."""
    found: list[str] = []
    for name, result in results.items():
        known = result.ttft_s[shown]
        known = known[np.isfinite(known)]
        if len(known):
            middle, most = format_seconds(float(np.median(known))), format_seconds(float(known.max()))
            found.append(f"{name}: time to first token {middle} in the middle, {most} at most.")
    return found


_WIDTH = 640
_TIME = Measure(field="start_s", title="time", kind="seconds")
_TTFT = Measure(field="ttft_p99_s", title="TTFT p99", kind="seconds")
_RATE = Measure(field="rate_per_s", title="requests/s", kind="count")
_OF_FLEET = (
    (_RATE, 90),
    (Measure(field="replicas", title="replicas", kind="count"), 130),
    (Measure(field="waiting", title="waiting", kind="count"), 90),
    (_TTFT, 120),
)
_OF_CLASSES = ((_RATE, 120), (_TTFT, 130), (Measure(field="tpot_p99_s", title="TPOT p99", kind="seconds"), 130))
_TASKS = Measure(field="concurrency", title="tasks in progress", kind="count")
_OF_TASKS = (
    (Measure(field="hit_share", title="hit rate", kind="share"), 130),
    (Measure(field="task_s", title="mean task", kind="seconds"), 120),
    (Measure(field="usd_per_task", title="$ a task", kind="usd"), 120),
)
_IDEAL = "unlimited cache"


def _stacked(panels: Sequence[Layer], params: Sequence[Row] = (), **words: str) -> Figure:
    """Panels one above the other.

    Args:
        params: of the specification.
        words: title, subtitle and description.
    """
    return Figure(
        spec={**({"params": [*params]} if params else {}), "vconcat": [*panels], "spacing": 8},
        height=sum(panel["height"] + 8 for panel in panels),
        width=_WIDTH,
        **words,
    )


def _panel(height: int, rows: Sequence[Row], layers: Sequence[Layer]) -> Layer:
    return {"width": _WIDTH, "height": height, "data": {"values": rows}, "layer": layers}


def _above_others(x: Layer) -> Layer:
    """The axis of a panel that has another one below it."""
    return {**x, "axis": {**x["axis"], "title": None, "labels": False}}


def concurrency_figure(rows: Sequence[Row]) -> Figure:
    """Hit rate, time and cost against the number of tasks in progress.

    Args:
        rows: with the fields of the panels, `series` for the policy, and `unlimited_hit_share`; values that are not
            finite are left out.
    """
    names = list(dict.fromkeys(row[SERIES.field] for row in rows))
    first = [row for row in rows if row[SERIES.field] == names[0]]
    ideal: list[Row] = [{**row, SERIES.field: _IDEAL, "hit_share": row["unlimited_hit_share"]} for row in first]
    shown = [*names, _IDEAL]
    panels: list[Layer] = []
    for measure, height in _OF_TASKS:
        is_hit = measure.field == "hit_share"
        there: Sequence[Row] = (*rows, *ideal) if is_hit else rows
        mine = [row for row in there if row[measure.field] is not None and isfinite(row[measure.field])]
        if not mine:
            continue
        x, values = log_axis(_TASKS, [row[_TASKS.field] for row in rows]), [row[measure.field] for row in mine]
        encoding: Layer = {
            "x": x if measure is _OF_TASKS[-1][0] else _above_others(x),
            "y": linear_axis(measure, [*values, 1.0], most=4) if is_hit else log_axis(measure, values, most=4),
            "color": colour(shown, width=_WIDTH),
            "strokeDash": dashes(shown),
        }
        line = {"type": "line", "point": True, "strokeWidth": 1.8}
        panels.append(_panel(height, mine, [hovered(line, encoding, [SERIES, _TASKS, measure])]))
    return _stacked(
        panels,
        title="Tasks in progress: hit rate, time and cost",
        subtitle="each task is a session of calls whose context grows",
        description=(
            f"The hit rate is {percent(first[0]['hit_share'])} at {first[0]['concurrency']} tasks in progress and "
            f"{percent(first[-1]['hit_share'])} at {first[-1]['concurrency']}."
        ),
    )


def classes_figure(classes: Mapping[str, Sequence[WindowRow]]) -> Figure:
    """Rates and latencies of each class over time.

    Args:
        classes: name → windows.
    """
    peaks = [f"{name}: up to {written(max(row.rate_per_s for row in rows))}/s." for name, rows in classes.items()]
    return _stacked(
        _panels([*classes.items()], {}, _OF_CLASSES),
        title="Classes of requests over time",
        subtitle="by windows of the arrivals; a class without requests in a window has no latency there",
        description="Requests and 99th percentiles of latencies of each class. " + " ".join(peaks),
    )


def over_time_figure(runs: Sequence[tuple[str, Sequence[WindowRow]]], limits: Mapping[str, float]) -> Figure:
    """The run of each policy by windows.

    The parameter `now` is the time up to which the lines are drawn, so that a page can play what happened.

    Args:
        runs: policy and its windows.
        limits: of latencies by name [s]; that of the time to the first token is drawn.
    """
    said = [
        f"{name}: {written(sum(row.replicas for row in windows) / max(len(windows), 1))} replicas on average."
        for name, windows in runs
    ]
    end_s = max((window.end_s for _, windows in runs for window in windows), default=0.0)
    peak = written(max((row.rate_per_s for row in runs[0][1]), default=0.0))
    return _stacked(
        _panels(runs, limits, _OF_FLEET),
        [{"name": NOW, "value": end_s}],
        title="Load, replicas, queue and latency over time",
        subtitle="by windows of the arrivals; the dashed line is the limit of the time to the first token",
        description=f"Requests up to {peak}/s, and the replicas that follow them. " + " ".join(said),
    )


def _panels(
    runs: Sequence[tuple[str, Sequence[WindowRow]]],
    limits: Mapping[str, float],
    rows_of: Sequence[tuple[Measure, int]],
) -> list[Layer]:
    """Measures one above the other, a line for each run; the load of policies is the same for all."""
    of_fleet = rows_of is _OF_FLEET
    names, wanted = [name for name, _ in runs], [limits["ttft_s"]] if "ttft_s" in limits else []
    panels: list[Layer] = []
    for measure, height in rows_of:
        is_load, is_last = of_fleet and measure is _RATE, measure is rows_of[-1][0]
        rows: list[Row] = [
            {SERIES.field: name, _TIME.field: at, measure.field: getattr(window, measure.field)}
            for name, windows in (runs[:1] if is_load else runs)
            for window in windows
            for at in ((window.start_s, window.end_s) if window is windows[-1] else (window.start_s,))
        ]
        values = [row[measure.field] for row in rows if row[measure.field] is not None]
        x, is_time = linear_axis(_TIME, [row[_TIME.field] for row in rows], most=9), measure.kind == "seconds"
        encoding: Layer = {
            "x": x if is_last else _above_others(x),
            "y": log_axis(measure, [*values, *wanted], most=5) if is_time else linear_axis(measure, values, most=4),
        }
        line: Layer = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.8}
        if is_load:
            line |= {"style": "muted", "fill": None}
        else:
            encoding |= {"color": colour(names, width=_WIDTH), "strokeDash": dashes(names)}
        layers = [hovered(line, encoding, [SERIES, _TIME, measure])]
        if of_fleet:
            layers = [{"transform": [{"filter": f"datum.{_TIME.field} <= {NOW}"}], "layer": layers}]
        if is_last and wanted:
            place = {"y": {"field": measure.field, "type": "quantitative"}}
            layers.append(marked([{measure.field: wanted[0]}], place, type="rule", style="limit"))
        panels.append(_panel(height, rows, layers))
    return panels
