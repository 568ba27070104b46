"""Hugging Face configurations with latent or sparse attention: DeepSeek's line, Kimi K2, GLM-5, MiniMax-M2 and M3."""

from __future__ import annotations

from typing import cast

from rackline.arch.hf_config import MOST_LAYERS, HfConfig, Layer, Table, experts, ffn, layer_count, layered, stack
from rackline.arch.hf_tables import gqa


def latent_attention(c: HfConfig) -> Table:
    """Parameters of multi-head latent attention."""
    c.require(not c.flag("attention_bias", default=False), "attention_bias", "false (latent attention has no biases)")
    c.require("q_lora_rank" in c.values, "q_lora_rank", "a whole number, or null for queries without a latent")
    c.leave("head_dim", "num_key_value_heads")  # the latent says it all
    return {
        "kind": "mla",
        "num_q_heads": c.count("num_attention_heads"),
        "q_lora_rank": c.count("q_lora_rank", default=0),
        "kv_lora_rank": c.count("kv_lora_rank"),
        "qk_nope_head_dim": c.count("qk_nope_head_dim"),
        "qk_rope_head_dim": c.count("qk_rope_head_dim", minimum=0),
        "v_head_dim": c.count("v_head_dim"),
    }


def routed_experts(c: HfConfig, number_key: str = "n_routed_experts", *, corrected: bool = True) -> Table:
    """Routed and shared experts of one layer, with a correction per expert beside the router."""
    # DeepSeek-V2 balances with an auxiliary loss; later families keep one correction per expert beside the router
    methods = {"noaux_tc": "bias", "greedy": "", "group_limited_greedy": ""}
    corrected = c.choice("topk_method", methods, default="bias" if corrected else "") == "bias"
    c.require(c.count("moe_layer_freq", default=1) == 1, "moe_layer_freq", "1")
    c.same_as("num_experts", number_key)
    width = c.count("moe_intermediate_size")
    shared = c.count("n_shared_experts", default=0, minimum=0)
    return {
        **experts(c, number_key, width),
        "num_shared_experts": shared,
        "d_shared": shared * width,
        "router_bias": corrected,
        "num_groups": c.count("n_group", default=1),
        "groups_per_token": c.count("topk_group", default=1),
    }


_BLOCKS: dict[object, str] = {"dense": "dense", "sparse": "sparse"}


def first_dense(c: HfConfig) -> int:
    """Leading layers with a dense block, by their number or by mlp_layer_types."""
    layers = c.count("num_hidden_layers")
    kinds = c.items("mlp_layer_types", _BLOCKS, layers) if layers <= MOST_LAYERS else None
    listed = None
    if kinds is not None:
        listed = kinds.count("dense")
        c.require(
            kinds == ["dense"] * listed + ["sparse"] * (layers - listed),
            "mlp_layer_types",
            "dense layers first, then sparse ones",
        )
    dense = c.count("first_k_dense_replace", default=listed, minimum=0)
    c.require(
        listed in (None, dense), "mlp_layer_types", f"dense {dense} times as first_k_dense_replace says, then sparse"
    )
    c.require(
        dense <= c.count("num_hidden_layers"),
        "first_k_dense_replace",
        f"at most num_hidden_layers {c.count('num_hidden_layers')}",
    )
    return dense


def deepseek_v3(c: HfConfig) -> Table:
    """Latent attention, leading dense layers, then mixtures with shared experts."""
    mtp = c.count("num_nextn_predict_layers", default=0, minimum=0)
    return {**_latent_mixture(c, corrected=True), "mtp_layers": mtp}


def _latent_mixture(c: HfConfig, *, corrected: bool) -> Table:
    return {
        **stack(c),
        "attention": latent_attention(c),
        "ffn": ffn(c, c.count("intermediate_size")),
        "moe": {**routed_experts(c, corrected=corrected), "first_dense_layers": first_dense(c)},
    }


def deepseek_v2(c: HfConfig) -> Table:
    """Latent attention with experts that an auxiliary loss balances; without experts a dense stack."""
    c.leave("seq_aux", "aux_loss_alpha")
    if not c.optional("n_routed_experts", minimum=0):
        return latent_dense(c)
    return _latent_mixture(c.with_defaults({"first_k_dense_replace": 0}), corrected=False)


