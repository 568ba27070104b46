"""Families of Hugging Face configurations: one function each, from its keys to our architecture table.

A key that is absent takes the default that the family's configuration class in the transformers library
documents, written out here, or is an error. Towers for images and sound are left out; the result is the
language model.

Sources: the classes ``*Config`` in src/transformers/models/*/configuration_*.py of huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from rackline.arch.hf_config import (
    GELU,
    LAYER_TYPES,
    HfConfig,
    Table,
    every,
    experts,
    ffn,
    layer_count,
    layered,
    stack,
    window_above,
    window_everywhere,
    windows,
)
from rackline.arch.hf_deepseek import (
    axk1,
    deepseek_sparse,
    deepseek_v2,
    deepseek_v3,
    deepseek_v4,
    latent_dense,
    longcat,
    minimax_m2,
    minimax_m3,
)
from rackline.arch.hf_hybrid import (
    bamba,
    falcon_h1,
    granite_hybrid,
    kimi_linear,
    laguna,
    mamba2,
    minimax,
    nemotron_h,
    olmo_hybrid,
    qwen3_5,
    qwen3_5_moe,
    qwen3_next,
)
from rackline.arch.hf_rows import KEYED, MLP, ROWS, SAME
from rackline.arch.hf_tables import NUM_EXPERTS, Flag, flag, gqa, named, reader, uniform

# ------------------------------------------------------------------------------------------------- families


def _alike(
    *,
    bias: Flag = False,
    output_bias: Flag = False,
    mlp_bias: Flag = False,
    qk_norm: bool = False,
    window: Callable[[HfConfig], Table] | None = None,
) -> Callable[[HfConfig], Table]:
    """The function that reads a family whose layers are alike, but for windows."""

    def read(c: HfConfig) -> Table:
        attention = gqa(c, bias=flag(c, bias), output_bias=flag(c, output_bias), qk_norm=qk_norm)
        attention |= window(c) if window else {}
        return {
            **stack(c),
            "attention": attention,
            "ffn": ffn(c, c.count("intermediate_size"), bias=flag(c, mlp_bias)),
        }

    return read


_mistral = _alike(window=window_everywhere)
# queries, keys and values always have biases, the output projection never; there is no key for it
_qwen2 = _alike(bias=True, window=window_above)
_qwen3 = _alike(**KEYED, qk_norm=True, window=window_above)


def _mixtral(c: HfConfig) -> Table:
    # intermediate_size is the width of one expert; there are no dense layers.
    return {**_mistral(c), "moe": experts(c, "num_local_experts", c.count("intermediate_size"))}


def _qwen3_moe(c: HfConfig) -> Table:
    if c.values.get("mlp_only_layers") or c.values.get("mlp_layer_types") or not c.flag("use_qk_norm", default=True):
        return uniform(c, ROWS["qwen3_moe"])  # dense layers at free places, or no norms of queries and keys
    moe = experts(c, named(c, NUM_EXPERTS), c.count("moe_intermediate_size"))
    return {**_qwen3(c), "moe": {**moe, **every(c, c.count("decoder_sparse_step", default=1))}}


def _falcon(c: HfConfig) -> Table:
    # a parallel block has one norm, two in the newer architecture (num_ln_in_parallel_attn); a sequential one two
    new, parallel = c.flag("new_decoder_architecture", default=False), c.flag("parallel_attn", default=True)
    norms = c.count("num_ln_in_parallel_attn", default=2 if new else 1) if parallel else 2
    return uniform(c, replace(ROWS["falcon"], norms=norms))


def _gpt_oss(c: HfConfig) -> Table:
    bias, layers = c.flag("attention_bias", default=True), c.count("num_hidden_layers")
    # The configuration class alternates windows and full attention, beginning with a window.
    kinds = c.items("layer_types", LAYER_TYPES, layers) or [("window", "full")[i % 2] for i in range(layers)]
    attention = {
        **gqa(c, bias=bias, output_bias=bias),
        **windows(c, "sliding_window", kinds),
        "sinks": True,
    }
    c.same_as("experts_per_token", "num_experts_per_tok")
    width = c.count("intermediate_size")
    moe = {**experts(c, "num_local_experts", width), "bias": True, "router_bias": True}
    return {**stack(c), "attention": attention, "ffn": ffn(c, width), "moe": moe}


def _gemma3_text(c: HfConfig) -> Table:
    # Defaults of Gemma3TextConfig, on which published files rely.
    layers, bias = c.count("num_hidden_layers"), c.flag("attention_bias", default=False)
    kinds = c.items("layer_types", LAYER_TYPES, layers)
    c.leave("_sliding_window_pattern")
    if kinds is None:
        period = c.count("sliding_window_pattern", default=6)
        kinds = ["window" if (i + 1) % period else "full" for i in range(layers)]
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}
    full = c.with_defaults({**defaults, "sliding_window": 4096})
    attention = gqa(full, bias=bias, output_bias=bias, qk_norm=True)
    activation = full.choice("hidden_activation", GELU, default="geglu")
    return {
        **stack(full, tied=True),
        "norms_per_layer": 4,
        "attention": {**attention, **windows(full, "sliding_window", kinds)},
        "ffn": {"kind": activation, "d_ff": full.count("intermediate_size")},
    }


def _llama4_text(c: HfConfig) -> Table:
    # A chunk of attention is taken as a window of its size: exact within the first chunk; beyond it a token
    # reads 1 to one chunk of tokens, half of the window on average.
    layers, bias = c.count("num_hidden_layers"), c.flag("attention_bias", default=False)
    interval = c.count("no_rope_layer_interval", default=4)
    table: dict[object, str] = {"chunked_attention": "window", "full_attention": "full"}
    kinds = c.items("layer_types", table, layers)
    rotary = c.items("no_rope_layers", {1: "window", 0: "full"}, layers) if c.values.get("no_rope_layers") else None
    kinds = kinds or rotary
    if kinds is None:
        kinds = ["window" if (i + 1) % interval else "full" for i in range(layers)]
    step = c.count("interleave_moe_layer_step", default=1)
    c.require(
        c.values.get("moe_layers") in (None, list(range(step - 1, layers, step))),
        "moe_layers",
        f"every layer in {step}, as interleave_moe_layer_step says",
    )
    width = c.count("intermediate_size")
    moe: Table = {
        **experts(c, "num_local_experts", width),
        "num_shared_experts": 1,
        "d_shared": width,
        **every(c, step),
    }
    c.flag("use_qk_norm", default=True)  # normalises without weights, so it leaves the shape as it is
    return {
        **stack(c),
        "attention": {**gqa(c, bias=bias, output_bias=bias), **windows(c, "attention_chunk_size", kinds)},
        "ffn": ffn(c, c.count("intermediate_size_mlp")),
        "moe": moe,
    }


_FLAGS: dict[object, str] = {0: "0", 1: "1"}
_WINDOW_FLAGS: dict[object, str] = {"full_attention": "0", "sliding_attention": "1"}
_BLOCK_FLAGS: dict[object, str] = {"dense": "0", "sparse": "1"}


def mimo_v2(c: HfConfig) -> Table:
    """MiMo-V2: window layers (1 in hybrid_layer_pattern) with more KV heads and sinks; leading dense layer."""
    layers = layer_count(c)
    windows = c.items("hybrid_layer_pattern", _FLAGS, layers) or c.items("layer_types", _WINDOW_FLAGS, layers)
    mixtures = c.items("moe_layer_freq", _FLAGS, layers) or c.items("mlp_layer_types", _BLOCK_FLAGS, layers)
    if windows is None or mixtures is None:
        raise c.fail("hybrid_layer_pattern" if windows is None else "moe_layer_freq", f"a list of {layers} entries")
    c.must_be_off("attention_bias")
    full: Table = {
        "kind": "gqa",
        "num_q_heads": c.count("num_attention_heads"),
        "num_kv_heads": c.count("num_key_value_heads"),
        "head_dim": c.count("head_dim"),
        "v_head_dim": c.count("v_head_dim"),
        "sinks": c.flag("add_full_attention_sink_bias", default=False),
    }
    window: Table = {
        "kind": "gqa",
        "num_q_heads": c.count("swa_num_attention_heads"),
        "num_kv_heads": c.count("swa_num_key_value_heads"),
        "head_dim": c.count("swa_head_dim"),
        "v_head_dim": c.count("swa_v_head_dim"),
        "window": c.count("sliding_window"),
        "sinks": c.flag("add_swa_attention_sink_bias", default=False),
    }
    c.leave("sliding_window_size", "attention_chunk_size")  # the window under two more names
    block = ffn(c, c.count("intermediate_size"))
    shared = c.count("n_shared_experts", default=0, minimum=0)
    width = c.count("moe_intermediate_size")
    moe = {
        **experts(c, "n_routed_experts", width),
        "num_shared_experts": shared,
        "d_shared": shared * width,
        "router_bias": c.choice("topk_method", {"noaux_tc": "1"}, default="") == "1",
    }
    return layered(
        c,
        [
            {
                "attention": window if windows[index] == "1" else full,
                **({"moe": moe} if mixtures[index] == "1" else {"ffn": block}),
            }
            for index in range(layers)
        ],
    )


def step_flash(c: HfConfig) -> Table:
    """Step-3.5 and 3.7 Flash: windows between full layers, a gate per head, normed queries and keys, one shared expert.

    The configuration says nothing of gates, norms and the heads of window layers: they follow the released model code
    (modeling_step3p5.py: g_proj, q_norm, k_norm); window layers may have other heads under attention_other_setting.
    """
    layers, dense = layer_count(c), c.count("first_k_dense_replace", minimum=0)
    kinds = c.listed("layer_types", LAYER_TYPES, layers)
    full = {**gqa(c, bias=False, output_bias=False, qk_norm=True), "head_gate": True}
    window = {**full, "window": c.count("sliding_window")}
    if c.values.get("attention_other_setting") is not None:
        setting = c.section("attention_other_setting")
        window["num_q_heads"] = setting.count("num_attention_heads")
        window["num_kv_heads"] = setting.count("num_attention_groups")
        window["head_dim"] = setting.count("head_dim")
    shared = c.count("n_shared_experts", default=1, minimum=0) * c.count("share_expert_dim", default=0, minimum=0)
    moe: Table = {
        **experts(c, "num_experts", c.count("moe_intermediate_size")),
        "num_shared_experts": 1 if shared else 0,
        "d_shared": shared,
        "router_bias": c.flag("use_moe_router_bias", default=False),
    }
    block = ffn(c, c.count("intermediate_size"))
    return layered(
        c,
        [
            {
                "attention": window if kinds[index] == "window" else full,
                **({"ffn": block} if index < dense else {"moe": moe}),
            }
            for index in range(layers)
        ],
        mtp_layers=c.count("num_nextn_predict_layers", default=0, minimum=0),
    )


def _full_width(c: HfConfig, kinds: list[str]) -> int:
    """Width of the heads of full layers where transformers 5 keeps it in per_layer_config; else that of all layers."""
    table = c.values.get("per_layer_config")
    if isinstance(table, dict) and "full" in kinds:
        layer = kinds.index("full")
        found = next((key for key in cast("Table", table) if key.isdigit() and int(key) == layer), None)
        if found is not None:
            return c.section("per_layer_config").section(found).count("head_dim", default=c.count("head_dim"))
    return c.count("head_dim")


def gemma4_text(c: HfConfig) -> Table:
    """Gemma 4: windows, and full layers of another head width where one projection serves as key and value.

    A dense block runs beside the experts and is counted as a shared expert. The last num_kv_shared_layers layers read
    the cache of an earlier layer of their kind. Per-layer embeddings are not supported.
    """
    layers = layer_count(c)
    c.require(
        not c.count("hidden_size_per_layer_input", default=0, minimum=0),
        "hidden_size_per_layer_input",
        "0 (per-layer embeddings are not supported)",
    )
    c.must_be_off("use_double_wide_mlp")
    c.leave("vocab_size_per_layer_input")
    bias = c.flag("attention_bias", default=False)
    kinds = c.listed("layer_types", LAYER_TYPES, layers)
    same = c.flag("attention_k_eq_v", default=False)
    sliding = {**gqa(c, bias=bias, output_bias=bias, qk_norm=True), "window": c.count("sliding_window")}
    full = {
        **gqa(c, bias=bias, output_bias=bias, qk_norm=True),
        "head_dim": c.count("global_head_dim", default=_full_width(c, kinds)),
        "keys_are_values": same,
    }
    if same:
        full["num_kv_heads"] = c.count("num_global_key_value_heads", default=c.count("num_key_value_heads"))
    width = c.count("intermediate_size")
    activation = c.choice("hidden_activation", GELU, default="geglu")
    if c.flag("enable_moe_block", default=False):
        expert = c.optional("moe_intermediate_size") or c.count("expert_intermediate_size")
        moe = experts(c, "num_experts", expert, "top_k_experts")
        moe |= {"activation": activation, "num_shared_experts": 1, "d_shared": width}
        # three more norms around the two branches, a scale a channel and one per expert at the router
        moe["extra_params"] = 4 * c.count("hidden_size") + c.count("num_experts")
        block: dict[str, Table] = {"moe": moe}
    else:
        for key in ("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"):
            c.require(c.values.get(key) is None, key, "null where enable_moe_block is false")
        block = {"ffn": {"kind": activation, "d_ff": width}}
    first_shared = layers - c.count("num_kv_shared_layers", default=0, minimum=0)
    return layered(
        c,
        [
            {
                "attention": {
                    **(sliding if kinds[index] == "window" else full),
                    **({"shares_kv": True} if index >= first_shared else {}),
                },
                **block,
            }
            for index in range(layers)
        ],
        tied=True,
        norm_sites=2,
    )


def nemotron_nas(c: HfConfig) -> Table:
    """Llama-Nemotron found by search: block_configs gives each layer its heads and width, or none."""
    layers = layer_count(c)
    blocks = c.values.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != layers:  # pyright: ignore[reportUnknownArgumentType]
        raise c.fail("block_configs", f"a list of {layers} objects, one per layer")
    bias, heads = c.flag("attention_bias", default=False), c.count("num_attention_heads")
    d_model = c.count("hidden_size")
    c.leave("num_key_value_heads", "intermediate_size")  # null: they differ by layer
    c.require(not d_model % heads, "num_attention_heads", f"a divisor of hidden_size {d_model}")
    found: list[dict[str, Table | None]] = []
    for index in range(layers):
        block = c.element("block_configs", index)
        attention, width = block.section("attention"), block.section("ffn")
        for part in (attention, width):
            part.must_be_off("replace_with_linear")
        layer: dict[str, Table | None] = {}
        if not attention.flag("no_op", default=False):
            group = attention.count("n_heads_in_group")
            attention.require(not heads % group, "n_heads_in_group", f"a divisor of num_attention_heads {heads}")
            layer["attention"] = {
                "kind": "gqa",
                "num_q_heads": heads,
                "num_kv_heads": heads // group,
                "head_dim": d_model // heads,
                "bias": bias,
                "output_bias": bias,
            }
        if not width.flag("no_op", default=False):
            # as DeciLM rounds: 2/3 of the multiple, up to the next multiple of 256
            layer["ffn"] = ffn(c, -(-int(2 * width.number("ffn_mult") * d_model / 3) // 256) * 256)
        if layer:
            found.append(layer)
    return layered(c, found)


FAMILIES: dict[str, Callable[[HfConfig], Table]] = {
    **{name: reader(row) for name, row in ROWS.items()},
    **{name: reader(ROWS[same]) for name, same in SAME.items()},
    "llama": _alike(**KEYED, mlp_bias=MLP),
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), _falcon),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text"), _qwen3_moe),
    "axk1": axk1,
    "bamba": bamba,
    "deepseek_v2": deepseek_v2,
    "falcon_h1": falcon_h1,
    "gemma4_unified_text": gemma4_text,
    "glm4_moe_lite": deepseek_v3,
    "granitemoehybrid": granite_hybrid,
    "laguna": laguna,
    "longcat_flash": longcat,
    "mamba2": mamba2,
    "minicpm3": latent_dense,
    "minimax": minimax,
    "minimax_m3_vl_text": minimax_m3,
    "olmo_hybrid": olmo_hybrid,
    "qwen2_vl": _qwen2,
    "qwen2_vl_text": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen2_5_omni_text": _qwen2,
    "qwen3_next": qwen3_next,
    "youtu": latent_dense,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_5_moe,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "deepseek_v32": deepseek_sparse,
    "glm_moe_dsa": deepseek_sparse,
    "deepseek_v4": deepseek_v4,
    "deepseek_ref": deepseek_v4,
    "deepseek_v41_text": deepseek_v4,
    "glm5_next_text": deepseek_sparse,
    "gpt_oss": _gpt_oss,
    "gemma3_text": _gemma3_text,
    "gemma4_text": gemma4_text,
    "llama4_text": _llama4_text,
    "nemotron_h": nemotron_h,
    "nemotron-nas": nemotron_nas,
    "kimi_linear": kimi_linear,
    "minimax_text_01": minimax,
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "minimax_m3_text": minimax_m3,
    "mimo_v2_flash": mimo_v2,
    "step3p5": step_flash,
    "step3p7": step_flash,
}

_ANY_INNER = """
    aria aya_vision cohere2_vision deepseek_vl exaone4_5 fast_vlm got_ocr2 hyperclovax_vision_v2 idefics2 idefics3
    internvl internvl_chat janus lighton_ocr llava llava_next llava_next_video llava_onevision minicpmv4_6
    minicpmv4_7 mistral3 nemotron_h_omni ovis2 paligemma perception_lm pixtral qianfan_ocr qwen2_audio
    qwen2_5_omni_thinker qwen3_omni_moe_thinker shieldgemma2 smolvlm video_llama_3 video_llava vipllava voxtral
