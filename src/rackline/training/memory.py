"""Memory of a training step on the fullest chip: states, activations in flight, logits, buffers, margin."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import assert_never

import numpy as np

from rackline.passes.features import Array, as_array
from rackline.training.activations import layer_bytes, stack_bytes
from rackline.training.runs import RECOMPUTE, SCHEDULES, Recompute, Runs
from rackline.training.shards import Shards, shards
from rackline.training.work import MicroBatch

LOGIT_BYTES = 8.0
"""fp32 logits and their bf16 gradient and copy, while the loss of one micro-batch is worked on."""
RUNTIME_BYTES = 2.5e9
"""Driver, kernels, and buffers of collectives, NCCL channels of every group (assumed)."""
MARGIN = 0.04
"""Share of what is used that the allocator cannot use for its fragments (assumed; expandable segments)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainMemory:
    """Bytes on the fullest chip, run by run.

    Args:
        weights: weights as multiplied, including gathered layers under ZeRO 3 [bytes].
        gradients: gradients as accumulated [bytes].
        optimizer: master weights and moments [bytes].
        activations: activations of all micro-batches in flight, and of the layer in progress [bytes].
        logits: logits of the last or only stage [bytes].
        runtime, margin: driver and buffers; allocator fragments [bytes].
        total: sum.
        in_flight: micro-batches whose activations the first stage holds at once [count].
    """

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    runtime: Array
    margin: Array
    total: Array
    in_flight: Array

    def at(self, index: int) -> dict[str, float]:
        """One run as plain numbers."""
        named = {f.name: float(getattr(self, f.name)[index]) for f in fields(self)}
        return {(name if name == "in_flight" else f"{name}_bytes"): value for name, value in named.items()}


def micro_batches_in_flight(runs: Runs, micro_batches: Array) -> Array:
    """Activations of the fullest stage, in units of one micro-batch in a whole stage [count].

    GPipe m; 1F1B min(p, m); interleaved that times 1 + (p - 1)/(p v); ZB-H1 and ZB-V p, ZB-H2 2 p - 1, DualPipe p + 1.

    Sources: Korthikanti et al. 2022, section 4.2.3; Qi et al. 2023 (arXiv:2401.10241); DualPipe README.
    """
    p, v, m = as_array(runs.pp), as_array(runs.virtual_pp), as_array(micro_batches)
    found = np.zeros(len(runs))
    for number, name in enumerate(SCHEDULES):
        match name:
            case "1f1b" | "interleaved":
                value = np.minimum(p, m) * (1.0 + (p - 1.0) / (p * v) * (v > 1))
            case "gpipe":
                value = m
            case "zb-h1" | "zb-v":
                value = np.minimum(p, m)
            case "zb-h2":
                value = np.minimum(2.0 * p - 1.0, m)
            case "dualpipe":
                value = np.minimum(p + 1.0, m)
            case _:
                assert_never(name)
        found = np.where(runs.schedule == number, value, found)
    return np.minimum(found, m)


def train_memory(
    batch: MicroBatch,
    *,
    global_batch_sequences: int,
    gradient_bytes: float | None = None,
    dropout: bool = False,
    runtime_bytes: float = RUNTIME_BYTES,
    margin: float = MARGIN,
) -> TrainMemory:
    """Memory of the fullest chip, by run.

    Args:
        global_batch_sequences: sequences of a step [sequences].
        gradient_bytes: bytes per gradient as the stack accumulates it; that of the precision by default [bytes].
        dropout: whether dropout masks are stored.
        runtime_bytes: memory of driver and buffers [bytes].
        margin: share lost to fragmentation [1].
    """
    runs, pp = batch.runs, as_array(batch.runs.pp)
    held = shards(batch.model, runs, batch.mtp_layers, batch.lora_rank, batch.lora_targets)
    flight = micro_batches_in_flight(runs, as_array(runs.micro_batches(global_batch_sequences)))
    per_micro_batch, again = _activations(batch, dropout)
    mean = per_micro_batch / pp
    logits = LOGIT_BYTES * batch.tokens * batch.model.vocab_size / as_array(runs.tp) * (1.0 + batch.mtp_layers)
    dual = runs.schedule == SCHEDULES.index("dualpipe")
    alone = np.where(pp == 1, logits, 0.0)
    # the first stage, and the last; DualPipe holds two stages: two of the middle, or the first and the last
    layers = (np.where(dual, 2.0, 1.0) * held.largest, held.last + np.where(dual, held.largest, 0.0))
    ends = (np.where(dual, 0.0, held.ends), np.where(dual, 2.0, 1.0) * held.ends)
    kept = (flight * mean * held.largest, np.where(dual, flight * (held.largest + held.last) / 2.0, held.last) * mean)
    shown = (alone, logits)
    devices = [
        _device(
            batch,
            held,
            layers=layers[index],
            ends=ends[index],
            activations=kept[index] + again,
            logits=shown[index],
            gradient_bytes=batch.precision.gradient_bytes if gradient_bytes is None else gradient_bytes,
        )
        for index in (0, 1)
    ]
    totals = [sum(device.values(), np.zeros(len(runs))) for device in devices]
    fuller = totals[1] > totals[0]
    found = {name: np.where(fuller, devices[1][name], devices[0][name]) for name in devices[0]}
    used = np.where(fuller, totals[1], totals[0])
    return TrainMemory(
        **found,
        runtime=runtime_bytes * np.ones(len(runs)),
        margin=margin * used,
        total=used * (1.0 + margin) + runtime_bytes,
        in_flight=flight,
    )


