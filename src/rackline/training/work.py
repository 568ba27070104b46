"""Rows of a micro-batch: layers with their attention and experts, small kernels, the head, collectives.

Rows are those of the whole layer stack on the chips of one pipeline stage column: sharded by tp, cp and ep, not by pp.
Every coefficient may be an array with one value per run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from rackline.arch import Core, DenseFfn, Dim, MoeFfn, Projection
from rackline.arch.kinds import GATED
from rackline.parallel.exchange import collective_rows, make_group
from rackline.parallel.work import AttentionWork, layers_with
from rackline.passes import Row, collectives as c, features as f
from rackline.passes.features import Array, FloatLike, as_array
from rackline.passes.routing import distinct_ranks
from rackline.training.contexts import context_method
from rackline.training.kernels import (
    BOTH,
    KEPT,
    USUAL,
    Again,
    Kind,
    Phase,
    Work,
    gemm_work,
    memory_work,
    product_work,
    products_again,
)
from rackline.training.system import MicroBatch, attention_products

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
    model, runs = batch.system.model, batch.runs
    tp = as_array(runs.tp)
    found: list[Work] = []
    groups = batch.system.layer_groups
    projections = layers_with(groups, lambda group: attention_products(group.attention, model.d_model))
    kinds = layers_with(groups, lambda group: group.attention.cores())
    blocks = layers_with(groups, lambda group: [group.ffn])
    again = products_again(model)
    for projection, count in projections.items():
        found += gemm_work(batch, projection, count=count, tp=tp, again=again[projection])
    for attention, count in kinds.items():
        found += core_work(batch, attention, count=count)
    for ffn, count in blocks.items():
        if isinstance(ffn, MoeFfn):
            found += [*moe_work(batch, ffn, count=count, again=again), *expert_rows(batch, ffn, count)]
        else:
            for projection in ffn.projections(model.d_model):
                found += gemm_work(batch, projection, count=count, tp=tp, again=again[projection])
    dense = sum(count for ffn, count in blocks.items() if isinstance(ffn, DenseFfn) and ffn.d_ff)
    found += [*small_work(batch, kinds, blocks), *head_work(batch)]
    return found + tensor_rows(batch, sum(kinds.values()), dense) + context_rows(batch, kinds)


def core_work(batch: MicroBatch, attention: Core, *, count: float) -> list[Work]:
    """Scores and values; a recurrent state in their place for linear attention and state-space layers."""
    heads, kv_heads = (
        np.ceil(number / as_array(batch.runs.tp)) for number in (attention.num_q_heads, attention.num_kv_heads)
    )

    def rows(
        name: str,
        kind: Kind,
        op_class: str,
        compute: tuple[str, FloatLike],
        hbm: tuple[str, FloatLike],
        launches: float,
        backward: float,
        formula: str = "",
        again: Again = USUAL,
    ) -> list[Work]:
        """The forward pass and, as a multiple of it, the backward pass."""
        return [
            Work(
                row=Row(
                    name=f"{name}_{phase}",
                    group=phase,
                    op_class=op_class,
                    dtype="bf16",
                    compute={compute[0]: times * compute[1]},
                    hbm={hbm[0]: times * hbm[1]},
                    launches={f.ONE: times * launches},
                    formula=formula,
                ),
                kind=kind,
                phase=phase,
                again=again,
            )
            for phase, times in zip(BOTH, (1.0, backward), strict=True)
        ]

    found: list[Work] = []
    if attention.chunk_flop_per_token:
        compute = f.TOKENS, heads * attention.chunk_flop_per_token * count
        hbm = f.TOKENS, heads * attention.prefill_io_elements[0] * 2.0 * count
        found += rows(attention.kind, "state", "gemm", compute, hbm, count, 2.0)
    if not attention.prefill_flop_per_pair:
        return found
    pairs, name = f.attention_pairs(attention.kind), f"attention_{attention.kind}"
    work = AttentionWork.prefill(attention, heads, kv_heads, 0.0)  # nothing is cached
    per_pair = as_array(work.pair_flop) * count
    # without fused attention the whole square is multiplied, and scores and probabilities pass memory
    if not batch.system.stack.kernels.flash_attention:
        hbm, formula = (pairs, 8.0 * heads * count), "the whole square, both halves"
        scores: Again = {"selective": 1.0, "selective-op": 1.0}
        found += rows(name, "gemm", "gemm", (pairs, 2.0 * per_pair), hbm, 2.0 * count, 2.0, formula, scores)
        traffic = UNFUSED_BYTES_PER_PAIR * heads * count
        return found + [
            memory_work("scores", "unfused", phase, {pairs: times * traffic}, 3.0 * count, again=scores)
            for phase, times in zip(BOTH, (1.0, 2.0), strict=True)
        ]
    mean_head = attention.prefill_flop_per_pair / 4.0
    softmax = SOFTMAX_SHARE.get(batch.system.cluster.chip.generation, SOFTMAX_SHARE_ELSEWHERE)
    flop = per_pair * (1.0 + softmax * (HEAD_OF_RATES / mean_head)) / (1.0 + softmax)
    formula = f"{count:g} layers × {attention.prefill_flop_per_pair:g} FLOP a pair and head, causal"
    kernel, hbm = f"{attention.kernel}_prefill", (f.TOKENS, work.token_bytes * count)
    return found + rows(name, "attention", kernel, (pairs, flop), hbm, count, FLASH_BACKWARD_FLOP, formula, KEPT)


def moe_work(batch: MicroBatch, ffn: MoeFfn, *, count: float, again: Mapping[Projection, Again]) -> list[Work]:
    """Router, routed experts, shared experts, permutation of tokens around them."""
    runs, d = batch.runs, batch.system.model.d_model
    routed = float(ffn.expert_d_in(d))
    router = Projection(name="router", d_in=(Dim(size=d),), d_out=(Dim(size=ffn.num_experts),))
    found = gemm_work(batch, router, count=count, tp=1, bf16=True)
    for projection in ffn.latent(d):
        found += gemm_work(batch, projection, count=count, tp=1, again=again[projection])
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
        found += gemm_work(batch, projection, count=count, tp=runs.tp, again=again[projection])
    for phase in BOTH:
        found.append(memory_work("permute", "permute", phase, {f.EXPERT_TOKENS: 8.0 * routed * count}, 2.0 * count))
        if ffn.bias:  # biases and clamps of experts are kernels of their own
            found.append(memory_work("expert_bias", "unfused", phase, {f.EXPERT_TOKENS: 2.0 * width * count}, count))
    return found


EAGER_NORM, EAGER_NORM_WEIGHT = (36.0, 72.0), 8.0
"""Bytes of an element forward and backward where each operation of an RMS norm is a kernel: widened (2 + 4), squared
(4 + 4), averaged (4), scaled (4 + 4), narrowed (4 + 2), times its weight (2 + 2); backward the weight (4), widened (6),
the scale and its own gradient (8 + 16), the square (20), their sum (12) and narrowed (6); 8 more for the gradient of
the weight. The operations here and below are those of transformers 5.17, models/llama/modeling_llama.py: LlamaRMSNorm,
apply_rotary_pos_emb, LlamaMLP and LlamaDecoderLayer, with bf16 activations."""
EAGER_STREAM = (12.0, 30.0)
"""Two additions to the residual stream (6 each); backward as many, and three sums of gradients of products' inputs."""
EAGER_ROTATION = (20.0, 30.0)
"""Queries and keys times cosine (4), negated half (2), put together (4), times sine (4), summed (6); backward two
products (8), two padded slices and their sum (8 + 6), negation and sum (8)."""
EAGER_ACTIVATION = {True: (10.0, 18.0), False: (4.0, 6.0)}
"""Activation function (4 forward, 6 backward), and whether a gate is multiplied (6 and 12)."""


