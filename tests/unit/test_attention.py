"""Attention kinds: pairs, KV cache, reads, shards and parameters."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import gqa_model, model
from rackline.arch import GroupedQueryAttention, MultiHeadLatentAttention, windowed_pairs
from rackline.arch.kinds.mla import CompressedAttention

GQA = GroupedQueryAttention(num_q_heads=64, num_kv_heads=8, head_dim=128)
WINDOW = GroupedQueryAttention(num_q_heads=64, num_kv_heads=8, head_dim=64, window=128)
MLA = MultiHeadLatentAttention(
    num_q_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("prefix", [0, 1, 5, 9, 40])
@pytest.mark.parametrize("new", [0, 1, 2, 7, 30])
def test_windowed_pairs_are_counted_query_by_query(new: int, prefix: int, window: int | None) -> None:
    seen = [prefix + i if window is None else min(prefix + i, window) for i in range(1, new + 1)]
    assert float(windowed_pairs(new, prefix, window)) == sum(seen)


def test_windowed_pairs_broadcast() -> None:
    pairs = windowed_pairs(np.array([[1.0], [4.0]]), np.array([0.0, 2.0, 9.0]), 4)
    assert pairs.tolist() == [[1.0, 3.0, 4.0], [10.0, 15.0, 16.0]]


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [("deepseek-v3", 70.272), ("qwen2.5-72b", 327.68), ("llama-3.1-405b", 516.096)],
)
def test_published_kv_bytes_per_token(name: str, kilobytes: float) -> None:
    """DeepSeek-V3 paper (ISCA 2025, arXiv:2505.09343), table 1: bf16 KV cache per token."""
    assert model(name).kv_bytes_per_token(2.0) == pytest.approx(kilobytes * 1e3, rel=1e-12)


def test_kv_heads_are_copied_when_tp_exceeds_them() -> None:
    per_chip = GQA.kv_elements_per_token(np.array([1, 2, 4, 8, 16, 64]))
    assert per_chip.tolist() == [2 * 128 * heads for heads in (8, 4, 2, 1, 1, 1)]


def test_the_latent_is_copied_on_every_chip() -> None:
    assert MLA.kv_elements_per_token(np.array([1, 8, 128])).tolist() == [576.0] * 3


def test_a_window_reads_no_more_than_itself() -> None:
    assert WINDOW.kv_read_tokens(np.array([1.0, 128.0, 4096.0])).tolist() == [1.0, 128.0, 128.0]
    assert GQA.kv_read_tokens(4096.0) == 4096.0
    assert (GQA.kind, WINDOW.kind, MLA.kind) == ("full", "window_128", "mla")


def test_mla_decodes_absorbed_and_prefills_expanded() -> None:
    # scores over 512 + 64 and values over 512 against scores over 128 + 64 and values over 128
    assert MLA.decode_flop_per_pair == 2 * (576 + 512)
    assert MLA.prefill_flop_per_pair == 2 * (192 + 128)


def test_mla_projections_are_those_of_the_checkpoint() -> None:
    # q_a, kv_a, q_b, o_proj and kv_b of DeepSeek-V3
    d = 7168
    expected = d * 1536 + d * 576 + 1536 * 128 * 192 + 128 * 128 * d + 512 * 128 * 256
    expansion = MLA.expansion()
    assert expansion is not None
    assert sum(p.params for p in MLA.projections(d)) + expansion.params == expected


def test_mla_without_query_compression() -> None:
    plain = MultiHeadLatentAttention(
        num_q_heads=16,
        q_lora_rank=0,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    qkv, out = plain.projections(2048)
    assert qkv.params == 2048 * (16 * 192 + 576)
    assert out.params == 16 * 128 * 2048


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_gqa_projections_divide_by_tp(tp: int) -> None:
    for projection in GQA.projections(8192):
        assert projection.shard_weights(tp) == projection.params / tp


def test_gqa_projections_copy_kv_heads_beyond_their_number() -> None:
    qkv, _ = GQA.projections(8192)
    assert qkv.shard_weights(16) == 8192 * (64 // 16 * 128 + 2 * 128)


def test_multi_query_keeps_its_head_on_every_chip() -> None:
    mqa = GroupedQueryAttention(num_q_heads=48, num_kv_heads=1, head_dim=256)
    qkv, _ = mqa.projections(18432)
    assert qkv.shard_weights(16) == 18432 * (3 * 256 + 2 * 256)


def test_biases_norms_and_sinks_count_as_parameters() -> None:
    plain = GroupedQueryAttention(num_q_heads=8, num_kv_heads=2, head_dim=64)
    full = GroupedQueryAttention(
        num_q_heads=8,
        num_kv_heads=2,
        head_dim=64,
        bias=True,
        output_bias=True,
        qk_norm=True,
        sinks=True,
    )

    def count(kind: GroupedQueryAttention) -> int:
        return sum(p.params for p in kind.projections(512)) + kind.extra_params()

    assert count(full) - count(plain) == (8 + 2 * 2) * 64 + 512 + 2 * 64 + 8


def test_layers_alternate_by_pattern() -> None:
    attention = {
        "kind": "gqa",
        "num_q_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 64,
        "window": 16,
        "pattern": ["window", "window", "full"],
    }
    groups = gqa_model(num_layers=8, attention=attention).layer_groups
    assert [(g.attention.kind, g.count) for g in groups] == [("window_16", 6), ("full", 2)]


def test_compressed_attention_has_a_window() -> None:
    """All kinds have one, None by default: this kind asks for it."""
    with pytest.raises(TypeError, match="window"):
        CompressedAttention(num_q_heads=8, head_dim=8, q_lora_rank=4, o_groups=2, o_lora_rank=4)  # pyright: ignore
