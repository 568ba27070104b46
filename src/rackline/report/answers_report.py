"""Answers to several questions, one per row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table


def answers_table(rows: Sequence[tuple[str, str, str, bool]]) -> Table:
    """One question a row.

    Args:
        rows: command, subject, result or error, and whether it succeeded.
    """
    failed = sum(not answered for *_, answered in rows)
    table = plain_table(f"{len(rows) - failed} of {len(rows)} questions answered")
    table.add_column("", justify="right", no_wrap=True, style="dim")
    for name in ("question", "of", "answer"):
        table.add_column(name, overflow="fold", no_wrap=name == "question")
    for number, (name, words, outcome, answered) in enumerate(rows, start=1):
        table.add_row(str(number), name, words, Text(outcome, style="" if answered else "red"))
    return table
