"""The ledger as a page of Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from rackline.ledger.said import SEGMENTS
from rackline.ledger.table import summary
from rackline.ledger.work import Finding

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
    claims = [one for one in findings if one.claim.segment <= 7]
    others = [one for one in findings if one.claim.segment > 7 and not one.claim.answered_by]
    parts = [_HEAD, f"{len(claims)} claims: {summary(claims)}. {len(others)} checks more: {summary(others)}.\n"]
    for segment, title in SEGMENTS.items():
        rows = [one for one in findings if one.claim.segment == segment]
        if not rows:
            continue
        heading = f"Segment {segment}: {title[0].lower()}{title[1:]}" if segment <= 7 else title
        parts.append(f"## {heading}\n")
        parts.append("| claim | said | formula | quoted | computed | verdict | why |\n|---|---|---|---|---|---|---|")
        parts += [_row(one) for one in rows]
        parts.append("")
    return "\n".join(parts).rstrip("\n") + "\n"


def _row(finding: Finding) -> str:
    said = finding.claim
    computed = "<br>".join(f"{one.mark} {one.text}".lstrip() for one in finding.computed)
    name = f"**{said.id}**" + (f"<br>{said.at} {said.speaker}".rstrip() if said.at else "")
    cells = (name, said.said, said.formula, said.quoted, computed, finding.verdict_text, finding.reason)
    return "| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |"
