"""All rows of a micro-batch: projections, attention, feed-forward blocks, small kernels, the head, exchanges."""

from __future__ import annotations

import numpy as np

from rackline.arch import Core, DenseFfn, Dim, Model, MoeFfn, Projection
from rackline.arch.products import GATED
from rackline.parallel.work import AttentionWork
from rackline.passes import Row
from rackline.passes import features as f
from rackline.passes.features import Array, FloatLike, as_array
from rackline.training.exchange import context_rows, expert_rows, tensor_rows
from rackline.training.work import MicroBatch, Phase, Work, from_latent, gemm_work, memory_work, product_work

FLASH_BACKWARD_FLOP = 2.5
"""Backward over forward FLOP of FlashAttention: five products for two (arXiv:2205.14135, algorithm 4)."""
SOFTMAX_SHARE = {"ampere": 0.125}
SOFTMAX_SHARE_ELSEWHERE = 0.64
"""Time of a softmax entry over that of the products of a head of 128, by generation: exponentials did not get faster
with the matrix units. Heads of 64 were measured at 0.90 of the rate of heads of 128 on A100, at 0.72 from H100 on."""
HEAD_OF_RATES = 128.0
UNFUSED_BYTES_PER_PAIR = 13.0
"""Traffic of an attention score and its dropout that are written out: scores, probabilities, mask, twice over."""
LOGIT_BYTES = {"forward": 6.0, "input": 8.0}
"""Per logit: bf16 written, read and widened to fp32; then probabilities, loss and gradient."""


def work_of(batch: MicroBatch) -> list[Work]:
    """All rows of a micro-batch."""
    model, runs = batch.model, batch.runs
    tp = as_array(runs.tp)
    found: list[Work] = []
    projections, kinds, blocks = _counts(model, batch.mtp_layers)
    for projection, count in projections.items():
        again = "modules" if from_latent(projection, model.d_model) else ""
        found += gemm_work(batch, projection, count=count, tp=tp, again=again)
    for attention, count in kinds.items():
        found += core_work(batch, attention, count=count)
    for ffn, count in blocks.items():
        if isinstance(ffn, DenseFfn) and not ffn.d_ff:
            continue
        if isinstance(ffn, DenseFfn):
            for projection in ffn.projections(model.d_model):
                found += gemm_work(batch, projection, count=count, tp=tp)
        else:
            found += moe_work(batch, ffn, count=count)
    found += small_work(batch, kinds, blocks)
    found += head_work(batch)
    attention_layers = sum(kinds.values())
    dense = sum(count for ffn, count in blocks.items() if isinstance(ffn, DenseFfn) and ffn.d_ff)
    for kind, phase, row in tensor_rows(batch, attention_layers, dense):
        found.append(Work(row=row, kind=kind, phase=phase))
    for kind, phase, row in context_rows(batch, kinds):
        found.append(Work(row=row, kind=kind, phase=phase))
    for ffn, count in blocks.items():
        if isinstance(ffn, MoeFfn):
            for kind, phase, row in expert_rows(batch, ffn, count):
                found.append(Work(row=row, kind=kind, phase=phase))
    return found


def _counts(
    model: Model, mtp_layers: int
) -> tuple[dict[Projection, int], dict[Core, int], dict[DenseFfn | MoeFfn, int]]:
    """Layers that share a projection, an attention core, a feed-forward block; the extra layers are like the last."""
    projections: dict[Projection, int] = {}
    found: dict[Core, int] = {}
    blocks: dict[DenseFfn | MoeFfn, int] = {}
    last = len(model.layer_groups) - 1
    for index, group in enumerate(model.layer_groups):
        count = group.count + (mtp_layers if index == last else 0)
        expansion = group.attention.expansion()
        for projection in (*group.attention.projections(model.d_model), *([expansion] if expansion else [])):
            projections[projection] = projections.get(projection, 0) + count
        for core in group.attention.cores():
            found[core] = found.get(core, 0) + count
        blocks[group.ffn] = blocks.get(group.ffn, 0) + count
    return projections, found, blocks


