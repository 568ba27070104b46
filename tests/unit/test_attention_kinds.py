"""Attention kinds of the catalogue: held, read and computed by hand; what tables and layouts make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import deploy, model, record
from rackline.arch import GroupedQueryAttention, attention_kind_names, build_model
from rackline.arch.kinds import attention_from_parameters
from rackline.catalog import model_record
from rackline.errors import CatalogError
from rackline.passes import Batch


def make(kind: str, **parameters: Any) -> Any:
    return attention_from_parameters(kind, parameters, where="test")


GQA = {"num_q_heads": 16, "num_kv_heads": 4, "head_dim": 64}
COMPRESSED = {
    "num_q_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "window": 128,
}
CSA = make("compressed", **COMPRESSED, ratio=4, top_k=512, index_heads=64, index_head_dim=128)
HCA = make("compressed", **COMPRESSED, ratio=128)
MAMBA = make("mamba2", num_heads=64, head_dim=64, state_size=128, num_groups=8, conv_kernel=4)
LIGHTNING = make("lightning", num_heads=64, head_dim=128)
KDA = make("kda", num_heads=96, head_dim=128, conv_kernel=4, full_rank_gate=True)
BLOCKS = make("gqa_block_sparse", **GQA, block_size=128, top_blocks=16, index_heads=4, index_head_dim=128, qk_norm=True)
NSA = make("gqa_native_sparse", **GQA, stride=16, block_size=64, top_blocks=16, local=512)
ROOT = make("gqa_root_sparse", **GQA, top_blocks=16)
ALL = (CSA, HCA, MAMBA, LIGHTNING, KDA, BLOCKS, NSA, ROOT)


def brute_pairs(kind: Any, new: int, prefix: int) -> float:
    """Pairs query by query, from what one query reads."""
    return float(sum(np.asarray(kind.kv_read_tokens(float(prefix + i))) for i in range(1, new + 1)))


@pytest.mark.parametrize("kind", [CSA, HCA, BLOCKS, NSA, ROOT], ids=lambda kind: kind.kind)
@pytest.mark.parametrize(("new", "prefix"), [(1, 0), (100, 0), (900, 3000), (5000, 1), (4000, 40_000)])
def test_pairs_are_what_each_query_reads(kind: Any, new: int, prefix: int) -> None:
    counted = float(np.asarray(kind.attention_pairs(float(new), float(prefix))))
    assert counted == pytest.approx(brute_pairs(kind, new, prefix), rel=0.005, abs=1.0)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.kind)
def test_nothing_is_read_that_is_not_held_or_summarised(kind: Any) -> None:
    context = np.array([1.0, 100.0, 5000.0, 1e6])
    read, held = np.asarray(kind.kv_read_tokens(context)), np.asarray(kind.kv_held_tokens(context))
    assert np.all(read <= held + 1e-9)
    assert np.all(np.diff(read) >= 0)
    assert np.all(np.diff(held) >= 0)


def test_tokens_loaded_by_native_sparse_attention_are_those_of_its_paper() -> None:
    """Yuan et al., arXiv:2502.11089, table 4."""
    published = {8192: 2048, 16384: 2560, 32768: 3584, 65536: 5632}
    for context, loaded in published.items():
        assert float(np.asarray(NSA.kv_read_tokens(float(context)))) == loaded


def test_reads_of_root_sparse_attention_have_slope_one_half() -> None:
    context = np.array([1e5, 1e6, 1e7])
    slope = np.diff(np.log(np.asarray(ROOT.kv_read_tokens(context)))) / np.diff(np.log(context))
    assert slope == pytest.approx([0.5, 0.5])


def test_compressed_entries_and_window_by_hand() -> None:
    assert float(CSA.kv_held_tokens(10_000.0)) == 128 + 2500
    assert float(CSA.kv_read_tokens(10_000.0)) == 128 + 512
    assert float(HCA.kv_read_tokens(12_800.0)) == 128 + 100
    index = CSA.cores()[1]
    assert float(np.asarray(index.kv_read_tokens(10_000.0))) == 2500
    assert (HCA.cores(), index.kind) == ((HCA,), "index_4")


def test_states_do_not_grow_with_the_context() -> None:
    assert float(np.asarray(MAMBA.state_elements(1))) == 64 * 64 * 128
    assert float(np.asarray(LIGHTNING.state_elements(8))) == 8 * 128 * 128
    nemotron = model("nemotron-3-nano-30b-a3b")
    attention_only = 6 * 2 * 2 * 128 * 2.0  # 6 layers, keys and values, 2 heads of 128, bf16
    assert nemotron.kv_bytes(2000.0) - nemotron.kv_bytes(1000.0) == 1000 * attention_only
    assert nemotron.state_bytes() == 23 * 64 * 64 * 128 * 4


def test_a_shared_cache_is_read_but_not_kept() -> None:
    own = GroupedQueryAttention(num_q_heads=8, num_kv_heads=2, head_dim=64)
    shared = GroupedQueryAttention(num_q_heads=8, num_kv_heads=2, head_dim=64, shares_kv=True)
    assert float(np.asarray(shared.kv_read_tokens(4096.0))) == float(np.asarray(own.kv_read_tokens(4096.0)))
    assert float(np.asarray(shared.kv_held_tokens(4096.0))) == 0.0
    kv_projection = 512 * 2 * 2 * 64
    assert sum(p.params for p in own.projections(512)) - sum(p.params for p in shared.projections(512)) == kv_projection


def test_cross_layer_sharing_halves_the_cache_of_a_model() -> None:
    layers = [
        {"name": "own", "count": 2, "attention": {"kind": "gqa", **GQA}, "ffn": {"kind": "swiglu", "d_ff": 1024}},
        {
            "name": "shared",
            "count": 2,
            "attention": {"kind": "gqa", **GQA, "shares_kv": True},
            "ffn": {"kind": "swiglu", "d_ff": 1024},
        },
    ]
    shape = {"num_layers": 4, "d_model": 512, "vocab_size": 1000, "layers": layers}
    built = build_model(record({"name": "shared", "architecture": shape}))
    assert built.kv_bytes_per_token(2.0) == 2 * 2 * 4 * 64 * 2
    assert built.kv_read_bytes(1000.0) == 2 * built.kv_bytes(1000.0)


def test_parameters_of_a_mamba_layer_by_hand() -> None:
    """Nemotron 3 Nano: in_proj to gate, input, B, C and steps; convolution with bias; A, D, step bias; norm; out."""
    inner, channels = 64 * 64, 64 * 64 + 2 * 8 * 128
    by_hand = 2688 * (2 * inner + 2 * 8 * 128 + 64) + channels * 5 + 3 * 64 + inner + inner * 2688
    assert sum(p.params for p in MAMBA.projections(2688)) + MAMBA.extra_params() == by_hand


def test_parameters_of_a_latent_mixture_by_hand() -> None:
    """Nemotron 3 Super: 512 experts of 2 · 1024 · 2688, a router over 4096, projections into 1024 and out of it."""
    super_ = model("nemotron-3-super-120b-a12b")
    count = super_.parameters().total
    assert count["experts"] == 40 * 512 * 2 * 1024 * 2688
    assert count["latent"] == 40 * 2 * 4096 * 1024
    assert count["shared_experts"] == 40 * 2 * 4096 * 5376


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-v4-flash",
        "kimi-k3",
        "minimax-m3",
        "minimax-text-01",
        "nemotron-3-super-120b-a12b",
        "nemotron-h-56b",
        "mimo-v2-flash",
        "gemma-4-26b-a4b",
        "step-3.7-flash",
        "phi-mini-moe",
        "gpt-neox-20b",
    ],
)
def test_the_table_of_one_chip_counts_the_flop_of_the_model(name: str) -> None:
    """Two independent sums: rows of the pass table, and parameters by kind with attention cores."""
    m = model(name)
    batch = Batch(decode_sequences=8.0, context_len=3000.0)
    counted = sum(row.amounts.get("compute", 0.0) for row in deploy(name).table().time(batch).rows)
    assert counted / 8.0 == pytest.approx(m.flop_per_token(3000.0), rel=4e-3)


@pytest.mark.parametrize("name", ["nemotron-3-super-120b-a12b", "kimi-k3", "deepseek-v4-pro", "minimax-m3"])
def test_new_kinds_have_layouts_memory_and_prefill(name: str) -> None:
    from rackline.parallel import enumerate_layouts

    m = model(name)
    layouts = enumerate_layouts(m, 8)
    assert any(layout.tp == 8 for layout in layouts) or any(layout.attention_dp == 8 for layout in layouts)
    deployment = deploy(name, "tp=2,ep=2", on="gb200-nvl72", label="native")
    one = deployment.memory(sequences=1.0, context_len=8192.0)
    two = deployment.memory(sequences=2.0, context_len=8192.0)
    assert two.kv_cache == pytest.approx(2 * one.kv_cache)
    held = float(np.asarray(m.kv_bytes(8192.0)))
    assert 0.3 * held < float(one.kv_cache) <= 1.01 * held
    table = deployment.table()
    short, long = (table.time(Batch(prefill_sequences=1.0, chunk_tokens=n)).seconds for n in (1000.0, 8000.0))
    assert 1.0 < long / short < 80.0


def test_kinds_are_found_by_themselves() -> None:
    assert {"gqa", "mla", "mla_sparse", "compressed", "mamba2", "kda", "lightning", "gated_delta", "none"} <= set(
        attention_kind_names()
    )


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("mamba3", {}, "kind: got 'mamba3', allowed: one of bidirectional, compressed, .*nearest: mamba2"),
        ("lightning", {"num_heads": 4, "head_dims": 8}, "head_dims: .*a parameter of lightning; nearest: head_dim"),
        ("lightning", {"num_heads": 4}, "head_dim: got 'nothing', allowed: required by lightning"),
        ("lightning", {"num_heads": 0, "head_dim": 8}, "num_heads: got 0, allowed: more than zero"),
        ("lightning", {"num_heads": "4", "head_dim": 8}, "num_heads: got '4', allowed: of type int"),
        ("lightning", {"num_heads": True, "head_dim": 8}, "num_heads: got True"),
        ("gqa", {"num_q_heads": 8, "num_kv_heads": 3, "head_dim": 8}, "3 does not divide num_q_heads 8"),
        ("gqa", {**GQA, "bias": 1}, "bias: got 1, allowed: of type bool"),
        ("compressed", {**COMPRESSED, "top_k": 5}, "top_k picks compressed entries, but ratio is 0"),
    ],
)
def test_bad_parameters_are_named(kind: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogError, match=words) as caught:
        make(kind, **parameters)
    assert "\n" not in str(caught.value)


LAYERED = """\
name = "mine"
full_name = "Mine"
[architecture]
num_layers = 3
d_model = 64
vocab_size = 100
[[architecture.layers]]
name = "first"
count = 3
[architecture.layers.attention]
kind = "lightning"
num_heads = 4
head_dim = 16
[architecture.layers.ffn]
kind = "relu2"
d_ff = 128
[[sources]]
fields = ["*"]
kind = "assumed"
citation = "made up"
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_layers = 3", "num_layers = 4", "add up to 3, but num_layers is 4"),
        ("head_dim = 16", "head_dim = -16", "architecture.layers.0.attention.head_dim"),
        ("d_ff = 128", "d_fff = 128", "line 16: architecture.layers.0.ffn.d_fff: .*nearest: d_ff"),
        ("count = 3", 'count = "3"', "line 9: architecture.layers.0.count"),
        ('kind = "relu2"', 'kind = "relu3"', "line 15: architecture.layers.0.ffn.kind"),
    ],
)
def test_broken_layers_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(LAYERED)
    assert build_model(model_record(str(file))).num_layers == 3
    file.write_text(LAYERED.replace(old, new))
    with pytest.raises(CatalogError, match=words):
        build_model(model_record(str(file)))


