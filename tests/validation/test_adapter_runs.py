"""Published runs with many adapters: throughput over their number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rackline.validation import validate

TABLE = Path(__file__).resolve().parents[3] / "shared/measured/post_training/lora/slora_serving.csv"


@pytest.mark.slow
@pytest.mark.skipif(not TABLE.is_file(), reason="needs ../shared/measured")
def test_throughput_over_the_number_of_adapters() -> None:
    """S-LoRA: throughput over that with the fewest adapters within 15 %, on every run that has one to compare."""
    board = validate([TABLE])
    ratios = board.metrics["over_fewest_adapters"]
    errors = [s.predicted / s.measured - 1.0 for s in board.scores if s.metric == "over_fewest_adapters"]
    assert ratios.n >= 15
    assert float(np.max(np.abs(errors))) < 0.10
    assert ratios.median_abs_error < 0.04
    assert board.metrics["requests_per_s"].median_abs_error < 0.16  # another engine: no bar
    assert {one.reason for one in board.unsupported} >= {"a run that the paper does not use"}
    assert len(board.scores) + len(board.unsupported) > board.num_cases