def core_work(batch: MicroBatch, attention: Core, *, count: float) -> list[Work]:
    """Scores and values; a recurrent state in their place for linear attention and state-space layers."""
    heads = np.ceil(attention.num_q_heads / as_array(batch.runs.tp))
    found: list[Work] = []
    if attention.chunk_flop_per_token:
        compute: dict[str, FloatLike] = {f.TOKENS: heads * attention.chunk_flop_per_token * count}
        moved: dict[str, FloatLike] = {f.TOKENS: heads * attention.prefill_io_elements[0] * 2.0 * count}
        for phase, times in (("forward", 1.0), ("input", 2.0)):
            row = Row(
                name=f"{attention.kind}_{phase}",
                group=phase,
                op_class="gemm",
                dtype="bf16",
                compute={key: times * value for key, value in compute.items()},
                hbm={key: times * value for key, value in moved.items()},
                launches={f.ONE: times * count},
            )
            found.append(Work(row=row, kind="state", phase="forward" if phase == "forward" else "input"))
    if not attention.prefill_flop_per_pair:
        return found
    pairs = f.attention_pairs(attention.kind)
    kv_heads = np.ceil(attention.num_kv_heads / as_array(batch.runs.tp))
    work = AttentionWork.prefill(attention, heads, kv_heads, 0.0)  # nothing is cached
    per_pair = as_array(work.pair_flop) * count
    if not batch.flash:
        return found + _written_out(attention, per_pair, heads, count)
    mean_head = attention.prefill_flop_per_pair / 4.0
    softmax = SOFTMAX_SHARE.get(batch.cluster.chip.generation, SOFTMAX_SHARE_ELSEWHERE)
    flop = per_pair * (1.0 + softmax * (HEAD_OF_RATES / mean_head)) / (1.0 + softmax)
    for phase, times in (("forward", 1.0), ("input", FLASH_BACKWARD_FLOP)):
        row = Row(
            name=f"attention_{attention.kind}_{phase}",
            group=phase,
            op_class=f"{attention.kernel}_prefill",
            dtype="bf16",
            compute={pairs: times * flop},
            hbm={f.TOKENS: times * work.token_bytes * count},
            launches={f.ONE: times * count},
            formula=f"{count:g} layers × {attention.prefill_flop_per_pair:g} FLOP a pair and head, causal",
        )
        found.append(
            Work(
                row=row,
                kind="attention",
                phase="forward" if phase == "forward" else "input",
            )
        )
    return found


def _written_out(attention: Core, per_pair: Array, heads: Array, count: float) -> list[Work]:
    """Attention before FlashAttention: the whole square is multiplied, scores and probabilities pass memory."""
    pairs = f.attention_pairs(attention.kind)
    found: list[Work] = []
    phases: tuple[tuple[Phase, float], ...] = (("forward", 1.0), ("input", 2.0))
    for phase, times in phases:
        found.append(
            Work(
                row=Row(
                    name=f"attention_{attention.kind}_{phase}",
                    group=phase,
                    op_class="gemm",
                    dtype="bf16",
                    compute={pairs: 2.0 * times * per_pair},
                    hbm={pairs: 2.0 * times * 4.0 * heads * count},
                    launches={f.ONE: 2.0 * times * count},
                    formula="the whole square, both halves",
                ),
                kind="gemm",
                phase=phase,
                again="selective",
            )
        )
        traffic: dict[str, FloatLike] = {pairs: 2.0 * UNFUSED_BYTES_PER_PAIR / 2.0 * heads * count * times}
        found.append(memory_work("scores", "unfused", phase, traffic, 3.0 * count, again="selective"))
    return found


