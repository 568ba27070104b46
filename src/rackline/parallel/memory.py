"""What each chip holds: weights, KV cache, activations, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rackline.arch import AggregateModel, AnyModel, DenseFfn
from rackline.arch.attention import STATE_BYTES
from rackline.hardware import Chip
from rackline.parallel.layout import Layout, Sharding
from rackline.parallel.precision import Precision, storage_bytes
from rackline.passes.features import FloatLike, as_array

FractionOf = Literal["memory", "free", "static"]
# Runtime, communication buffers and captured graphs of a serving process; typical of vLLM and TensorRT-LLM on
# 80-192 GB chips (assumed; --memory-fraction covers the rest).
RUNTIME_BYTES = 2.0e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes on the fullest chip by kind; floats, or arrays of one shape.

    Args:
        weights: by parameter kind [bytes].
        kv_cache, activations, runtime: [bytes].
        usable: chip memory times the memory fraction [bytes].
        total: chip memory [bytes].
    """

    weights: dict[str, FloatLike]
    kv_cache: FloatLike
    activations: FloatLike
    runtime: float
    usable: float
    total: float

    @property
    def weight_total(self) -> FloatLike:
        """All weights of the chip [bytes]."""
        return sum(self.weights.values(), 0.0)

    @property
    def used(self) -> FloatLike:
        """Everything that is held [bytes]."""
        return self.weight_total + self.kv_cache + self.activations + self.runtime

    @property
    def free(self) -> FloatLike:
        """Usable minus used; negative when it does not fit [bytes]."""
        return self.usable - self.used

    def as_dict(self) -> dict[str, object]:
        """Plain data of a scalar use."""
        return {
            "weights_bytes": float(self.weight_total),
            "weights_by_kind_bytes": {k: float(v) for k, v in self.weights.items()},
            "kv_cache_bytes": float(self.kv_cache),
            "activations_bytes": float(self.activations),
            "runtime_bytes": self.runtime,
            "free_bytes": float(self.free),
            "usable_bytes": self.usable,
            "hbm_bytes": self.total,
        }


def weight_bytes(model: AnyModel, layout: Sharding, precision: Precision) -> dict[str, FloatLike]:
    """Weights on the fullest chip by parameter kind [bytes]."""
    tp, pp = as_array(layout.tp), as_array(layout.pp)
    if isinstance(model, AggregateModel):
        return {"all": model.total_params * storage_bytes(precision.linear_weights) / tp}
    linear, expert = storage_bytes(precision.linear_weights), storage_bytes(precision.expert_weights)
    other = storage_bytes(precision.other_weights)
    d = model.d_model
    # a stage keeps ceil(layers / pp) of the layers; groups of unlike layers are taken in proportion
    share = np.ceil(model.num_layers / pp) / model.num_layers
    held: dict[str, FloatLike] = {}

    def add(kind: str, value: FloatLike) -> None:
        held[kind] = held.get(kind, 0.0) + value

    for group in model.layer_groups:
        layers = group.count * share
        attention = sum((p.shard_weights(tp) for p in group.attention.projections(d)), 0.0)
        expansion = group.attention.expansion()
        if expansion is not None:
            attention = attention + expansion.shard_weights(tp)
        add("attention", layers * attention * linear)
        add("norm", layers * (model.norms_of(group) * model.norm_params_per_norm) * 2.0)
        ffn = group.ffn
        if isinstance(ffn, DenseFfn):
            add("ffn", layers * sum((p.shard_weights(tp) for p in ffn.projections(d)), 0.0) * linear)
            continue
        local = np.ceil(ffn.num_experts / as_array(layout.ep))
        one = ffn.matrices * ffn.expert_d_in(d) * ffn.d_expert / as_array(layout.moe_tp)
        add("experts", layers * local * one * expert)
        add("router", layers * ffn.router_params(d) * other)
        if ffn.d_latent:
            add("latent", layers * ffn.latent_params(d) * linear)
        shared = ffn.shared()
        if shared is not None:
            cut = sum((p.shard_weights(tp) for p in shared.projections(d)), 0.0)
            add("shared_experts", layers * cut * expert)
    table = model.vocab_size * d / tp * other
    # the first stage holds the embedding, the last the head: with pp > 1 the fullest chip has one of the two
    add("embedding", table + model.learned_positions * d * other)
    if not model.tied_embeddings:
        add("head", np.where(pp > 1, 0.0, table))
    return held