""".split()  # noqa: SIM905
WRAPPERS: dict[str, tuple[str, ...]] = {
    "kimi_k25": ("kimi_k2", "deepseek_v3"),
    "kimi_k3": ("kimi_linear",),
    "kimi_vl": ("deepseek_v3",),
    "deepseek_v41": ("deepseek_v41_text",),
    "glm5_next": ("glm5_next_text",),
    "muse_glimmer": ("muse_glimmer_text",),
    "gemma3": ("gemma3_text",),
    "gemma4": ("gemma4_text",),
    "gemma4_unified": ("gemma4_unified_text",),
    "llama4": ("llama4_text",),
    "qwen2_vl": ("qwen2_vl_text", "qwen2"),
    "qwen2_5_vl": ("qwen2_5_vl_text", "qwen2"),
    "qwen3_5": ("qwen3_5_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
    "qwen3_vl": ("qwen3_vl_text",),
    "qwen3_vl_moe": ("qwen3_vl_moe_text",),
    "glm4v": ("glm4v_text",),
    "glm46v": ("glm4v_text",),
    "glm4v_moe": ("glm4v_moe_text",),
    "minimax_m3_vl": ("minimax_m3", "minimax_m3_text", "minimax_m3_vl_text"),
    **dict.fromkeys(_ANY_INNER, ()),
}
"""Families that keep their language model in text_config, and what it may be; () for any."""

INNER = ("text_config", "llm_config", "language_config")
"""Where a wrapper keeps its language model."""

UNNAMED: dict[str, str] = {"minimax_m3_vl": "minimax_m3"}
"""Wrappers whose text_config has no model_type of its own."""
