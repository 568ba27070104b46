"""Import of Hugging Face configurations: translation, agreement with the shipped models, and complaints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hf_configs import DEEPSEEK, GEMMA3, GEMMA4, GPT_OSS, LLAMA, LLAMA4, QWEN3, QWEN3_MOE

from rackline.arch import Model, build_model, model, read_hf_config, record_from_hf
from rackline.arch.hf_config import MOST_LAYERS
from rackline.catalog import GqaRecord, LayeredRecord, MlaRecord, ModelRecord, model_record
from rackline.errors import ConfigError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def read(config: dict[str, Any]) -> ModelRecord:
    return record_from_hf(config, "test", "test.json")


def gqa(config: dict[str, Any]) -> GqaRecord:
    architecture = read(config).architecture
    assert architecture is not None
    assert isinstance(architecture.attention, GqaRecord)
    return architecture.attention


# ------------------------------------------------------------------------- agreement with the shipped models

CONFIGS = {
    "deepseek-ai--DeepSeek-R1": ("deepseek-v3", "fp8_block"),
    "deepseek-ai--DeepSeek-V3": ("deepseek-v3", "fp8_block"),
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": ("llama-4-maverick", "bf16"),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": ("llama-4-scout", "bf16"),
    "meta-llama--Meta-Llama-3.1-405B": ("llama-3.1-405b", "bf16"),
    "meta-llama--Meta-Llama-3.1-70B": ("llama-3.1-70b", "bf16"),
    "meta-llama--Meta-Llama-3.1-8B": ("llama-3.1-8b", "bf16"),
    "mistralai--Mixtral-8x22B-v0.1": ("mixtral-8x22b", "bf16"),
    "mistralai--Mixtral-8x7B-v0.1": ("mixtral-8x7b", "bf16"),
    "moonshotai--Kimi-K2-Instruct": ("kimi-k2", "fp8_block"),
    "moonshotai--Kimi-K2.5": ("kimi-k2.5", "bf16,experts=int4"),
    "nvidia--Kimi-K2.5-NVFP4": ("kimi-k2.5", "nvfp4,kv=fp8"),
    "openai--gpt-oss-120b": ("gpt-oss-120b", "mxfp4"),
    "openai--gpt-oss-20b": ("gpt-oss-20b", "mxfp4"),
    "Qwen--Qwen3-235B-A22B": ("qwen3-235b-a22b", "bf16"),
    "Qwen--Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b", "fp8_block"),
    "Qwen--Qwen3-30B-A3B": ("qwen3-30b-a3b", "bf16"),
    "Qwen--Qwen3-32B": ("qwen3-32b", "bf16"),
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": ("qwen3-32b", "fp8,kv=fp8"),
    "Qwen--Qwen3-8B": ("qwen3-8b", "bf16"),
}


@pytest.mark.parametrize("stem", sorted(CONFIGS))
def test_published_config_gives_the_shipped_architecture(stem: str) -> None:
    path = SHARED / "model_configs" / f"{stem}.json"
    if not path.is_file():
        pytest.skip("the collection of published config.json files is not here")
    name, precision = CONFIGS[stem]
    record = read_hf_config(path)
    assert record.architecture is not None
    alone = record.architecture.model_copy(update={"tower_params": 0})  # the catalogue has language models
    assert alone == model_record(name).architecture
    assert record.native_precision == precision
    assert record.name == stem.rsplit("--", 1)[-1].lower()


# ------------------------------------------------------------------------------------------------- families


def test_llama_is_translated() -> None:
    record = read(LLAMA)
    arch = record.architecture
    assert arch is not None
    assert (arch.num_layers, arch.d_model, arch.vocab_size, arch.tied_embeddings) == (2, 256, 1000, False)
    attention = gqa(LLAMA)
    assert (attention.num_q_heads, attention.num_kv_heads, attention.head_dim) == (8, 2, 32)
    assert (attention.bias, attention.qk_norm, attention.window) == (False, False, None)
    assert (arch.ffn.kind, arch.ffn.d_ff, arch.moe) == ("swiglu", 512, None)
    # embedding and head, 2 layers of q and o, k and v, three ffn matrices and two norms, the last norm
    layer = 2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 512 + 2 * 256
    assert build_model(record).total_params == 2 * 1000 * 256 + 2 * layer + 256


def test_missing_kv_heads_mean_one_for_each_query_head() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert gqa(config).num_kv_heads == 8


def test_given_head_dim_wins_over_the_quotient() -> None:
    assert gqa(QWEN3).head_dim == 64


def test_biases_of_the_families_differ() -> None:
    assert (gqa({**LLAMA, "attention_bias": True}).bias, gqa(LLAMA).bias) == (True, False)
    qwen2 = gqa({**LLAMA, "model_type": "qwen2"})
    assert (qwen2.bias, qwen2.output_bias) == (True, False)
    assert gqa({**LLAMA, "attention_bias": True}).output_bias
    assert gqa(QWEN3).qk_norm
    assert not gqa(QWEN3).bias


def test_mistral_window_is_everywhere_and_null_means_none() -> None:
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    assert (gqa(mistral).window, gqa(mistral).pattern) == (4096, None)
    assert gqa({**mistral, "sliding_window": None}).window is None


def test_qwen_window_needs_its_switch_and_starts_at_max_window_layers() -> None:
    config = {**QWEN3, "num_hidden_layers": 4, "sliding_window": 512, "max_window_layers": 3}
    assert gqa(config).window is None
    windowed = gqa({**config, "use_sliding_window": True})
    assert (windowed.window, windowed.pattern) == (512, ("full", "full", "full", "window"))


def test_mixtral_width_is_the_experts() -> None:
    arch = read({**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}).architecture
    assert arch is not None
    assert arch.moe is not None
    assert (arch.moe.num_experts, arch.moe.experts_per_token, arch.moe.d_expert) == (8, 2, 512)


def test_qwen_moe_step_places_the_mixtures() -> None:
    built = build_model(read({**QWEN3_MOE, "decoder_sparse_step": 3}))
    one = build_model(read(QWEN3_MOE))
    # layers 2 and 5 of 6 are mixtures instead of all six
    difference = 3 * 256 * 64 * 16 + 256 * 16 - 3 * 256 * 512
    assert one.total_params - built.total_params == 4 * difference


def test_deepseek_is_translated() -> None:
    arch = read({**DEEPSEEK, "num_nextn_predict_layers": 1}).architecture
    assert arch is not None
    assert arch.moe is not None
    assert isinstance(arch.attention, MlaRecord)
    assert (arch.attention.q_lora_rank, arch.attention.kv_lora_rank, arch.attention.v_head_dim) == (
        96,
        64,
        32,
    )
    assert (arch.moe.num_shared_experts, arch.moe.d_shared, arch.moe.first_dense_layers) == (2, 256, 1)
    assert arch.mtp_layers == 1
    assert model_kv(DEEPSEEK) == 4 * (64 + 16) * 2


def model_kv(config: dict[str, Any]) -> float:
    return build_model(read(config)).kv_bytes_per_token(2.0)


def test_null_query_latent_means_direct_queries_but_missing_does_not() -> None:
    arch = read({**DEEPSEEK, "q_lora_rank": None}).architecture
    assert arch is not None
    assert isinstance(arch.attention, MlaRecord)
    assert arch.attention.q_lora_rank == 0
    with pytest.raises(ConfigError, match="q_lora_rank"):
        read({key: value for key, value in DEEPSEEK.items() if key != "q_lora_rank"})


def test_gpt_oss_alternates_and_has_sinks_and_biases() -> None:
    attention = gqa(GPT_OSS)
    assert (attention.window, attention.pattern) == (128, ("window", "full"))
    assert attention.sinks
    assert attention.bias
    listed = gqa({**GPT_OSS, "layer_types": ["full_attention", "sliding_attention"]})
    assert listed.pattern == ("full", "window")


def test_gemma_defaults_and_pattern_come_from_its_class() -> None:
    attention = gqa(GEMMA3)
    assert (attention.num_q_heads, attention.num_kv_heads, attention.head_dim) == (8, 4, 256)
    assert (attention.window, attention.pattern) == (1024, ("window",) * 5 + ("full",))
    arch = read(GEMMA3).architecture
    assert arch is not None
    assert (arch.tied_embeddings, arch.vocab_size, arch.ffn.kind) == (True, 262_208, "geglu")


@pytest.mark.parametrize("shared", [0, 2, 5])
def test_the_last_layers_of_gemma4_read_the_cache_of_earlier_ones(shared: int) -> None:
    record = read({**GEMMA4, "num_kv_shared_layers": shared})
    assert isinstance(record.architecture, LayeredRecord)
    of_layer = [
        layer.attention.model_dump().get("shares_kv", False)
        for layer in record.architecture.layers
        for _ in range(layer.count)
    ]
    assert sum(of_layer) == shared
    assert float(build_model(record).kv_bytes(8.0)) == pytest.approx(
        float(build_model(read(GEMMA4)).kv_bytes(8.0)) * (6 - shared) / 6
    )


def test_llama4_dense_and_mixture_layers_alternate() -> None:
    arch = read(LLAMA4).architecture
    assert arch is not None
    assert arch.moe is not None
    assert (arch.ffn.d_ff, arch.moe.d_expert, arch.moe.d_shared) == (1024, 512, 512)
    assert (arch.moe.first_dense_layers, arch.moe.every) == (1, 2)
    assert gqa(LLAMA4).pattern == ("window", "window", "window", "full")


def test_language_model_is_found_inside_a_wrapper() -> None:
    wrapped = {"model_type": "kimi_k25", "text_config": DEEPSEEK, "vision_config": {"hidden_size": 1}}
    assert read(wrapped).architecture == read(DEEPSEEK).architecture


# ------------------------------------------------------------------------------------------------ precision


@pytest.mark.parametrize(
    ("quantization", "label"),
    [
        ({"quant_method": "fp8", "fmt": "e4m3"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8-weights"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4}}},
            },
            "int4",
        ),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8,kv=fp8"),
        ({"quant_algo": "NVFP4", "kv_cache_scheme": {"type": "float", "num_bits": 8}}, "nvfp4,kv=fp8"),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": None}, "nvfp4"),
        (None, "bf16"),
    ],
)
def test_quantization_becomes_a_label(quantization: dict[str, Any] | None, label: str) -> None:
    assert read({**LLAMA, "quantization_config": quantization}).native_precision == label


def test_newer_name_of_the_data_type() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    assert read({**config, "dtype": "bfloat16"}).native_precision == "bf16"


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "quantization_config.quant_method: got 'bitsandbytes'"),
        ({"quant_algo": "MIXED_PRECISION"}, "quantization_config.quantized_layers: got 'no such key'"),
        ({"quant_method": "awq", "bits": 3}, "quantization_config.bits"),
        ({}, "quantization_config.quant_method"),
        ("fp8", "quantization_config"),
    ],
)
def test_unknown_quantization_is_refused(quantization: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read({**LLAMA, "quantization_config": quantization})


# -------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (
            LLAMA,
            {"model_type": "lama"},
            r"test\.json: model_type: got 'lama', allowed: one of .*nearest: llama$",
        ),
        (LLAMA, {"model_type": "brandnew9"}, "model_type: got 'brandnew9'.*one of \\d+ families.*--assume FAMILY"),
        (LLAMA, {"model_type": None}, "model_type: got 'null'"),
        (
            LLAMA,
            {"hidden_size": None},
            r"test\.json: hidden_size: got 'null', allowed: a whole number from 1",
        ),
        (LLAMA, {"hidden_size": "256"}, "hidden_size: got '256', allowed: a whole number from 1"),
        (LLAMA, {"hidden_size": 256.0}, r"hidden_size: got 256\.0"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers: got 0"),
        (LLAMA, {"num_hidden_layers": -3}, "num_hidden_layers: got -3"),
        (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers: got True"),
        (LLAMA, {"vocab_size": float("nan")}, "vocab_size: got nan"),
        (LLAMA, {"vocab_size": 10**12}, "vocab_size: got 1000000000000"),
        (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads: got 3, allowed: a divisor of .* 8"),
        (
            LLAMA,
            {"num_attention_heads": 6},
            "num_attention_heads: got 6, allowed: a divisor of hidden_size 256",
        ),
        (LLAMA, {"hidden_act": "relu6"}, "hidden_act: got 'relu6', allowed: one of silu, swish"),
        (LLAMA, {"tie_word_embeddings": "yes"}, "tie_word_embeddings: got 'yes', allowed: true or false"),
        (LLAMA, {"torch_dtype": "float8"}, "torch_dtype: got 'float8', allowed: one of bfloat16"),
        (LLAMA, {"torch_dtype": None}, "torch_dtype: got 'null', allowed: one of bfloat16"),
        (
            QWEN3_MOE,
            {"mlp_only_layers": ["x"]},
            "mlp_only_layers: got .a JSON array., allowed: a list of layer numbers",
        ),
        (
            QWEN3_MOE,
            {"num_experts_per_tok": 17},
            "num_experts_per_tok: got 17, allowed: at most num_experts 16",
        ),
        (QWEN3_MOE, {"decoder_sparse_step": 7}, "num_hidden_layers: got 6, allowed: at least the spacing 7"),
        (DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq: got 2, allowed: 1"),
        (DEEPSEEK, {"first_k_dense_replace": 5}, "first_k_dense_replace: got 5, allowed: at most .* 4"),
        (
            DEEPSEEK,
            {"topk_method": "fancy"},
            "topk_method: got .fancy., allowed: one of greedy, group_limited_greedy, noaux_tc",
        ),
        (DEEPSEEK, {"attention_bias": True}, "attention_bias: got True, allowed: false"),
        (GPT_OSS, {"layer_types": ["full_attention"]}, "layer_types: .*allowed: a list of 2 entries"),
        (
            GPT_OSS,
            {"layer_types": ["full_attention", "conv"]},
            "layer_types: .*sliding_attention, full_attention",
        ),
        (GPT_OSS, {"sliding_window": None}, "sliding_window: got 'null'"),
        (GEMMA3, {"text_config": None}, "text_config: got 'null', allowed: an object"),
        (GEMMA3, {"text_config": {"model_type": "llama"}}, r"text_config\.model_type: got 'llama'"),
        (
            GEMMA3,
            {"text_config": {"model_type": "gemma3_text"}},
            r"text_config\.num_hidden_layers: got 'no such",
        ),
    ],
)
def test_unusable_keys_are_named(base: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read({**base, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("base", [LLAMA, QWEN3_MOE, DEEPSEEK, GPT_OSS], ids=lambda c: c["model_type"])
def test_every_needed_key_is_missed(base: dict[str, Any]) -> None:
    optional = {"num_key_value_heads", "head_dim", "n_shared_experts"}
    for key in base.keys() - optional:
        with pytest.raises(ConfigError, match=key):
            read({k: v for k, v in base.items() if k != key})


def test_misspelt_key_is_suggested() -> None:
    config = {("hiden_size" if key == "hidden_size" else key): value for key, value in LLAMA.items()}
    with pytest.raises(ConfigError, match=r"hidden_size: got 'no such key'.*nearest: hiden_size"):
        read(config)


# ----------------------------------------------------------------------------------------------------- files


def test_file_and_folder_give_the_same_record(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "rope_theta": float("inf")}), encoding="utf-8")
    record = read_hf_config(folder / "config.json")
    assert (record.name, record.full_name) == ("my-llama", "My-Llama")
    assert read_hf_config(str(folder)).architecture == record.architecture
    built = model(str(folder / "config.json"))
    assert built.total_params == build_model(record).total_params


def test_record_says_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "org--Name.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    record = read_hf_config(file)
    assert record.name == "name"
    source = record.source_of("architecture.num_layers")
    assert source is not None
    assert source.citation is not None
    assert str(file) in source.citation


def test_broken_json_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\n "model_type": "llama",\n "hidden_size": ,\n}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json, line 3, column 17: JSON syntax: .*valid JSON"):
        read_hf_config(file)


def test_json_that_is_no_object(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(ConfigError, match="got 'list', allowed: an object"):
        read_hf_config(file)


@pytest.mark.parametrize("text", ["", "[" * 200_000, '{"a": ' + "9" * 5000 + "}"], ids=["empty", "deep", "long"])
def test_pathological_json_is_a_config_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="JSON syntax"):
        read_hf_config(file)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json.*a readable file \(No such file"):
        read_hf_config(tmp_path / "absent.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match=r"byte 0 is not UTF-8"):
        read_hf_config(binary)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"config\.json: got .*No such file"):
        read_hf_config(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"not a file name"):
        read_hf_config("nul\0byte.json")


LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "ffn_hidden_size": 12288,
    "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12,
    "expert_ffn_hidden_size": 2048, "vocab_size": 131072, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip


def test_longcat_has_the_size_that_its_report_gives() -> None:
    """560 B parameters, 27 B active on average: of twelve picks, those that are real experts (arXiv:2509.01322)."""
    found = build_model(read(LONGCAT))
    assert found.total_params == pytest.approx(560e9, rel=0.01)
    assert found.active_params == pytest.approx(27e9, rel=0.05)
    with pytest.raises(ConfigError, match=f"1 to {MOST_LAYERS // 3}"):
        read(LONGCAT | {"num_layers": MOST_LAYERS // 3 + 1})


def test_qwen3_next_has_every_fourth_layer_full_where_none_is_listed() -> None:
    """The last of each four: of six layers one, the fourth."""
    config = {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_value_head_dim": 128, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "vocab_size": 151936,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    listed = ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 2
    plain, named = (build_model(read(config | more)) for more in ({}, {"layer_types": listed}))
    assert plain.total_params == named.total_params
    assert isinstance(plain, Model)
    assert isinstance(named, Model)
    assert plain.kv_bytes_per_token() == named.kv_bytes_per_token() > 0


def test_nemotron_blocks_may_have_no_attention_or_no_ffn() -> None:
    """Heads in groups of two, and a width of 2/3 of twice the hidden size, rounded up to 1536."""
    attention, width = {"n_heads_in_group": 2}, {"ffn_mult": 2.0}
    nothing = {"no_op": True}
    found = build_model(
        read(
            {
                "model_type": "nemotron-nas", "num_hidden_layers": 3, "hidden_size": 1024, "num_attention_heads": 8,
                "intermediate_size": None, "num_key_value_heads": None, "vocab_size": 1000, "torch_dtype": "bfloat16",
                "tie_word_embeddings": False, "block_configs": [
                    {"attention": attention, "ffn": width}, {"attention": nothing, "ffn": width},
                    {"attention": attention, "ffn": nothing},
                ],
            }
        )
    )  # fmt: skip
    assert isinstance(found, Model)
    by_hand = 2 * (3 * 1024 * 1024) + 2 * (3 * 1024 * 1536) + 2 * 1000 * 1024
    assert found.total_params == pytest.approx(by_hand, rel=1e-3)
    assert found.kv_bytes_per_token() == 2 * (2 * 4 * 128) * 2.0


@pytest.mark.parametrize(("layers", "step", "fits"), [([1, 3], 2, True), ([0, 2], 2, False), ([0, 1, 2, 3], 1, True)])
def test_llama4_mixture_layers_are_every_so_manieth(layers: list[int], step: int, fits: bool) -> None:
    text = {**LLAMA4["text_config"], "num_hidden_layers": 4, "interleave_moe_layer_step": step, "moe_layers": layers}
    text.pop("layer_types", None)
    text.pop("no_rope_layers", None)
    if fits:
        assert read({**LLAMA4, "text_config": text}).architecture is not None
    else:
        with pytest.raises(ConfigError, match=f"moe_layers: .*every layer in {step}, as interleave_moe"):
            read({**LLAMA4, "text_config": text})