def _activations(batch: MicroBatch, dropout: bool) -> tuple[Array, Array]:
    """(activations that one micro-batch stores in the whole stack, activations recomputed in one layer) [bytes]."""
    runs, none = batch.runs, np.zeros(len(batch.runs))
    kept, again = none, none
    working, left = none, none  # of the largest layer
    for index in range(len(batch.model.layer_groups)):
        size = layer_bytes(batch, index, "selective", dropout=dropout)
        left = np.where(size > working, layer_bytes(batch, index, "modules", dropout=dropout), left)
        working = np.maximum(working, size)
    for number, name in enumerate(RECOMPUTE):
        rows = runs.recompute == number
        if np.any(rows):
            kept = np.where(rows, stack_bytes(batch, name, dropout=dropout), kept)
            again = np.where(rows, _rebuilt(name, working, left), again)
    return kept, again


def _rebuilt(recompute: Recompute, working: Array, left: Array) -> Array:
    """Activations recomputed in a layer while its gradients are computed; `left` is what it stored [bytes]."""
    match recompute:
        case "none" | "selective":
            return 0.0 * working
        case "modules":
            return working - left
        case "full" | "reversible":
            return working
        case _:
            assert_never(recompute)


def _device(
    batch: MicroBatch,
    held: Shards,
    *,
    layers: Array,
    ends: Array,
    activations: Array,
    logits: Array,
    gradient_bytes: float,
) -> dict[str, Array]:
    """Memory of a device with a multiple of the layers of the mean stage."""
    runs, precision = batch.runs, batch.precision
    dense, experts = held.dense * layers + ends, held.experts * layers
    over, expert_over = as_array(runs.dp) * runs.cp, as_array(runs.expert_dp())

    def cut(least: int, dense: Array, experts: Array | float = 0.0) -> Array:
        return np.where(runs.zero >= least, dense / over + experts / expert_over, dense + experts)

    def spread(size: float, least: int) -> Array:
        if batch.lora_rank:  # only adapters have gradients and optimiser states
            return size * cut(least, held.adapters * layers)
        return size * cut(least, dense, experts)

    weights = precision.weight_bytes * cut(3, dense, experts)
    if precision.frozen_bytes is not None:  # embedding and head stay as they are; one layer at a time is written out
        weights = precision.frozen_bytes * cut(3, held.dense * layers, experts) + precision.weight_bytes * cut(3, ends)
        weights = weights + precision.weight_bytes * held.layer
    if batch.lora_rank:
        weights = weights + spread(2.0, 3)
    weights = weights + np.where(runs.zero >= 3, 2.0 * precision.weight_bytes * held.layer, 0.0)
    if precision.quantised:  # the narrow copies that products read, both orders of them, of one layer at a time
        weights = weights + 2.0 * precision.gemm_bytes * held.layer
    return {
        "weights": weights,
        "gradients": spread(gradient_bytes, 2),
        "optimizer": spread(precision.optimizer_bytes, 1),
        "activations": activations,
        "logits": logits,
    }


CHEAPEST_FIRST: tuple[Recompute, ...] = ("none", "selective", "modules", "full")
"""Kinds of recompute by what they cost; the core of attention is run again only where it is not one fused kernel."""


def cheapest_recompute(
    batch: MicroBatch, *, global_batch_sequences: int, gradient_bytes: float, hbm_bytes: float
) -> list[str]:
    """The cheapest recompute with which each run fits; none if nothing fits, as the memory model is then off.

    Args:
        global_batch_sequences: sequences of a step [sequences].
        gradient_bytes: bytes per gradient as the stack accumulates it [bytes].
        hbm_bytes: memory of a chip [bytes].
    """
    chosen = np.full(len(batch.runs), -1)
    for name in CHEAPEST_FIRST:
        if name == "selective" and batch.flash:
            continue
        number = RECOMPUTE.index(name)
        runs = replace(batch.runs, recompute=np.full(len(batch.runs), number))
        found = train_memory(
            replace(batch, runs=runs), global_batch_sequences=global_batch_sequences, gradient_bytes=gradient_bytes
        )
        chosen = np.where((chosen < 0) & fits(found, hbm_bytes), number, chosen)
    return [RECOMPUTE[max(int(number), 0)] for number in chosen]


def fits(memory: TrainMemory, hbm_bytes: float) -> Array:
    """Mask of the runs that fit in the memory of a chip."""
    return memory.total <= hbm_bytes