def moe_work(batch: MicroBatch, ffn: MoeFfn, *, count: float) -> list[Work]:
    """Router, routed experts, shared experts, permutation of tokens around them."""
    model, runs = batch.model, batch.runs
    tp = as_array(runs.tp)
    d = model.d_model
    routed = float(ffn.expert_d_in(d))
    router = Projection(name="router", d_in=(Dim(size=d),), d_out=(Dim(size=ffn.num_experts),))
    found = gemm_work(batch, router, count=count, tp=1, bf16=True)
    for projection in ffn.latent(d):
        found += gemm_work(batch, projection, count=count, tp=1)
    local = np.ceil(ffn.num_experts / as_array(runs.ep))
    width = ffn.d_expert / as_array(runs.expert_tp)
    for name, d_in, d_out in (
        ("experts_up", as_array(routed), (ffn.matrices - 1) * width),
        ("experts_down", width, as_array(routed)),
    ):
        found += product_work(
            batch,
            name=name,
            feature=f.EXPERT_TOKENS,
            d_in=d_in,
            d_out=d_out,
            weights=local * d_in * d_out * count,
            count=count,
            kind="experts",
        )
    shared = ffn.shared()
    for projection in shared.projections(d, prefix="shared") if shared else ():
        found += gemm_work(batch, projection, count=count, tp=tp)
    phases: tuple[Phase, ...] = ("forward", "input")
    for phase in phases:
        found.append(memory_work("permute", "permute", phase, {f.EXPERT_TOKENS: 8.0 * routed * count}, 2.0 * count))
        if ffn.bias:  # biases and clamps of experts are kernels of their own
            inner: dict[str, FloatLike] = {f.EXPERT_TOKENS: 2.0 * width * count}
            found.append(memory_work("expert_bias", "unfused", phase, inner, count))
    return found


def small_work(batch: MicroBatch, kinds: dict[Core, int], blocks: dict[DenseFfn | MoeFfn, int]) -> list[Work]:
    """Norms, residual additions, rotary embedding, activation functions; the backward pass moves twice as much.

    Of ten passes over the residual stream in a layer, two norms make four: each reads and writes it.
    """
    model = batch.model
    tp = as_array(batch.runs.tp)
    per_pair: FloatLike = 0.0
    layers = max(sum(kinds.values()), sum(blocks.values()))
    spread = tp if batch.sequence_parallel else 1.0
    again: FloatLike = 2.0 * 4.0 * model.d_model * layers / spread
    per_token: FloatLike = 2.0 * 6.0 * model.d_model * layers / spread
    for group in model.layer_groups:
        width = sum(float(part.size) for p in group.attention.projections(model.d_model)[:1] for part in p.d_out)
        per_token = per_token + 4.0 * width * group.count / tp
    for ffn, count in blocks.items():
        if isinstance(ffn, DenseFfn):
            again = again + 2.0 * ffn.d_ff * (3.0 if ffn.activation in GATED else 2.0) * count / tp
        else:
            passes = 3.0 if ffn.activation in GATED else 2.0
            again = again + 2.0 * ffn.d_shared * passes * count / tp
            per_pair = per_pair + 2.0 * ffn.d_expert / as_array(batch.runs.expert_tp) * passes * count
    cheap: dict[str, FloatLike] = {f.TOKENS: again, f.EXPERT_TOKENS: per_pair}
    backward: dict[str, FloatLike] = {f.TOKENS: 2.0 * (per_token + again), f.EXPERT_TOKENS: 2.0 * per_pair}
    return [
        memory_work("residual", "elementwise", "forward", {f.TOKENS: per_token}, 5.0 * layers),
        memory_work("norms_and_activations", "elementwise", "forward", cheap, 3.0 * layers, again="modules"),
        memory_work("small_kernels", "elementwise", "input", backward, 12.0 * layers),
    ]


def head_work(batch: MicroBatch) -> list[Work]:
    """Logits of every token, their loss and gradients."""
    model = batch.model
    heads = 1.0 + batch.mtp_layers
    head = Projection(
        name="head", d_in=(Dim(size=model.d_model),), d_out=(Dim(size=model.vocab_size, units=model.vocab_size),)
    )
    found = gemm_work(batch, head, count=heads, tp=as_array(batch.runs.tp), kind="head", bf16=True, layer=False)
    logits = model.vocab_size / as_array(batch.runs.tp) * heads
    phases: tuple[Phase, ...] = ("forward", "input")
    for phase in phases:
        moved: dict[str, FloatLike] = {f.TOKENS: LOGIT_BYTES[phase] * logits}
        found.append(memory_work("loss", "logits", phase, moved, 4.0, layer=False))
    return found
