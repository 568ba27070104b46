"""The ledger on the terminal: one line per claim, or one claim in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rackline.ledger.said import SEGMENTS
from rackline.ledger.work import (
    BY_DEFINITION,
    FAILS,
    HOLDS,
    IN_UNITS,
    NO_NUMBER,
    NOT_COMPUTED,
    ONLY_IF,
    Computed,
    Finding,
)
from rackline.report.breakdown import plain_table

STYLES = {
    HOLDS: "green",
    BY_DEFINITION: "cyan",
    IN_UNITS: "yellow",
    ONLY_IF: "yellow",
    FAILS: "red",
    NOT_COMPUTED: "dim",
    NO_NUMBER: "dim",
}


def summary(findings: Sequence[Finding]) -> str:
    """Number of claims by verdict, in one line."""
    parts = [(verdict, sum(one.verdict == verdict for one in findings)) for verdict in STYLES]
    return ", ".join(f"{count} {verdict}" for verdict, count in parts if count)


def ledger_table(
    findings: Sequence[Finding], *, full: bool = False, measured: Mapping[str, str] | None = None
) -> Group:
    """One table per segment, and the counts.

    Args:
        findings: in order.
        measured: what experiments say of a claim, by its id.
        full: with what was said, the formula and the reason; numbers and verdict alone otherwise.
    """
    parts: list[RenderableType] = []
    for segment, title in SEGMENTS.items():
        rows = [one for one in findings if one.claim.segment == segment]
        if rows:
            parts += [_table(title if segment > 7 else f"{segment}. {title}", rows, full, measured or {}), Text("")]
    parts.append(Text(f"{len(findings)} claims: {summary(findings)}", style="bold"))
    more = "one in full: --claim C99" if full else "with what was said and why: --segment 1 to 11, or --claim C99"
    parts.append(Text(f"{more}; what if: --set gb200:hbm_bytes_per_s=16TB/s", style="dim"))
    return Group(*parts)


def _table(title: str, rows: Sequence[Finding], full: bool, measured: Mapping[str, str]) -> Table:
    table = plain_table(title)
    table.add_column("claim", no_wrap=True)
    table.add_column("said" if full else "quoted", ratio=4 if full else 3)
    table.add_column("computed", ratio=5)
    table.add_column("verdict", ratio=4)
    for one in rows:
        said, verdict = (
            Text(one.claim.quoted or one.claim.formula or "-"),
            Text(one.verdict_text, style=STYLES[one.verdict]),
        )
        if full:
            said = Text(one.claim.said)
            for text in (one.claim.formula, f"quoted: {one.claim.quoted}" if one.claim.quoted else ""):
                said.append(f"\n{text}" if text else "", style="dim")
            verdict.append(f"\n{one.reason}", style="not bold default")
        if one.claim.id in measured:
            verdict.append(f"\nmeasured: {measured[one.claim.id]}", style="not bold default")
        table.add_row(one.claim.id, said, computed_text(one.computed) or "-", verdict)
        if full:
            table.add_section()
    return table


def computed_text(computed: Sequence[Computed]) -> str:
    """All computed numbers in one line, those that disagree marked."""
    return "; ".join(f"✗ {one.text}" if one.passes is False else one.text for one in computed)


def claim_panel(finding: Finding, measured: str = "") -> Panel:
    """One claim in full: what was said, the formula, both numbers, the verdict and why.

    Args:
        measured: what experiments say of it.
    """
    said = finding.claim
    body = Text(f"{said.said}\n")
    for name, value in (("formula", said.formula), ("quoted", said.quoted)):
        if value:
            body.append(f"\n{name:>9}  ", style="dim")
            body.append(value)
    for index, one in enumerate(finding.computed):
        body.append(f"\n{'computed' if index == 0 else '':>9}  ", style="dim")
        body.append(f"{one.mark:<2}", style="green" if one.passes else "red" if one.passes is not None else "")
        body.append(one.text)
    body.append("\n\n")
    body.append(finding.verdict_text, style=f"bold {STYLES[finding.verdict]}")
    body.append(f"\n{finding.reason}")
    if measured:
        body.append(f"\nmeasured: {measured}")
    if finding.uses:
        body.append(f"\nvalues of: {', '.join(finding.uses)}", style="dim")
    where = ", ".join(part for part in (said.at, said.speaker) if part)
    return Panel(
        body, title=f"{said.id}: {SEGMENTS[said.segment]}", title_align="left", subtitle=where, subtitle_align="left"
    )
