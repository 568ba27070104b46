"""Rows of the transformer blocks: projections, attention cores, feed-forward, embedding and head.

Every coefficient is written per layer and multiplied by the layers that share it. Shard sizes may be arrays,
one value per layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rackline.arch import Core, Dim, Model, MoeFfn, Projection
from rackline.arch.kinds import LATENT_KERNELS, STATE_BYTES
from rackline.hardware import Chip
from rackline.parallel.layout import Sharding
from rackline.parallel.precision import Precision, compute_dtype, operation_dtype, storage_bytes
from rackline.parallel.work import (
    TILE,
    AttentionWork,
    ExpertsWork,
    Weights,
    expert_width,
    gemm_row,
    layers_with,
    text_of,
)
from rackline.passes import features as f
from rackline.passes.features import FloatLike
from rackline.passes.row import Row

# Launches of small kernels per layer: two norms with their residual additions, rotary embedding with the cache
# write, the activation function. vLLM, SGLang and TensorRT-LLM fuse to about this many. A gate on shared experts is
# three more; an attention kind says itself what it adds (`Attention.extra_kernels`).
SMALL_KERNELS_PER_LAYER = 4.0

_ROWS = 64.0  # of a tile of a product on NVIDIA's tensor cores (FlashMLA pads its heads to it)


def attention_rows(model: Model, layout: Sharding, precision: Precision, chip: Chip) -> list[Row]:
    """Projections and cores of all layers; layers of the same shape share a row."""
    tp = np.asarray(layout.tp) if not isinstance(layout.tp, int) else layout.tp
    linear = Weights(stored=precision.linear_weights, activations=precision.activations)
    groups = model.layer_groups
    projections = layers_with(groups, lambda group: group.attention.projections(model.d_model))
    expansions = layers_with(groups, lambda group: [(group.attention.expansion(), group.attention.expands_prefix)])
    convolutions = layers_with(groups, lambda group: [group.attention.convolution])
    cores = layers_with(groups, lambda group: group.attention.cores())
    rows = [gemm_row(p, count=n, tp=tp, weights=linear, chip=chip, group="attention") for p, n in projections.items()]
    rows += [
        gemm_row(
            p,
            count=n,
            tp=tp,
            weights=linear,
            chip=chip,
            group="attention",
            extra_feature=f.CHUNK_PREFIX_TOKENS if expands_prefix else None,
        )
        for (p, expands_prefix), n in expansions.items()
        if p is not None
    ]
    for convolution, count in convolutions.items():
        rows += [] if convolution is None else convolution_rows(*convolution, count=count, tp=tp)
    for core, count in cores.items():
        rows.append(decode_core(core, count=count, tp=tp, precision=precision, chip=chip))
        rows.append(prefill_core(core, count=count, tp=tp, precision=precision, chip=chip))
    return rows


def convolution_rows(channels: FloatLike, width: int, *, count: int, tp: FloatLike) -> list[Row]:
    """Short causal convolution before a recurrent state: a few values of each channel are kept, read and written."""
    own = np.ceil(channels / np.asarray(tp))
    kept = 2.0 * own * (width - 1)
    return [
        Row(
            name=f"convolution_{phase}",
            group="attention",
            op_class=f"convolution_{phase}",
            dtype="bf16",
            compute={tokens: 2.0 * width * own * count},
            hbm={tokens: 2.0 * 2.0 * own * count, **({f.DECODE_SEQUENCES: 2.0 * kept * count} if decodes else {})},
            launches={f.HAS_DECODE if decodes else f.HAS_PREFILL: float(count)},
            formula=f"{count} × {text_of(own)} channels in and out, {width} tokens wide",
        )
        for phase, tokens, decodes in (("decode", f.DECODE_TOKENS, True), ("prefill", f.PREFILL_TOKENS, False))
    ]


def hyper_connection_row(part: str, d_model: FloatLike, streams: FloatLike, *, count: int) -> Row:
    """One step of hyper-connections over several residual streams.

    Before a block the streams are mixed into its input, with weights that a small product and a few rounds of
    normalisation make of them; after it, the streams are mixed with each other and with its output.
    """
    moved = {
        "pre": streams + 1.0,
        "post": 2.0 * streams + 1.0,
        "fused_post_pre": 2.0 * streams + 2.0,
        "expand": streams + 1.0,
        "contract": streams + 1.0,
    }[part]
    mixes = (2.0 + streams) * streams if "pre" in part else streams
    return Row(
        name=f"hyper_connections_{part}",
        group="ends",
        op_class="hyper_connections",
        dtype=part,
        compute_dtype="bf16",
        compute={f.TOKENS: 2.0 * streams * d_model * mixes * count},
        hbm={f.TOKENS: 2.0 * moved * d_model * count},
        launches={f.ONE: float(count)},
        formula=f"{count} × {text_of(moved)} of {text_of(streams)} streams and their mean, {text_of(d_model)} wide",
    )


def quantise_row(width: FloatLike) -> Row:
    """Activations from bf16 to 8 bits, where a kernel of its own does it."""
    return Row(
        name="quantise",
        group="attention",
        op_class="quantise",
        dtype="fp8",
        compute_dtype="bf16",
        hbm={f.TOKENS: 3.0 * width},
        launches={f.ONE: 1.0},
        formula="bf16 read, 8 bits written",
    )


def _heads(core: Core, tp: FloatLike) -> FloatLike:
    return core.num_q_heads * np.ones_like(tp) if core.heads_are_copied else np.ceil(core.num_q_heads / tp)


def _pair_heads(core: Core, heads: FloatLike) -> FloatLike:
    """Heads that the products of scores and values work on: those of a token fill tiles of 64 rows where it picks its
    own cache entries, so that no other token shares them."""
    return np.ceil(np.asarray(heads) / _ROWS) * _ROWS if core.kernel in LATENT_KERNELS[1:] else heads


def _cache_bytes(core: Core, tp: FloatLike, precision: Precision) -> FloatLike:
    """Bytes of one cache entry on a chip."""
    return core.kv_elements_per_token(tp) * (core.cache_bytes_per_element or storage_bytes(precision.kv_cache))


def _score_dtype(core: Core, precision: Precision, chip: Chip) -> str:
    """Type of the products with the cache: that of a cache whose type the kind fixes to eight bits, else as chosen."""
    fixed = core.cache_bytes_per_element is not None and core.cache_bytes_per_element < 2.0
    return compute_dtype("fp8" if fixed and chip.supports("fp8") else precision.attention, chip)


def decode_core(attention: Core, *, count: int, tp: FloatLike, precision: Precision, chip: Chip) -> Row:
    """Scores and values of decoded tokens against the cache; each KV head on the chip is read once per sequence."""
    heads = _heads(attention, tp)
    kv_bytes = _cache_bytes(attention, tp, precision)
    work = AttentionWork.decode(attention, heads, kv_bytes)
    # the state is read once per sequence and written after every token, so that drafts can be rolled back
    state_bytes = STATE_BYTES * attention.state_elements(tp)
    kv = f.kv_tokens(attention.kind)
    return Row(
        name=f"attention_decode_{attention.kind}",
        group="attention",
        op_class=f"{attention.kernel}_decode",
        dtype=precision.kv_cache,
        # kernels for an fp8 latent multiply in fp8 where the chip can
        compute_dtype=compute_dtype("fp8", chip)
        if attention.kernel in LATENT_KERNELS and precision.kv_cache == "fp8" and chip.supports("fp8")
        else _score_dtype(attention, precision, chip),
        compute={
            f.kv_pairs(attention.kind): _pair_heads(attention, heads) * attention.decode_flop_per_pair * count,
            f.DECODE_TOKENS: heads * attention.state_flop_per_token * count,
        },
        hbm={
            kv: kv_bytes * count,
            **({f.kv_pairs(attention.kind): attention.bytes_per_pair * count} if attention.bytes_per_pair else {}),
            f.DECODE_TOKENS: (work.token_bytes + state_bytes) * count,
            f.DECODE_SEQUENCES: state_bytes * count,
        },
        launches={f.HAS_DECODE: float(count)},
        depth={f.max_context(attention.kind): float(count)},
        tiles={f.DECODE_SEQUENCES: np.ceil(attention.num_kv_heads / tp) * count},
        formula=f"{count} × {text_of(kv_bytes)} B/KV token, {text_of(heads)} heads × "
        f"{text_of(attention.decode_flop_per_pair)} FLOP",
    )


def prefill_core(attention: Core, *, count: int, tp: FloatLike, precision: Precision, chip: Chip) -> Row:
    """Scores and values of prompt tokens: causal pairs; q, k and v pass memory once (flash)."""
    heads = _heads(attention, tp)
    kv_heads = np.ceil(attention.num_kv_heads / tp)
    kv_bytes = _cache_bytes(attention, tp, precision)
    work = AttentionWork.prefill(attention, heads, kv_heads, kv_bytes)
    pairs = f.attention_pairs(attention.kind)
    # a prompt reads and writes its state once; prompts are the rows of logits that do not decode
    state_bytes = 2.0 * STATE_BYTES * attention.state_elements(tp) * count
    states = {f.LOGIT_ROWS: state_bytes, f.DECODE_TOKENS: -state_bytes} if np.any(state_bytes) else {}
    return Row(
        name=f"attention_prefill_{attention.kind}",
        group="attention",
        op_class=f"{attention.kernel}_prefill",
        dtype=operation_dtype(precision.attention, precision.kv_cache),
        compute_dtype=_score_dtype(attention, precision, chip),
        compute={
            pairs: _pair_heads(attention, heads) * attention.prefill_flop_per_pair * count,
            f.PREFILL_TOKENS: heads * attention.chunk_flop_per_token * count,
        },
        hbm={
            f.PREFILL_TOKENS: work.token_bytes * count,
            f.CHUNK_PREFIX_TOKENS: kv_bytes * attention.kv_entries_per_token * count,
            **({pairs: attention.bytes_per_pair * count} if attention.bytes_per_pair else {}),
            **states,
        },
        launches={f.HAS_PREFILL: float(count)},
        depth={f.CHUNK_TOKENS: float(count)},
        tiles={f.PREFILL_TOKENS: heads / TILE * count},
        formula=f"{count} × {text_of(heads)} heads × {text_of(attention.prefill_flop_per_pair)} FLOP/pair, causal",
    )


def ffn_rows(
    model: Model, layout: Sharding, precision: Precision, chip: Chip, padded_experts: Mapping[str, float]
) -> list[Row]:
    """Dense blocks, routers, routed and shared experts.

    Args:
        padded_experts: as of `rackline.passes.Calibration`.
    """
    tp = np.asarray(layout.tp) if not isinstance(layout.tp, int) else layout.tp
    linear = Weights(stored=precision.linear_weights, activations=precision.activations)
    expert = Weights(stored=precision.expert_weights, activations=precision.expert_activations)
    other = Weights(stored=precision.other_weights, activations=precision.other_activations)
    rows: list[Row] = []
    for ffn, count in layers_with(model.layer_groups, lambda group: [group.ffn]).items():
        if not isinstance(ffn, MoeFfn):
            rows += [
                gemm_row(p, count=count, tp=tp, weights=linear, chip=chip, group="ffn")
                for p in ffn.projections(model.d_model)
            ]
            continue
        router = Projection(name="router", d_in=(Dim(size=model.d_model),), d_out=(Dim(size=ffn.num_experts),))
        rows.append(gemm_row(router, count=count, tp=1, weights=other, chip=chip, group="experts"))
        rows += [
            gemm_row(p, count=count, tp=1, weights=linear, chip=chip, group="experts")
            for p in ffn.latent(model.d_model)
        ]
        rows += experts_rows(
            model, ffn, count=count, layout=layout, weights=expert, chip=chip, padded_experts=padded_experts
        )
        shared = ffn.shared()
        if shared is not None:
            rows += [
                gemm_row(p, count=count, tp=tp, weights=expert, chip=chip, group="experts")
                for p in shared.projections(model.d_model, prefix="shared")
            ]
    return rows


def experts_rows(
    model: Model,
    ffn: MoeFfn,
    *,
    count: int,
    layout: Sharding,
    weights: Weights,
    chip: Chip,
    padded_experts: Mapping[str, float],
) -> list[Row]:
    """Routed experts; layouts whose kernel pads experts to whole tiles and those whose does not have a row each."""
    row = experts_row(model, ffn, count=count, layout=layout, weights=weights, chip=chip)
    fills = np.asarray(layout.moe_tp) < padded_experts.get(weights.operation, 0.0)
    if not np.any(fills):
        return [row]
    tiles = padded_experts_row(row, model, ffn, count=count, layout=layout, weights=weights)
    if np.all(fills):
        return [tiles]
    return [row.where(~fills), replace(tiles.where(fills), name="padded_experts")]


def padded_experts_row(row: Row, model: Model, ffn: MoeFfn, *, count: int, layout: Sharding, weights: Weights) -> Row:
    """`experts_row` with every expert of the rank padded to a whole tile, chosen or not.

    The kernel is told where each expert begins before anybody knows how many tokens chose it, so it computes
    pairs + experts · (tile - 1) rows in every pass, in which the pairs are those of all tokens that the rank has. Rows
    that nobody chose take the weights of the first expert, which are in the cache.
    """
    work = experts_work(model, ffn, layout, weights)
    shared = np.asarray(layout.attention_dp) > 1
    spare = ffn.num_experts / np.asarray(layout.ep, dtype=float) * (TILE - 1.0)

    def amounts(of_pair: FloatLike) -> dict[str, FloatLike]:
        return {
            f.GROUP_TOKENS: np.where(shared, 0.0, of_pair * ffn.experts_per_token * count),
            f.EXPERT_TOKENS: np.where(shared, of_pair * count, 0.0),
            f.ONE: of_pair * spare * count,
        }

    return replace(
        row,
        op_class="padded_moe",
        compute=amounts(work.pair_flop),
        hbm={f.EXPERTS_TOUCHED: work.expert_bytes * count, **amounts(work.pair_bytes)},
        padding={f.ONE: work.pair_flop * spare * count},
        tiles=amounts(work.expert_tiles / TILE),
        formula=f"{row.formula}, each expert in whole tiles of {TILE:g} rows",
    )


def experts_work(model: Model, ffn: MoeFfn, layout: Sharding, weights: Weights) -> ExpertsWork:
    """Work of the routed experts of a rank."""
    width = expert_width(ffn.d_expert, layout.moe_tp, weights.stored)
    return ExpertsWork.of(ffn.expert_d_in(model.d_model), width, matrices=ffn.matrices, **weights.sizes)


def experts_row(model: Model, ffn: MoeFfn, *, count: int, layout: Sharding, weights: Weights, chip: Chip) -> Row:
    """Routed experts of the busiest rank: weights of a touched expert once, FLOP per token-expert pair."""
    width = expert_width(ffn.d_expert, layout.moe_tp, weights.stored)
    shared = np.asarray(layout.attention_dp) > 1
    d_in = ffn.expert_d_in(model.d_model)
    work = experts_work(model, ffn, layout, weights)
    return Row(
        name="experts",
        group="experts",
        op_class="moe",
        dtype=weights.operation,
        compute_dtype=compute_dtype(weights.activations, chip),
        compute={f.EXPERT_TOKENS: work.pair_flop * count},
        hbm={
            f.EXPERTS_TOUCHED: work.expert_bytes * count,
            f.EXPERT_TOKENS: work.pair_bytes * count,
        },
        launches={f.ONE: float(count)},
        tiles={
            f.EXPERTS_TOUCHED: work.expert_tiles * count,
            f.EXPERT_TOKENS: work.expert_tiles / TILE * count,
        },
        extra={
            # all chips of the group hold all tokens and sort them; with attention dp only what was sent arrives
            f.GROUP_TOKENS: np.where(shared, 0.0, work.permute_bytes * ffn.experts_per_token * count),
            f.EXPERT_TOKENS: np.where(shared, work.permute_bytes * count, 0.0),
        },
        formula=f"{count} × {ffn.matrices}·{d_in}·{text_of(width)} weights per expert in {weights.stored}",
    )


def small_kernels(model: Model) -> float:
    """Launches of small kernels in one pass [count]."""
    return sum(
        group.count
        * (
            SMALL_KERNELS_PER_LAYER
            + group.attention.extra_kernels
            + (3.0 if isinstance(group.ffn, MoeFfn) and group.ffn.shared_gate else 0.0)
        )
        for group in model.layer_groups
    )


def ends_rows(
    model: Model, layout: Sharding, precision: Precision, chip: Chip, sample_bytes_per_logit: float = 0.0
) -> list[Row]:
    """Embedding lookup, small kernels of all layers, output head on the rows whose logits are needed, sampling."""
    tp = np.asarray(layout.tp) if not isinstance(layout.tp, int) else layout.tp
    head = Projection(
        name="head",
        d_in=(Dim(size=model.d_model),),
        d_out=(Dim(size=model.vocab_size, units=model.vocab_size),),
    )
    weights = Weights(stored=precision.other_weights, activations=precision.other_activations)
    return [
        Row(
            name="embedding",
            group="ends",
            op_class="embedding",
            dtype="bf16",
            hbm={f.TOKENS: 2.0 * 2.0 * model.d_model},
            launches={f.ONE: 1.0},
            formula="one row of the table read and written a token",
        ),
        small_kernels_row(model, small_kernels(model), tp),
        *_hyper_connections(model),
        gemm_row(head, count=1, tp=tp, weights=weights, chip=chip, group="ends", token_feature=f.LOGIT_ROWS),
        *([_sampling(model, sample_bytes_per_logit)] if sample_bytes_per_logit else []),
    ]


def _hyper_connections(model: Model) -> list[Row]:
    """Before and behind each block, where a model has several residual streams."""
    if model.residual_streams == 1:
        return []
    blocks = sum(group.count * (group.has_attention + group.has_ffn) for group in model.layer_groups)
    return [hyper_connection_row(part, model.d_model, model.residual_streams, count=blocks) for part in ("pre", "post")]


def small_kernels_row(model: Model, launches: float, tp: FloatLike = 1) -> Row:
    """Norms, rotary embedding with the cache write, activations and what else attention launches beside its core."""
    q_elements = sum(
        group.count * group.attention.num_q_heads * group.attention.decode_io_elements for group in model.layer_groups
    )
    return Row(
        name="norm_rope_activation",
        group="ends",
        op_class="elementwise",
        dtype="bf16",
        hbm={f.TOKENS: 12.0 * model.d_model * model.num_layers + 2.0 * q_elements / tp},
        launches={f.ONE: launches},
        formula=f"{model.num_layers} × (12·{model.d_model} B + queries) per token, "
        f"{launches / model.num_layers:.3g} launches per layer",
    )


def _sampling(model: Model, bytes_per_logit: float) -> Row:
    """A token drawn by top-p: all logits are sorted and summed up, on every chip that holds the gathered logits."""
    return Row(
        name="sampling",
        group="ends",
        op_class="elementwise",
        dtype="bf16",
        hbm={f.LOGIT_ROWS: bytes_per_logit * model.vocab_size},
        launches={f.ONE: 1.0},
        formula=f"{text_of(bytes_per_logit)} B × {model.vocab_size} logits per row",
    )