def test_numbers_of_layers_can_be_replaced() -> None:
    found = model_record("minimax-text-01", overrides={"architecture.layers.softmax.attention.num_kv_heads": 4})
    assert build_model(found).kv_bytes_per_token(2.0) == 10 * 2 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("name", "counted", "positions"),
    [
        ("mpt-125m", 148_904_448, 32_768),
        ("mpt-760m", 807_656_448, 32_768),
        ("mpt-1b", 1_315_950_592, 2048),
        ("mpt-7b", 6_658_859_008, 2048),
        ("mpt-13b", 12_853_954_560, 2048),
        ("mpt-30b", 29_975_214_080, 2048),
        ("mpt-70b", 64_862_437_376, 2048),
    ],
)
def test_sizes_of_mpt_at_the_sequence_length_of_their_runs(name: str, counted: int, positions: int) -> None:
    """llm-foundry's benchmarking table counts learned positions of the sequence length of each run."""
    found = build_model(model_record(name, overrides={"architecture.learned_positions": positions}))
    assert found.total_params == counted


def test_layers_for_multi_token_prediction() -> None:
    """DeepSeek-V3's checkpoint holds 684.53e9 parameters: the model, one more layer, a copy of embedding and head."""
    found = model("deepseek-v3")
    assert found.mtp_layers == 1
    copies = 2 * found.vocab_size * found.d_model
    assert found.total_params + found.mtp_params + copies == pytest.approx(684.53e9, rel=2e-4)
    assert model("llama-3.1-8b").mtp_params == 0


