"""Time of a training step: rows of a micro-batch, pipeline, gradients, optimiser, host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, assert_never

import numpy as np

from rackline.arch import ADAPTER_BYTES, Model, MoeFfn
from rackline.hardware import Chip, Cluster
from rackline.parallel.exchange import make_group
from rackline.passes import Calibration, PassTable, Row
from rackline.passes import collectives as c
from rackline.passes.features import Array, FloatLike, as_array
from rackline.passes.line import row_seconds
from rackline.training.blocks import work_of
from rackline.training.pipeline import CORNER, bubble_seconds, hide_exchange
from rackline.training.runs import RECOMPUTE, Runs
from rackline.training.shards import shards
from rackline.training.stack import TrainingStack
from rackline.training.work import PHASES, Kind, MicroBatch, Phase, Work

Times = Mapping[tuple[Kind, Phase], Array]
"""(kind, phase) → seconds."""

OPTIMIZER_BYTES = 34.0
"""Traffic of an optimiser step per parameter besides its moments, which are read and written: a gradient read, a master
weight read and written and the bf16 weight written (14); the gradient scaled, clipped by its norm, set to zero (20)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Parts of a step before the numbers of a training stack are applied; arrays with one value per run.

    Args:
        seconds: (kind, phase) → time of the whole layer stack for one micro-batch at the speed of single kernels [s].
        core, modules: the same for the parts that selective and modules recompute repeat [s].
        ends: kinds of the head (its products, its loss) → time of one micro-batch, forward and backward [s].
        host_layers: dense halves, mixture layers, local experts, recurrent layers of the whole stack [count].
        scatter, gather: exchange of the gradients and of the trained weights of a stage, per byte of an element [s/B].
        shard_gather: gather of all weights of a stage, frozen ones too, per byte of an element [s/B].
        optimizer: update of a chip's share of the parameters [s].
        hop: activations from stage to stage [s].
    """

    runs: Runs
    chip: Chip
    dtype: str
    seconds: Times
    core: Times
    modules: Times
    ends: Times
    host_layers: tuple[Array, Array, Array, Array]
    scatter: Array
    gather: Array
    shard_gather: Array
    optimizer: Array
    hop: Array
    micro_batches: Array
    layers: FloatLike
    gather_bytes: FloatLike
    trained_bytes: FloatLike


class StepSeconds(TypedDict):
    """Parts of one training step [s], see `StepTime`; `exposed_s` by kind."""

    forward_s: float
    input_s: float
    weight_s: float
    recompute_s: float
    host_s: float
    stage_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float
    fixed_s: float
    step_s: float
    exposed_s: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of one step and where it goes; arrays with one value per run [s].

    Args:
        forward, input, weight: times of one micro-batch on the mean stage, including exposed communication.
        recompute: recomputation for one micro-batch on the mean stage.
        host: host time to launch one micro-batch on the mean stage.
        stage: one micro-batch on the slowest stage, the longer of device and host time.
        bubble: time that a stage waits for others in a step.
        data: exposed exchange of gradients and weights.
        optimizer: update of the weights.
        fixed: fixed time that nothing else explains.
        step: sum.
        shown: kind → exposed time of one micro-batch on the mean stage, in all phases.
    """

    forward: Array
    input: Array
    weight: Array
    recompute: Array
    host: Array
    stage: Array
    bubble: Array
    data: Array
    optimizer: Array
    fixed: Array
    step: Array
    shown: Mapping[str, Array]

    def at(self, index: int) -> StepSeconds:
        """One run as plain numbers."""
        return {
            "forward_s": float(self.forward[index]),
            "input_s": float(self.input[index]),
            "weight_s": float(self.weight[index]),
            "recompute_s": float(self.recompute[index]),
            "host_s": float(self.host[index]),
            "stage_s": float(self.stage[index]),
            "bubble_s": float(self.bubble[index]),
            "data_s": float(self.data[index]),
            "optimizer_s": float(self.optimizer[index]),
            "fixed_s": float(self.fixed[index]),
            "step_s": float(self.step[index]),
            "exposed_s": {kind: float(value[index]) for kind, value in self.shown.items()},
        }


