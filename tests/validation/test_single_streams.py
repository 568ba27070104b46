"""Single streams: of llama.cpp on graphics cards, to which nothing is fitted, and of vLLM's first engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from rackline.arch import model
from rackline.parallel.precision import storage_bytes, stored_precision
from rackline.serving.stack import stack
from rackline.validation import Score, validate

MEASURED = Path(__file__).resolve().parents[3] / "shared" / "measured"
STREAMS = MEASURED / "other_chips" / "serving_llamacpp_consumer.jsonl"
QWEN = MEASURED / "fresh" / "qwen_speed_static.jsonl"
TOKENS = 2048  # that each of Qwen's streams generates


def test_weights_of_q4_k_m_take_the_bytes_of_the_released_file() -> None:
    llama = model("llama-3-8b")
    types = stored_precision("q4_k_m", llama)
    ends = 128_256 * 4096  # embedding and head each
    linear = llama.total_params - 2 * ends
    file_bytes = linear * storage_bytes(types.linear_weights) + ends * (storage_bytes("q6_k") + 144 / 256)
    assert file_bytes == pytest.approx(4.92e9, rel=0.005)


def test_tokens_of_single_streams() -> None:
    """Decode of Llama 3 in fp16 and in GGUF's four bits, over one to eight cards, from an empty prompt."""
    if not STREAMS.exists():
        pytest.skip("needs ../shared/measured")
    board = validate([STREAMS])
    ratio = np.array([score.predicted / score.measured for score in board.scores if score.metric == "token_s"])
    assert len(ratio) == 14
    assert np.median(np.abs(ratio - 1.0)) < 0.08
    assert np.quantile(np.abs(ratio - 1.0), 0.9) < 0.2


def host_s(scores: Sequence[Score], shipped_s: float) -> float:
    """Host time of a step that minimises soft L1 of the log error (scale 0.1) [s]."""
    measured = np.array([score.measured for score in scores])
    without = np.array([score.predicted for score in scores]) - TOKENS * shipped_s

    def cost(each_s: float) -> float:
        errors = np.log((without + TOKENS * each_s) / measured) / 0.1
        return float(np.sum(np.sqrt(1.0 + errors**2)))

    return float(minimize_scalar(cost, bounds=(0.0, 5e-3), method="bounded").x)


def test_the_host_of_vllms_first_engine_carries_over_to_models_left_out() -> None:
    """Qwen2.5 from 0.5B to 14B in four data types under vLLM 0.6: one host time, fitted without each size in turn."""
    if not QWEN.exists():
        pytest.skip("needs ../shared/measured")
    shipped_s = stack("vllm", version="0.6.3").host.s_per_step
    scores = [score for score in validate([QWEN]).scores if score.groups["stack"] == "vllm"]
    assert len(scores) == 80
    assert host_s(scores, shipped_s) == pytest.approx(shipped_s, rel=0.03)
    left = 0
    for size in ("0.5B", "1.5B", "7B", "14B"):
        own = [score for score in scores if f"Qwen2.5-{size}" in score.case_id + score.groups["model"]]
        others = [score for score in scores if score not in own]
        fitted_s = host_s(others, shipped_s)
        assert fitted_s == pytest.approx(shipped_s, rel=0.1), size
        ratio = [(score.predicted + TOKENS * (fitted_s - shipped_s)) / score.measured for score in own]
        assert np.median(np.abs(np.array(ratio) - 1.0)) < 0.1, size
        left += len(own)
    assert left == len(scores)
    off = np.abs(np.array([score.predicted / score.measured for score in scores]) - 1.0)
    assert np.median(off) < 0.03, "13 % without the host"
