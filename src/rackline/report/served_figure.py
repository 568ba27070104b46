"""A figure of requests as they are served: each one a bar over time that waits, reads its prompt and writes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rackline.report.axes import Measure, linear_axis
from rackline.report.figure import Figure
from rackline.report.layers import Layer, Row, colour, hovered
from rackline.simulation import Result

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
        for place, request in enumerate(shown):
            for phase, begin, end in zip(PHASES, times[:-1, place], times[1:, place], strict=True):
                if end > begin:  # not where a time is unknown
                    rows.append(
                        {
                            "run": name,
                            "request": request + 1,
                            "phase": phase,
                            "start_s": float(begin),
                            "end_s": float(end),
                            "lane": lane + place,
                        }
                    )
    end_s = max((row["end_s"] for row in rows), default=1.0)
    time = Measure(field="start_s", title="time since the first of them arrived", kind="seconds")
    x = linear_axis(time, [0.0, end_s])
    lanes = len(results) * (len(shown) + _GAP) - _GAP
    y: Layer = {
        "field": "lane",
        "type": "quantitative",
        "scale": {"domain": [lanes, -3.0], "nice": False, "zero": False},
        "axis": None,
    }
    duration = Measure(field="duration_s", title="for", kind="seconds")
    measures = [
        Measure(field="run", title="run"),
        Measure(field="request", title="request", kind="count"),
        Measure(field="phase", title="phase"),
        Measure(field="start_s", title="from", kind="seconds"),
        duration,
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
    layers: list[Layer] = [
        hovered({"type": "rect"}, bars, measures, transform=until),
        {
            "data": {"values": names},
            "mark": {"type": "text", "align": "left", "baseline": "bottom", "style": "note"},
            "encoding": {"x": x, "y": y, "text": {"field": "run"}},
        },
        {
            "data": {"values": [{}]},
            "transform": [{"calculate": NOW, "as": "start_s"}, {"filter": f"{NOW} < {end_s!r}"}],
            "mark": {"type": "rule", "style": "reference"},
            "encoding": {"x": x},
        },
    ]
    return Figure(
        title="Requests as they are served",
        subtitle=f"{words}, around the longest wait for a first token; one row each, by arrival",
        description=f"Bars over time, a row for each request: {', '.join(PHASES)}. " + " ".join(_said(results, shown)),
        spec={"params": [{"name": NOW, "value": end_s}], "data": {"values": rows}, "layer": layers},
        height=190 * len(results) + 40,
    )


def _window(result: Result) -> list[int]:
    """Requests in a row around the one with the longest time to its first token."""
    count = len(result.arrival_s)
    waited = np.where(np.isfinite(result.ttft_s), result.ttft_s, -1.0)
    centre = int(np.argmax(waited)) if count else 0
    low = min(max(centre - MOST_REQUESTS // 2, 0), max(count - MOST_REQUESTS, 0))
    return list(range(low, min(low + MOST_REQUESTS, count)))


def _said(results: Mapping[str, Result], shown: list[int]) -> list[str]:
    """How long they waited, in words."""
    from rackline.units import format_seconds

    found: list[str] = []
    for name, result in results.items():
        known = result.ttft_s[shown]
        known = known[np.isfinite(known)]
        if len(known):
            middle, most = format_seconds(float(np.median(known))), format_seconds(float(known.max()))
            found.append(f"{name}: time to first token {middle} in the middle, {most} at most.")
    return found
