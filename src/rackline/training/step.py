"""Time of a training step: rows of a micro-batch, pipeline, gradients, optimiser, host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rackline.arch import ADAPTER_BYTES, MoeFfn
from rackline.hardware import Chip
from rackline.parallel.exchange import make_group, torus_penalty
from rackline.passes import PassTable, Row, collectives as c
from rackline.passes.features import Array, FloatLike, as_array
from rackline.passes.row import row_seconds
from rackline.training.kernels import PHASES, Kind, Phase, Work
from rackline.training.memory import shards
from rackline.training.runs import RECOMPUTE, SCHEDULES, Recompute, Runs, by_name
from rackline.training.stack import TrainingStack
from rackline.training.system import MicroBatch, TrainingSystem
from rackline.training.work import work_of

Times = Mapping[tuple[Kind, Phase], Array]
"""(kind, phase) → seconds."""

OPTIMIZER_BYTES = 34.0
"""Traffic of an optimiser step per parameter besides its moments, which are read and written: a gradient read, a master
weight read and written and the bf16 weight written (14); the gradient scaled, clipped by its norm, set to zero (20)."""
CORNER = 6.0
"""Sharpness of max(device, host): the p-norm of the two, rounded where they are equal."""
DUALPIPE_CORES = 20.0 / 132.0
"""Share of the cores that move tokens between experts while DualPipe's pairs run: 20 of the 132 of an H800
(DeepSeek-V3, arXiv:2412.19437, sections 3.2.2 and 3.5.1)."""
EXCHANGE = ("expert_inside", "expert_outside")
ON_CORES = ("gemm", "experts", "attention", "state")
"""Kinds that slow down with fewer cores; memory-bound kernels do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Parts of a step before the numbers of a training stack are applied; arrays with one value per run.

    Args:
        seconds: (kind, phase) → time of the whole layer stack for one micro-batch at the speed of single kernels [s].
        again: kind of recompute → the same of what it repeats, for those that do not repeat whole layers [s].
        ends: kinds of the head (its products, its loss) → time of one micro-batch, forward and backward [s].
        host_layers: dense halves, mixture layers, local experts, recurrent layers of the whole stack [count].
        scatter, gather: exchange of the gradients and of the trained weights of a stage, per byte of an element [s/B].
        shard_gather: gather of all weights of a stage, frozen ones too, per byte of an element [s/B].
        copies: exchange of sharded gradients between replicas that hold the same shards, per byte of an element [s/B].
        optimizer: update of a chip's share of the parameters [s].
        hop: activations from stage to stage [s].
    """

    runs: Runs
    chip: Chip
    dtype: str
    seconds: Times
    again: Mapping[Recompute, Times]
    ends: Times
    host_layers: tuple[Array, Array, Array, Array]
    scatter: Array
    gather: Array
    shard_gather: Array
    copies: Array
    optimizer: Array
    hop: Array
    micro_batches: Array
    layers: FloatLike
    gather_bytes: FloatLike
    trained_bytes: FloatLike


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

    def at(self, index: int) -> dict[str, Any]:
        """Times of a single run, as plain numbers [s]: parts as NAME_s, and by kind what is exposed."""
        parts = {f"{f.name}_s": float(getattr(self, f.name)[index]) for f in fields(self) if f.name != "shown"}
        return parts | {"exposed_s": {kind: float(value[index]) for kind, value in self.shown.items()}}


def step_parts(batch: MicroBatch) -> StepParts:
    """Time every row of a micro-batch for all runs, and the exchanges of a step."""
    system, runs = batch.system, batch.runs
    cluster = system.cluster
    work, features = work_of(batch), batch.features()
    table = row_table(batch, work)
    layers, ends = (dict[tuple[Kind, Phase], Array]() for _ in range(2))
    again: dict[Recompute, dict[tuple[Kind, Phase], Array]] = {name: {} for name in RECOMPUTE}
    for one in work:
        value = as_array(row_seconds(table.row_numbers(one.row), features))
        repeated = one.again.items() if one.layer and one.phase == "forward" else ()
        for target, share in ((layers if one.layer else ends, 1.0), *((again[name], part) for name, part in repeated)):
            target[one.kind, one.phase] = target.get((one.kind, one.phase), 0.0) + share * value
    held = shards(system, runs)
    whole = (held.dense + held.ends, held.experts)
    trained = (held.adapters, 0.0 * held.experts) if system.lora_rank else whole
    copies = as_array(runs.copies())
    dense_ranks, expert_ranks = as_array(runs.dp * runs.cp) / copies, as_array(runs.expert_dp()) / copies
    inner = (dense_ranks, as_array(runs.tp)), (expert_ranks, as_array(runs.ep * runs.expert_tp))
    outer = tuple((copies, ranks * stride) for ranks, stride in inner)
    scatter, gather = exchange_seconds(table, trained, inner)
    owned = trained[0] / dense_ranks, trained[1] / expert_ranks
    updated = np.where(runs.zero > 0, sum(owned), sum(trained))
    return StepParts(
        runs=runs,
        chip=cluster.chip,
        dtype=system.precision.gemm,
        seconds=layers,
        again=again,
        ends=ends,
        host_layers=_host_layers(system, runs),
        scatter=scatter,
        gather=gather,
        shard_gather=exchange_seconds(table, whole, inner)[1],
        copies=sum(exchange_seconds(table, owned, outer), np.zeros(len(runs))),
        optimizer=updated * (OPTIMIZER_BYTES + 2.0 * system.precision.moment_bytes) / cluster.chip.hbm_bytes_per_s,
        hop=hop_seconds(batch),
        micro_batches=batch.per_step,
        layers=float(system.num_layers),
        gather_bytes=system.precision.gather_bytes,
        trained_bytes=ADAPTER_BYTES if system.lora_rank else system.precision.gather_bytes,
    )


def row_table(batch: MicroBatch, work: Sequence[Work]) -> PassTable:
    """The rows with the numbers of the system's kernels and links."""
    system = batch.system
    return PassTable(
        rows=tuple(one.row for one in work),
        chip=system.cluster.chip,
        cluster=system.cluster,
        calibration=system.calibration,
        kinds=system.model.cores(),
        num_layouts=len(batch.runs),
    )