def step_parts(batch: MicroBatch, *, calibration: Calibration, global_batch_sequences: int) -> StepParts:
    """Time every row of a micro-batch for all runs, and the exchanges of a step.

    Args:
        batch: model, runs, cluster, precision and micro-batch.
        calibration: calibration of single kernels on the chip.
        global_batch_sequences: [sequences].
    """
    if calibration.is_unit:
        batch = replace(batch, cluster=batch.cluster.without_latency())
    model, cluster = batch.model, batch.cluster
    work = work_of(batch)
    table = PassTable(
        rows=tuple(one.row for one in work),
        chip=cluster.chip,
        cluster=cluster,
        calibration=calibration,
        kinds=model.cores(),
        num_layouts=len(batch.runs),
    )
    features = batch.features()
    return _assemble(
        batch,
        table,
        [(one, as_array(row_seconds(table.row_numbers(one.row), features))) for one in work],
        global_batch_sequences=global_batch_sequences,
    )


def _assemble(
    batch: MicroBatch, table: PassTable, timed: Sequence[tuple[Work, Array]], *, global_batch_sequences: int
) -> StepParts:
    model, runs, cluster = batch.model, batch.runs, batch.cluster
    seconds: dict[tuple[Kind, Phase], Array] = {}
    core: dict[tuple[Kind, Phase], Array] = {}
    modules: dict[tuple[Kind, Phase], Array] = {}
    ends: dict[tuple[Kind, Phase], Array] = {}
    for one, value in timed:
        target = seconds if one.layer else ends
        key = (one.kind, one.phase)
        target[key] = target.get(key, 0.0) + value
        if one.phase == "forward":
            match one.again:
                case "selective":
                    core[key] = core.get(key, 0.0) + value
                case "modules":
                    modules[key] = modules.get(key, 0.0) + value
                case "":
                    pass
                case _:
                    assert_never(one.again)
    held = shards(model, runs, batch.mtp_layers, batch.lora_rank, batch.lora_targets)
    shard_gather = exchange_seconds(table, runs, held.dense + held.ends, held.experts)[1]
    trained = (held.adapters, 0.0 * held.experts) if batch.lora_rank else (held.dense + held.ends, held.experts)
    scatter, gather = exchange_seconds(table, runs, *trained)
    share = np.where(runs.zero > 0, 1.0 / (as_array(runs.dp) * runs.cp), 1.0)
    expert_share = np.where(runs.zero > 0, 1.0 / as_array(runs.expert_dp()), 1.0)
    owned = trained[0] * share + trained[1] * expert_share
    return StepParts(
        runs=runs,
        chip=cluster.chip,
        dtype=batch.precision.gemm,
        seconds=seconds,
        core=core,
        modules=modules,
        ends=ends,
        host_layers=_host_layers(model, runs, batch.mtp_layers),
        scatter=scatter,
        gather=gather,
        shard_gather=shard_gather,
        optimizer=owned * (OPTIMIZER_BYTES + 2.0 * batch.precision.moment_bytes) / cluster.chip.hbm_bytes_per_s,
        hop=hop_seconds(cluster, runs, batch.tokens * 2.0 * model.d_model / as_array(runs.tp)),
        micro_batches=as_array(runs.micro_batches(global_batch_sequences)),
        layers=float(model.num_layers + batch.mtp_layers),
        gather_bytes=batch.precision.gather_bytes,
        trained_bytes=ADAPTER_BYTES if batch.lora_rank else batch.precision.gather_bytes,
    )


def hop_seconds(cluster: Cluster, runs: Runs, buffer: Array) -> Array:
    """A buffer from one stage to the next; stages are laid out outermost [s]."""
    inside = as_array(runs.tp) * runs.cp * runs.dp * runs.pp <= cluster.scale_up.size
    out = cluster.scale_out or cluster.scale_up
    up_s = cluster.scale_up.latency_s + buffer / cluster.scale_up.bytes_per_s_each_way
    out_s = out.latency_s + buffer / out.bytes_per_s_each_way
    return np.where(inside, up_s, out_s) * (as_array(runs.pp) > 1)