def latent_dense(c: HfConfig) -> Table:
    """Latent attention with dense blocks (MiniCPM3, Youtu)."""
    c.leave("scale_emb", "scale_depth", "dim_model_base", "embedding_initializer_range")
    return {
        **stack(c, tied=True),
        "attention": latent_attention(c),
        "ffn": ffn(c, c.count("intermediate_size"), bias=c.flag("mlp_bias", default=False)),
    }


def axk1(c: HfConfig) -> Table:
    """A.X K1: as DeepSeek-V3, without a correction beside the router, with one norm more behind the experts."""
    layers, dense = layer_count(c), first_dense(c)
    attention, block = latent_attention(c), ffn(c, c.count("intermediate_size"))
    moe = {**routed_experts(c, corrected=False), "extra_params": c.count("hidden_size")}
    return layered(
        c,
        [{"attention": attention, **({"ffn": block} if index < dense else {"moe": moe})} for index in range(layers)],
    )


def longcat(c: HfConfig) -> Table:
    """LongCat-Flash: a layer is two latent attentions with dense blocks, and experts beside them.

    Experts that do nothing (zero_expert_num) are chosen among the others; the experts per token are the expected ones.
    """
    layers = c.count("num_layers")
    attention = latent_attention(c)
    block: Table = {"kind": "swiglu", "d_ff": c.count("ffn_hidden_size")}
    real, empty = c.count("n_routed_experts"), c.count("zero_expert_num", default=0, minimum=0)
    chosen = c.count("moe_topk")
    c.leave(
        "zero_expert_type", "router_bias", "attention_method", "mla_scale_q_lora", "mla_scale_kv_lora", "hidden_act"
    )
    moe: Table = {
        "num_experts": real,
        "experts_per_token": max(1, round(chosen * real / (real + empty))),
        "d_expert": c.count("expert_ffn_hidden_size"),
        "extra_params": empty * c.count("hidden_size"),  # rows of the router for experts that do nothing
    }
    c.require(layers <= MOST_LAYERS // 3, "num_layers", f"a whole number from 1 to {MOST_LAYERS // 3}")
    pair: Layer = {"attention": attention, "ffn": block}
    found: list[Layer] = [pair, pair, {"moe": moe}] * layers
    return layered(c, found, mtp_layers=c.count("num_nextn_predict_layers", default=0, minimum=0))


def deepseek_sparse(c: HfConfig) -> Table:
    """DeepSeek-V3.2 and GLM-5: latent attention over the tokens that an indexer picks.

    In GLM-5.2 most layers use the choice of the layer before them (indexer_types "shared") and have no indexer. GLM-5.3
    has Kimi delta attention in between, one index key for several tokens, and hyper-connections.
    """
    layers, dense = layer_count(c), first_dense(c)
    sparse = {**latent_attention(c), "kind": "mla_sparse", "top_k": c.count("index_topk")}
    own = {"index_heads": c.count("index_n_heads"), "index_head_dim": c.count("index_head_dim")}
    indexers = c.items("indexer_types", {"full": "full", "shared": "shared"}, layers) or ["full"] * layers
    kinds = c.items("layer_types", _SPARSE_TYPES, layers) or ["sparse"] * layers
    pooled = c.count("index_kpool", default=1)
    own |= {"index_ratio": pooled} if pooled > 1 else {}
    c.drop("parameters of the pooling of index keys are left out", "index_kpool_compress")
    c.leave("mhc", "index_kpool_always_select_tail")
    linear = delta_layers(c.section("linear_attn_config")) if "linear" in kinds else {}
    block, mixture = ffn(c, c.count("intermediate_size")), routed_experts(c)
    return layered(
        c,
        [
            {
                "attention": linear
                if kinds[index] == "linear"
                else {**sparse, **own}
                if indexers[index] == "full"
                else sparse,
                **({"ffn": block} if index < dense else {"moe": mixture}),
            }
            for index in range(layers)
        ],
        mtp_layers=c.count("num_nextn_predict_layers", default=0, minimum=0),
        extra_params=hyper_connections(c, layers),
    )


_SPARSE_TYPES: dict[object, str] = {
    "deepseek_sparse_attention": "sparse", "indexed_attention": "sparse", "linear_attention": "linear",
}  # fmt: skip


def delta_layers(linear: HfConfig) -> Table:
    """Parameters of Kimi delta attention, from the object that describes the linear layers."""
    linear.leave("gate_lower_bound", "kda_layers", "full_attn_layers")
    return {
        "kind": "kda",
        "num_heads": linear.count("num_heads"),
        "head_dim": linear.count("head_dim"),
        "conv_kernel": linear.count("short_conv_kernel_size"),
        "full_rank_gate": linear.flag("use_full_rank_gate", default=False),
    }


def hyper_connections(c: HfConfig, layers: int) -> int:
    """Parameters of manifold hyper-connections over hc_mult streams, 0 with one stream.

    Per sub-layer weights of (2 + m)·m mixes over m streams, their bases and three scales; the head mixes m streams.
    """
    streams, d_model = c.count("hc_mult", default=1), c.count("hidden_size")
    mixes = (2 + streams) * streams
    each = mixes * streams * d_model + mixes + 3
    head = streams * streams * d_model + streams + 1
    return layers * 2 * each + head if streams > 1 else 0


def deepseek_v4(c: HfConfig) -> Table:
    """DeepSeek-V4: windows with compressed entries, ratios by layer; mixtures everywhere; hyper-connections.

    Layers with ratio 4 pick entries with an indexer, layers with a larger ratio read all of them, layers with ratio 0
    have the window alone. The first num_hash_layers route by token and have no correction beside the router.

    V4.1 compresses by 2 or 1, picks entries in all of these layers, and shares them: kv_source_layer_ids keep entries
    for the layers behind them, index_source_layer_ids choose for those. Its tables of n-grams (Engram) are counted.
    """
    layers = layer_count(c)
    c.leave("qk_rope_head_dim")  # part of head_dim
    ratios = c.values.get("compress_ratios")
    if (
        not isinstance(ratios, list)
        or len(ratios) < layers  # pyright: ignore[reportUnknownArgumentType]
        or not all(isinstance(r, int) and not isinstance(r, bool) and 0 <= r <= 65536 for r in ratios)  # pyright: ignore[reportUnknownVariableType]
    ):
        raise c.fail("compress_ratios", f"a list of at least {layers} whole numbers from 0")
    c.must_be_off("attention_bias")
    c.require(c.count("num_key_value_heads", default=1) == 1, "num_key_value_heads", "1")
    base: Table = {
        "kind": "compressed",
        "num_q_heads": c.count("num_attention_heads"),
        "head_dim": c.count("head_dim"),
        "q_lora_rank": c.count("q_lora_rank"),
        "o_groups": c.count("o_groups"),
        "o_lora_rank": c.count("o_lora_rank"),
        "window": c.count("sliding_window"),
    }
    picked: Table = {
        "top_k": c.count("index_topk"),
        "index_heads": c.count("index_n_heads"),
        "index_head_dim": c.count("index_head_dim"),
    }

    sources, choosers = c.layer_numbers("kv_source_layer_ids"), c.layer_numbers("index_source_layer_ids")
    shown = {"top_k": picked["top_k"]}

    def attention(index: int) -> Table:
        ratio = int(ratios[index])  # pyright: ignore[reportUnknownArgumentType]
        if not ratio:
            return base
        if not sources:
            return {**base, "ratio": ratio, **(picked if ratio == OVERLAPPED_RATIO else {})}
        shared = {} if index in sources else {"shares_kv": True}
        return {**base, "ratio": ratio, **(picked if index in choosers else shown), **shared}

    hashed = c.count("num_hash_layers", default=0, minimum=0)
    moe = {**routed_experts(c), "activation": ffn(c, 1)["kind"]}
    rows, width = c.values.get("engram_num_embeddings"), c.count("engram_head_dim", default=0, minimum=0)
    tables = sum(cast("list[int]", rows)) * width if isinstance(rows, list) else 0
    for how, beginning in _V41_DROPPED.items():
        c.drop(how, *(key for key in c.values if key.startswith(beginning)))
    return layered(
        c,
        [{"attention": attention(index), "moe": {**moe, "router_bias": index >= hashed}} for index in range(layers)],
        mtp_layers=c.count("num_nextn_predict_layers", default=0, minimum=0),
        extra_params=hyper_connections(c, layers),
        lookup_params=tables,
        residual_streams=c.count("hc_mult", default=1),
    )


_V41_DROPPED = {
    "indexers score all entries, not those of the blocks that an earlier layer has chosen": "candidate_",
    "tables of n-grams are counted, but not held by chips, and their products are left out": "engram_",
    "layers for multi-token prediction are taken as the last layer": "dspark_",
}
"""What the reader leaves out of DeepSeek-V4.1, by the beginnings of keys."""


OVERLAPPED_RATIO = 4
"""Compression whose groups overlap and whose entries an indexer picks (inference/model.py)."""


_FLAGS: dict[object, str] = {0: "0", 1: "1"}


def minimax_m2(c: HfConfig) -> Table:
    """MiniMax-M2: norms over all heads together, every layer a mixture."""
    layers = layer_count(c)
    style = c.choice("qk_norm_type", {"per_layer": "all", "per_head": "head"}, default="all")
    on = c.flag("use_qk_norm", default=True)
    norm: Table = {"norm_over_heads": True} if on and style == "all" else {}
    attention = {**gqa(c, bias=False, output_bias=False, qk_norm=on and style == "head"), **norm}
    c.require(not c.count("shared_intermediate_size", default=0, minimum=0), "shared_intermediate_size", "0")
    moe = {
        **experts(c, "num_local_experts", c.count("intermediate_size")),
        "router_bias": c.flag("use_routing_bias", default=False),
    }
    c.require(
        all(kind == "1" for kind in c.items("attn_type_list", _FLAGS, layers) or ()),
        "attn_type_list",
        "1 (softmax attention) in every layer",
    )
    ffn(c, 1)  # the activation is one that we know
    modules = c.count("num_mtp_modules", default=0, minimum=0) if c.flag("use_mtp", default=False) else 0
    mtp = modules * c.count("mtp_transformer_layers", default=1)
    return layered(c, [{"attention": attention, "moe": moe}] * layers, mtp_layers=mtp)


def minimax_m3(c: HfConfig) -> Table:
    """MiniMax-M3: leading dense layers with full attention, then block-sparse attention and mixtures."""
    layers = layer_count(c)
    sparse = c.section("sparse_attention_config")
    mixtures = c.listed("moe_layer_freq", _FLAGS, layers)
    on = sparse.flag("use_sparse_attention", default=False)
    chosen = sparse.listed("sparse_attention_freq", _FLAGS, layers) if on else ["0"] * layers
    without_values = sparse.items("sparse_disable_index_value", _FLAGS, layers) or ["0"] * layers
    sparse.require(
        not any(c_ == "1" and v == "0" for c_, v in zip(chosen, without_values, strict=True)),
        "sparse_disable_index_value",
        "1 in every sparse layer (index values are not supported)",
    )
    c.must_be_off("attention_output_gate")
    c.choice("qk_norm_type", {"per_head": ""}, default="")
    full = gqa(c, bias=False, output_bias=False, qk_norm=c.flag("use_qk_norm", default=False))
    picked: Table = {
        **full,
        "kind": "gqa_block_sparse",
        "block_size": sparse.count("sparse_block_size"),
        "top_blocks": sparse.count("sparse_topk_blocks"),
        "index_heads": sparse.count("sparse_num_index_heads"),
        "index_head_dim": sparse.count("sparse_index_dim"),
    }
    activation = c.choice("hidden_act", {"swigluoai": "swiglu", "silu": "swiglu"})
    width = c.optional("moe_intermediate_size") or c.count("intermediate_size")
    c.leave("intermediate_size")
    shared = c.count("n_shared_experts", default=0, minimum=0) * c.count("shared_intermediate_size")
    moe: Table = {
        **experts(c, "num_local_experts", width),
        "num_shared_experts": 1 if shared else 0,
        "d_shared": shared,
        "router_bias": c.flag("use_routing_bias", default=False),
    }
    dense: Table = {"kind": activation, "d_ff": c.count("dense_intermediate_size")}
    c.optional("first_k_dense_replace", minimum=0)
    modules = c.count("num_mtp_modules", default=0, minimum=0)
    return layered(
        c,
        [
            {
                "attention": picked if chosen[index] == "1" else full,
                **({"moe": moe} if mixtures[index] == "1" else {"ffn": dense}),
            }
            for index in range(layers)
        ],
        mtp_layers=c.count("num_nextn_predict_layers", default=modules, minimum=0),
    )