def hop_seconds(batch: MicroBatch) -> Array:
    """Activations of a micro-batch from one stage to the next; stages are laid out outermost [s]."""
    runs, cluster = batch.runs, batch.system.cluster
    buffer = batch.tokens * 2.0 * batch.system.model.d_model / as_array(runs.tp)
    inside = as_array(runs.num_chips) <= cluster.scale_up.size
    out = cluster.scale_out or cluster.scale_up
    up_s = cluster.scale_up.latency_s + buffer / cluster.scale_up.bytes_per_s_each_way
    out_s = out.latency_s + buffer / out.bytes_per_s_each_way
    return np.where(inside, up_s, out_s) * (as_array(runs.pp) > 1)


def _host_layers(system: TrainingSystem, runs: Runs) -> tuple[Array, Array, Array, Array]:
    """Dense halves of layers, mixtures, their local experts, recurrent layers: what the host launches [count]."""
    dense = mixtures = states = 0.0
    experts = np.zeros(len(runs))
    for group in system.layer_groups:
        cores = group.attention.cores()
        if any(core.chunk_flop_per_token for core in cores):
            states += group.count
        elif cores:
            dense += 0.5 * group.count
        if isinstance(group.ffn, MoeFfn):
            mixtures += group.count
            experts = experts + group.count * np.ceil(group.ffn.num_experts / as_array(runs.ep))
        elif group.ffn.d_ff:
            dense += 0.5 * group.count
    graphed = mixtures and not states and system.precision.label in system.stack.host.graphed_mixtures
    one = np.full(len(runs), 0.0 if graphed else 1.0)
    return dense * one, mixtures * one, experts * one, states * one


def exchange_seconds(
    table: PassTable, amounts: Sequence[Array], groups: Sequence[tuple[Array, Array]]
) -> tuple[Array, Array]:
    """(scatter, gather) of a chip's parameters, per byte of an element [s/B].

    Args:
        amounts: parameters of the dense layers, of the experts [elements].
        groups: (ranks, chips between two of them) of those that exchange each [count].
    """
    cluster, one = table.cluster, np.ones(len(amounts[0]))
    if cluster is None:
        return 0.0 * one, 0.0 * one

    def seconds(name: str, group: c.Group) -> Array:
        cost = c.all_gather(group)  # a scatter moves the same bytes in the same steps
        row = Row(
            name=name,
            group="data",
            op_class=name,
            dtype="bf16",
            group_size=as_array(group.size),
            scale_up={"1": cost.scale_up_bytes * torus_penalty(cluster, group)},
            scale_out={"1": cost.scale_out_bytes} if cluster.scale_out is not None else {},
        )
        return as_array(row_seconds(table.row_numbers(row), {"1": one}))

    made = [make_group(cluster, *group) for group in groups]
    scatter, gather = (
        sum((amount * seconds(name, group) for amount, group in zip(amounts, made, strict=True)), 0.0 * one)
        for name in ("reduce_scatter", "all_gather")
    )
    return scatter, gather


