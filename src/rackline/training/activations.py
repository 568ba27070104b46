"""Activations that a layer keeps for the backward pass: Korthikanti's formulas, and their extension to every layer."""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np

from rackline.arch import DenseFfn, MoeFfn
from rackline.passes.features import Array, FloatLike, as_array
from rackline.training.runs import Recompute
from rackline.training.work import MicroBatch, from_latent


def korthikanti_layer_bytes(
    *,
    seq_len: FloatLike,
    micro_batch: FloatLike,
    d_model: FloatLike,
    num_heads: FloatLike,
    tp: FloatLike = 1.0,
    sequence_parallel: bool = False,
    recompute: Literal["none", "selective", "full"] = "none",
) -> FloatLike:
    """Activations of one GPT layer with dropout, before fused attention.

    none: s b h (10 + 24/t + 5 a s / (h t)); with sequence parallelism s b h / t (34 + 5 a s / h);
    selective: the same without 5 a s / h; full: 2 s b h.

    Args:
        seq_len: s [tokens], any shape.
        micro_batch: b [sequences], same shape.
        d_model: h [elements].
        num_heads: a [count].
        tp: t [chips].
        sequence_parallel: whether norms, residuals and dropout are sharded over tp.
        recompute: "none", "selective" or "full".

    Returns:
        Bytes per layer and chip [bytes], broadcast shape.

    Assumes: 2 bytes per element, 1 per element of a dropout mask, d_ff = 4 h, GELU.

    Sources: Korthikanti et al. 2022 (arXiv:2205.05198), equations 1 to 6 and table 2.

    >>> whole = korthikanti_layer_bytes(seq_len=2048, micro_batch=1, d_model=12288, num_heads=96)
    >>> less = korthikanti_layer_bytes(seq_len=2048, micro_batch=1, d_model=12288, num_heads=96, recompute="selective")
    >>> round(float(1 - less / whole), 2)
    0.7
    """
    tokens = as_array(seq_len) * micro_batch * d_model
    match recompute:
        case "full":
            return 2.0 * tokens
        case "selective":
            scores = as_array(0.0)
        case "none":
            scores = 5.0 * as_array(num_heads) * seq_len / d_model
        case _:
            assert_never(recompute)
    if sequence_parallel:
        return tokens / tp * (34.0 + scores)
    return tokens * (10.0 + 24.0 / as_array(tp) + scores / tp)


def stack_bytes(batch: MicroBatch, recompute: Recompute, *, dropout: bool = False) -> Array:
    """Activations that one micro-batch stores in all layers of a chip for the backward pass [bytes].

    Inputs of products are kept as they are multiplied; queries, keys and values for attention; gate and up for the
    activation function; inputs of norms. Outputs of experts are not stored: the weight of an expert is applied to the
    output of its activation function. Recompute keeps only what it starts from: inputs of norms, of activation
    functions and of up-projections of latents (modules), the input of each layer (full), or nothing (reversible: two
    streams of the last layer).
    """
    model = batch.model
    spread = as_array(batch.runs.tp) if batch.sequence_parallel else np.ones(len(batch.runs))
    residual = 2.0 * model.d_model / spread
    match recompute:
        case "reversible":
            return batch.tokens * 2.0 * residual * as_array(batch.runs.pp)
        case "full":
            return batch.tokens * residual * (model.num_layers + batch.mtp_layers)
        case "none" | "selective" | "modules":
            pass
        case _:
            assert_never(recompute)
    total = np.zeros(len(batch.runs))
    for index in range(len(model.layer_groups)):
        total = total + layer_bytes(batch, index, recompute, dropout=dropout) * _layers(batch, index)
    return total


def _layers(batch: MicroBatch, index: int) -> int:
    last = index == len(batch.model.layer_groups) - 1
    return batch.model.layer_groups[index].count + (batch.mtp_layers if last else 0)


