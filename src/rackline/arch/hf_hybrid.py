"""Hugging Face configurations with state-space or linear layers beside attention."""

from __future__ import annotations

from typing import cast

from rackline.arch.hf_config import HfConfig, Layer, Table, experts, ffn, layer_count, layered, stack
from rackline.arch.hf_deepseek import delta_layers, first_dense, latent_attention
from rackline.arch.hf_tables import KINDS, Family, Mixture, gqa, grouped, mixture, mixture_layers, named

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
        c.require(
            c.optional("num_hidden_layers") in (None, len(found)),
            "num_hidden_layers",
            f"the {len(found)} entries of layers_block_type",
        )
        return found
    letters = c.values.get("hybrid_override_pattern")
    if not isinstance(letters, str) or not letters or set(letters) - set(_LETTERS):
        raise c.fail("hybrid_override_pattern", f"a text of {' '.join(_LETTERS)}, one letter per layer")
    c.require(
        len(letters) == layer_count(c), "num_hidden_layers", f"the {len(letters)} letters of hybrid_override_pattern"
    )
    return [_LETTERS[letter] for letter in letters]


def nemotron_h(c: HfConfig) -> Table:
    """Nemotron-H and Nemotron 3: each layer is one block, Mamba-2, attention, feed-forward or (latent) mixture."""
    c.require(
        not c.flag("use_bias", default=False) and not c.flag("mlp_bias", default=False),
        "use_bias",
        "false, and mlp_bias false",
    )
    c.must_be_off("mamba_proj_bias")
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
        c.require(
            bool(number) == bool(shared),
            "n_shared_experts",
            "zero exactly where moe_shared_expert_intermediate_size is",
        )
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
    linear.require(
        not full & delta and full | delta == set(range(1, layers + 1)),
        "kda_layers",
        "every layer that full_attn_layers does not name, and no other",
    )
    return full, delta_layers(linear)


def kimi_linear(c: HfConfig) -> Table:
    """Kimi Linear and Kimi K3: Kimi delta attention with latent attention in between; (latent) mixtures.

    K3's attention residuals add two vectors per block, which are left out.
    """
    layers, dense = layer_count(c), first_dense(c)
    full, kda = _kimi_delta(c, layers)
    latent = {**latent_attention(c), "output_gate": c.flag("mla_use_output_gate", default=False)}
    c.require(c.count("moe_layer_freq", default=1) == 1, "moe_layer_freq", "1")
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
    block: Table = {"kind": c.choice("hidden_act", gated, default="swiglu"), "d_ff": c.count("intermediate_size")}
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
        c.require(
            given == [named[index % step] for index in range(layers)],
            "layer_types",
            f"full attention in every layer whose number is divisible by {step}",
        )
    attention = gqa(c, bias=False, output_bias=False, qk_norm=True)
    mtp = c.count("mtp_num_hidden_layers", default=0, minimum=0)
    return {
        **stack(c),
        "attention": {**attention, "pattern": pattern, "output_gate": c.flag("attn_output_gate", default=True)},
        "linear": delta_rule(c),
        **({"mtp_layers": mtp} if mtp else {}),
    }


def qwen3_5(c: HfConfig) -> Table:
    """Gated delta layers with full attention in between, dense blocks."""
    return {**_gated_delta_stack(c), "ffn": ffn(c, c.count("intermediate_size"))}


def qwen3_5_moe(c: HfConfig) -> Table:
    """Like `qwen3_5`, with a mixture of experts and a gated shared expert in every layer."""
    c.require(
        not c.values.get("mlp_only_layers"),
        "mlp_only_layers",
        "an empty list (dense layers at free places are not supported)",
    )
    shared, width = c.count("shared_expert_intermediate_size"), c.count("moe_intermediate_size")
    moe = {**experts(c, "num_experts", width), "num_shared_experts": 1, "d_shared": shared, "shared_gate": True}
    return {**_gated_delta_stack(c), "ffn": ffn(c, width), "moe": moe}


_STATE_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
_STATE_DIMS = ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
_STATES = ("mamba_d_state", "ssm_state_size", "state_size")
_GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")
_CONV = ("mamba_d_conv", "conv_kernel")
_CHUNK = ("mamba_chunk_size", "chunk_size")
_SCALED = (
    "embedding_multiplier",
    "logits_scaling",
    "residual_multiplier",
    "attention_multiplier",
    "mamba_expand",
    "expand",
    "time_step_limit",
    "mamba_proj_bias",
    "position_embedding_type",
    "normalization_function",
    "init_method",
)
_FALCON = (
    "mamba_d_ssm",
    "mamba_norm_before_gate",
    "mamba_rms_norm",
    "lm_head_multiplier",
    "mlp_multipliers",
    "key_multiplier",
    "attention_out_multiplier",
    "attention_in_multiplier",
    "ssm_multipliers",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
    "projectors_bias",
    "mlp_expansion_factor",
)


