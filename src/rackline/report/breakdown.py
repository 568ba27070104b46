"""Tables of one pass: rows by seconds, resources, and the same pass on the blackboard beside it."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from rackline.passes import PassTime, RowTime
from rackline.report.wording import RESOURCE_STYLES, bar, flop, percent, resource_text, seconds, share, size
from rackline.units import format_seconds


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
        padding=(0, 1),
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
        width: columns of the terminal; the amounts and the resources are left out below 110.
        least_share: rows below this share of the pass are added up in the last line.
    """
    wide = width >= 110
    table = plain_table(title)
    table.add_column("operation", overflow="ellipsis", no_wrap=True)
    if wide:
        for name in ("FLOP", "HBM", "link"):
            table.add_column(name, justify="right", no_wrap=True)
    for name in ("compute", "HBM", "link", "overhead"):
        table.add_column(f"t {name}" if wide else name, justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", style="bold", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("binds", no_wrap=True)
    total = sum(row.seconds for row in time.rows if row.used)
    used = sorted((row for row in time.rows if row.used and row.seconds > 0), key=lambda row: -row.seconds)
    shown = [row for row in used if row.seconds >= least_share * total]
    rest = [row for row in used if row.seconds < least_share * total]
    most = max((row.seconds for row in used), default=1.0)
    for row in shown:
        cells: list[str | Text] = [row.name]
        if wide:
            cells += [flop(row.amounts.get("compute", 0.0)), size(row.amounts.get("hbm", 0.0)), size(link(row.amounts))]
        cells += [
            seconds(row.resource_s.get("compute", 0.0)),
            seconds(row.resource_s.get("hbm", 0.0)),
            seconds(link(row.resource_s)),
            seconds(row.overhead_s),
            format_seconds(row.seconds),
            percent(share(row.seconds, total)),
            Text(bar(share(row.seconds, most), 14 if wide else 6), style=RESOURCE_STYLES.get(row.binds, "")),
            resource_text(row.binds),
        ]
        table.add_row(*cells)
    blank = [""] * (7 if wide else 4)
    if rest:
        left = sum(row.seconds for row in rest)
        table.add_row(f"{len(rest)} smaller rows", *blank, format_seconds(left), percent(share(left, total)), "", "")
    if time.host_s:
        table.add_row("host", *blank, format_seconds(time.host_s), "", "", "")
    table.add_section()
    how = {"serial": "sum of rows", "overlap": "streams overlap", "blackboard": "longest resource"}[time.policy]
    table.add_row(f"pass ({how})", *blank, format_seconds(time.seconds), "", "", resource_text(time.binds))
    return table


def comparison_table(time: PassTime, ideal: PassTime, *, width: int) -> Table:
    """Every row in use beside the same row on the blackboard (unit calibration), in the order of the layers."""
    wide = width >= 110
    table = plain_table(
        f"row by row: {time.calibration} calibration, {time.policy} policy; beside it the blackboard (ideal roofline)"
    )
    table.add_column("operation", overflow="ellipsis", no_wrap=True)
    if wide:
        for name in ("type", "FLOP", "HBM", "link"):
            table.add_column(name, justify="left" if name == "type" else "right", no_wrap=True)
        for name in ("compute", "HBM", "link", "overhead"):
            table.add_column(f"t {name}", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", style="bold", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    if not wide:
        table.add_column("", no_wrap=True)
    table.add_column("binds", no_wrap=True)
    table.add_column("blackboard", justify="right", style="cyan", no_wrap=True)
    table.add_column("binds", no_wrap=True)
    total = sum(row.seconds for row in time.rows if row.used)
    most = max((row.seconds for row in time.rows if row.used), default=1.0)
    for row, other in zip(time.rows, ideal.rows, strict=True):
        if not (row.used and row.seconds) and not (other.used and other.seconds):
            continue
        table.add_row(row.name, *_comparison_cells(row, other, total, most, wide))
    table.add_section()
    blank = [""] * (8 if wide else 0)
    table.add_row(
        "pass",
        *blank,
        format_seconds(time.seconds),
        "",
        *([] if wide else [""]),
        resource_text(time.binds),
        format_seconds(ideal.seconds),
        resource_text(ideal.binds),
    )
    return table


def _comparison_cells(row: RowTime, other: RowTime, total: float, most: float, wide: bool) -> list[str | Text]:
    cells: list[str | Text] = []
    if wide:
        amounts, times = row.amounts, row.resource_s
        cells += [row.dtype, flop(amounts.get("compute", 0.0)), size(amounts.get("hbm", 0.0)), size(link(amounts))]
        cells += [seconds(times.get("compute", 0.0)), seconds(times.get("hbm", 0.0)), seconds(link(times))]
        cells += [seconds(row.overhead_s)]
    if row.used:
        cells += [seconds(row.seconds), percent(share(row.seconds, total))]
        if not wide:
            cells.append(Text(bar(share(row.seconds, most), 8), style=RESOURCE_STYLES.get(row.binds, "")))
        cells.append(resource_text(row.binds))
    else:
        cells += ["not used", ""] + ([] if wide else [""]) + [""]
    cells += [seconds(other.seconds), resource_text(other.binds)] if other.used else ["not used", ""]
    return cells


def link(values: dict[str, float]) -> float:
    """Scale-up and scale-out together."""
    return values.get("scale_up", 0.0) + values.get("scale_out", 0.0)
