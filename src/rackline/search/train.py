"""The training plan: the fastest layouts, and what a run costs in days, dollars and kWh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rackline.errors import require, unknown_name
from rackline.hardware import host_bytes_per_s
from rackline.parallel.exchange import make_group
from rackline.passes.features import as_array
from rackline.rounding import rounded
from rackline.search.misfit import Misfit
from rackline.search.points import firsts
from rackline.search.train_space import evaluate_runs, timed_steps, train_space
from rackline.serving.fleet import Power, power_of
from rackline.training.flop import hardware_share, mfu, model_flop, training_w
from rackline.training.memory import train_memory
from rackline.training.practice import Practice
from rackline.training.reliability import (
    STRAGGLING_CHIPS,
    Operations,
    Reliability,
    reliability,
    straggling_quantile,
)
from rackline.training.runs import RECOMPUTE, SCHEDULES, Runs, TrainLayout
from rackline.training.schedules import Durations, Timeline, schedule
from rackline.training.stage_memory import StageMemory, held_at_once, stage_memory
from rackline.training.step import hop_seconds
from rackline.training.system import MicroBatch, TrainingSystem

MOST_MICRO_BATCHES = 4  # per stage that a timeline shows; the middle of a longer step repeats itself
STRAGGLING_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Which level of the fabric a parallel group works on.

    Args:
        name: tensor, context, experts, data or pipeline.
        size: ranks [count].
        inside: of them in one scale-up domain [count].
        level: "scale-up", "scale-out" or "both".
    """

    json_keys: ClassVar = (
        "group=name",
        "size",
        "inside_domain=inside",
        "level",
    )

    name: str
    size: int
    inside: int
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCandidate:
    """One run with everything that is known of it.

    Args:
        step_s: of a step at the pace of the plan [s].
        tuned_s: of the step without what practice adds [s].
        step: parts of the tuned step [s], see `rackline.training.step.StepTime`.
        memory: bytes of the fullest chip, by kind.
        mfu, hfu: model and hardware FLOP over the peak of the products' data type, with the whole attention square.
        mfu_causal: the same as `mfu` with the half of the square that a causal mask leaves, see
            `rackline.training.flop.attention_flop`.
        days, usd, kwh: of the whole run, failures included; None where price or power is unknown.
        power: of a chip, on average over a step; None where nothing is known of it.
        binds: what takes most of the step.
        levels: which group works on which level of the fabric.
    """

    json_keys: ClassVar = (
        "layout",
        "num_chips=layout.num_chips",
        "step_s",
        "tuned_s",
        "breakdown=step",
        "memory",
        "mfu",
        "mfu_causal",
        "hfu",
        "tokens_per_s_per_chip",
        "days",
        "usd",
        "kwh",
        "chip_w=power.chip_w",
        "wall_w=power.wall_w",
        "power_basis=power.basis",
        "joules_per_token",
        "binding=binds",
        "levels",
    )

    layout: TrainLayout
    step_s: float
    tuned_s: float
    step: Mapping[str, Any]
    memory: Mapping[str, float]
    mfu: float
    mfu_causal: float
    hfu: float
    tokens_per_s_per_chip: float
    days: float | None
    usd: float | None
    kwh: float | None
    binds: str
    levels: tuple[Crossing, ...]
    power: Power | None = None

    @property
    def bubble_fraction(self) -> float:
        """Share of the step in which the stages of the pipeline wait for each other [1]."""
        return self.step["bubble_s"] / self.step_s

    @property
    def joules_per_token(self) -> float | None:
        """Energy at the plug over the tokens of a step [J]."""
        return self.power.wall_w / self.tokens_per_s_per_chip if self.power else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggling:
    """A run as long as a share of published runs at most are by their slow ranks.

    Args:
        share: of runs [1].
        slowdown: over the run of the plan [1].
        step_s: of a step [s].
        days, usd: of the whole run; None where they are of the plan.
    """

    share: float
    slowdown: float
    step_s: float
    days: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """The answer of a search.

    Args:
        tokens: of the whole run, None when only a step was asked for [tokens].
        asked_batch_tokens: of a step as asked for, from which the job's batch may differ [tokens].
        schedules: that were considered.
        candidates_evaluated: runs considered [count].
        candidates_timed: of these, runs that fit and whose step was timed [count].
        best: fastest first.
        reason: why nothing fits; empty when something does.
        nearest: the run that lacks least memory, when nothing fits.
        practice: what published runs took over tuned steps, where times are at their pace; None where they are tuned.
        misfit: why nothing fits and what would; None where something does, or that was not asked.
    """

    json_keys: ClassVar = (
        "model=system.model.name",
        "cluster=system.cluster.name",
        "num_chips=system.cluster.num_chips",
        "stack=system.stack.name",
        "precision=system.precision",
        "global_batch_tokens=system.global_batch_tokens",
        "global_batch_sequences=system.global_batch_sequences",
        "asked_batch_tokens",
        "schedules",
        "seq_len=system.seq_len",
        "tokens",
        "candidates_evaluated",
        "candidates_timed",
        "best=best.0",
        "others",
        "stages",
        "reliability",
        "stragglers",
        "reason",
        "nearest",
        "practice",
        "misfit",
    )

    system: TrainingSystem
    tokens: float | None
    candidates_evaluated: int
    candidates_timed: int
    best: tuple[TrainCandidate, ...]
    reliability: Reliability
    reason: str = ""
    nearest: TrainLayout | None = None
    asked_batch_tokens: float | None = None
    schedules: tuple[str, ...] = ()
    practice: Practice | None = None
    misfit: Misfit | None = None

    @property
    def stages(self) -> tuple[StageMemory, ...]:
        """Memory of each stage of the fastest run, by part at its fullest moment."""
        return stages_of(self, self.best[0]) if self.best else ()

    @property
    def stragglers(self) -> tuple[Straggling, ...]:
        """The fastest run as the median of published runs, nine of ten and ninety-nine of a hundred go with slow ranks.

        At the pace of published runs it is the median one already. Nothing is known of runs on fewer chips than those.
        """
        if not self.best or self.system.cluster.num_chips < STRAGGLING_CHIPS:
            return ()
        one, within = self.best[0], 1.0 if self.practice is None else float(straggling_quantile(0.5))
        return tuple(
            Straggling(
                share=share,
                slowdown=slowdown,
                step_s=slowdown * one.step_s,
                days=one.days and slowdown * one.days,
                usd=one.usd and slowdown * one.usd,
            )
            for share in STRAGGLING_SHARES
            for slowdown in [float(straggling_quantile(share)) / within]
        )

    @property
    def others(self) -> tuple[TrainCandidate, ...]:
        """The runs behind the fastest."""
        return self.best[1:]