def state_space(c: HfConfig) -> Table:
    """Parameters of a Mamba-2 layer.

    Raises:
        ConfigError: projections with biases, which are not supported.
    """
    c.must_be_off("mamba_proj_bias", "use_bias")
    return {
        "kind": "mamba2",
        "num_heads": c.count(named(c, _STATE_HEADS)),
        "head_dim": c.count(named(c, _STATE_DIMS)),
        "state_size": c.count(named(c, _STATES)),
        "num_groups": c.count(named(c, _GROUPS)),
        "conv_kernel": c.count(named(c, _CONV)),
        "chunk_size": c.count(named(c, _CHUNK), default=256),
        "conv_bias": c.flag(named(c, ("mamba_conv_bias", "use_conv_bias")), default=True),
    }


def mamba2(c: HfConfig) -> Table:
    """Mamba-2: state-space layers and nothing else."""
    layers = layer_count(c)
    layer: Layer = {"attention": state_space(c)}
    c.leave("hidden_act", "expand", "norm_before_gate", "rms_norm", "time_step_limit", "time_step_rank")
    return layered(c, [layer] * layers)


def _kinds(c: HfConfig, layers: int) -> list[str]:
    """linear or full for each layer, from layer_types or the numbers of the attention layers."""
    listed = c.items("layer_types", KINDS, layers)
    if listed is not None:
        c.leave("attn_layer_indices")
        return listed
    full = c.layer_numbers("attn_layer_indices")
    return ["full" if index in full else "linear" for index in range(layers)]


def bamba(c: HfConfig) -> Table:
    """Bamba: Mamba-2 with a few attention layers, a dense block in each."""
    kinds = _kinds(c, layer_count(c))
    c.leave(*_SCALED, "attn_rotary_emb", "z_loss_coefficient")
    state = state_space(c)
    full, block = _softmax_and_block(c)
    return layered(c, [{"attention": full if kind == "full" else state, "ffn": block} for kind in kinds])


def _softmax_and_block(c: HfConfig) -> tuple[Table, Table]:
    """Attention and dense block of Llama, with biases where the keys say so."""
    bias = c.flag("attention_bias", default=False)
    block = ffn(c, c.count("intermediate_size"), bias=c.flag("mlp_bias", default=False))
    return gqa(c, bias=bias, output_bias=bias), block


def granite_hybrid(c: HfConfig) -> Table:
    """Granite 4: Mamba-2 and attention, experts beside a shared block, or that block alone."""
    kinds = _kinds(c, layer_count(c))
    c.leave(*_SCALED, "shared_intermediate_size")
    bias = c.flag("attention_bias", default=False)
    state = state_space(c) if "linear" in kinds else {}
    full = gqa(c, bias=bias, output_bias=bias)
    routed = c.count("num_local_experts", default=0, minimum=0)
    c.leave("num_experts_per_tok", "intermediate_size")
    if routed:
        second: Layer = {"moe": mixture(c, Mixture(shared="width"))}
    else:
        second = {"ffn": ffn(c, c.count("shared_intermediate_size"))}
    return layered(c, [{"attention": full if kind == "full" else state, **second} for kind in kinds])


def falcon_h1(c: HfConfig) -> Table:
    """Falcon-H1: attention and Mamba-2 side by side in each layer, then a dense block.

    A layer is two here, one with the state space alone and one with attention and block: the same work, one norm more.
    """
    layers = layer_count(c)
    c.leave(*_SCALED, *_FALCON)
    state = state_space(c)
    inner = c.optional("mamba_d_ssm")
    c.require(
        inner is None or inner == state["num_heads"] * state["head_dim"],  # type: ignore[operator]
        "mamba_d_ssm",
        "mamba_n_heads times mamba_d_head",
    )
    full, block = _softmax_and_block(c)
    return layered(c, [{"attention": state}, {"attention": full, "ffn": block}] * layers)


def delta_rule(c: HfConfig) -> Table:
    """Parameters of a gated delta layer."""
    return {
        "kind": "gated_delta",
        "num_key_heads": c.count("linear_num_key_heads"),
        "num_value_heads": c.count("linear_num_value_heads"),
        "key_head_dim": c.count("linear_key_head_dim"),
        "value_head_dim": c.count("linear_value_head_dim"),
        "conv_kernel": c.count("linear_conv_kernel_dim"),
    }


