"""Rows of a micro-batch: a product and its two gradients, memory-bound kernels, and the micro-batch itself.

Rows are those of the whole layer stack on the chips of one pipeline stage column: sharded by tp, cp and ep, not by pp.
Every coefficient may be an array with one value per run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rackline.arch import Model, Projection
from rackline.hardware import Cluster
from rackline.parallel.work import ProductWork
from rackline.passes import Row
from rackline.passes import features as f
from rackline.passes.features import Array, FloatLike, as_array
from rackline.training.adapters import LoraTargets, is_adapted
from rackline.training.precision import TrainPrecision
from rackline.training.runs import Runs

Phase = Literal["forward", "input", "weight"]
PHASES: tuple[Phase, ...] = ("forward", "input", "weight")
Kind = Literal[
    "gemm",
    "experts",
    "attention",
    "state",
    "elementwise",
    "quantise",
    "permute",
    "unfused",
    "head",
    "logits",
    "tensor",
    "context",
    "expert_inside",
    "expert_outside",
]

Again = Literal["", "selective", "modules"]

WEIGHT_GRADIENT_BYTES = 8.0
"""Read and written once per micro-batch: products accumulate into fp32 gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One row of the micro-batch.

    Args:
        kind: kind of work, which selects the number of a training stack that scales it.
        phase: phase in which it runs; communication in the backward pass counts as "input".
        again: the kind of recompute, besides "full", that repeats it.
        layer: whether it belongs to the layers, not to the ends.
    """

    row: Row
    kind: Kind
    phase: Phase
    again: Again = ""
    layer: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch, by run.

    Args:
        tokens: on one chip's share of the sequence [tokens].
        sequences: of the micro-batch [sequences].
        seq_len: [tokens].
        flash: whether attention is one fused kernel that skips what a causal mask hides.
        sequence_parallel: whether activations between tensor-parallel blocks are sharded over tp as well.
        mtp_layers: multi-token-prediction layers, each with a head [count].
        forwards_tokens: whether a token crosses to a scale-up domain once, however many of its experts live there.
        lora_rank: rank of adapters beside frozen weights; 0 trains all weights [count].
        lora_targets: products that have adapters.
        packed_len: length of the samples packed into a sequence, weighted by their tokens; attention stays within a
            sample. 0 for one sample a sequence [tokens].
        expert_load: tokens of the busiest expert-parallel rank over the mean; 1 is balanced, and what a capacity factor
            drops is not counted [1].
    """

    model: Model
    runs: Runs
    cluster: Cluster
    precision: TrainPrecision
    seq_len: int
    flash: bool = True
    sequence_parallel: bool = True
    forwards_tokens: bool = True
    mtp_layers: int = 0
    expert_load: float = 1.0
    lora_rank: int = 0
    lora_targets: LoraTargets = "all"
    packed_len: float = 0.0

    @property
    def sequences(self) -> Array:
        """Sequences of a micro-batch [sequences]."""
        return as_array(self.runs.micro_batch)

    @property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on one chip [tokens]."""
        return self.sequences * self.seq_len / as_array(self.runs.cp)

    def features(self) -> dict[str, Array]:
        """The features that the rows are linear in."""
        found: dict[str, Array] = {f.ONE: np.ones(len(self.runs)), f.TOKENS: self.tokens}
        sample = min(self.packed_len, self.seq_len) or float(self.seq_len)
        for label, kind in self.model.cores().items():
            pairs = as_array(kind.attention_pairs(float(sample), 0.0)) * (self.seq_len / sample)
            found[f.attention_pairs(label)] = self.sequences * pairs / as_array(self.runs.cp)
        found[f.EXPERT_TOKENS] = self.expert_tokens()
        return found

    def expert_tokens(self) -> Array:
        """Token-expert pairs on the busiest chip [tokens]; experts cut by expert_tp see the tokens of that group."""
        moe = self.model.moe()
        if moe is None:
            return np.zeros(len(self.runs))
        balanced = self.tokens * moe.experts_per_token * as_array(self.runs.expert_tp) / as_array(self.runs.tp)
        return balanced * self.expert_load


def from_latent(projection: Projection, d_model: int) -> bool:
    """Whether a projection widens a latent that every chip holds, as the up-projections of MLA do."""
    return projection.d_in[0].units == 1 and projection.d_in[0].size != d_model


def gemm_work(
    batch: MicroBatch,
    projection: Projection,
    *,
    count: float,
    tp: FloatLike,
    kind: Kind = "gemm",
    bf16: bool = False,
    layer: bool = True,
    again: Again = "",
) -> list[Work]:
    """Three products of the same FLOP: output, gradient of the input, gradient of the weight.

    Beside frozen weights there is no gradient of the weight, but a pair of adapters with all three products each.
    """
    d_in, d_out = as_array(projection.shard_in(tp)), as_array(projection.shard_out(tp))
    adapters: list[Work] = []
    if batch.lora_rank and layer and not bf16 and is_adapted(projection.name, batch.lora_targets):
        rank = as_array(float(batch.lora_rank))
        for name, a, b in (("lora_down", d_in, rank), ("lora_up", rank, d_out)):
            adapters += product_work(
                batch,
                name=f"{projection.name}_{name}",
                feature=f.TOKENS,
                d_in=a,
                d_out=b,
                weights=a * b * count,
                count=count,
                kind=kind,
                bf16=True,
                trained=True,
            )
        # scaled and added to the output, forward; gradients scaled, and those of the input added, backward
        moved: tuple[tuple[Phase, FloatLike], ...] = (("forward", 3.0 * d_out), ("input", 2.0 * d_out + 3.0 * d_in))
        for phase, elements in moved:
            name = f"{projection.name}_lora_sum"
            adapters.append(memory_work(name, "elementwise", phase, {f.TOKENS: 2.0 * elements * count}, count))
    return adapters + product_work(
        batch,
        name=projection.name,
        feature=f.TOKENS,
        d_in=d_in,
        d_out=d_out,
        weights=d_in * d_out * count,
        count=count,
        kind=kind,
        bf16=bf16,
        layer=layer,
        again=again,
    )


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
    again: Again = "",
) -> list[Work]:
    """The three products of `count` layers of a weight matrix of d_in × d_out, or of experts that are.

    Args:
        feature: rows of the product.
        weights: elements that one chip holds of all these layers.
        trained: whether the weight gets a gradient; those of a model with adapters do not.
    """
    precision = batch.precision
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
    if not (batch.lora_rank == 0 if trained is None else trained):
        found.pop()
        if layer and precision.frozen_bytes is not None:  # written out in bf16 before the product, both ways
            moved = {f.ONE: weights * (precision.frozen_bytes + 2.0)}
            found += [
                memory_work(f"{name}_dequantise", "quantise", "forward", dict(moved), count),
                memory_work(f"{name}_dequantise", "quantise", "input", dict(moved), count),
            ]
    if precision.quantised and not bf16:
        # bf16 read, both orders of the narrow type written: the weight gradient multiplies the other way round
        found += [
            memory_work(f"{name}_cast", "quantise", "forward", {feature: 4.0 * d_in * count}, count, layer=layer),
            memory_work(f"{name}_cast", "quantise", "input", {feature: 4.0 * d_out * count}, count, layer=layer),
        ]
    return found


def memory_work(
    name: str,
    kind: Kind,
    phase: Phase,
    hbm: dict[str, FloatLike],
    count: float = 1.0,
    *,
    again: Again = "",
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
