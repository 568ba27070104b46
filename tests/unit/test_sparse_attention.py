"""Sparse latent attention with an indexer: what it reads, keeps, computes, and how tables and memory see it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from helpers import deploy, model
from rackline.arch import Indexer, MultiHeadLatentAttention, SparseLatentAttention
from rackline.arch.kinds import LATENT_KERNELS
from rackline.parallel.blocks import _pair_heads
from rackline.passes import Batch

LATENT = {
    "num_q_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
DENSE = MultiHeadLatentAttention(**LATENT)
SPARSE = SparseLatentAttention(**LATENT, top_k=2048, index_heads=64, index_head_dim=128)
SHARED = SparseLatentAttention(**LATENT, top_k=2048)


def test_it_reads_the_picked_tokens_and_keeps_all() -> None:
    context = np.array([100.0, 2048.0, 100_000.0])
    assert np.asarray(SPARSE.kv_read_tokens(context)).tolist() == [100.0, 2048.0, 2048.0]
    assert np.asarray(SPARSE.kv_held_tokens(context)).tolist() == context.tolist()


def test_index_cache_of_a_token_is_132_bytes() -> None:
    """vLLM and SGLang keep 128 values of fp8 and one fp32 scale a token and layer."""
    core, index = SPARSE.cores()
    assert core is SPARSE
    assert isinstance(index, Indexer)
    assert float(np.asarray(index.kv_elements_per_token(8))) * (index.cache_bytes_per_element or 0.0) == 132.0
    assert model("deepseek-v3.2").kv_bytes_per_token_by_kind(1.0)["index"] == 61 * 132.0


def test_a_layer_that_shares_the_choice_has_no_indexer() -> None:
    assert SHARED.cores() == (SHARED,)
    assert SHARED.projections(7168) == DENSE.projections(7168)
    assert SHARED.extra_params() == DENSE.extra_params()


def test_indexer_parameters_by_hand() -> None:
    """wq_b 1536·64·128, wk 7168·128, weights_proj 7168·64, layer norm of the key 2·128."""

    def of(kind: MultiHeadLatentAttention) -> int:
        return sum(p.params for p in kind.projections(7168)) + kind.extra_params()

    assert of(SPARSE) - of(DENSE) == 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128


def test_a_prompt_runs_in_the_cheaper_form() -> None:
    def core_flop(kind: MultiHeadLatentAttention, tokens: float) -> float:
        return float(np.asarray(kind.attention_pairs(tokens, 0.0))) * kind.prefill_flop_per_pair

    for tokens in (1000.0, 4000.0):  # masked and expanded
        assert core_flop(SPARSE, tokens) == pytest.approx(core_flop(DENSE, tokens))
    far = 128_000.0
    picked = 2048 * 2049 / 2 + (far - 2048) * 2048
    assert core_flop(SPARSE, far) == pytest.approx(picked * (2 * 576 + 2 * 512))
    assert core_flop(SPARSE, far) < 0.11 * core_flop(DENSE, far)


def test_the_table_of_one_chip_counts_the_flop_of_the_model() -> None:
    m = model("glm-5")
    batch = Batch(decode_sequences=8.0, context_len=10_000.0)
    counted = sum(row.amounts.get("compute", 0.0) for row in deploy("glm-5").table().time(batch).rows)
    assert counted / 8.0 == pytest.approx(m.flop_per_token(10_000.0), rel=2e-3)


def test_indexer_heads_are_not_cut_by_tensor_parallelism() -> None:
    rows = {
        tp: {
            r.name: r for r in deploy("deepseek-v3.2", f"tp={tp}").table().rows if r.name.startswith("attention_decode")
        }
        for tp in (1, 8)
    }
    kv, pairs = "kv_tokens:index", "kv_pairs:index"
    whole, cut = rows[1]["attention_decode_index"], rows[8]["attention_decode_index"]
    assert np.asarray(cut.compute[pairs]).item() == np.asarray(whole.compute[pairs]).item() == 61 * 64 * 2 * 128
    assert np.asarray(cut.hbm[kv]).item() == 61 * 132
    assert np.asarray(cut.hbm[pairs]).item() == 61 * 8


def test_long_contexts_decode_faster_than_with_dense_latent_attention() -> None:
    def decode_s(name: str, context: float) -> float:
        batch = Batch(decode_sequences=256.0, context_len=context)
        return deploy(name, "tp=8,ep=8", label="fp8,kv=fp8", calibration="unit").table().time(batch).seconds

    assert decode_s("deepseek-v3.2", 128_000.0) < 0.5 * decode_s("deepseek-v3", 128_000.0)
    assert decode_s("deepseek-v3.2", 500.0) > decode_s("deepseek-v3", 500.0)


def test_published_sizes() -> None:
    assert model("glm-5").total_params == pytest.approx(744e9, rel=1e-3)
    assert model("glm-5").active_params == pytest.approx(40e9, rel=0.025)
    # GLM-5.2 drops the indexers of 57 of 78 layers
    per_indexer = 2048 * 32 * 128 + 6144 * 128 + 6144 * 32 + 2 * 128
    assert model("glm-5").total_params - model("glm-5.2").total_params == 57 * per_indexer


def test_heads_of_a_token_that_picks_its_own_entries_fill_tiles_of_64_rows() -> None:
    heads = np.array([1.0, 16.0, 64.0, 65.0, 128.0])
    kernels = {kernel: _pair_heads(SimpleNamespace(kernel=kernel), heads).tolist() for kernel in LATENT_KERNELS}  # type: ignore[arg-type]
    assert kernels == {
        "mla": [1.0, 16.0, 64.0, 65.0, 128.0],  # tokens share what they read
        "sparse": [64.0, 64.0, 64.0, 128.0, 128.0],
        "compressed": [64.0, 64.0, 64.0, 128.0, 128.0],
        "compressed_sparse": [64.0, 64.0, 64.0, 128.0, 128.0],
    }
