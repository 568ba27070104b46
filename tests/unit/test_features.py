"""Features of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from rackline.arch import GroupedQueryAttention
from rackline.passes import Batch, ExpertLoad, features as f

FULL = GroupedQueryAttention(num_q_heads=8, num_kv_heads=2, head_dim=64)
WINDOW = GroupedQueryAttention(num_q_heads=8, num_kv_heads=2, head_dim=64, window=100)
KINDS = {"full": FULL, "window_100": WINDOW}


def test_decode_only() -> None:
    batch = Batch(decode_sequences=4.0, context_len=300.0)
    found = batch.features(KINDS)
    assert found[f.TOKENS] == found[f.LOGIT_ROWS] == found[f.DECODE_SEQUENCES] == 4.0
    assert found[f.kv_tokens("full")] == 1200.0
    assert found[f.kv_tokens("window_100")] == 400.0
    assert found[f.HAS_DECODE] == 1.0
    assert f.HAS_PREFILL not in found
    assert f.attention_pairs("full") not in found


def test_mixed_pass() -> None:
    batch = Batch(
        decode_sequences=4.0,
        context_len=300.0,
        prefill_sequences=2.0,
        chunk_tokens=10.0,
        prefix_tokens=50.0,
    )
    found = batch.features(KINDS)
    assert found[f.TOKENS] == 24.0
    assert found[f.LOGIT_ROWS] == 6.0
    assert found[f.PREFILL_TOKENS] == 20.0
    assert found[f.CHUNK_PREFIX_TOKENS] == 100.0
    assert found[f.attention_pairs("full")] == 2 * (10 * 50 + 55)
    assert found[f.HAS_PREFILL] == 1.0


def test_aggregate_models_read_one_kind() -> None:
    found = Batch(decode_sequences=3.0, context_len=10.0).features({})
    assert found[f.kv_tokens("all")] == 30.0


def test_experts_see_the_whole_group() -> None:
    load = ExpertLoad.tabulate(num_experts=8, experts_per_token=2, ep=1, law="balanced")
    alone = Batch(decode_sequences=4.0).features(KINDS, load)
    group = Batch(decode_sequences=4.0, group_tokens=32.0).features(KINDS, load)
    assert alone[f.GROUP_TOKENS] == 4.0
    assert alone[f.EXPERT_TOKENS] == pytest.approx(8.0)
    assert group[f.EXPERT_TOKENS] == pytest.approx(64.0)
    assert float(np.asarray(group[f.EXPERTS_TOUCHED])) > float(np.asarray(alone[f.EXPERTS_TOUCHED]))
    assert f.GROUP_TOKENS not in Batch(decode_sequences=4.0).features(KINDS)


def test_empty_pass_has_no_work() -> None:
    found = Batch().features(KINDS)
    assert {name for name, value in found.items() if np.any(np.asarray(value))} == {f.ONE}


def test_arrays_broadcast() -> None:
    batch = Batch(decode_sequences=np.array([[1.0], [2.0]]), context_len=np.array([10.0, 200.0, 300.0]))
    found = batch.features(KINDS)
    assert np.asarray(found[f.kv_tokens("window_100")]).tolist() == [[10, 100, 100], [20, 200, 200]]
