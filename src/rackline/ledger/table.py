"""The ledger: every claim examined by a function that calls the library; a table, a figure and a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.display.axes import Measure, stacked_bars
from rackline.display.column import SECTION, Column, Sheet
from rackline.display.figure import Figure
from rackline.display.wording import Box
from rackline.errors import InputError, nearest_name
from rackline.ledger import batches, caches, ciphers, conflicts, golden, pipelines, prices, racks, summaries, training
from rackline.ledger.said import SEGMENTS, Claim, System, claims, systems
from rackline.ledger.work import (
    BY_DEFINITION,
    FAILS,
    HOLDS,
    IN_UNITS,
    NO_NUMBER,
    NOT_COMPUTED,
    ONLY_IF,
    VERDICTS,
    Computed,
    Finding,
    Work,
    World,
    counts,
    without_number,
)

EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    name.upper(): one
    for chapter in (batches, racks, pipelines, training, prices, caches, ciphers, conflicts, golden, summaries)
    for name, one in vars(chapter).items()
    if re.fullmatch(r"[cgnq]\d+", name)
}
"""The function that examines each claim, by the name of the claim."""


def examine(claim: Claim, world: World) -> Finding:
    """Examine one claim."""
    world.asked.clear()
    examination = EXAMINATIONS.get(claim.id)
    return without_number(claim) if examination is None else examination(Work(claim, world))


def ledger(world: World | None = None, *, segment: int | None = None, claim: str | None = None) -> tuple[Finding, ...]:
    """Examine the claims of the lecture.

    Args:
        world: the catalogue; other values may lead to other verdicts.
        segment: 1 to 7, 8 for inconsistencies, 9 for golden values, 10 for summaries, 11 for flash cards; all by
            default.
        claim: one claim by its id, such as C99; for a flash card that other claims answer, these claims.

    Returns:
        A finding for each, in order.

    Raises:
        InputError: there is no such segment or claim.

    >>> ledger(claim="C99")[0].verdict
    'by definition'
    """
    where = World() if world is None else world
    if segment is not None and segment not in SEGMENTS:
        raise InputError(what="segment", given=segment, allowed=f"1 to {max(SEGMENTS)}")
    known = of_segment = [one for one in claims() if segment is None or one.segment == segment]
    if claim is not None:
        wanted = claim.strip().upper()
        known = [one for one in of_segment if one.id == wanted]
        if not known:
            raise InputError(
                what="claim",
                given=claim,
                allowed="C01 to C133, N01 to N22, N34 to N56, G01 to G17 or Q1 to Q27, of the segment if one is named",
                nearest=nearest_name(wanted, [one.id for one in of_segment]),
            )
        answers = known[0].answered_by
        known += [one for one in claims() if one.id in answers]
    return tuple(examine(one, where) for one in known)


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
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(findings).items() if count)


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


def _table(title: str, rows: Sequence[Finding], full: bool, measured: Mapping[str, str]) -> Sheet[Finding]:
    def said(one: Finding) -> Text:
        if not full:
            return Text(one.claim.quoted or one.claim.formula or "-")
        text = Text(one.claim.said)
        for more in (one.claim.formula, f"quoted: {one.claim.quoted}" if one.claim.quoted else ""):
            text.append(f"\n{more}" if more else "", style="dim")
        return text

    def verdict(one: Finding) -> Text:
        text = Text(one.verdict_text, style=STYLES[one.verdict])
        if full:
            text.append(f"\n{one.reason}", style="not bold default")
        if one.claim.id in measured:
            text.append(f"\nmeasured: {measured[one.claim.id]}", style="not bold default")
        return text

    columns: list[Column[Finding]] = [
        Column("claim", "claim", getter=lambda one: one.claim.id),
        Column("said", "said" if full else "quoted", "words", said),
        Column("computed", "computed", "words", lambda one: computed_text(one.computed) or "-"),
        Column("verdict", "verdict", "words", verdict),
    ]
    ruled: list[Any] = [part for one in rows for part in ((one, SECTION) if full else (one,))]
    return Sheet("claims", columns, ruled, title=title)


def computed_text(computed: Sequence[Computed]) -> str:
    """All computed numbers in one line, those that disagree marked."""
    return "; ".join(f"✗ {one.text}" if one.passes is False else one.text for one in computed)


def claim_panel(finding: Finding, measured: str = "") -> Box:
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
    return Box(body, f"{said.id}: {SEGMENTS[said.segment]}", where)


def verdicts_figure(findings: Sequence[Finding]) -> Figure:
    """Numbers of claims by segment that hold, hold under a condition, do not hold, or are not computed."""
    bars: dict[str, dict[str, float]] = {}
    for finding in findings:
        bar = bars.setdefault(SEGMENTS[finding.claim.segment], {})
        bar[finding.verdict] = bar.get(finding.verdict, 0.0) + 1.0
    texts = [f"{verdict} {count}" for verdict, count in counts(findings).items() if count]
    return stacked_bars(
        bars,
        VERDICTS,
        Measure(field="claims", title="claims", kind="count"),
        title="The math behind how LLMs are trained and served: verdicts",
        subtitle=f"{len(findings)} claims, inconsistencies and golden values; each examined by the library",
        description=f"Verdicts by segment of the lecture: {', '.join(texts)}.",
    )


_HEAD = """# The lecture as running code

