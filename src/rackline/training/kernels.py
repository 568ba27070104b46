"""Kernels of a micro-batch: products with their gradients, memory-bound kernels, what is repeated of them.

Rows are those of the whole layer stack on the chips of one pipeline stage column: sharded by tp, cp and ep, not by pp.
Every coefficient may be an array with one value per run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rackline.arch import LayerGroup, Model, MoeFfn, Projection
from rackline.parallel.work import ProductWork
from rackline.passes import Row, features as f
from rackline.passes.features import Array, FloatLike, as_array
from rackline.training.runs import Recompute
from rackline.training.system import MicroBatch, attention_products

Phase = Literal["forward", "input", "weight"]
PHASES: tuple[Phase, ...] = ("forward", "input", "weight")
BOTH: tuple[Phase, Phase] = ("forward", "input")
"""Phases of what has no weights; communication in the backward pass counts as "input"."""
Kind = Literal[
    "gemm", "experts", "attention", "state", "elementwise", "quantise", "permute", "unfused", "head", "logits",
    "tensor", "context", "expert_inside", "expert_outside",
]  # fmt: skip
Again = Mapping[Recompute, float]
"""Kind of recompute, besides those that run whole layers again → share of a row's forward pass that it repeats [1]."""
USUAL: Again = {"selective-op": 1.0}
"""Of a row that says nothing else."""
KEPT: Again = {}
"""Of attention and of an exchange, whose results checkpointing by operators keeps."""

WEIGHT_GRADIENT_BYTES = 8.0
"""Read and written once per micro-batch: products accumulate into fp32 gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One row of the micro-batch.

    Args:
        kind: kind of work, which selects the number of a training stack that scales it.
        phase: phase in which it runs.
        again: what kinds of recompute repeat of it.
        layer: whether it belongs to the layers, not to the ends.
    """

    row: Row
    kind: Kind
    phase: Phase
    again: Again
    layer: bool = True


def from_latent(projection: Projection, d_model: int) -> bool:
    """Whether a projection widens a latent that every chip holds, as the up-projections of MLA do."""
    return projection.d_in[0].units == 1 and projection.d_in[0].size != d_model


def kept_products(group: LayerGroup, d_model: int) -> dict[Projection, float]:
    """Products of a layer on every token → share of each that checkpointing by operators keeps [1].

    It keeps the first of them, the third and so on, as modules of their own run them: queries, keys, values, what comes
    of attention, gate, up, down; what widens a latent follows what makes it. The router and products of routed experts
    are not counted and run again.

    Sources: torchtitan @b5bcd76 (torchtitan/distributed/activation_checkpoint.py, SelectiveAC and
        _get_default_save_ops; models/common/feed_forward.py) and @9dec370 (parallelize_llama.py, _custom_policy);
        pytorch/torch/_functorch/partitioners.py, compute_intensive_ops, which lacks grouped products.
    """
    products, ffn = attention_products(group.attention, d_model), group.ffn
    wider = [one for one in products if from_latent(one, d_model)]
    order: list[tuple[Projection, float]] = []
    for one in sorted((one for one in products if one not in wider), key=lambda one: one.name.endswith("out")):
        widths = [float(part.size) for part in one.d_out]
        if one.name == "qkv" and not wider:  # keys and values
            widths[-1:] = [widths[-1] / 2.0] * 2
        elif one.name == "qkv_down":  # latents of queries, of keys and values
            widths = [float(wider[0].d_in[0].size), widths[0] - wider[0].d_in[0].size]
        order += [(one, width / sum(widths)) for width in widths]
        if one.name.startswith("qkv"):
            for place, late in enumerate(wider[::-1]):
                order.insert(max(len(order) - 2 * place, 1), (late, 1.0))
        if one.name.endswith("_down"):  # Kimi delta attention: decay and gate
            order += [(late, 1.0) for late in wider if late.name == f"{one.name.removesuffix('down')}up"]
    shared = ffn.shared() if isinstance(ffn, MoeFfn) else None
    blocks = [*ffn.latent(d_model)] if isinstance(ffn, MoeFfn) else [*ffn.projections(d_model)]
    blocks += shared.projections(d_model, prefix="shared") if shared else ()
    order += [(one, 1.0 / len(one.d_out)) for one in blocks for _ in one.d_out]
    kept = dict.fromkeys((one for one, _ in order), 0.0)
    for one, share in order[::2]:
        kept[one] += share
    return kept


def products_again(model: Model) -> dict[Projection, Again]:
    """What kinds of recompute repeat of the products of a model on every token, over all layers that have them."""
    layers, kept, latents = dict[Projection, int](), dict[Projection, float](), set[Projection]()
    for group in model.layer_groups:
        latents |= {
            one for one in attention_products(group.attention, model.d_model) if from_latent(one, model.d_model)
        }
        for one, share in kept_products(group, model.d_model).items():
            layers[one] = layers.get(one, 0) + group.count
            kept[one] = kept.get(one, 0.0) + group.count * share
    cheap: Again = {"modules": 1.0}
    return {
        one: {**(cheap if one in latents else {}), "selective-op": 1.0 - kept[one] / count}
        for one, count in layers.items()
    }


