"""ML.ENERGY's servings: what the shipped numbers reach, and what they reach with models left out of their fit."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rackline.validation import validate
from rackline.validation.run import read_cases
from rackline.validation.serving_fit import steps_of
from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
SERVINGS = ROOT.parent / "shared" / "measured" / "serving_power.jsonl"
LATENCIES = ROOT / "cases" / "static_batch.jsonl.gz"


def existing(path: Path) -> Path:
    if not path.exists():
        pytest.skip("needs ../shared/measured")
    return path


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("second_laboratory")


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["tpot_s", "served_tokens_per_s"])
def test_shipped_numbers(metric: str) -> None:
    """Medians of the time between tokens, and output rates, which are means and which nothing is fitted to."""
    board = validate([existing(SERVINGS)])
    ratio = np.array([score.predicted / score.measured for score in board.scores if score.metric == metric])
    assert len(ratio) == 205
    off = np.abs(ratio - 1.0)
    assert np.median(off) < 0.095
    assert np.quantile(off, 0.9) < 0.31
    assert abs(np.median(ratio) - 1.0) < 0.04


@pytest.mark.slow
def test_models_left_out(bench: ModuleType) -> None:
    """12 / 32 % with models left out, mixtures 15 / 35 %, no class of batch sizes beyond 12 %."""
    steps = steps_of(read_cases([existing(SERVINGS)]).cases)
    predicted, folds = bench.left_out(steps, bench.model_of)
    ratio = np.array(predicted) / np.array([step.measured_s for step in steps])
    off, mixture = np.abs(ratio - 1.0), np.array([step.mixture for step in steps])
    assert np.median(off) < 0.12
    assert np.quantile(off, 0.9) < 0.32
    assert np.median(off[mixture]) < 0.15
    assert np.quantile(off[mixture], 0.9) < 0.35
    classes = np.array([bench.batch_class(step) for step in steps])
    for each in np.unique(classes):
        assert abs(np.median(ratio[classes == each]) - 1.0) < 0.12
    assert np.all(np.max(folds, axis=0) < 1.35 * np.min(folds, axis=0))


def test_the_host_of_a_step_carries_over_to_another_laboratory() -> None:
    """AMD's batch latencies of vLLM 0.10 and 0.11 on MI300X, on which none of its numbers is fitted."""
    board = validate([LATENCIES])
    ours = [score for score in board.scores if score.metric == "total_s" and score.groups["chip"] == "mi300x"]
    off = [abs(score.error) for score in ours]
    assert len(off) == 16
    assert np.median(off) < 0.08