def train_plan(
    system: TrainingSystem,
    *,
    tokens: float | None = None,
    pue: float = 1.0,
    fixed: Mapping[str, int] | None = None,
    schedules: Sequence[str] = (),
    recompute: Sequence[str] = (),
    asked_batch_tokens: float | None = None,
    practice: Practice | None = None,
    operations: Operations | None = None,
    most: int = 5,
) -> TrainPlan:
    """Search the fastest runs.

    Args:
        tokens: of the whole run, for days and dollars [tokens].
        pue: power of the site over that of the machines [1].
        fixed: parts of the layout that are given.
        schedules: which to look at; those of the stack by default.
        recompute: which to look at; those of the stack by default.
        asked_batch_tokens: of a step as asked for, to say where the system's batch differs [tokens].
        practice: what published runs take over tuned steps; None for tuned steps.
        operations: how the run is operated.
        most: how many of the best to explain [count].

    Raises:
        LayoutError: given parts that nothing satisfies.
        InputError: no token, or a schedule or recomputation that is unknown.
    """
    require(tokens is None or tokens > 0, what="tokens", given=tokens, allowed="more than 0", nearest="15e12")
    for what, names, allowed in (("schedule", schedules, SCHEDULES), ("recompute", recompute, RECOMPUTE)):
        for name in names:
            if name not in allowed:
                raise unknown_name(what, name, allowed)
    schedules = tuple(schedules) or system.stack.parallelism.schedules
    again = system.stack.kinds_of_recompute(recompute)
    runs = train_space(system, fixed=fixed, schedules=schedules, recompute=again)
    found = evaluate_runs(system, runs)
    machines = system.cluster
    reliable = reliability(
        system.model.total_params,
        machines.num_chips,
        operations=operations,
        host_bytes_per_s=host_bytes_per_s(machines.chip),
    )
    order = np.argsort(rounded(found.step_s), kind="stable")[: max(most * 40, 200)]
    order = order[np.isfinite(found.step_s[order])]
    best, reason, nearest = (), "", None
    if order.size:
        # one of each (tp, pp, cp, ep): variants of one layout say little new
        degrees = np.stack([column[order] for column in (runs.tp, runs.pp, runs.cp, runs.ep)], axis=1)
        best = candidates(system, runs.take(order[firsts(degrees)][:most]), tokens, reliable, pue, practice)
    else:
        least = int(np.argmin(found.total_bytes))
        nearest, has = runs.layout(least), system.cluster.chip.hbm_bytes
        lacks = f"needs {found.total_bytes[least] / 1e9:.0f} GB on a chip, has {has / 1e9:.0f} GB"
        reason = f"nothing fits: the smallest run, {nearest.label()}, {lacks}"
    return TrainPlan(
        system=system,
        tokens=tokens,
        candidates_evaluated=len(runs),
        candidates_timed=found.timed,
        best=best,
        reliability=reliable,
        reason=reason,
        nearest=nearest,
        asked_batch_tokens=asked_batch_tokens,
        schedules=schedules,
        practice=practice,
    )


