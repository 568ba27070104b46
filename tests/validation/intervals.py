"""The shipped intervals on measured cases that they were not made from.

`bench/refresh_docs.py --only intervals` writes the table of docs/accuracy/intervals.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from rackline.bands.bands import find_band, shipped_bands
from rackline.validation import validate
from rackline.validation.coverage import GROUPED, Coverage, covered, evidence_of_score, low_line
from rackline.validation.page import marks
from rackline.validation.scoreboard import Score

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT.parent / "shared" / "measured"
PAGE = ROOT / "docs" / "accuracy" / "intervals.md"
FILES = [
    MEASURED / name
    for name in (
        "fresh/gpustack_serving.jsonl",
        "fresh/qwen_speed_static.jsonl",
        "fresh/tpu_training.jsonl",
        "other_chips/serving_atom_mi355x_mi300x.jsonl",
        "other_chips/serving_inferencex_dsr1_amd.jsonl",
        "other_chips/serving_vllm_docker_mi300x.jsonl",
    )
]


SHIPPED = marks("shipped intervals")
_BY_FILE = "file"


def shipped_coverage(scores: Iterable[Score]) -> list[Coverage]:
    """How many measured values the shipped bands hold, by file and by the groups of GROUPED.

    Args:
        scores: of cases that neither the fits nor the bands were made from.
    """
    inside: dict[tuple[str, str, str], list[tuple[bool, float]]] = {}
    bands = shipped_bands()
    by: Mapping[str, Callable[[Score], str]] = {
        _BY_FILE: lambda score: Path(score.where.split(", line")[0]).name,
        **GROUPED,
    }
    for score in scores:
        if any(metric == score.metric for metric, _ in bands):
            near = find_band(bands, score.metric, evidence_of_score(score))
            held = near.low <= score.measured / score.predicted <= near.high
            for kind, key in by.items():
                inside.setdefault((score.metric, kind, key(score)), []).append((held, near.high / near.low))
    return [
        covered(metric, kind, group, np.array([held for held, _ in own]), np.array([width for _, width in own]))
        for (metric, kind, group), own in sorted(inside.items())
    ]


def shipped_markdown(found: Sequence[Coverage]) -> str:
    """The table of a page: shipped bands on each file of cases."""
    lines = ["| measured | cases of | cases | inside | width |", "|---|---|---:|---:|---:|"]
    lines += [
        f"| {one.metric} | {one.group} | {one.num_cases} | {one.share:.0%} | {one.width:.2f} |"
        for one in found
        if one.by == _BY_FILE
    ]
    return "\n".join([*lines, "", low_line([one for one in found if one.by != _BY_FILE])])


@cache
def found() -> tuple[Coverage, ...]:
    """Coverage by file and group."""
    return tuple(shipped_coverage(validate(FILES).scores))
