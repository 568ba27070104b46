"""Accuracy on published measurements that ship with the library; see tests/fixtures/README.md."""

from __future__ import annotations

import json

import pytest

from rackline.validation import Scoreboard, validate
from rackline.validation.cases import published

PUBLISHED = published()
# Median and largest tolerated 90th percentile of |predicted / measured - 1|; a third above what they were when stored
# (2026-11-21: step 0.035/0.084, tpot 0.069/0.186, ttft 0.23/0.59, request 0.066/0.163, total 0.13/0.27,
# prefill 0.20/0.51, token 0.27/1.10, output rate 0.10/0.34).
BARS = {
    "step_s": (0.05, 0.12),
    "tpot_s": (0.10, 0.25),
    "ttft_s": (0.31, 0.78),
    "request_s": (0.09, 0.22),
    "total_s": (0.18, 0.36),
    "prefill_s": (0.27, 0.68),
    "token_s": (0.37, 1.47),
    "output_tokens_per_s": (0.14, 0.45),
}


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    return validate([PUBLISHED])


def test_every_case_names_a_source_and_is_predicted(board: Scoreboard) -> None:
    cases = [json.loads(line) for line in PUBLISHED.read_text(encoding="utf-8").splitlines()]
    assert len({case["id"] for case in cases}) == len(cases) == 42
    assert all(len(case["source"]) > 20 for case in cases)
    assert {case["kind"] for case in cases} == {"serve", "static-batch", "max-throughput", "train"}
    assert not board.unsupported
    assert len({score.case_id for score in board.scores}) == 42


@pytest.mark.parametrize("metric", BARS)
def test_errors_stay_below_their_bars(board: Scoreboard, metric: str) -> None:
    stats = board.metrics[metric]
    median, p90 = BARS[metric]
    assert stats.n >= 5
    assert stats.median_abs_error < median
    assert stats.p90_abs_error < p90


def test_all_metrics_have_a_bar(board: Scoreboard) -> None:
    assert set(board.metrics) == set(BARS)
