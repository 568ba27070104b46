"""Hugging Face configurations with state-space or linear layers beside attention, in the names of transformers 5."""

from __future__ import annotations

from typing import cast

from rackline.arch.hf_config import HfConfig, Table
from rackline.arch.hf_layers import Layer, layer_count, layered
from rackline.arch.hf_parts import ffn, gqa
from rackline.arch.hf_tables import KINDS, Family, Mixture, grouped, mixture, mixture_layers, named

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
    for key in ("mamba_proj_bias", "use_bias"):
        if c.flag(key, default=False):
            raise c.fail(key, "false")
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
    given: object = c.values.get("attn_layer_indices") or []
    full = cast("list[object]", given) if isinstance(given, list) else [None]
    if not all(isinstance(one, int) for one in full):
        raise c.fail("attn_layer_indices", "a list of layer numbers")
    return ["full" if index in full else "linear" for index in range(layers)]


def bamba(c: HfConfig) -> Table:
    """Bamba: Mamba-2 with a few attention layers, a dense block in each."""
    layers = layer_count(c)
    kinds = _kinds(c, layers)
    c.leave(*_SCALED, "attn_rotary_emb", "z_loss_coefficient")
    state = state_space(c)
    bias = c.flag("attention_bias", default=False)
    full = gqa(c, bias=bias, output_bias=bias)
    block = ffn(c, c.count("intermediate_size"), bias=c.flag("mlp_bias", default=False))
    return layered(c, [{"attention": full if kind == "full" else state, "ffn": block} for kind in kinds])


def granite_hybrid(c: HfConfig) -> Table:
    """Granite 4: Mamba-2 and attention, experts beside a shared block, or that block alone."""
    layers = layer_count(c)
    kinds = _kinds(c, layers)
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
    if inner is not None and inner != state["num_heads"] * state["head_dim"]:  # type: ignore[operator]
        raise c.fail("mamba_d_ssm", "mamba_n_heads times mamba_d_head")
    bias = c.flag("attention_bias", default=False)
    full = gqa(c, bias=bias, output_bias=bias)
    block = ffn(c, c.count("intermediate_size"), bias=c.flag("mlp_bias", default=False))
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


_GATED_ROW = Family(
    bias=("attention_bias", False), output_bias=("attention_bias", False), qk_norm="head", output_gate=True
)
_SHARED = Mixture(shared="width", shared_gate=True, every="decoder_sparse_step")


def qwen3_next(c: HfConfig) -> Table:
    """Qwen3-Next: gated delta layers with gated attention in between, experts with a gated shared one."""
    layers = layer_count(c)
    interval = c.count("full_attention_interval", default=4)
    kinds = c.items("layer_types", KINDS, layers) or [
        "linear" if (index + 1) % interval else "full" for index in range(layers)
    ]
    row = Family(
        bias=_GATED_ROW.bias, output_bias=_GATED_ROW.output_bias, qk_norm="head", output_gate=True, moe=_SHARED
    )
    full, linear = grouped(c, row, c.count("hidden_size")), delta_rule(c)
    mixtures = mixture_layers(c, row, layers)
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
    layers = layer_count(c)
    kinds = c.items("layer_types", KINDS, layers)
    if kinds is None:
        raise c.fail("layer_types", f"a list of {layers} entries")
    c.leave("linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor", "linear_allow_neg_eigval")
    full = grouped(c, Family(bias=("attention_bias", False), output_bias=("attention_bias", False), qk_norm="all"),
                   c.count("hidden_size"))  # fmt: skip
    linear, block = delta_rule(c), ffn(c, c.count("intermediate_size"))
    return layered(c, [{"attention": full if kind == "full" else linear, "ffn": block} for kind in kinds])


def minimax(c: HfConfig) -> Table:
    """MiniMax-Text-01 in the names of transformers: lightning and softmax attention by layer_types."""
    layers = layer_count(c)
    kinds = c.items("layer_types", KINDS, layers) or ["linear" if (i + 1) % 2 else "full" for i in range(layers)]
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
    if not all(isinstance(one, int) and 0 < one <= 10**6 for one in heads):  # pyright: ignore[reportUnknownVariableType]
        raise c.fail("num_attention_heads_per_layer", f"a list of {layers} whole numbers")
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