def _host_layers(model: Model, runs: Runs, mtp_layers: int) -> tuple[Array, Array, Array, Array]:
    """Dense halves of layers, mixtures, their local experts, recurrent layers: what the host launches [count]."""
    dense = mixtures = states = 0.0
    experts = np.zeros(len(runs))
    last = len(model.layer_groups) - 1
    for index, group in enumerate(model.layer_groups):
        count = group.count + (mtp_layers if index == last else 0)
        found = group.attention.cores()
        if any(core.chunk_flop_per_token for core in found):
            states += count
        elif found:
            dense += 0.5 * count
        if isinstance(group.ffn, MoeFfn):
            mixtures += count
            experts = experts + count * np.ceil(group.ffn.num_experts / as_array(runs.ep))
        elif group.ffn.d_ff:
            dense += 0.5 * count
    one = np.ones(len(runs))
    return dense * one, mixtures * one, experts, states * one


def exchange_seconds(table: PassTable, runs: Runs, dense: Array, experts: Array) -> tuple[Array, Array]:
    """(scatter, gather) of a chip's parameters, per byte of an element [s/B].

    Gradients are exchanged by all chips that hold the same weights: dp·cp for dense layers, fewer for experts.
    """
    cluster = table.cluster
    one = np.ones(len(runs))
    zero = 0.0 * one
    if cluster is None:
        return zero, zero
    totals: list[Array] = []
    for name, algorithm in (("reduce_scatter", c.reduce_scatter), ("all_gather", c.all_gather)):
        total = zero
        for amount, size, stride in (
            (dense, runs.dp * runs.cp, as_array(runs.tp)),
            (experts, runs.expert_dp(), as_array(runs.ep * runs.expert_tp)),
        ):
            group = make_group(cluster, as_array(size), stride)
            cost = algorithm(group)
            row = Row(
                name=name,
                group="data",
                op_class=name,
                dtype="bf16",
                group_size=as_array(group.size),
                scale_up={"1": cost.scale_up_bytes},
                scale_out={"1": cost.scale_out_bytes} if cluster.scale_out is not None else {},
            )
            total = total + amount * row_seconds(table.row_numbers(row), {"1": one})
        totals.append(total)
    return totals[0], totals[1]


def step_time(parts: StepParts, stack: TrainingStack, scale: Mapping[str, Array] | None = None) -> StepTime:
    """Apply a stack's numbers to the parts of a step.

    Args:
        scale: values per run instead of the stack's own: "gemm", "experts", "host" (for fits over many chips at once).
    """
    runs = parts.runs
    scale = scale or {}
    times = multipliers(parts, stack, scale)
    pp, m = as_array(runs.pp), parts.micro_batches
    shown: dict[str, Array] = {}
    phases: dict[Phase, Array] = {phase: np.zeros(len(runs)) for phase in PHASES}
    for (kind, phase), value in parts.seconds.items():
        seconds = value * times[kind, phase] / pp
        phases[phase] = phases[phase] + seconds
        shown[kind] = shown.get(kind, 0.0) + seconds
    recompute = recompute_seconds(parts, times, phases["forward"])
    head = sum((value * times[key] for key, value in parts.ends.items()), np.zeros(len(runs)))
    for (kind, phase), value in parts.ends.items():
        shown[kind] = shown.get(kind, 0.0) + value * times[kind, phase] / pp
    alone = phases["forward"] + phases["input"] + phases["weight"] + recompute
    hidden = hide_exchange(runs, m, shown, alone)
    device = hidden.mean
    dense, mixtures, experts, states = parts.host_layers
    host = dense * stack.host_dense_s + mixtures * stack.host_moe_s + experts * stack.host_expert_s
    host = (host + states * stack.host_state_s) * scale.get("host", stack.host(parts.chip)) / pp
    layers = (device**CORNER + host**CORNER) ** (1.0 / CORNER)
    # the slowest stage sets the pace: one with the most layers, or the last, which has the head and what is left
    most = np.ceil(parts.layers / pp)
    left = np.maximum(parts.layers - (pp - 1.0) * most, 0.0)
    stage = np.maximum(layers * most, layers * left + head * parts.layers / pp) * pp / parts.layers
    mean = layers + head / pp
    # FSDP gathers weights for the forward and the backward pass and scatters gradients, in every micro-batch; where
    # only gradients are sharded, weights stay until the backward pass is over. Frozen weights are not scattered
    gathers = np.where(runs.zero == 3, 2.0, np.where(runs.zero == 2, 1.0, 0.0))
    sharded = gathers * parts.gather_bytes * parts.shard_gather
    sharded = sharded + (runs.zero >= 2) * stack.gradient_bytes * parts.scatter
    shard = np.maximum(stack.shard_exposed * sharded, sharded - (1.0 - stack.shard_exposed) * stage)
    # a stage receives each of its parts once forward and once backward
    hops = stack.pipeline_exposed * 2.0 * as_array(runs.virtual_pp) * parts.hop
    bubble = bubble_seconds(runs, phases, host, mean, parts.hop, pair=mean + hidden.pair - device)
    grad = stack.gradient_bytes * parts.scatter
    weights = np.where(runs.zero == 1, parts.trained_bytes * parts.gather, 0.0)
    weights = np.where(runs.zero == 0, stack.gradient_bytes * parts.gather, weights)
    # sharded gradients leave with the gathers of the weights, micro-batch by micro-batch
    data = stack.data_exposed * np.where(runs.zero >= 2, 0.0, grad + weights)
    fixed = stack.fixed_s * np.ones(len(runs))
    step = m * (stage + shard + hops) + bubble + data + parts.optimizer + fixed
    shown = hidden.shown
    shown["shards"] = shard
    shown["pipeline"] = hops
    part = device / alone
    return StepTime(
        forward=phases["forward"] * part,
        input=phases["input"] * part,
        weight=phases["weight"] * part,
        recompute=recompute * part,
        host=host,
        stage=stage + shard + hops,
        bubble=bubble,
        data=data,
        optimizer=parts.optimizer,
        fixed=fixed,
        step=step,
        shown=shown,
    )


