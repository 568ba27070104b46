"""The figure of a fit: errors on held-out data, by kind of operation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rackline.fitting.summary import KindErrors
from rackline.report.axes import BAR_HEIGHT, Layer, Measure, Row, colour, hovered, log_axis, nothing_figure
from rackline.report.figure import Figure
from rackline.report.wording import percent

_KIND = Measure(field="kind", title="operation")
_GROUPS = Measure(field="groups", title="groups of chip, stack and data type", kind="count")
_TESTED = {
    "halves not fitted": ("median_error", "p90_error"),
    "families not fitted": ("family_median_error", "family_p90_error"),
    "ideal roofline": ("ideal_median_error", "ideal_p90_error"),
}


def errors_figure(kinds: Sequence[KindErrors], rows_read: int) -> Figure:
    """Median and 90th percentile of the errors of each kind of operation, beside those of the ideal roofline.

    Args:
        kinds: medians over groups.
        rows_read: rows of the tables [count].
    """
    rows: list[Row] = []
    for one in kinds:
        for tested, (median, p90) in _TESTED.items():
            low, high = getattr(one, median), getattr(one, p90)
            if math.isfinite(low) and math.isfinite(high) and low > 0:
                where = {"kind": one.kind, "groups": one.groups, "series": tested}
                rows.append({**where, "median": low, "p90": high})
    title = "Errors of the fit by kind of operation"
    if not rows:
        return nothing_figure(title, "No group has enough rows for a held-out test.")
    middle, worst = (
        Measure(field=name, title=text, kind="share")
        for name, text in (("median", "absolute error"), ("p90", "90th percentile"))
    )
    names = list(dict.fromkeys(row["kind"] for row in rows))
    used = [name for name in _TESTED if any(row["series"] == name for row in rows)]
    x = log_axis(middle, [value for row in rows for value in (row["median"], row["p90"])])
    y: Layer = {"field": "kind", "type": "nominal", "sort": names, "title": None}
    y |= {"axis": {"labelLimit": 260, "ticks": False, "domain": False, "grid": True}}
    shift: Layer = {"field": "series", "type": "nominal", "scale": {"domain": list(_TESTED), "paddingOuter": 0.3}}
    place: Layer = {"x": x, "y": y, "yOffset": shift, "color": colour(list(_TESTED), used=used)}
    shown = [_KIND, _GROUPS, Measure(field="median", title="median", kind="share"), worst]
    fitted = [row["median"] for row in rows if row["series"] == used[0]]
    return Figure(
        title=title,
        subtitle=f"dot: median; line: to the 90th percentile; {rows_read:,} rows",
        description=f"Median and 90th percentile of absolute errors for {len(names)} kinds of operations on log axes, "
        f"on random halves and families that were not fitted and of the ideal roofline. "
        f"Medians of the first lie within {percent(min(fitted))} to {percent(max(fitted))}.",
        spec={
            "data": {"values": rows},
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 2},
                    "encoding": {**place, "x2": {"field": "p90"}},
                },
                hovered({"type": "point", "size": 70}, place, shown),
            ],
        },
        height=3 * BAR_HEIGHT * len(names) // 2 + BAR_HEIGHT,
    )
