"""Hugging Face configurations of hybrids: state-space and linear layers between attention layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rackline.arch.hf_config import HfConfig, Table
from rackline.arch.hf_deepseek import delta_layers, first_dense, latent_attention
from rackline.arch.hf_layers import Layer, layer_count, layered
from rackline.arch.hf_parts import experts, ffn, gqa, stack

_LETTERS = {"M": "mamba", "E": "moe", "-": "mlp", "*": "attention"}
_BLOCKS: dict[object, str] = {
    **{name: name for name in _LETTERS.values()},
    "linear_attention": "mamba",
    "full_attention": "attention",
}
_RELU2 = {"relu2": "relu2", "silu": "swiglu"}


def _blocks(c: HfConfig) -> list[str]:
    """Kind of each layer of Nemotron-H, from layers_block_type or the letters of hybrid_override_pattern."""
    listed = c.values.get("layers_block_type")
    if listed is not None:
        if not isinstance(listed, list) or not listed:
            raise c.fail("layers_block_type", f"a list, each entry one of {', '.join(_LETTERS.values())}")
        found = c.items("layers_block_type", _BLOCKS, len(listed)) or []  # pyright: ignore[reportUnknownArgumentType]
        if c.optional("num_hidden_layers") not in (None, len(found)):
            raise c.fail("num_hidden_layers", f"the {len(found)} entries of layers_block_type")
        return found
    letters = c.values.get("hybrid_override_pattern")
    if not isinstance(letters, str) or not letters or set(letters) - set(_LETTERS):
        raise c.fail("hybrid_override_pattern", f"a text of {' '.join(_LETTERS)}, one letter per layer")
    if len(letters) != layer_count(c):
        raise c.fail("num_hidden_layers", f"the {len(letters)} letters of hybrid_override_pattern")
    return [_LETTERS[letter] for letter in letters]


def nemotron_h(c: HfConfig) -> Table:
    """Nemotron-H and Nemotron 3: each layer is one block, Mamba-2, attention, feed-forward or (latent) mixture."""
    if c.flag("use_bias", default=False) or c.flag("mlp_bias", default=False):
        raise c.fail("use_bias", "false, and mlp_bias false")
    if c.flag("mamba_proj_bias", default=False):
        raise c.fail("mamba_proj_bias", "false")
    blocks = _blocks(c)
    kinds = set(blocks)
    parts: dict[str, Layer] = {}
    if "mamba" in kinds:
        parts["mamba"] = {
            "attention": {
                "kind": "mamba2",
                "num_heads": c.count("mamba_num_heads"),
                "head_dim": c.count("mamba_head_dim"),
                "state_size": c.count("ssm_state_size"),
                "num_groups": c.count("n_groups"),
                "conv_kernel": c.count("conv_kernel"),
                "chunk_size": c.count("chunk_size", default=128),
                "conv_bias": c.flag("use_conv_bias", default=True),
            }
        }
    if "attention" in kinds:
        bias = c.flag("attention_bias", default=False)
        width = {} if c.optional("head_dim") else {"head_dim": c.count("attention_head_dim")}
        parts["attention"] = {"attention": {**gqa(c, bias=bias, output_bias=bias), **width}}
    activation = c.choice("mlp_hidden_act", _RELU2)
    c.leave("intermediate_size")  # that of the dense layers, stated where there are none as well
    if "mlp" in kinds:
        parts["mlp"] = {"ffn": {"kind": activation, "d_ff": c.count("intermediate_size")}}
    if "moe" in kinds:
        shared = c.count("moe_shared_expert_intermediate_size", default=0, minimum=0)
        number = c.count("n_shared_experts", default=1 if shared else 0, minimum=0)
        if bool(number) != bool(shared):
            raise c.fail("n_shared_experts", "zero exactly where moe_shared_expert_intermediate_size is")
        parts["moe"] = {
            "moe": {
                **experts(c, "n_routed_experts", c.count("moe_intermediate_size")),
                "activation": activation,
                "num_shared_experts": number,
                "d_shared": shared * number,
                "router_bias": True,
                "d_latent": c.count("moe_latent_size", default=0, minimum=0),
            }
        }
    return layered(
        c, [parts[block] for block in blocks], mtp_layers=c.count("num_nextn_predict_layers", default=0, minimum=0)
    )


def _numbered(c: HfConfig, key: str, layers: int) -> set[int]:
    """Layer numbers from 1 of a list."""
    value = c.values.get(key)
    if not isinstance(value, list) or not all(isinstance(v, int) and 1 <= v <= layers for v in value):  # pyright: ignore[reportUnknownVariableType]
        raise c.fail(key, f"a list of layer numbers from 1 to {layers}")
    return set(value)  # pyright: ignore[reportUnknownArgumentType]


def _kimi_delta(c: HfConfig, layers: int) -> tuple[set[int], Table]:
    """Numbers from 1 of the layers with full attention, and the delta layers, in either naming."""
    kinds = c.items("layer_types", {"linear_attention": "linear", "full_attention": "full"}, layers)
    if c.values.get("linear_attn_config") is None and kinds is not None:
        return {index + 1 for index, kind in enumerate(kinds) if kind == "full"}, {
            "kind": "kda",
            "num_heads": c.count("linear_num_heads"),
            "head_dim": c.count("linear_head_dim"),
            "conv_kernel": c.count("linear_conv_kernel_dim"),
        }
    linear = c.section("linear_attn_config")
    full, delta = _numbered(linear, "full_attn_layers", layers), _numbered(linear, "kda_layers", layers)
    if full & delta or full | delta != set(range(1, layers + 1)):
        raise linear.fail("kda_layers", "every layer that full_attn_layers does not name, and no other")
    return full, delta_layers(linear)


def kimi_linear(c: HfConfig) -> Table:
    """Kimi Linear and Kimi K3: Kimi delta attention with latent attention in between; (latent) mixtures.

    K3's attention residuals add two vectors per block, which are left out.
    """
    layers, dense = layer_count(c), first_dense(c)
    full, kda = _kimi_delta(c, layers)
    latent = {**latent_attention(c), "output_gate": c.flag("mla_use_output_gate", default=False)}
    if c.count("moe_layer_freq", default=1) != 1:
        raise c.fail("moe_layer_freq", "1")
    c.choice("topk_method", {"noaux_tc": ""}, default="")
    width, shared = c.count("moe_intermediate_size"), c.count("num_shared_experts", default=0, minimum=0)
    narrow = c.count("routed_expert_hidden_size", default=0, minimum=0)
    moe: Table = {
        **experts(c, "num_experts", width, "num_experts_per_token"),
        "num_shared_experts": shared,
        "d_shared": shared * width,
        "router_bias": True,
        "d_latent": narrow,
        "extra_params": narrow if c.flag("latent_moe_use_norm", default=False) else 0,
    }
    gated = {"silu": "swiglu", "situ": "swiglu"}  # situ: a bounded silu, gated in the same way
    activation = c.choice("hidden_act", gated, default="swiglu")
    block: Table = {"kind": activation, "d_ff": c.count("intermediate_size")}
    return layered(
        c,
        [
            {
                "attention": latent if index + 1 in full else kda,
                **({"ffn": block} if index < dense else {"moe": moe}),
            }
            for index in range(layers)
        ],
        mtp_layers=c.count("num_nextn_predict_layers", default=0, minimum=0),
    )


def _gated_delta_stack(c: HfConfig) -> Table:
    layers, given = c.count("num_hidden_layers"), c.values.get("layer_types")
    listed = cast("list[object]", given) if isinstance(given, list) else []
    usual = listed.index("full_attention") + 1 if "full_attention" in listed else None
    step = c.count("full_attention_interval", default=usual)
    pattern = ["full" if (index + 1) % step == 0 else "linear" for index in range(step)]
    if given is not None:
        named = ["full_attention" if kind == "full" else "linear_attention" for kind in pattern]
        if given != [named[index % step] for index in range(layers)]:
            raise c.fail("layer_types", f"full attention in every layer whose number is divisible by {step}")
    attention = gqa(c, bias=False, output_bias=False, qk_norm=True)
    mtp = c.count("mtp_num_hidden_layers", default=0, minimum=0)
    return {
        **stack(c),
        "attention": {**attention, "pattern": pattern, "output_gate": c.flag("attn_output_gate", default=True)},
        "linear": {
            "num_key_heads": c.count("linear_num_key_heads"),
            "num_value_heads": c.count("linear_num_value_heads"),
            "key_head_dim": c.count("linear_key_head_dim"),
            "value_head_dim": c.count("linear_value_head_dim"),
            "conv_kernel": c.count("linear_conv_kernel_dim"),
        },
        **({"mtp_layers": mtp} if mtp else {}),
    }


def qwen3_5(c: HfConfig) -> Table:
    """Gated delta layers with full attention in between, dense blocks."""
    return {**_gated_delta_stack(c), "ffn": ffn(c, c.count("intermediate_size"))}


def qwen3_5_moe(c: HfConfig) -> Table:
    """The same with a mixture of experts and a gated shared expert in every layer."""
    if c.values.get("mlp_only_layers"):
        raise c.fail("mlp_only_layers", "an empty list (dense layers at free places are not supported)")
    shared, width = c.count("shared_expert_intermediate_size"), c.count("moe_intermediate_size")
    moe = {**experts(c, "num_experts", width), "num_shared_experts": 1, "d_shared": shared, "shared_gate": True}
    return {**_gated_delta_stack(c), "ffn": ffn(c, width), "moe": moe}


def minimax_text(c: HfConfig) -> Table:
    """MiniMax-Text-01: lightning attention (0) and softmax attention (1) by attn_type_list, mixtures everywhere."""
    layers = layer_count(c)
    types: Sequence[str] = c.items("attn_type_list", {0: "linear", 1: "full"}, layers) or ()
    if not types:
        raise c.fail("attn_type_list", f"a list of {layers} entries, each 0 or 1")
    full = gqa(c, bias=False, output_bias=False)
    linear: Table = {"kind": "lightning", "num_heads": full["num_q_heads"], "head_dim": full["head_dim"]}
    if c.count("shared_intermediate_size", default=0, minimum=0):
        raise c.fail("shared_intermediate_size", "0")
    moe = experts(c, "num_local_experts", c.count("intermediate_size"))
    return layered(c, [{"attention": full if kind == "full" else linear, "moe": moe} for kind in types])