_SHARED = Mixture(shared="width", shared_gate=True, every="decoder_sparse_step")
_QWEN3_NEXT = Family(
    bias=("attention_bias", False),
    output_bias=("attention_bias", False),
    qk_norm="head",
    output_gate=True,
    moe=_SHARED,
)


def qwen3_next(c: HfConfig) -> Table:
    """Qwen3-Next: gated delta layers with gated attention in between, experts with a gated shared one."""
    layers = layer_count(c)
    interval = c.count("full_attention_interval", default=4)
    kinds = c.items("layer_types", KINDS, layers) or [
        "linear" if (index + 1) % interval else "full" for index in range(layers)
    ]
    full, linear = grouped(c, _QWEN3_NEXT, c.count("hidden_size")), delta_rule(c)
    mixtures = mixture_layers(c, _QWEN3_NEXT, layers)
    moe = mixture(c, _SHARED) if any(mixtures) else None
    block = ffn(c, c.count("intermediate_size", default=c.count("hidden_size")))
    return layered(
        c,
        [
            {
                "attention": full if kinds[index] == "full" else linear,
                **({"moe": moe} if mixtures[index] else {"ffn": block}),
            }
            for index in range(layers)
        ],
        # published checkpoints hold one (mtp.layers.0), of which no key says
        mtp_layers=c.count("mtp_num_hidden_layers", default=1, minimum=0),
    )


def olmo_hybrid(c: HfConfig) -> Table:
    """OLMo Hybrid: gated delta layers, and attention with norms over all heads."""
    kinds = c.listed("layer_types", KINDS, layer_count(c))
    c.leave("linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor", "linear_allow_neg_eigval")
    full = grouped(c, Family(bias=("attention_bias", False), output_bias=("attention_bias", False), qk_norm="all"),
                   c.count("hidden_size"))  # fmt: skip
    linear, block = delta_rule(c), ffn(c, c.count("intermediate_size"))
    return layered(c, [{"attention": full if kind == "full" else linear, "ffn": block} for kind in kinds])


def minimax(c: HfConfig) -> Table:
    """MiniMax-Text-01: lightning and softmax attention by attn_type_list (0, 1) or layer_types, mixtures everywhere."""
    layers = layer_count(c)
    kinds = c.items("attn_type_list", {0: "linear", 1: "full"}, layers) or c.items("layer_types", KINDS, layers)
    kinds = kinds or ["linear" if (i + 1) % 2 else "full" for i in range(layers)]
    c.require(not c.count("shared_intermediate_size", default=0, minimum=0), "shared_intermediate_size", "0")
    c.leave(
        "block_size",
        *(f"{part}_{factor}_factor" for part in ("full_attn", "linear_attn", "mlp") for factor in ("alpha", "beta")),
    )
    full = gqa(c, bias=False, output_bias=False)
    linear: Table = {"kind": "lightning", "num_heads": full["num_q_heads"], "head_dim": full["head_dim"]}
    moe = mixture(c, Mixture())
    return layered(c, [{"attention": full if kind == "full" else linear, "moe": moe} for kind in kinds])


def laguna(c: HfConfig) -> Table:
    """Laguna: a gate per head, heads that may differ by layer, windows, experts with a shared one."""
    layers = layer_count(c)
    kinds = c.items("layer_types", KINDS, layers) or ["full"] * layers
    row = Family(bias=("attention_bias", False), qk_norm="head", moe=Mixture(router_bias=True, shared="width"))
    gating = c.values.get("gating")
    c.leave("moe_routed_scaling_factor", "moe_apply_router_weight_on_input", "moe_router_logit_softcapping")
    base = grouped(c, row, c.count("hidden_size"))
    gate: Table = (
        {"output_gate": True} if gating in ("elementwise", "per-element") else {"head_gate": True} if gating else {}
    )
    given = c.values.get("num_attention_heads_per_layer")
    heads = given if isinstance(given, list) and len(given) == layers else [base["num_q_heads"]] * layers  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    c.require(
        all(isinstance(one, int) and 0 < one <= 10**6 for one in heads),  # pyright: ignore[reportUnknownVariableType]
        "num_attention_heads_per_layer",
        f"a list of {layers} whole numbers",
    )
    mixtures = mixture_layers(c, row, layers)
    moe = mixture(c, row.moe) if row.moe is not None and any(mixtures) else None
    block = ffn(c, c.count("intermediate_size"))
    window = {"window": c.count("sliding_window")} if "window" in kinds else {}
    c.leave("sliding_window")
    return layered(
        c,
        [
            {
                "attention": {
                    **base,
                    **gate,
                    "num_q_heads": heads[index],
                    **(window if kinds[index] == "window" else {}),
                },
                **({"moe": moe} if mixtures[index] else {"ffn": block}),
            }
            for index in range(layers)
        ],
    )
