"""The figure of tasks in progress: hit rate, time and cost of a task, one above the other."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from rackline.report.axes import SERIES, Layer, Measure, Row, colour, dashes, hovered, linear_axis, log_axis
from rackline.report.figure import Figure
from rackline.report.wording import percent

_NUMBER = Measure(field="concurrency", title="tasks in progress", kind="count")
_PANELS = (
    (Measure(field="hit_share", title="hit rate", kind="share"), 130),
    (Measure(field="task_s", title="mean task", kind="seconds"), 120),
    (Measure(field="usd_per_task", title="$ a task", kind="usd"), 120),
)
_WIDTH, _IDEAL = 640, "unlimited cache"


def concurrency_figure(rows: Sequence[Row]) -> Figure:
    """Hit rate, time and cost against the number of tasks in progress.

    Args:
        rows: with the fields of the panels, `series` for the policy, and `unlimited_hit_share`; values that are not
            finite are left out.
    """
    names = list(dict.fromkeys(row[SERIES.field] for row in rows))
    ideal: list[Row] = [
        {**row, SERIES.field: _IDEAL, "hit_share": row["unlimited_hit_share"]}
        for row in rows
        if row[SERIES.field] == names[0]
    ]
    shown = [*names, _IDEAL]
    panels: list[Layer] = []
    for measure, height in _PANELS:
        there = [row for row in (*rows, *ideal) if measure.field == "hit_share" or row[SERIES.field] != _IDEAL]
        mine = [row for row in there if row[measure.field] is not None and isfinite(row[measure.field])]
        if not mine:
            continue
        x = log_axis(_NUMBER, [row[_NUMBER.field] for row in rows])
        if measure is not _PANELS[-1][0]:
            x = {**x, "axis": {**x["axis"], "title": None, "labels": False}}
        values = [row[measure.field] for row in mine]
        y = (
            linear_axis(measure, [*values, 1.0], most=4)
            if measure.field == "hit_share"
            else log_axis(measure, values, most=4)
        )
        encoding: Layer = {"x": x, "y": y, "color": colour(shown, width=_WIDTH), "strokeDash": dashes(shown)}
        line: Layer = {"type": "line", "point": True, "strokeWidth": 1.8}
        layer = hovered(line, encoding, [SERIES, _NUMBER, measure])
        panels.append({"width": _WIDTH, "height": height, "data": {"values": mine}, "layer": [layer]})
    ends = [row for row in rows if row[SERIES.field] == names[0]]
    return Figure(
        title="Tasks in progress: hit rate, time and cost",
        subtitle="each task is a session of calls whose context grows",
        description=(
            f"The hit rate is {percent(ends[0]['hit_share'])} at {ends[0]['concurrency']} tasks in progress and "
            f"{percent(ends[-1]['hit_share'])} at {ends[-1]['concurrency']}."
        ),
        spec={"vconcat": panels, "spacing": 8},
        height=sum(height + 8 for _, height in _PANELS),
        width=_WIDTH,
    )