def repeated_flop(model: Model) -> dict[Recompute, float]:
    """Kind of recompute → FLOP of the products that it repeats of one token, forward, without scores [FLOP]."""
    found: dict[Recompute, float] = {"modules": 0.0, "selective-op": 0.0}
    again = products_again(model)
    for group in model.layer_groups:
        ffn, products = group.ffn, kept_products(group, model.d_model)
        if isinstance(ffn, MoeFfn):
            routed = ffn.experts_per_token * ffn.matrices * ffn.expert_d_in(model.d_model) * ffn.d_expert
            found["selective-op"] += 2.0 * group.count * (routed + model.d_model * ffn.num_experts)
        for one in products:
            for name, share in again[one].items():
                found[name] += 2.0 * group.count * share * float(one.shard_in(1.0)) * float(one.shard_out(1.0))
    return found


def gemm_work(
    batch: MicroBatch,
    projection: Projection,
    *,
    count: float,
    tp: FloatLike,
    kind: Kind = "gemm",
    bf16: bool = False,
    layer: bool = True,
    again: Again = USUAL,
) -> list[Work]:
    """Three products of the same FLOP: output, gradient of the input, gradient of the weight.

    Beside frozen weights there is no gradient of the weight, but a pair of adapters with all three products each.
    """
    d_in, d_out = as_array(projection.shard_in(tp)), as_array(projection.shard_out(tp))
    found = product_work(
        batch, name=projection.name, feature=f.TOKENS, d_in=d_in, d_out=d_out, weights=d_in * d_out * count,
        count=count, kind=kind, bf16=bf16, layer=layer, again=again,
    )  # fmt: skip
    if not (batch.system.lora_rank and layer and not bf16 and batch.system.adapts(projection.name)):
        return found
    rank = as_array(float(batch.system.lora_rank))
    for name, a, b in (("lora_down", d_in, rank), ("lora_up", rank, d_out)):
        found += product_work(
            batch, name=f"{projection.name}_{name}", feature=f.TOKENS, d_in=a, d_out=b, weights=a * b * count,
            count=count, kind=kind, bf16=True, trained=True,
        )  # fmt: skip
    # scaled and added to the output, forward; gradients scaled, and those of the input added, backward
    moved = (3.0 * d_out, 2.0 * d_out + 3.0 * d_in)
    return found + [
        memory_work(f"{projection.name}_lora_sum", "elementwise", phase, {f.TOKENS: 2.0 * elements * count}, count)
        for phase, elements in zip(BOTH, moved, strict=True)
    ]


def product_work(
    batch: MicroBatch,
    *,
    name: str,
    feature: str,
    d_in: Array,
    d_out: Array,
    weights: FloatLike,
    count: float,
    kind: Kind,
    bf16: bool = False,
    layer: bool = True,
    trained: bool | None = None,
    again: Again = USUAL,
) -> list[Work]:
    """The three products of `count` layers of a weight matrix of d_in × d_out, or of experts that are.

    Args:
        feature: rows of the product.
        weights: elements that one chip holds of all these layers.
        trained: whether the weight gets a gradient; those of a model with adapters do not.
    """
    precision = batch.system.precision
    dtype, compute = ("bf16", "bf16") if bf16 else (precision.gemm, precision.compute)
    size = 2.0 if bf16 else precision.gemm_bytes
    ahead, back = (
        ProductWork.of(a, b, bytes_per_weight=size, bytes_per_activation=size)
        for a, b in ((d_in, d_out), (d_out, d_in))
    )
    launches = {f.ONE: float(count)}

    def row(phase: Phase, hbm: dict[str, FloatLike], depth: dict[str, FloatLike]) -> Work:
        return Work(
            row=Row(
                name=f"{name}_{phase}",
                group=phase,
                op_class="gemm",
                dtype=dtype,
                compute_dtype=compute,
                compute={feature: ahead.flop * count},
                hbm=hbm,
                launches=launches,
                depth=depth,
                formula=f"{count:g} layers × 2·in·out FLOP per row",
            ),
            kind=kind,
            phase=phase,
            again=again,
            layer=layer,
        )

    found = [
        row("forward", {f.ONE: weights * size, feature: ahead.row_bytes * count}, {f.ONE: d_in * count}),
        row("input", {f.ONE: weights * size, feature: back.row_bytes * count}, {f.ONE: d_out * count}),
        row("weight", {f.ONE: weights * WEIGHT_GRADIENT_BYTES, feature: (d_in + d_out) * size * count}, {}),
    ]
    if not (batch.system.lora_rank == 0 if trained is None else trained):
        found.pop()
        if layer and precision.frozen_bytes is not None:  # written out in bf16 before the product, both ways
            moved = weights * (precision.frozen_bytes + 2.0)
            found += [memory_work(f"{name}_dequantise", "quantise", phase, {f.ONE: moved}, count) for phase in BOTH]
    if precision.quantised and not bf16:
        # bf16 read, both orders of the narrow type written: the weight gradient multiplies the other way round
        found += [
            memory_work(f"{name}_cast", "quantise", phase, {feature: 4.0 * width * count}, count, layer=layer)
            for phase, width in zip(BOTH, (d_in, d_out), strict=True)
        ]
    return found


def memory_work(
    name: str,
    kind: Kind,
    phase: Phase,
    hbm: dict[str, FloatLike],
    count: float = 1.0,
    *,
    again: Again = USUAL,
    layer: bool = True,
) -> Work:
    """Memory-bound kernels."""
    row = Row(
        name=f"{name}_{phase}",
        group=phase,
        op_class="elementwise",
        dtype="bf16",
        hbm=hbm,
        launches={f.ONE: count},
        formula="bytes moved",
    )
    return Work(row=row, kind=kind, phase=phase, again=again, layer=layer)
