"""Servers that ran must not be refused for want of memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rackline.validation import CaseSet, read_cases, shipped_cases
from rackline.validation.run import score_cases

QWEN = Path(__file__).resolve().parents[3] / "shared" / "measured" / "fresh" / "qwen_speed_static.jsonl"


def assert_all_are_predicted(files: Iterable[Path], source: str, cases: int) -> None:
    of_source = tuple(case for case in read_cases(files).cases if case.source.startswith(source))
    assert len(of_source) == cases
    board = score_cases(CaseSet(cases=of_source, unsupported=(), unknown_keys={}), num_worst=0)
    assert [case.reason for case in board.unsupported] == []
    assert len({score.case_id for score in board.scores}) == cases


def test_servers_of_gpustack_are_not_refused() -> None:
    """gpt-oss-120b on one A100 among them, under the defaults of its engine."""
    assert_all_are_predicted(shipped_cases(), "gpustack/", 91)


@pytest.mark.skipif(not QWEN.exists(), reason="needs ../shared/measured")
def test_single_streams_of_qwen_are_not_refused() -> None:
    assert_all_are_predicted([QWEN], "QwenLM/", 158)
