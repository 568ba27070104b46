"""Single streams of llama.cpp on graphics cards, to which nothing is fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rackline.arch import model
from rackline.parallel.precision import storage_bytes, stored_precision
from rackline.validation import validate

STREAMS = (
    Path(__file__).resolve().parents[3] / "shared" / "measured" / "other_chips" / "serving_llamacpp_consumer.jsonl"
)


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
        pytest.skip("the measured cases are not beside this checkout")
    board = validate([STREAMS])
    ratio = np.array([score.predicted / score.measured for score in board.scores if score.metric == "token_s"])
    assert len(ratio) == 14
    assert np.median(np.abs(ratio - 1.0)) < 0.08
    assert np.quantile(np.abs(ratio - 1.0), 0.9) < 0.2