def test_gated_delta_has_the_small_tensors_of_its_checkpoints() -> None:
    """conv1d.weight [channels, 1, kernel], A_log and dt_bias [value heads], norm.weight [value head width]."""
    kind = attention_from_parameters(
        "gated_delta",
        {"num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128, "value_head_dim": 128, "conv_kernel": 4},
        where="test",
    )
    assert kind.extra_params() == 8192 * 4 + 32 + 32 + 128


def test_work_of_recurrent_layers_by_hand() -> None:
    """Of one head and token: a step over the state, and a chunk's share of it with the tokens of the chunk pairwise."""
    kda = make("kda", num_heads=2, head_dim=128, conv_kernel=4)
    assert kda.state_flop_per_token == 7 * 128 * 128
    assert kda.chunk_flop_per_token == 6 * 128 * 128 + 8 * kda.chunk_size * 128
    # without a gate of full rank the gate goes through head_dim channels: two products in place of one
    names = [one.name for one in kda.projections(512)]
    assert names == ["kda_in", "kda_decay_down", "kda_decay_up", "kda_gate_down", "kda_gate_up", "kda_out"]
    full = [
        one.name for one in make("kda", num_heads=2, head_dim=128, conv_kernel=4, full_rank_gate=True).projections(512)
    ]
    assert full == ["kda_in", "kda_decay_down", "kda_decay_up", "kda_gate", "kda_out"]
    # three convolutions of 4 over 256 channels, a decay a head, a bias a channel, a norm of head_dim
    assert kda.extra_params() == 3 * 256 * 4 + 2 + 256 + 128
