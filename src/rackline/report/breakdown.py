"""The table of one pass: rows by seconds, what each resource takes of them, the ideal roofline beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from rackline.passes import PassTime, RowTime
from rackline.report.column import SECTION, Column, Sheet
from rackline.report.wording import RESOURCE_STYLES, Unit, bar, flop, resource_text, share, size
from rackline.units import format_seconds

Cells = Mapping[str, Any]
LEAST_SHARE = 0.002
"""Share of a pass below which rows are added up in one line, where the ideal does not stand beside them."""
_SUM = (
    "total = the longest of compute, HBM and link + fixed + rest: what the shorter ones leave exposed, and the ramp of "
    "mid-size messages"
)
_POLICIES = {"serial": "sum of rows", "overlap": "streams overlap", "blackboard": "longest"}


def resources_line(time: PassTime) -> Text:
    """Time of each resource as if it worked alone, what binds first."""
    line = Text("each resource alone: ")
    ordered = sorted(time.by_resource.items(), key=lambda item: -item[1])
    for index, (resource, value) in enumerate(item for item in ordered if item[1] > 0):
        line.append(" · " if index else "")
        line.append_text(resource_text(resource))
        line.append(f" {format_seconds(value)}")
    return line


def pass_sheet(time: PassTime, title: str, ideal: PassTime | None = None) -> Sheet[Any]:
    """Rows of a pass, with their share and what binds.

    Args:
        title: of the table.
        ideal: the same pass on the blackboard (unit calibration): each row stands beside its own there, in the order
            of the layers. Without it the longest rows come first and the smallest are one.
    """
    unit = Unit.of(time.seconds)
    seconds = f"s in {unit.name}"
    columns: list[Column[Cells]] = [
        Column("name", "operation"),
        Column("dtype", "type", priority=7),
        Column("amounts.compute", "FLOP", "figures", priority=8),
        Column("amounts.hbm", "HBM bytes", "figures", priority=8),
        Column("amounts.link", "link bytes", "figures", priority=8),
        Column("resource_s.compute", "compute", seconds, priority=1),
        Column("resource_s.hbm", "HBM", seconds, priority=1),
        Column("resource_s.link", "link", seconds, priority=1),
        Column("overhead_s", "fixed", seconds, priority=1, note="launches and message steps"),
        Column("rest_s", "rest", seconds, priority=1, note="what the shorter resources leave exposed, and the ramp"),
        Column("seconds", "total", seconds, style="bold"),
        Column("share", "share", "share", priority=4),
        Column("", "", getter=lambda row: row.get("bar", ""), priority=6),
        Column("binds", "binds", priority=2),
    ]
    if ideal is not None:
        columns += [
            Column("blackboard_s", "ideal", seconds, style="cyan", note="on the ideal roofline"),
            Column("blackboard_binds", "binds", priority=5),
        ]
    rows = [*_rows(time, ideal), SECTION, _whole(time, ideal)]
    return Sheet("pass", columns, rows, title=f"{title} (times in {unit.name})", caption=_SUM)


def _rows(time: PassTime, ideal: PassTime | None) -> Iterator[Cells]:
    total = sum(row.seconds for row in time.rows if row.used)
    most = max((row.seconds for row in time.rows if row.used), default=1.0)
    if ideal is not None:
        for row, other in zip(time.rows, ideal.rows, strict=True):
            if (row.used and row.seconds) or (other.used and other.seconds):
                best = (other.seconds, resource_text(other.binds)) if other.used else ("unused", "")
                yield {**_cells(row, total, most), "blackboard_s": best[0], "blackboard_binds": best[1]}
    else:
        used = sorted((row for row in time.rows if row.used and row.seconds > 0), key=lambda row: -row.seconds)
        for row in used:
            if row.seconds >= LEAST_SHARE * total:
                yield _cells(row, total, most)
        rest = [row.seconds for row in used if row.seconds < LEAST_SHARE * total]
        if rest:
            yield {"name": f"{len(rest)} smaller", "seconds": sum(rest), "share": share(sum(rest), total)}
    if time.host_s:
        yield {"name": "host", "seconds": time.host_s}


def _cells(row: RowTime, total: float, most: float) -> Cells:
    times, amounts = row.resource_s, row.amounts
    if not row.used:
        return {"name": row.name, "dtype": row.dtype, "seconds": "unused", "binds": ""}
    return {
        "name": row.name,
        "dtype": row.dtype,
        "amounts.compute": flop(amounts.get("compute", 0.0)),
        "amounts.hbm": size(amounts.get("hbm", 0.0)),
        "amounts.link": size(link(amounts)),
        "resource_s.compute": times.get("compute", 0.0),
        "resource_s.hbm": times.get("hbm", 0.0),
        "resource_s.link": max(times.get("scale_up", 0.0), times.get("scale_out", 0.0)),
        "overhead_s": row.overhead_s,
        "rest_s": row.rest_s,
        "seconds": row.seconds,
        "share": share(row.seconds, total),
        "bar": Text(bar(share(row.seconds, most), 8), style=RESOURCE_STYLES.get(row.binds, "")),
        "binds": resource_text(row.binds),
    }


def _whole(time: PassTime, ideal: PassTime | None) -> Cells:
    found: dict[str, Any] = {
        "name": f"pass ({_POLICIES[time.policy]})",
        "seconds": time.seconds,
        "binds": resource_text(time.binds),
    }
    if ideal is not None:
        found |= {"blackboard_s": ideal.seconds, "blackboard_binds": resource_text(ideal.binds)}
    return found


def link(values: Mapping[str, float]) -> float:
    """Scale-up and scale-out together."""
    return values.get("scale_up", 0.0) + values.get("scale_out", 0.0)