"The math behind how LLMs are trained and served" is a blackboard lecture by Reiner Pope with Dwarkesh Patel of \
29 April 2026. Here is each of its 133 claims in our words, with what was quoted, what the library computes from \
its catalogue, and whether the two agree. Times are those of the video.

This page is written by `rackline lecture --page`, and a test keeps it current; nothing in the computed column is \
typed in. A verdict follows from comparisons: ✓ agrees with what was said as closely as it was said (digits within \
2 %, "about" within 10 to 30 %, orders of magnitude within a factor), ✗ does not, ≡ agrees by definition, for any \
catalogue, a value without a mark is shown only. All agree: holds, or by definition where nothing could fail. \
None: does not hold. Some: holds only if, or in these units where the cases differ in units alone; the condition \
names the premises under which the comparisons agree, or those that do. After the claims come the lecture's \
conflicts, golden values, what five public summaries (S0 to S4) got wrong, and the flash cards. \
`rackline lecture --claim C99` shows one in full, \
`rackline lecture --set gb200:hbm_bytes_per_s=16TB/s` what would change with another machine.
"""


def page(findings: Sequence[Finding]) -> str:
    """The whole page.

    Args:
        findings: of all claims, in order.

    Returns:
        Markdown.
    """
    said = [one for one in findings if one.claim.segment <= 7]
    others = [one for one in findings if one.claim.segment > 7 and not one.claim.answered_by]
    parts = [_HEAD, f"{len(said)} claims: {summary(said)}. {len(others)} checks more: {summary(others)}.\n"]
    for segment, title in SEGMENTS.items():
        rows = [one for one in findings if one.claim.segment == segment]
        if not rows:
            continue
        heading = f"Segment {segment}: {title[0].lower()}{title[1:]}" if segment <= 7 else title
        parts.append(f"## {heading}\n")
        parts.append("| claim | said | formula | quoted | computed | verdict | why |\n|---|---|---|---|---|---|---|")
        parts += [_row(one) for one in rows]
        parts.append("")
    if len(findings) == len(claims()):
        parts += ["## The 25 systems\n", _SYSTEMS, "| system | claims | runs it | tested by hand |\n|---|---|---|---|"]
        parts += [_system_row(one) for one in systems()]
    return "\n".join(parts).rstrip("\n") + "\n"


_SYSTEMS = """What the lecture describes, each with a line that runs it and a test that works out other numbers by \
hand (`uv run pytest TEST`).
"""


def _system_row(one: System) -> str:
    words = one.command.split()
    page = {"lab": f"lab/{words[2]}.md", "lecture": f"#{words[-1].lower()}"}.get(words[1], "questions.md")
    claims = ", ".join(f"[{claim}](#{claim.lower()})" for claim in one.claims)
    return f"| **{one.id}** {one.name} | {claims} | [`{one.command}`]({page}) | `{one.test_name}` |"


def _row(finding: Finding) -> str:
    said = finding.claim
    computed = "<br>".join(f"{one.mark} {one.text}".lstrip() for one in finding.computed)
    name = f'**{said.id}**<a id="{said.id.lower()}"></a>' + (
        f"<br>{said.at} {said.speaker}".rstrip() if said.at else ""
    )
    runs = "; ".join(one for one in finding.uses if one.startswith("lab "))
    reason = f"{finding.reason} Measured: {runs}." if runs else finding.reason
    cells = (name, said.said, said.formula, said.quoted, computed, finding.verdict_text, reason)
    return "| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |"