def step_time(parts: StepParts, stack: TrainingStack, scale: Mapping[str, Array] | None = None) -> StepTime:
    """Apply a stack's numbers to the parts of a step.

    Args:
        scale: values per run instead of the stack's own: "gemm", "experts", "host" (for fits over many chips at once).
    """
    runs = parts.runs
    scale = scale or {}
    communication, gradient_bytes = stack.communication, stack.memory.gradient_bytes
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
    host = dense * stack.host.dense_s + mixtures * stack.host.moe_s + experts * stack.host.expert_s
    host = (host + states * stack.host.state_s) * scale.get("host", stack.host.over_x86(parts.chip)) / pp
    # a third of the launches are those of the forward pass, which full recomputation repeats
    host = host * np.where(runs.recompute == RECOMPUTE.index("full"), 4.0 / 3.0, 1.0)
    layers = (device**CORNER + host**CORNER) ** (1.0 / CORNER)
    # the slowest stage sets the pace: one with the most layers, or the last, which has the head and what is left
    most = np.ceil(parts.layers / pp)
    left = np.maximum(parts.layers - (pp - 1.0) * most, 0.0)
    stage = np.maximum(layers * most, layers * left + head * parts.layers / pp) * pp / parts.layers
    mean = layers + head / pp
    # FSDP gathers weights for the forward and the backward pass and scatters gradients, in every micro-batch; where
    # only gradients are sharded, weights stay until the backward pass is over. Frozen weights are not scattered
    zero = stack.parallelism.zero_between(runs)
    gathers = np.where(zero == 3, 2.0, np.where(zero == 2, 1.0, 0.0))
    sharded = gathers * parts.gather_bytes * parts.shard_gather
    sharded = sharded + (zero >= 2) * gradient_bytes * parts.scatter
    shard = np.maximum(communication.shard_exposed * sharded, sharded - (1.0 - communication.shard_exposed) * stage)
    # a stage receives each of its parts once forward and once backward
    hops = communication.pipeline_exposed * 2.0 * as_array(runs.virtual_pp) * parts.hop
    bubble = bubble_seconds(runs, phases, host, mean, parts.hop, pair=mean + hidden.pair - device)
    grad = gradient_bytes * parts.scatter
    weights = np.where(runs.zero == 1, parts.trained_bytes * parts.gather, 0.0)
    weights = np.where(runs.zero == 0, gradient_bytes * parts.gather, weights)
    weights = np.where(zero < np.minimum(runs.zero, 2), parts.gather_bytes * parts.shard_gather, weights)
    # sharded gradients leave with the gathers of the weights, micro-batch by micro-batch
    once = np.where(zero >= 2, 0.0, grad + weights) + gradient_bytes * parts.copies
    data = communication.data_exposed * once
    fixed = stack.host.fixed_s * np.ones(len(runs))
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


def multipliers(
    parts: StepParts, stack: TrainingStack, scale: Mapping[str, Array]
) -> dict[tuple[Kind, Phase], FloatLike]:
    """(kind, phase) → factor on the time of single kernels."""
    kernels, communication = stack.kernels, stack.communication
    gemm = scale.get("gemm", kernels.gemm(parts.chip, parts.dtype))
    factors: dict[Kind, FloatLike] = {
        "gemm": gemm,
        "experts": gemm * scale.get("experts", kernels.experts(parts.chip)),
        "attention": scale.get("flash", kernels.flash(parts.chip)),
        "head": scale.get("head", kernels.gemm(parts.chip, "bf16")),
        "state": kernels.state,
        "elementwise": kernels.elementwise,
        "quantise": kernels.quantise,
        "permute": kernels.permute,
        "unfused": kernels.unfused,
        "tensor": communication.tensor_exposed,
        "context": communication.context_exposed,
        "expert_inside": communication.expert_inside,
        "expert_outside": communication.expert_outside,
        "logits": 1.0,
    }
    slower = {("attention", phase): kernels.flash_backward for phase in PHASES if phase != "forward"}
    return {key: factors[key[0]] * slower.get(key, 1.0) for key in (*parts.seconds, *parts.ends)}


