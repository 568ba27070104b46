"""Configurations of 2026 and what a reader says of them: what is counted, what is left out, what is only repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hf_configs import GEMMA3, GPT_OSS, LLAMA, QWEN3_MOE

from rackline.arch import Model, build_model, model
from rackline.arch.checkpoint import size_in_name
from rackline.arch.hf import ReadConfig, read_config, read_config_file
from rackline.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[3] / "shared" / "configs_2026"
needs_configs = pytest.mark.skipif(not CONFIGS.is_dir(), reason="the configurations of 2026 are not here")


def built(config: dict[str, Any]) -> Model:
    found = build_model(read_config(config, "m", "m").record)
    assert isinstance(found, Model)
    return found


def read(stem: str) -> tuple[Model, ReadConfig]:
    found = read_config_file(CONFIGS / f"{stem}.json")
    of = build_model(found.record)
    assert isinstance(of, Model)
    return of, found


@needs_configs
def test_deepseek_v41_shares_entries_and_choices() -> None:
    found, said = read("deepseek-ai--DeepSeek-V4.1-Flash")
    assert (found.num_layers, found.max_context_len, found.mtp_layers) == (40, 1_048_576, 3)
    kinds = {group.attention.kind: group for group in found.layer_groups}
    assert {"compressed_2", "compressed_2_shared", "compressed_1", "compressed_1_shared"} <= set(kinds)
    owners = [g for g in found.layer_groups if g.attention.kind in ("compressed_2", "compressed_1")]
    assert sum(group.count for group in owners) == 4  # kv_source_layer_ids
    indexers = [g for g in found.layer_groups if any(core.kind.startswith("index") for core in g.attention.cores())]
    assert sum(group.count for group in indexers) == 8  # index_source_layer_ids
    # rows of both tables of n-grams times their width
    assert found.lookup_params == (384_006_168 + 384_016_682) * 256
    assert found.parameters().active["lookup"] == 0
    experts = 40 * 384 * 3 * 5120 * 2304
    assert found.parameters().total["experts"] == experts
    (warning,) = said.warnings
    assert all(word in warning for word in ("candidate_block_size", "engram_layer_ids", "dspark_block_size"))
    assert said.record.native_precision == "fp8_block,experts=mxfp4,expert_activations=mxfp8"


@needs_configs
def test_glm5_next_has_delta_layers_between_sparse_ones() -> None:
    found, said = read("zai-org--GLM-5.3-Flash")
    kinds = {group.attention.kind: 0 for group in found.layer_groups}
    for group in found.layer_groups:
        kinds[group.attention.kind] += group.count
    assert kinds == {"kda": 34, "mla_top_2048": 11}
    # one index key for four tokens: 128 bytes and a scale each, beside 512 elements of the latent without rotary part
    held = found.kv_bytes_per_token_by_kind(2.0)
    assert held["index_4"] == pytest.approx(11 * 132 / 4)
    assert held["mla_top_2048"] == 11 * 512 * 2
    assert found.tower_params > 0
    assert "index_kpool_compress" in said.warnings[0]


@needs_configs
def test_muse_glimmer_is_named_for_more_than_it_counts() -> None:
    found, _ = read("meta-models--Muse-Glimmer-30B")
    windows = sum(group.count for group in found.layer_groups if group.attention.window == 2048)
    assert (found.num_layers, windows) == (52, 39)
    warnings = model(str(CONFIGS / "meta-models--Muse-Glimmer-30B.json")).origin.warnings  # type: ignore[union-attr]
    assert any("by its name (-5.5%)" in warning for warning in warnings)
    assert any("windows of the vision tower" in warning for warning in warnings)


@needs_configs
def test_weights_of_four_bits_with_activations_of_sixteen() -> None:
    _, said = read("nvidia--Qwen3.6-27B-NVFP4")
    assert said.record.native_precision == "bf16,weights=fp4,activations=bf16,kv=fp8"
    assert any("layers in FP8 are taken as W4A16_NVFP4" in warning for warning in said.warnings)


GEMMA2: dict[str, Any] = {  # google/gemma-2-9b-it, as its repository has it
    "model_type": "gemma2", "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192, "num_attention_heads": 16,
    "num_hidden_layers": 42, "num_key_value_heads": 8, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 256000,
}  # fmt: skip


def test_gemma_2_as_it_is_published() -> None:
    assert built(GEMMA2).total_params == 9_241_705_984


def test_qwen25_vl_counts_its_tower() -> None:
    config: dict[str, Any] = {  # Qwen/Qwen2.5-VL-7B-Instruct
        "model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "use_sliding_window": False, "sliding_window": 32768,
        "max_window_layers": 28, "max_position_embeddings": 128000,
        "vision_config": {
            "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
            "spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2, "temporal_patch_size": 2,
        },
    }  # fmt: skip
    found = built(config)
    assert found.total_params == pytest.approx(8_292_166_656, rel=1e-4)
    assert found.active_params == built({**config, "vision_config": None}).active_params


@pytest.mark.parametrize(
    ("config", "key", "name"),
    [
        (LLAMA, "intermediate_size", "ffn_dim"),
        (LLAMA, "num_key_value_heads", "num_kv_heads"),
        (LLAMA, "hidden_size", "d_model"),
        (QWEN3_MOE, "num_experts", "n_routed_experts"),
        (QWEN3_MOE, "num_experts_per_tok", "moe_topk"),
        (GPT_OSS, "sliding_window", "sliding_window_size"),
        (GEMMA3["text_config"] | {"torch_dtype": "bfloat16"}, "num_hidden_layers", "n_layers"),
    ],
)
def test_a_second_name_is_read_and_held_to_the_first(config: dict[str, Any], key: str, name: str) -> None:
    same = built({**config, name: config[key]})
    assert same.total_params == built(config).total_params
    with pytest.raises(ConfigError, match=name):
        built({**config, name: config[key] + 1})


def test_gelu_by_tanh_is_gelu_and_silu_is_not() -> None:
    assert built({**GEMMA2, "hidden_act": "gelu"}).total_params == built(GEMMA2).total_params
    with pytest.raises(ConfigError, match=r"hidden_activation|hidden_act"):
        built({**GEMMA2, "hidden_activation": "silu"})


def test_an_unknown_tower_is_said() -> None:
    config = {**LLAMA, "vision_config": {"hidden_size": 1152}}
    found = read_config(config, "m", "m")
    assert any("vision_config" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("name", "size"), [("Qwen3-30B-A3B", 30e9), ("Mixtral-8x7B-v0.1", None), ("mpt-125m", 125e6), ("Kimi-K2", None)]
)
def test_sizes_in_names(name: str, size: float | None) -> None:
    assert size_in_name(name) == size


def test_a_count_far_from_the_name_warns(tmp_path: Path) -> None:
    for name, warns in (("Llama-7B", True), ("Llama-of-nobody", False)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA))
        origin = model(str(folder)).origin
        assert origin is not None
        assert any("by its name" in warning for warning in origin.warnings) is warns
