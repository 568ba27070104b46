"""Servers that ran must not be refused for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackline.validation import validate

FRESH = Path(__file__).resolve().parents[3] / "shared" / "measured" / "fresh"


@pytest.mark.parametrize(("name", "cases"), [("gpustack_serving", 91), ("qwen_speed_static", 158)])
def test_what_ran_is_not_refused(name: str, cases: int) -> None:
    """gpt-oss-120b on one A100 among them, under the defaults of its engine."""
    file = FRESH / f"{name}.jsonl"
    if not file.exists():
        pytest.skip("the measured cases are not beside this checkout")
    board = validate([file])
    assert [case.reason for case in board.unsupported] == []
    assert len({score.where for score in board.scores}) == cases