def multipliers(parts: StepParts, stack: TrainingStack, scale: Mapping[str, Array]) -> dict[tuple[Kind, Phase], Any]:
    """(kind, phase) → factor on the time of single kernels."""
    found: dict[tuple[Kind, Phase], Any] = {}
    for kind, phase in {**parts.seconds, **parts.ends}:
        found[kind, phase] = _multiplier(kind, phase, parts, stack, scale)
    return found


def _multiplier(
    kind: Kind, phase: Phase, parts: StepParts, stack: TrainingStack, scale: Mapping[str, Array]
) -> FloatLike:
    match kind:
        case "gemm":
            return scale.get("gemm", stack.gemm(parts.chip, parts.dtype))
        case "experts":
            dense = scale.get("gemm", stack.gemm(parts.chip, parts.dtype))
            return dense * scale.get("experts", stack.experts(parts.chip))
        case "attention":
            flash = scale.get("flash", stack.flash(parts.chip))
            return flash if phase == "forward" else flash * stack.flash_backward
        case "head":
            return scale.get("head", stack.gemm(parts.chip, "bf16"))
        case "state" | "elementwise" | "quantise" | "permute" | "unfused":
            return float(getattr(stack, kind))
        case "tensor" | "context":
            return float(getattr(stack, f"{kind}_exposed"))
        case "expert_inside" | "expert_outside":
            return float(getattr(stack, kind))
        case "logits":
            return 1.0
        case _:
            assert_never(kind)


def recompute_seconds(parts: StepParts, times: Mapping[tuple[Kind, Phase], Any], forward: Array) -> Array:
    """Recomputation in the backward pass of one micro-batch on the mean stage [s]."""
    runs = parts.runs
    found = np.zeros(len(runs))
    for number, name in enumerate(RECOMPUTE):
        match name:
            case "none":
                value = found
            case "selective":
                value = _run_again(parts.core, times, runs)
            case "modules":
                value = _run_again(parts.modules, times, runs)
            case "full" | "reversible":  # a reversible block rebuilds its inputs from its outputs: a forward pass
                value = forward
            case _:
                assert_never(name)
        found = np.where(runs.recompute == number, value, found)
    return found


def _run_again(rows: Times, times: Mapping[tuple[Kind, Phase], Any], runs: Runs) -> Array:
    return sum((one * times[key] / as_array(runs.pp) for key, one in rows.items()), np.zeros(len(runs)))