def kv_bytes_per_sequence(model: AnyModel, layout: Sharding, precision: Precision, context_len: FloatLike) -> FloatLike:
    """KV cache of one sequence on the fullest chip of its attention-dp rank [bytes].

    With pp stages a chip holds its layers' share only, of pp times as many sequences (lecture C70).
    """
    tp, pp = as_array(layout.tp), as_array(layout.pp)
    size = storage_bytes(precision.kv_cache)
    if isinstance(model, AggregateModel):
        return model.kv_bytes(context_len) / tp
    share = np.ceil(model.num_layers / pp) / model.num_layers
    total: FloatLike = 0.0
    for group in model.layer_groups:
        for core in group.attention.cores():
            held = core.kv_held_tokens(as_array(context_len)) * (core.cache_bytes_per_element or size)
            per_layer = core.kv_elements_per_token(tp) * held + core.state_elements(tp) * STATE_BYTES
            total = total + group.count * share * per_layer
    return total


def activation_bytes(model: AnyModel, layout: Sharding, batched_tokens: FloatLike, logit_rows: FloatLike) -> FloatLike:
    """Live activations of the largest pass on one rank [bytes].

    A layer keeps the residual stream, its normalised copy, the fused q, k, v and the attention output, or the
    widest feed-forward activation; logits are fp32.
    """
    tokens, rows = as_array(batched_tokens), as_array(logit_rows)
    if isinstance(model, AggregateModel):
        return 0.0 * tokens
    tp = as_array(layout.tp)
    widest: FloatLike = 0.0
    for group in model.layer_groups:
        inner = sum((p.shard_out(tp) for p in group.attention.projections(model.d_model)), 0.0)
        ffn = group.ffn
        if isinstance(ffn, DenseFfn):
            block = 3.0 * ffn.d_ff / tp
        else:
            group_ratio = as_array(layout.attention_dp) / as_array(layout.ep)
            per_pair = ffn.expert_d_in(model.d_model) * 2.0 + ffn.matrices * ffn.d_expert / as_array(layout.moe_tp)
            block = ffn.experts_per_token * group_ratio * per_pair
        widest = np.maximum(widest, np.maximum(inner, block))
    return tokens * 2.0 * (4.0 * model.d_model + widest) + rows * 4.0 * model.vocab_size / tp


def memory_use(
    model: AnyModel,
    layout: Sharding,
    precision: Precision,
    chip: Chip,
    *,
    sequences_per_rank: FloatLike,
    context_len: FloatLike,
    batched_tokens: FloatLike,
    memory_fraction: float = 0.9,
) -> MemoryUse:
    """What the fullest chip holds.

    Args:
        sequences_per_rank: sequences with KV on one attention-dp rank, over all pipeline micro-batches [sequences].
        context_len: longest or reserved context of each [tokens].
        batched_tokens: largest pass of one rank [tokens].
        memory_fraction: share of HBM that the server may use.
    """
    per_sequence = kv_bytes_per_sequence(model, layout, precision, context_len)
    return MemoryUse(
        weights=weight_bytes(model, layout, precision),
        kv_cache=per_sequence * sequences_per_rank,
        activations=activation_bytes(model, layout, batched_tokens, sequences_per_rank),
        runtime=RUNTIME_BYTES,
        usable=chip.hbm_bytes * memory_fraction,
        total=chip.hbm_bytes,
    )


def max_sequences(
    model: AnyModel,
    layout: Layout,
    precision: Precision,
    chip: Chip,
    *,
    context_len: float,
    batched_tokens: float,
    memory_fraction: float = 0.9,
    fraction_of: FractionOf = "memory",
) -> int:
    """Sequences of this context that fit on one replica, all attention-dp ranks together; 0 when weights do not.

    Args:
        fraction_of: what memory_fraction is of: "memory" (all that the server holds is within it, as in vLLM), "free"
            (the cache gets it of what weights, activations and runtime leave, TensorRT-LLM) or "static" (weights and
            cache are within it, activations and runtime have the rest, SGLang).
    """
    empty, one = (
        memory_use(
            model,
            layout,
            precision,
            chip,
            sequences_per_rank=count,
            context_len=context_len,
            batched_tokens=batched_tokens,
            memory_fraction=memory_fraction if fraction_of == "memory" else 1.0,
        )
        for count in (0, 1)
    )
    room, per_sequence = float(empty.free), float(empty.free - one.free)
    fitting = room // per_sequence
    if fraction_of == "free":
        fitting = room * memory_fraction // per_sequence
    elif fraction_of == "static":
        static = memory_fraction * chip.hbm_bytes - float(sum(empty.weights.values()))
        fitting = min(fitting, static // float(one.kv_cache - empty.kv_cache))
    return max(0, int(fitting)) * layout.attention_dp
