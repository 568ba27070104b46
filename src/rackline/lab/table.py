"""Experiments on a terminal: a table of readings each, and one line of verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackline.lab.experiment import Experiment, Reading
from rackline.report.breakdown import plain_table
from rackline.units import format_bytes, format_seconds

MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("", "dim")}
STYLES = {"holds": "green", "differs": "red", "undecided": "yellow"}
_BOUNDS = {"at_most": "≤ ", "at_least": "≥ ", "equal": "", "shown": ""}


def experiments_table(found: Sequence[Experiment]) -> Group:
    """A table for each experiment, and what came out."""
    parts: list[RenderableType] = []
    for one in found:
        parts += [_table(one), *(Text(f"  {text}", style="dim") for text in one.findings)]
        verdict = Text(f"  {one.verdict}", style=STYLES[one.verdict])
        verdict.append(f" ({', '.join(one.claims)}; {format_seconds(one.seconds)})", style="dim")
        parts += [verdict, Text("")]
    return Group(*parts)


def value_text(value: float | None, unit: str) -> str:
    """A value of a reading as a person writes it; "-" for none."""
    if value is None:
        return "-"
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    number = f"{value:,.0f}" if abs(value) >= 1e4 or value == int(value) else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def predicted_text(row: Reading) -> str:
    """What was predicted, with the sign of a bound."""
    text = value_text(row.predicted, row.unit)
    return text if row.predicted is None else _BOUNDS[row.check] + text


def measured_text(row: Reading) -> str:
    """What was measured, with its interval where there is one."""
    text = value_text(row.measured, row.unit)
    if row.low is None or row.high is None:
        return text
    return f"{text} ({value_text(row.low, '')} to {value_text(row.high, '')})"


def _table(one: Experiment) -> Table:
    from rackline.lab.experiments import entry

    table = plain_table(f"{one.name}: {entry(one.name).shows}")
    table.add_column("quantity", ratio=6)
    table.add_column("predicted", justify="right", ratio=2)
    table.add_column("measured", justify="right", ratio=3)
    table.add_column("", width=1)
    for row in one.rows:
        mark, style = MARKS[row.holds]
        table.add_row(row.quantity, predicted_text(row), measured_text(row), Text(mark, style=style))
    return table