def eager_work(batch: MicroBatch) -> list[Work]:
    """Norms, residual additions, rotary embedding and activation functions, each operation by itself."""
    model, tp = batch.system.model, as_array(batch.runs.tp)
    moved: dict[Phase, dict[str, FloatLike]] = {}
    layers = batch.system.num_layers
    for phase, at in zip(BOTH, (0, 1), strict=True):
        norm = EAGER_NORM[at] + at * EAGER_NORM_WEIGHT * (batch.system.lora_rank == 0)
        per_token: FloatLike = 0.0
        per_pair: FloatLike = 0.0
        for group in batch.system.layer_groups:
            attention, ffn = group.attention, group.ffn
            queries = sum(float(part.size) for p in attention.projections(model.d_model)[:1] for part in p.d_out[:1])
            rotated = queries + 0.5 * attention.kv_elements_per_token(1)
            stream = (norm * model.norms_per_layer + EAGER_STREAM[at]) * model.d_model / batch.spread
            heads = (norm * attention.normed_elements + EAGER_ROTATION[at] * rotated) / tp
            per_token = per_token + group.count * (stream + heads)
            active = group.count * EAGER_ACTIVATION[ffn.activation in GATED][at]
            if isinstance(ffn, MoeFfn):
                per_token = per_token + active * ffn.d_shared / tp
                per_pair = per_pair + active * ffn.d_expert / as_array(batch.runs.expert_tp)
            else:
                per_token = per_token + active * ffn.d_ff / tp
        moved[phase] = {f.TOKENS: per_token, f.EXPERT_TOKENS: per_pair}
    cheap: Again = {"modules": 1.0, **USUAL}
    return [
        memory_work("norms_and_activations", "elementwise", "forward", moved["forward"], 28.0 * layers, again=cheap),
        memory_work("small_kernels", "elementwise", "input", moved["input"], 60.0 * layers),
    ]