def recompute_seconds(parts: StepParts, times: Mapping[tuple[Kind, Phase], Any], forward: Array) -> Array:
    """Recomputation in the backward pass of one micro-batch on the mean stage [s]."""
    runs = parts.runs
    # a reversible block rebuilds its inputs from its outputs: a forward pass
    again = {
        name: sum((one * times[key] / as_array(runs.pp) for key, one in rows.items()), 0.0 * forward)
        for name, rows in parts.again.items()
    }
    return by_name(runs.recompute, RECOMPUTE, again | {"full": forward, "reversible": forward})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Time of a micro-batch on the mean stage after the overlap of a schedule [s].

    Args:
        mean: mean over all micro-batches of a step.
        pair: time of those whose forward pass overlaps the backward pass of another.
        shown: kind → exposed time.
    """

    mean: Array
    pair: Array
    shown: dict[str, Array]


def paired_share(pp: Array, micro_batches: Array) -> Array:
    """Share of the micro-batches that DualPipe runs in pairs, mean over the devices: (m - 5/4 p + 1/2) / m.

    On device r of its half, 2 (m/2 - p + r + 1) pairs in the fourth step and p/2 - r - 1 in the fifth.

    Args:
        pp: p, stages [count].
        micro_batches: m, of both directions [count].

    Sources: github.com/deepseek-ai/DualPipe, dualpipe/dualpipe.py.

    >>> float(paired_share(np.array(16.0), np.array(120.0))).__round__(3)
    0.838
    """
    return np.clip((micro_batches - 1.25 * pp + 0.5) / micro_batches, 0.0, 1.0)


def hide_exchange(runs: Runs, micro_batches: Array, shown: Mapping[str, Array], alone: Array) -> Hidden:
    """Overlap the expert exchange with compute if the schedule is DualPipe.

    In a pair the exchange of one direction overlaps the compute of the other: max(compute, exchange), with fewer cores
    for the compute. Micro-batches at the ends of a step run alone, with their exchange fully exposed.

    Args:
        micro_batches: of a step on each replica [count].
        shown: kind → time of one micro-batch that runs alone [s].
        alone: their sum, with what is recomputed [s].

    Sources: DeepSeek-V3 (arXiv:2412.19437), section 3.2.1 ("both all-to-all and PP communication can be fully hidden");
        its step of 19.9 s spends 13.95 s in such pairs (arXiv:2505.09343, table 4).
    """
    none = np.zeros(len(runs))
    dual = runs.schedule == SCHEDULES.index("dualpipe")
    if not np.any(dual):
        return Hidden(mean=alone, pair=alone, shown=dict(shown))
    exchange = sum((shown[kind] for kind in EXCHANGE if kind in shown), none)
    on_cores = sum((shown[kind] for kind in ON_CORES if kind in shown), none)
    slower = np.where(exchange > 0.0, DUALPIPE_CORES / (1.0 - DUALPIPE_CORES), 0.0)
    compute = alone - exchange + on_cores * slower
    pair = np.where(dual, np.maximum(compute, exchange), alone)
    share = np.where(dual, paired_share(as_array(runs.pp), micro_batches), 0.0)
    left = np.maximum(exchange - compute, 0.0) / np.where(exchange > 0.0, exchange, 1.0)
    factors: dict[str, Array] = dict.fromkeys(EXCHANGE, 1.0 - share * (1.0 - left))
    factors |= dict.fromkeys(ON_CORES, 1.0 + share * slower)
    return Hidden(
        mean=alone + share * (pair - alone),
        pair=pair,
        shown={kind: value * factors.get(kind, 1.0) for kind, value in shown.items()},
    )


def bubble_seconds(
    runs: Runs, phases: Mapping[Phase, Array], host: Array, stage: Array, hop: Array, *, pair: Array
) -> Array:
    """Bubble time of the stages in a step, by the closed form of each schedule [s].

    Each phase takes its kernels or a third of the host's launches, rounded as the stage itself, so that a chip that
    waits for its host gains nothing from shorter kernels that fill a bubble.

    Args:
        phases: forward, input and weight of one micro-batch on the mean stage [s].
        host: to launch it [s].
        stage: the whole of it [s].
        hop: activations from stage to stage [s].
        pair: the whole of it where DualPipe runs its forward pass under the backward pass of another [s].

    Sources: Narayanan et al. 2021 (arXiv:2104.04473), Qi et al. 2023 (arXiv:2401.10241), DualPipe README.
    """
    pp, v = as_array(runs.pp), as_array(runs.virtual_pp)
    w, both = (  # DualPipe runs a forward pass under a backward pass of the other direction
        (phases[name] ** CORNER + (host / 3.0) ** CORNER) ** (1.0 / CORNER) for name in ("weight", "forward")
    )
    plain = (pp - 1) / v * stage
    bubble = {"1f1b": plain, "interleaved": plain, "gpipe": plain}
    bubble |= {f"zb-h{n - 1}": (pp - 1) * np.maximum(stage - n * w, 0.0) for n in (2, 3)}
    bubble["zb-v"] = (pp - 1) / 2.0 * both  # of the block in schedules/zb_v, found by running it
    ends = np.maximum(pp / 2.0 - 1.0, 0.0)
    bubble["dualpipe"] = ends * np.maximum(pair + (stage - both) - 3.0 * w, 0.0)
    return by_name(runs.schedule, SCHEDULES, bubble) + 2.0 * (pp - 1) * hop
