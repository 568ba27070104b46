"""A low-rank adapter in the passes of a model: its rows and its memory.

Its two products follow the product that they modify: if that is sharded along its outputs, A is replicated on every
chip and B is sharded; if it is sharded along its inputs, A is sharded and B replicated (vLLM, column and row parallel
layers with LoRA).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rackline.arch import ADAPTER_BYTES, AdaptedModule, AnyModel, Dim, Model, Projection
from rackline.hardware import Chip
from rackline.parallel.layout import Sharding
from rackline.parallel.work import ExpertsWork
from rackline.passes import Row, features as f
from rackline.passes.features import FloatLike, as_array


def adapter_rows(model: Model, layout: Sharding, chip: Chip) -> list[Row]:
    """Two products for each kind of module, into the bottleneck (A) and out of it (B), on every token."""
    from rackline.parallel.blocks import Weights, gemm_row

    if model.adapter is None:
        return []
    tp = np.asarray(layout.tp) if not isinstance(layout.tp, int) else layout.tp
    weights = Weights(stored="bf16", activations="bf16")
    rows: list[Row] = []
    for module in model.adapter.modules:
        if module.copies > 1:
            rows.append(_experts_row(module, layout))
            continue
        bottleneck = (Dim(size=module.rank),)
        for name, d_in, d_out in (("a", (module.d_in,), bottleneck), ("b", bottleneck, module.d_out)):
            product = Projection(name=f"lora_{name}_{module.name.rpartition('.')[2]}", d_in=d_in, d_out=d_out)
            row = gemm_row(product, count=module.layers, tp=tp, weights=weights, chip=chip, group="adapter")
            rows.append(_grouped(row) if model.adapter.number > 1 else row)
    return rows


def _grouped(row: Row) -> Row:
    """The products of the adapters that a pass uses, in one kernel: the weights of each are read once.

    Sources: SGMV, Punica (arXiv:2310.18547); S-LoRA (arXiv:2311.03285).
    """
    once = {name: amount for name, amount in row.hbm.items() if name != f.ONE}
    more = {**once, f.ADAPTERS_TOUCHED: row.hbm[f.ONE]}
    return replace(row, hbm=more, formula=f"{row.formula}, weights of each adapter in use")


def _experts_row(module: AdaptedModule, layout: Sharding) -> Row:
    """Both products of the adapters of experts: those of a touched expert once, FLOP per token-expert pair."""
    width = sum((part.shard(layout.moe_tp) for part in (module.d_in, *module.d_out)), 0.0)
    work = ExpertsWork.of(width, float(module.rank), matrices=1.0, bytes_per_weight=2.0, bytes_per_activation=2.0)
    return Row(
        name=f"lora_experts_{module.name.rpartition('.')[2]}",
        group="adapter",
        op_class="moe",
        dtype="bf16",
        compute={f.EXPERT_TOKENS: work.pair_flop * module.layers},
        hbm={
            f.EXPERTS_TOUCHED: work.expert_bytes * module.layers,
            f.EXPERT_TOKENS: work.pair_bytes * module.layers,
        },
        launches={f.ONE: 2.0 * module.layers},
        formula=f"{module.layers} × {module.rank}·({module.inputs} + {module.outputs}) weights per expert in bf16",
    )


def most_sequences(model: AnyModel) -> float:
    """Sequences of a rank whose adapters are resident at a time; infinite where all adapters are [sequences]."""
    return model.adapter.most_sequences if isinstance(model, Model) and model.adapter is not None else math.inf


def adapter_bytes(model: Model, layout: Sharding) -> dict[str, FloatLike]:
    """Weights of the resident adapters on the fullest chip [bytes]; nothing without one."""
    if model.adapter is None:
        return {}
    tp, pp = as_array(layout.tp), as_array(layout.pp)
    stage = np.ceil(model.num_layers / pp) / model.num_layers
    held: FloatLike = 0.0
    for module in model.adapter.modules:
        ways = as_array(layout.moe_tp) if module.copies > 1 else tp
        copies = np.ceil(module.copies / as_array(layout.ep)) if module.copies > 1 else 1.0
        widths = module.d_in.shard(ways) + sum((part.shard(ways) for part in module.d_out), 0.0)
        held = held + module.layers * stage * copies * module.rank * widths
    return {"adapter": ADAPTER_BYTES * model.adapter.resident * (held + model.adapter.whole_params / tp)}