def small_work(batch: MicroBatch, kinds: dict[Core, int], blocks: dict[DenseFfn | MoeFfn, int]) -> list[Work]:
    """Norms, residual additions, rotary embedding, activation functions; the backward pass moves twice as much.

    Of ten passes over the residual stream in a layer, two norms make four: each reads and writes it.
    """
    if batch.system.stack.kernels.eager:
        return eager_work(batch)
    model, tp = batch.system.model, as_array(batch.runs.tp)
    layers = max(sum(kinds.values()), sum(blocks.values()))
    per_pair: FloatLike = 0.0
    again: FloatLike = 2.0 * 4.0 * model.d_model * layers / batch.spread
    per_token: FloatLike = 2.0 * 6.0 * model.d_model * layers / batch.spread
    for group in model.layer_groups:
        width = sum(float(part.size) for p in group.attention.projections(model.d_model)[:1] for part in p.d_out)
        per_token = per_token + 4.0 * width * group.count / tp
    for ffn, count in blocks.items():
        passes = 3.0 if ffn.activation in GATED else 2.0
        width = ffn.d_ff if isinstance(ffn, DenseFfn) else ffn.d_shared
        again = again + 2.0 * width * passes * count / tp
        if isinstance(ffn, MoeFfn):
            per_pair = per_pair + 2.0 * ffn.d_expert / as_array(batch.runs.expert_tp) * passes * count
    cheap: dict[str, FloatLike] = {f.TOKENS: again, f.EXPERT_TOKENS: per_pair}
    backward: dict[str, FloatLike] = {f.TOKENS: 2.0 * (per_token + again), f.EXPERT_TOKENS: 2.0 * per_pair}
    return [
        memory_work("residual", "elementwise", "forward", {f.TOKENS: per_token}, 5.0 * layers),
        memory_work(
            "norms_and_activations", "elementwise", "forward", cheap, 3.0 * layers, again={"modules": 1.0, **USUAL}
        ),
        memory_work("small_kernels", "elementwise", "input", backward, 12.0 * layers),
    ]


def head_work(batch: MicroBatch) -> list[Work]:
    """Logits of every token, their loss and gradients."""
    model, tp, heads = batch.system.model, as_array(batch.runs.tp), 1.0 + batch.system.mtp_layers
    head = Projection(
        name="head", d_in=(Dim(size=model.d_model),), d_out=(Dim(size=model.vocab_size, units=model.vocab_size),)
    )
    logits = model.vocab_size / tp * heads
    return gemm_work(batch, head, count=heads, tp=tp, kind="head", bf16=True, layer=False) + [
        memory_work("loss", "logits", phase, {f.TOKENS: LOGIT_BYTES[phase] * logits}, 4.0, layer=False)
        for phase in BOTH
    ]


def _link_work(
    batch: MicroBatch,
    kind: Kind,
    name: str,
    algorithm: Callable[[c.Group], c.CollectiveCost],
    group: c.Group,
    buffer: Mapping[str, FloatLike],
    calls: Array,
    formula: str,
    *,
    op_class: str,
    backward: float = 1.0,
    again: Again = KEPT,
) -> list[Work]:
    """A collective of the forward pass and, as a multiple of it, of the backward pass."""
    return [
        Work(row=row, kind=kind, phase=phase, again=again)
        for phase, times in zip(BOTH, (1.0, backward), strict=True)
        for row in collective_rows(
            f"{name}_{phase}",
            cluster=batch.system.cluster,
            group=group,
            algorithms=(algorithm,),
            buffer=dict(buffer),
            calls=times * calls,
            op_class=op_class,
            where=phase,
            formula=formula,
        )
    ]


