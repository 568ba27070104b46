"""The figure of the lecture: verdicts by segment."""

from __future__ import annotations

from collections.abc import Sequence

from rackline.ledger.said import SEGMENTS
from rackline.ledger.work import VERDICTS, Finding
from rackline.report.axes import Measure
from rackline.report.bars import stacked_bars
from rackline.report.figure import Figure


def verdicts_figure(findings: Sequence[Finding]) -> Figure:
    """Numbers of claims by segment that hold, hold under a condition, do not hold, or are not computed."""
    bars: dict[str, dict[str, float]] = {}
    for finding in findings:
        bar = bars.setdefault(SEGMENTS[finding.claim.segment], {})
        bar[finding.verdict] = bar.get(finding.verdict, 0.0) + 1.0
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS}
    texts = [f"{verdict} {count}" for verdict, count in counts.items() if count]
    return stacked_bars(
        bars,
        VERDICTS,
        Measure(field="claims", title="claims", kind="count"),
        title="The math behind how LLMs are trained and served: verdicts",
        subtitle=f"{len(findings)} claims, inconsistencies and golden values; each examined by the library",
        description=f"Verdicts by segment of the lecture: {', '.join(texts)}.",
    )