def candidates(
    system: TrainingSystem,
    runs: Runs,
    tokens: float | None,
    reliable: Reliability,
    pue: float = 1.0,
    practice: Practice | None = None,
) -> tuple[TrainCandidate, ...]:
    """Explain some runs.

    Args:
        tokens: of the whole run [tokens].
        reliable: what failures cost.
        pue: power of the site over that of the machines; power by the nameplate has it already [1].
        practice: at whose pace steps go; that of tuned steps without.
    """
    slowdown = practice.slowdown if practice else 1.0
    batch = MicroBatch(system=system, runs=runs)
    step, memory = timed_steps(system, runs), train_memory(batch)
    watts = training_w(batch, step, slowdown)
    model, sequences, seq_len = system.model, float(system.global_batch_sequences), system.seq_len
    peak = system.cluster.chip.flop_per_s(system.precision.compute)
    frozen, packed = system.lora_rank > 0, system.packed_len
    whole, causal = (
        as_array(mfu(flop, slowdown * step.step, as_array(runs.num_chips), peak))
        for half in (False, True)
        for flop in [model_flop(model, seq_len, sequences, causal=half, frozen=frozen, packed_len=packed)]
    )
    executed = whole * hardware_share(model, runs, seq_len)
    found: list[TrainCandidate] = []
    for index in range(len(runs)):
        step_s, parts = slowdown * float(step.step[index]), step.at(index)
        power, price = power_of(system.cluster, float(watts[index])), system.cluster.usd_per_chip_hour
        hours = tokens and tokens / system.global_batch_tokens * step_s / reliable.goodput / 3600.0
        chip_hours = hours and hours * system.cluster.num_chips
        found.append(
            TrainCandidate(
                layout=runs.layout(index),
                step_s=step_s,
                tuned_s=float(step.step[index]),
                step=parts,
                memory=memory.at(index),
                mfu=float(whole[index]),
                mfu_causal=float(causal[index]),
                hfu=float(executed[index]),
                tokens_per_s_per_chip=system.global_batch_tokens / step_s / system.cluster.num_chips,
                days=hours and hours / 24.0,
                usd=None if chip_hours is None or price is None else chip_hours * price,
                kwh=None if chip_hours is None or power is None else chip_hours * power.site_w(pue) / 1000.0,
                binds=binding(parts, float(batch.per_step[index])),
                levels=crossings(system, runs, index),
                power=power,
            )
        )
    return tuple(found)


GROUPS: Mapping[str, tuple[str, ...]] = {
    "products": ("gemm", "experts", "head"),
    "attention": ("attention", "state"),
    "memory traffic": ("elementwise", "quantise", "permute", "unfused", "logits"),
    "tensor parallel": ("tensor",),
    "context parallel": ("context",),
    "expert exchange": ("expert_inside", "expert_outside"),
    "gathers of weights": ("shards",),
    "sends between stages": ("pipeline",),
}


