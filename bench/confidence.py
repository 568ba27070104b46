"""How many measured servers keep a limit for which a plan left headroom: models left out of fits and of bands.

    uv run python bench/confidence.py CASES.jsonl... [--write tests/validation/held_out_ratios.csv]

All served cases are predicted without their model (about five minutes of processor time) and the bands are made without
it. A plan at a confidence may predict at most its limit over the quantile of measured over predicted; printed is which
share of the servers would have kept the limit, had the plan used all that this allows. `--write` stores measured over
predicted of each case, which tests/unit/test_confidence.py reads.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from zlib import crc32

import numpy as np

from rackline.api.validate import held_out_scores
from rackline.bands.bands import LIMITED
from rackline.files import write_text
from rackline.validation import read_cases
from rackline.validation.coverage import GROUPED, without_their_group
from rackline.validation.refit import refit
from rackline.validation.scoreboard import Score

SHARES = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How many servers keep limits that leave headroom for a share of them, made without their group.

    Args:
        metric: that is limited.
        by: what was left out in turn.
        share: that the headroom is for [1].
        num_cases: of servers [count].
        kept: share of them that was at most as slow as the headroom allows [1].
    """

    metric: str
    by: str
    share: float
    num_cases: int
    kept: float


def kept_limits(scores: Iterable[Score], shares: Sequence[float], left_out: str = "model") -> list[Kept]:
    """Shares of the servers that keep limits, were each predicted as slow as the headroom for each share allows.

    Args:
        scores: of predictions with models left out.
        shares: that headroom is left for.
    """
    by_metric: dict[str, list[Score]] = {}
    for score in scores:
        if score.metric in LIMITED:
            by_metric.setdefault(score.metric, []).append(score)
    found: list[Kept] = []
    for metric, own in by_metric.items():
        by, bands = without_their_group(metric, own, left_out)
        ratios = np.array([own[index].measured / own[index].predicted for index, _ in bands])
        for share in shares:
            most = np.array([one.ratio_within(share) for _, one in bands])
            kept = float(np.mean(ratios <= most))
            found.append(Kept(metric=metric, by=by, share=share, num_cases=len(bands), kept=kept))
    return found


def rows_of(scores: list[Score]) -> str:
    """Measured over predicted of each case, as CSV; a case is a checksum of its name."""
    text = StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("case", "metric", "model", "stack", "blocks", "chip", "layout", "ratio"))
    for one in scores:
        groups = {**one.groups, "model": GROUPED["model"](one)}
        named = (groups[name] for name in ("model", "stack", "blocks", "chip", "layout"))
        out.writerow((f"{crc32(one.case_id.encode()):08x}", one.metric, *named, f"{one.measured / one.predicted:.4f}"))
    return text.getvalue()


def main() -> None:
    """Predict, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    found = refit(read_cases(args.files), "model")
    scores = [one for one in held_out_scores(found, tuple(args.files)) if one.metric in LIMITED]
    for one in kept_limits(scores, SHARES):
        print(f"{one.metric:14} {one.by:8} {one.num_cases:5} cases: {one.share:.0%} asked, {one.kept:.1%} keep it")
    if args.write:
        write_text(args.write, rows_of(scores), what="write")


if __name__ == "__main__":
    main()
