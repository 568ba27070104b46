"""What `sweep` prints: forecasts, what was run, optima."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.sweeps.example import Example
from rackline.sweeps.optimum import Optimum
from rackline.sweeps.run import Forecast, Ran
from rackline.sweeps.show_report import value_text
from rackline.units import format_bytes, format_seconds, format_usd


def sweep_line(found: Any) -> str:
    """The numbers that matter, in a line."""
    match found:
        case Forecast():
            return (
                f"{found.points:,} points, {found.shards:,} shards, {found.missing:,} of them missing; about "
                f"{format_bytes(found.bytes)}, {format_seconds(found.seconds)}, {format_usd(found.usd)}"
            )
        case Ran():
            ending = "; stopped before the end" if found.interrupted else ""
            shards = f"{found.new_shards:,} of {found.shards:,} shards"
            return f"{found.new_rows:,} new points in {shards} in {found.out}{ending}"
        case Optimum():
            if found.best is None:
                return f"nothing feasible among {found.evaluations:,} points evaluated"
            return f"{found.objective} {value_text(found.value)}, the best of {found.evaluations:,} points evaluated"
        case Example():
            return f"{found.file}: run it with rackline sweep {found.file}"
        case _:
            return str(found)


def sweep_report(found: Any) -> RenderableType:
    """Everything that `rackline sweep` prints."""
    match found:
        case Forecast():
            return _forecast(found)
        case Ran():
            return _ran(found)
        case Optimum():
            return _optimum(found)
        case _:
            return Text(sweep_line(found))


def _forecast(found: Forecast) -> RenderableType:
    table = plain_table()
    table.add_column("")
    table.add_column("")
    each = "questions, each asked by itself" if found.asks_each else "tables"
    rows = f", {found.rows:,} rows" if found.rows != found.points else ""
    table.add_row("points", f"{found.points:,}{rows}")
    table.add_row(each, f"{found.tables:,}")
    table.add_row("shards", f"{found.shards:,}, {found.missing:,} not there yet")
    table.add_row("on disk", f"about {format_bytes(found.bytes)}")
    table.add_row("time", f"about {format_seconds(found.seconds)} ({format_seconds(found.core_s)} of one core)")
    table.add_row("cost", f"about {format_usd(found.usd)}")
    words = {
        "table": "question" if found.asks_each else "table (about 10 ms each)",
        "lane": "coefficients of the table",
        "point": "batch",
        "after": "arithmetic of the results",
    }
    for name, level in found.levels.items():
        table.add_row(name, f"another {words[level]}" if level == "table" else words[level])
    return table


def _ran(found: Ran) -> RenderableType:
    lines = Text()
    rate = found.new_rows / found.run_s if found.run_s > 0 else 0.0
    if found.new_shards:
        lines.append(
            f"{found.new_rows:,} points in {format_seconds(found.run_s)} ({rate:,.3g} a second), "
            f"{format_bytes(float(found.bytes))} in {found.new_shards:,} shards"
        )
        if found.failed:
            lines.append(f"; {found.failed:,} without a result or with one that does not fit, each with its reason")
    else:
        lines.append(f"nothing new: all {found.shards:,} shards are in {found.out}")
    if found.interrupted:
        left = found.shards - found.new_shards
        lines.append(
            f"\nstopped: about {left:,} of {found.shards:,} shards are left; the same command goes on", "yellow"
        )
    return Group(lines, Text(f"rackline sweep show {found.out}", style="dim"))


def _optimum(found: Optimum) -> RenderableType:
    space = f"{found.points:,} points" if found.points else "a continuous space"
    if found.how == "all points":
        how = "all of them were evaluated"
    else:
        how = f"{found.evaluations:,} of them were evaluated; a better one may exist"
    head = Text(f"{sweep_line(found)}\n{space}, {how}")
    if found.best is None:
        return head
    table = plain_table()
    table.add_column("")
    table.add_column("")
    for name, value in found.best.items():
        if name not in ("reason", "feasible"):
            table.add_row(name, value_text(value))
    return Group(head, table)