def _gathers(
    batch: MicroBatch, name: str, ranks: Array, buffer: Mapping[str, FloatLike], calls: Array, formula: str
) -> list[Work]:
    """A gather before and a scatter behind blocks that tensor parallelism cuts."""
    if not np.any(ranks > 1):
        return []
    group = make_group(batch.system.cluster, ranks)
    algorithms = (("all_gather", c.all_gather, USUAL), ("reduce_scatter", c.reduce_scatter, KEPT))
    return [
        one
        for op, algorithm, again in algorithms
        for one in _link_work(
            batch, "tensor", f"{name}_{op}", algorithm, group, buffer, calls, formula, op_class=op, again=again
        )
    ]


def tensor_rows(batch: MicroBatch, attention_layers: int, dense_layers: int) -> list[Work]:
    """Sequence parallelism: gather before and scatter after attention and each dense block.

    The input is gathered once more in the backward pass, for the gradient of the weight; that gather runs behind the
    product that makes the gradient of the input, so it is not counted.
    Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2.
    """
    tp, d_model, blocks = as_array(batch.runs.tp), batch.system.model.d_model, attention_layers + dense_layers
    formula = f"{blocks} blocks × 2·{d_model} B per token"
    return _gathers(batch, "tp", tp, {f.TOKENS: 2.0 * d_model}, blocks * (tp > 1), formula)


def context_rows(batch: MicroBatch, cores: dict[Core, int]) -> list[Work]:
    """What a context-parallel group exchanges around attention under the stack's method, see `contexts`."""
    cp, found = as_array(batch.runs.cp), list[Work]()
    if not np.any(cp > 1):
        return found
    how = context_method(batch.system.stack.parallelism.context)
    group = make_group(batch.system.cluster, cp, as_array(batch.runs.tp))
    for attention, count in cores.items():
        if np.any(as_array(attention.kv_elements_per_token(batch.runs.tp)) > 0):
            name, calls = f"cp_{attention.kind}", count * (cp > 1)
            buffer = {f.TOKENS: 2.0 * as_array(how.elements(attention, as_array(batch.runs.tp), cp))}
            found += _link_work(
                batch, "context", name, how.collective, group, buffer, calls,
                f"{count} layers × {how.formula}", op_class=how.op_class, backward=how.backward,
            )  # fmt: skip
    return found


def expert_rows(batch: MicroBatch, ffn: MoeFfn, count: int) -> list[Work]:
    """Dispatch and combine of routed tokens, once forward and once backward; gathers where experts are cut by tp.

    A token crosses to a scale-up domain once, however many of its experts live there, and node-limited routing bounds
    the domains; a plain all-to-all sends it to each of its experts.

    Sources: DeepSeek-V3 technical report (arXiv:2412.19437), sections 2.1.2, 3.2.2 and 3.3.3.
    """
    ep, tp, expert_tp = (as_array(cut) for cut in (batch.runs.ep, batch.runs.tp, batch.runs.expert_tp))
    precision, width = batch.system.precision, float(ffn.expert_d_in(batch.system.model.d_model))
    found: list[Work] = []
    if np.any(ep > 1):
        group = make_group(batch.system.cluster, ep, expert_tp)
        picks = (ffn.num_experts, ffn.experts_per_token, ffn.num_groups, ffn.groups_per_token)
        ranks = distinct_ranks(ep, *picks)
        domains = distinct_ranks(np.minimum(as_array(group.outside), ffn.num_experts), *picks)

        def sent(of: c.Group) -> c.CollectiveCost:
            if batch.system.stack.communication.forwards_tokens:
                return c.forwarded_all_to_all(of, ranks, domains)
            return c.scaled_cost(c.all_to_all(of), float(ffn.experts_per_token))

        outside = as_array(group.outside) > 1
        places: tuple[tuple[Kind, Array], ...] = (
            ("expert_inside", ~outside & (ep > 1)),
            ("expert_outside", outside & (ep > 1)),
        )
        # backward, gradients are dispatched to the experts and those of their inputs are combined
        sizes = (("dispatch", precision.dispatch_bytes), ("combine", precision.combine_bytes))
        for (kind, here), (name, size) in product(places, sizes):
            if np.any(here):
                found += _link_work(
                    batch, kind, f"ep_{name}_{kind.removeprefix('expert_')}", sent, group,
                    {f.TOKENS: size * width / tp}, count * here,
                    f"{count} layers × {size:g}·{width:g} B per token and expert rank", op_class="all_to_all",
                )  # fmt: skip
    buffer, formula = {f.EXPERT_TOKENS: 2.0 * width}, f"{count} layers × routed tokens of the group"
    return found + _gathers(batch, "etp", expert_tp, buffer, count * (expert_tp > 1), formula)
