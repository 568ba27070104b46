"""Terminal report of what fits: layouts with weights, room for KV, largest context and concurrency."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.choice_report import need_text
from rackline.report.wording import memory_share, short_count
from rackline.search.fits import ClusterNeed
from rackline.serving.capacity import Capacity, CapacityRow
from rackline.units import format_bytes, format_count

_MOST_ROWS = 20


def capacity_report(capacity: Capacity, *, num_chips: int, need: ClusterNeed | None = None) -> Group:
    """Everything that `rackline fit` prints.

    Args:
        num_chips: chips of the cluster [chips].
        need: the nearest chips that would hold one request, when none fits here.
    """
    asked = f"context {short_count(capacity.context_len)}"
    if capacity.concurrency is not None:
        asked += f", {capacity.concurrency:,} requests at once"
    body = Text()
    fitting = capacity.fitting
    if fitting:
        first = fitting[0]
        body.append(f"{first.total_concurrency:,} requests", style="bold green")
        body.append(f" of {short_count(capacity.context_len)} tokens at once on {num_chips} chips with ")
        body.append(first.layout.label(), style="bold")
        body.append(f"\n{len(fitting)} of {len(capacity.rows)} layouts hold what was asked")
    else:
        body.append("Nothing fits. ", style="bold red")
        body.append(nearest_reason(capacity))
        if need is not None:
            body.append("\n")
            body.append(need_text(need, capacity.cluster))
    parts: list[RenderableType] = [
        Panel(
            body,
            title=f"{capacity.model} on {capacity.cluster} ({num_chips} chips), {capacity.precision.short()}",
            title_align="left",
            subtitle=f"{asked}, {memory_share(capacity.memory_fraction, capacity.fraction_of)}",
            subtitle_align="left",
            border_style="none" if fitting else "red",
        ),
        Text(""),
        _table(fitting or capacity.rows, holds=bool(fitting)),
    ]
    return Group(*parts)


def nearest_reason(capacity: Capacity) -> str:
    """Why the roomiest layout does not hold what was asked."""
    if not capacity.rows:
        return "no layout is possible"
    best = max(capacity.rows, key=lambda row: (row.total_concurrency, row.kv_room_bytes))
    if best.reason:
        return f"{best.layout.label()}: {best.reason}"
    return f"at most {best.total_concurrency:,} requests at once ({best.layout.label()})"


def _table(rows: Sequence[CapacityRow], *, holds: bool) -> Table:
    shown = rows[:_MOST_ROWS] if holds else sorted(rows, key=lambda row: -row.kv_room_bytes)[:8]
    hidden = len(rows) - len(shown)
    table = plain_table(
        "layouts, most requests first; longest is the context of a single request a rank"
        if holds
        else "layouts with the most room",
        caption=f"{hidden} more layouts; --json has all" if hidden else "",
    )
    for name in ("chips", "weights", "KV room", "KV/request", "longest", "replica", "cluster"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    for row in shown:
        table.add_row(
            str(row.layout.chips_per_replica),
            format_bytes(row.weights_bytes),
            Text(format_bytes(row.kv_room_bytes), style="" if row.kv_room_bytes >= 0 else "red"),
            format_bytes(row.kv_bytes_per_sequence),
            format_count(row.max_context) if row.max_context < float("inf") else "unlimited",
            f"{row.max_concurrency:,}",
            f"{row.total_concurrency:,}",
            row.layout.label(),
        )
    return table
