"""What one token costs: parameters, FLOP and KV of a model, split by kind."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import deploy, gqa_model, model
from rackline.passes import Batch

OPEN = ("llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b", "mixtral-8x7b", "palm-540b")


@pytest.mark.parametrize("name", OPEN)
def test_flop_per_token_is_two_per_active_weight_plus_attention(name: str) -> None:
    m = model(name)
    split = m.flop_per_token_by_kind(4096.0)
    weights = sum(v for kind, v in split.items() if not kind.startswith("attention_core"))
    used = m.parameters().active
    assert weights == pytest.approx(2.0 * (m.active_params - used["norm"]), rel=1e-12)
    assert sum(split.values()) == pytest.approx(m.flop_per_token(4096.0), rel=1e-12)


@pytest.mark.parametrize("name", OPEN)
def test_attention_flop_grows_in_proportion_to_what_is_read(name: str) -> None:
    m = model(name)
    slope = m.flop_per_token(2049.0) - m.flop_per_token(2048.0)
    expected = sum(
        g.count * g.attention.num_q_heads * g.attention.decode_flop_per_pair
        for g in m.layer_groups
        if g.attention.window is None
    )
    assert slope == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", OPEN)
def test_the_table_of_one_chip_counts_the_flop_of_the_model(name: str) -> None:
    """Independent sums: projections and cores in the table, parameters by kind in the model."""
    m = model(name)
    table = deploy(name).table()
    batch = Batch(decode_sequences=8.0, context_len=1000.0)
    counted = sum(row.amounts.get("compute", 0.0) for row in table.time(batch).rows)
    biases = 2e-3  # biases, norms and sinks are parameters but not products
    assert counted / 8.0 == pytest.approx(m.flop_per_token(1000.0), rel=biases)


@pytest.mark.parametrize("name", OPEN)
def test_parameters_by_kind_sum_and_active_is_a_part_of_total(name: str) -> None:
    m = model(name)
    count = m.parameters()
    assert sum(count.total.values()) == m.total_params
    assert sum(count.active.values()) == m.active_params
    assert all(count.active[kind] <= count.total[kind] for kind in count.total if kind != "head")
    assert m.total_over_active >= 1.0


def test_a_tied_embedding_is_stored_once_and_multiplied_once() -> None:
    tied, untied = gqa_model(tied_embeddings=True), gqa_model(tied_embeddings=False)
    assert untied.total_params - tied.total_params == 1024 * 512
    assert untied.active_params == tied.active_params


def test_only_chosen_experts_are_active() -> None:
    moe = {"num_experts": 16, "experts_per_token": 2, "d_expert": 256, "first_dense_layers": 1}
    m = gqa_model(moe=moe)
    count = m.parameters()
    assert count.total["experts"] == 3 * 16 * 3 * 512 * 256
    assert count.active["experts"] == count.total["experts"] // 8
    assert count.total["ffn"] == 3 * 512 * 1024
    assert m.is_moe
    assert not gqa_model().is_moe


def test_moe_in_every_second_layer() -> None:
    moe = {"num_experts": 4, "experts_per_token": 1, "d_expert": 256, "every": 2}
    groups = gqa_model(num_layers=5, moe=moe).layer_groups
    assert sorted(g.count for g in groups) == [2, 3]


def test_a_window_stops_growing() -> None:
    m = model("gpt-oss-120b")
    by_kind = m.kv_bytes_per_token_by_kind(1.0)
    assert by_kind["full"] == by_kind["window_128"]
    at = m.kv_bytes(np.array([64.0, 128.0, 4096.0]), 1.0)
    assert at[0] == pytest.approx(64 * sum(by_kind.values()))
    assert at[2] - at[1] == pytest.approx((4096 - 128) * by_kind["full"])


def test_aggregate_models_know_three_numbers() -> None:
    m = model("lecture-frontier")
    assert m.flop_per_token(1e5) == 2.0 * m.active_params
    assert m.kv_bytes(1000.0) == 1000.0 * m.kv_bytes_per_token(1.0) == 1000.0 * m.kv_bytes_per_token(2.0)
    assert m.is_moe == (m.total_params > m.active_params)