def layer_bytes(batch: MicroBatch, index: int, recompute: Recompute = "none", *, dropout: bool = False) -> Array:
    """Activations that one micro-batch stores in one layer of a group [bytes]."""
    group = batch.model.layer_groups[index]
    kept = _attention(batch, index, recompute, dropout) if group.attention.cores() else np.zeros(len(batch.runs))
    if isinstance(group.ffn, MoeFfn):
        return kept + _mixture(batch, group.ffn, recompute)
    return kept + (_dense(batch, group.ffn, recompute, dropout) if group.ffn.d_ff else 0.0)


def _run_again(recompute: Recompute) -> tuple[bool, bool]:
    """Whether (the core of attention, the cheap modules of a layer) are recomputed, so that nothing of them is
    stored."""
    match recompute:
        case "none":
            return False, False
        case "selective":
            return True, False
        case "modules" | "full" | "reversible":
            return True, True
        case _:
            assert_never(recompute)


def _attention(batch: MicroBatch, index: int, recompute: Recompute, dropout: bool) -> Array:
    model, attention = batch.model, batch.model.layer_groups[index].attention
    tp = as_array(batch.runs.tp)
    spread = tp if batch.sequence_parallel else np.ones(len(batch.runs))
    core_again, again = _run_again(recompute)
    narrow = 0.0 if again else batch.precision.gemm_bytes  # outputs of norms
    d = model.d_model
    per_token = (2.0 + narrow) * d / spread  # input of the norm, input of the first product
    expansion = attention.expansion()
    projections = (*attention.projections(d), *([expansion] if expansion else []))
    for projection in projections:
        latent = from_latent(projection, d)
        if latent or projection.d_in[0].units > 1:
            out = batch.precision.attention_output_bytes  # attention needs its output as well
            other = narrow if latent else batch.precision.gemm_bytes
            per_token = per_token + (out if projection.name.endswith("out") else other) * projection.shard_in(tp)
        if (projection.d_out[0].size != d or projection.d_out[0].units > 1) and not (latent and again):
            per_token = per_token + 2.0 * projection.shard_out(tp)
    if dropout:
        per_token = per_token + d / spread
    scores = np.zeros(len(batch.runs))
    for core in attention.cores():
        heads = np.ceil(core.num_q_heads / tp)
        per_token = per_token + 4.0 * heads  # log-sum-exp of each row
        if not batch.flash and not core_again:
            scores = scores + (5.0 if dropout else 2.0) * heads * batch.seq_len
        if core.chunk_flop_per_token:
            per_token = per_token + 2.0 * heads * core.decode_io_elements
    return batch.tokens * (per_token + scores)


def _dense(batch: MicroBatch, ffn: DenseFfn, recompute: Recompute, dropout: bool, *, norm: bool = True) -> Array:
    tp = as_array(batch.runs.tp)
    spread = tp if batch.sequence_parallel else np.ones(len(batch.runs))
    narrow = 0.0 if _run_again(recompute)[1] else batch.precision.gemm_bytes
    d = batch.model.d_model
    up = ffn.projections(d)[0].shard_out(tp)
    per_token = (2.0 * norm + narrow) * d / spread + batch.precision.activation_input_bytes * up
    per_token = per_token + narrow * ffn.d_ff / tp
    if dropout:
        per_token = per_token + d / spread
    return batch.tokens * per_token


def _mixture(batch: MicroBatch, ffn: MoeFfn, recompute: Recompute) -> Array:
    spread = as_array(batch.runs.tp) if batch.sequence_parallel else np.ones(len(batch.runs))
    _, again = _run_again(recompute)
    narrow, start = batch.precision.gemm_bytes, batch.precision.activation_input_bytes
    d = float(batch.model.d_model)
    width = float(ffn.expert_d_in(batch.model.d_model))
    inner = ffn.d_expert / as_array(batch.runs.expert_tp)
    per_pair = narrow * width + start * (ffn.matrices - 1) * inner + (0.0 if again else narrow * inner)
    normed = 2.0 if again else 4.0  # bytes of the input of the norm, and of its output
    kept = batch.expert_tokens() * per_pair + batch.tokens * (normed * d / spread + 4.0 * ffn.num_experts)
    shared = ffn.shared()
    return kept + (_dense(batch, shared, recompute, False, norm=False) if shared else 0.0)
