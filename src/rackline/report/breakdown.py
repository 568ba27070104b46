"""Tables of one pass: rows by seconds, resources, and the same pass on the ideal roofline beside it."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackline.passes import PassTime, RowTime
from rackline.report.wording import RESOURCE_STYLES, Unit, bar, flop, percent, resource_text, share, size
from rackline.units import format_seconds

_JOINT_FROM, _AMOUNTS_FROM = 110, 150
"""Columns of the terminal from which a pass and its ideal stand in one table, and from which amounts do as well."""
_SUM = (
    "total = the longest of compute, HBM and link + fixed + rest: what the shorter ones leave exposed, and the ramp of "
    "mid-size messages"
)


def spaced(parts: Sequence[RenderableType]) -> Group:
    """Parts of a report with an empty line between each two."""
    lines: list[RenderableType] = []
    for part in parts:
        lines += [part, Text("")]
    return Group(*lines[:-1])


def plain_table(title: str = "", *, caption: str = "") -> Table:
    """A table in the style of all reports: a rule under the header and no frame."""
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="left",
        caption_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )


def resources_line(time: PassTime) -> Text:
    """Time of each resource as if it worked alone, what binds first."""
    line = Text("each resource alone: ")
    ordered = sorted(time.by_resource.items(), key=lambda item: -item[1])
    for index, (resource, value) in enumerate(item for item in ordered if item[1] > 0):
        line.append(" · " if index else "")
        line.append_text(resource_text(resource))
        line.append(f" {format_seconds(value)}")
    return line


def pass_table(time: PassTime, title: str, *, width: int, least_share: float = 0.002) -> Table:
    """Rows in use sorted by seconds, with their share and what binds.

    Args:
        width: columns of the terminal; the amounts are left out below 150.
        least_share: rows below this share of the pass are added up in one line.
    """
    wide = width >= _AMOUNTS_FROM
    unit = Unit.of(time.seconds)
    table = plain_table(f"{title} (times in {unit.name})", caption=_SUM)
    table.add_column("operation", overflow="ellipsis", no_wrap=True, max_width=28 if wide else 20)
    if wide:
        for name in ("FLOP", "HBM bytes", "link bytes"):
            table.add_column(name, justify="right", no_wrap=True)
    _add_time_columns(table)
    if width >= 90:
        table.add_column("", no_wrap=True)
    table.add_column("binds", no_wrap=True)
    total = sum(row.seconds for row in time.rows if row.used)
    used = sorted((row for row in time.rows if row.used and row.seconds > 0), key=lambda row: -row.seconds)
    shown = [row for row in used if row.seconds >= least_share * total]
    rest = [row for row in used if row.seconds < least_share * total]
    most = max((row.seconds for row in used), default=1.0)

    def add(name: str, cells: list[str], row_s: float, binds: str, part: float | None) -> None:
        bars = [_bar(share(row_s, most), 14 if wide else 4, binds)] if part is not None else [Text()]
        table.add_row(
            name,
            *(cells or [""] * (8 if wide else 5)),
            unit.text(row_s),
            percent(part) if part is not None else "",
            *(bars if width >= 90 else []),
            resource_text(binds),
        )

    for row in shown:
        amounts = [flop(row.amounts.get("compute", 0.0)), size(row.amounts.get("hbm", 0.0)), size(link(row.amounts))]
        cells = [*(amounts if wide else []), *_times(row, unit)]
        add(row.name, cells, row.seconds, row.binds, share(row.seconds, total))
    if rest:
        left = sum(row.seconds for row in rest)
        add(f"{len(rest)} smaller", [], left, "", share(left, total))
    if time.host_s:
        add("host", [], time.host_s, "", None)
    table.add_section()
    how = {"serial": "sum of rows", "overlap": "streams overlap", "blackboard": "longest"}[time.policy]
    add(f"pass ({how})", [], time.seconds, time.binds, None)
    return table


def _bar(fraction: float, cells: int, binds: str) -> Text:
    return Text(bar(fraction, cells), style=RESOURCE_STYLES.get(binds, ""))


def _times(row: RowTime, unit: Unit) -> list[str]:
    times = row.resource_s
    links = max(times.get("scale_up", 0.0), times.get("scale_out", 0.0))
    each = (times.get("compute", 0.0), times.get("hbm", 0.0), links, row.overhead_s, row.rest_s)
    return [unit.text(value) for value in each]


def comparison(time: PassTime, ideal: PassTime, *, width: int) -> Group:
    """Every row in the order of the layers, and beside it the same row on the blackboard (unit calibration).

    One table where the terminal is wide, else one table of the pass and one of the comparison.
    """
    title = f"{time.calibration} calibration, {time.policy} policy"
    if width >= _JOINT_FROM:
        wide = width >= _AMOUNTS_FROM
        return Group(_layer_table(time, ideal, f"{title}, beside the blackboard", wide=wide))
    return Group(_layer_table(time, None, title, wide=False), Text(), _side_by_side(time, ideal))


def _add_time_columns(table: Table) -> None:
    """Columns of the times of a row, their sum and its share."""
    for name in ("compute", "HBM", "link", "fixed", "rest"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("total", justify="right", style="bold", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)


def _layer_table(time: PassTime, ideal: PassTime | None, title: str, *, wide: bool) -> Table:
    unit = Unit.of(time.seconds)
    table = plain_table(f"{title} (times in {unit.name})", caption=_SUM)
    table.add_column("operation", overflow="ellipsis", no_wrap=True, max_width=28 if wide else 22)
    if wide:
        table.add_column("type", no_wrap=True)
        for name in ("FLOP", "HBM bytes", "link bytes"):
            table.add_column(name, justify="right", no_wrap=True)
    _add_time_columns(table)
    if ideal is not None:  # else the table below says it
        table.add_column("binds", no_wrap=True)
        table.add_column("blackboard", justify="right", style="cyan", no_wrap=True)
        table.add_column("binds", no_wrap=True)
    total = sum(row.seconds for row in time.rows if row.used)
    for row, other in zip(time.rows, (ideal or time).rows, strict=True):
        if not (row.used and row.seconds) and not (ideal and other.used and other.seconds):
            continue
        amounts = [flop(row.amounts.get("compute", 0.0)), size(row.amounts.get("hbm", 0.0)), size(link(row.amounts))]
        cells: list[str | Text] = [row.dtype, *amounts] if wide else []
        cells += _times(row, unit)
        cells += [unit.text(row.seconds), percent(share(row.seconds, total))] if row.used else ["unused", ""]
        if ideal is not None:
            cells.append(resource_text(row.binds) if row.used else "")
            cells += [unit.text(other.seconds), resource_text(other.binds)] if other.used else ["unused", ""]
        table.add_row(row.name, *cells)
    blank = [""] * (9 if wide else 5)
    if time.host_s:
        table.add_row("host", *blank, unit.text(time.host_s))
    table.add_section()
    last = [resource_text(time.binds), unit.text(ideal.seconds), resource_text(ideal.binds)] if ideal else []
    table.add_row("pass", *blank, unit.text(time.seconds), "", *last)
    return table


def _side_by_side(time: PassTime, ideal: PassTime) -> Table:
    unit = Unit.of(time.seconds)
    table = plain_table(f"beside the blackboard: ideal roofline (times in {unit.name})")
    table.add_column("operation", overflow="ellipsis", no_wrap=True, max_width=22)
    table.add_column("total", justify="right", style="bold", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("binds", no_wrap=True)
    table.add_column("blackboard", justify="right", style="cyan", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("binds", no_wrap=True)
    most = max((row.seconds for row in (*time.rows, *ideal.rows) if row.used), default=1.0)
    for row, other in zip(time.rows, ideal.rows, strict=True):
        if not (row.used and row.seconds) and not (other.used and other.seconds):
            continue
        cells: list[str | Text] = []
        for one in (row, other):
            if one.used:
                cells += [
                    unit.text(one.seconds),
                    _bar(share(one.seconds, most), 8, one.binds),
                    resource_text(one.binds),
                ]
            else:
                cells += ["unused", "", ""]
        table.add_row(row.name, *cells)
    table.add_section()
    ends = [cell for one in (time, ideal) for cell in (unit.text(one.seconds), "", resource_text(one.binds))]
    table.add_row("pass", *ends)
    return table


def link(values: dict[str, float]) -> float:
    """Scale-up and scale-out together."""
    return values.get("scale_up", 0.0) + values.get("scale_out", 0.0)