def shares(parts: Mapping[str, Any], micro_batches: float) -> dict[str, float]:
    """Where the time of a step goes [s]: groups of rows over all micro-batches, host, bubble, exchange, optimiser."""
    found = {
        name: micro_batches * sum(float(parts["exposed_s"].get(kind, 0.0)) for kind in kinds)
        for name, kinds in GROUPS.items()
    }
    found["recompute"] = micro_batches * float(parts["recompute_s"])
    found["pipeline bubble"] = float(parts["bubble_s"])
    found["gradients and weights"] = float(parts["data_s"])
    found["optimiser and rest"] = float(parts["optimizer_s"]) + float(parts["fixed_s"])
    known = sum(found.values())
    found["host launches, uneven stages"] = max(float(parts["step_s"]) - known, 0.0)
    return {name: value for name, value in found.items() if value > 0.0}


def binding(parts: Mapping[str, Any], micro_batches: float) -> str:
    """What takes most of a step."""
    return max(shares(parts, micro_batches).items(), key=lambda item: item[1])[0]


def crossings(system: TrainingSystem, runs: Runs, index: int) -> tuple[Crossing, ...]:
    """Groups of one run, by how they are laid out: tp innermost, then cp and ep, dp, stages outermost."""
    one = runs.layout(index)
    groups = [
        ("tensor", one.tp, 1),
        ("context", one.cp, one.tp),
        ("experts", one.ep, one.expert_tp),
        ("data", one.dp * one.cp, one.tp),
        ("expert data", int(runs.expert_dp()[index]) if system.model.is_moe else 1, one.ep * one.expert_tp),
    ]
    found: list[Crossing] = []
    for name, size, stride in (each for each in groups if each[1] > 1):
        group = make_group(system.cluster, float(size), float(stride))
        inside = max(1, round(float(as_array(group.inside))))
        outside = float(as_array(group.outside)) > 1
        level = "both" if outside and inside > 1 else "scale-out" if outside else "scale-up"
        found.append(Crossing(name=name, size=size, inside=inside, level=level))
    if one.pp > 1:
        inside, level = (1, "scale-out") if one.num_chips > system.cluster.scale_up.size else (one.pp, "scale-up")
        found.append(Crossing(name="pipeline", size=one.pp, inside=inside, level=level))
    return tuple(found)


def stages_of(plan: TrainPlan, one: TrainCandidate) -> tuple[StageMemory, ...]:
    """Memory of each stage of a candidate over its schedule, see `rackline.training.stage_memory`."""
    batch = MicroBatch(system=plan.system, runs=Runs.of([one.layout]))
    return stage_memory(batch, timeline_of(plan, one, least=held_at_once(batch)))


def timeline_of(plan: TrainPlan, one: TrainCandidate, least: int = 0) -> Timeline:
    """Run the schedule of a candidate with its own times; at most four micro-batches per stage are placed.

    Args:
        least: micro-batches that are placed anyway [count].
    """
    layout, system = one.layout, plan.system
    kind = schedule("interleaved" if layout.virtual_pp > 1 else layout.schedule)
    chunks = kind.num_chunks(layout.virtual_pp)
    micro_batches = system.global_batch_sequences // (layout.dp * layout.micro_batch)
    shown = min(micro_batches, max(MOST_MICRO_BATCHES * layout.pp, least))
    if kind.name in ("interleaved", "dualpipe") and shown % layout.pp:
        shown = max(layout.pp, shown // layout.pp * layout.pp)
    parts = layout.pp * chunks // kind.copies
    layers = system.num_layers
    per_part = [layers // parts + (1 if index < layers % parts else 0) for index in range(parts)]
    head_s = sum(one.step["exposed_s"].get(name, 0.0) for name in ("head", "logits")) * layout.pp
    forward, given, weight = (one.step[name] * layout.pp for name in ("forward_s", "input_s", "weight_s"))
    again = one.step["recompute_s"] * layout.pp
    hop = hop_seconds(MicroBatch(system=system, runs=Runs.of([layout])))

    def of(total: float, share_of_head: float) -> list[float]:
        each = [total * count / layers for count in per_part]
        each[-1] += head_s * share_of_head
        return each

    backward = given + again if kind.splits_backward else given + again + weight
    return kind.run(
        layout.pp,
        shown,
        Durations(
            forward=of(forward, 1 / 3),
            backward=of(backward, 1 / 3 if kind.splits_backward else 2 / 3),
            weight=of(weight, 1 / 3),
            # the share of a send that the stack does not hide behind compute, as in the time of the step
            hop_s=system.stack.communication.pipeline_exposed * float(hop[0]) if math.isfinite(float(hop[0])) else 0.0,
        ),
        layout.virtual_pp,
    )
