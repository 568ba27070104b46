"""The training plan: the fastest layouts, and what a run costs in days, dollars and kWh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rackline.errors import InputError
from rackline.search.train_evaluate import Crossing, Evaluated, TrainJob, crossings, evaluate_runs
from rackline.search.train_space import train_space
from rackline.serving.energy import Power, power_of
from rackline.training.memory import CHEAPEST_FIRST
from rackline.training.reliability import Reliability, reliability
from rackline.training.runs import Runs, TrainLayout
from rackline.training.step import StepSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCandidate:
    """One run with everything that is known of it.

    Args:
        step: parts of a step [s], see `rackline.training.step.StepTime`.
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
    step: StepSeconds
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
    """

    json_keys: ClassVar = (
        "model=job.model.name",
        "cluster=job.cluster.name",
        "num_chips=job.cluster.num_chips",
        "stack=job.stack.name",
        "precision=job.precision",
        "global_batch_tokens=job.global_batch_tokens",
        "global_batch_sequences=job.global_batch_sequences",
        "asked_batch_tokens",
        "schedules",
        "seq_len=job.seq_len",
        "tokens",
        "candidates_evaluated",
        "candidates_timed",
        "best=best.0",
        "others",
        "reliability",
        "reason",
        "nearest",
    )

    job: TrainJob
    tokens: float | None
    candidates_evaluated: int
    candidates_timed: int
    best: tuple[TrainCandidate, ...]
    reliability: Reliability
    reason: str = ""
    nearest: TrainLayout | None = None
    asked_batch_tokens: float | None = None
    schedules: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[TrainCandidate, ...]:
        """The runs behind the fastest."""
        return self.best[1:]


def train_plan(
    job: TrainJob,
    *,
    tokens: float | None = None,
    pue: float = 1.0,
    fixed: Mapping[str, int] | None = None,
    schedules: Sequence[str] | None = None,
    recompute: Sequence[str] = CHEAPEST_FIRST,
    asked_batch_tokens: float | None = None,
    most: int = 5,
) -> TrainPlan:
    """Search the fastest runs.

    Args:
        tokens: of the whole run, for days and dollars [tokens].
        pue: power of the site over that of the machines [1].
        fixed: parts of the layout that are given.
        schedules: which to look at; those of the stack by default.
        recompute: which to look at; a reversible stack is another model, so it is considered only when asked.
        asked_batch_tokens: of a step as asked for, to say where the job's batch differs [tokens].
        most: how many of the best to explain [count].

    Raises:
        LayoutError: given parts that nothing satisfies.
        InputError: no token.
    """
    if tokens is not None and not tokens > 0:
        raise InputError(what="--tokens", given=tokens, allowed="more than 0", nearest="15e12")
    again = [name for name in recompute if name != "selective" or not job.stack.flash_attention] or ["none"]
    schedules = job.stack.schedules if schedules is None else schedules
    runs = train_space(
        job.model,
        job.cluster,
        global_batch_sequences=job.global_batch_sequences,
        seq_len=job.seq_len,
        fixed=fixed,
        schedules=schedules,
        recompute=again,
    )
    found = evaluate_runs(job, runs)
    reliable = reliability(job.model.total_params, job.cluster.num_chips)
    order = np.argsort(found.step_s, kind="stable")[: max(most * 40, 200)]
    order = order[np.isfinite(found.step_s[order])]
    if not order.size:
        least = int(np.argmin(found.total_bytes))
        lacks = (
            f"needs {found.total_bytes[least] / 1e9:.0f} GB on a chip, has {job.cluster.chip.hbm_bytes / 1e9:.0f} GB"
        )
        return TrainPlan(
            job=job,
            tokens=tokens,
            candidates_evaluated=len(runs),
            candidates_timed=found.timed,
            best=(),
            reliability=reliable,
            reason=f"nothing fits: the smallest run, {runs.layout(least).label()}, {lacks}",
            nearest=runs.layout(least),
            asked_batch_tokens=asked_batch_tokens,
            schedules=tuple(schedules),
        )
    kept = _unlike(found, order, most)
    return TrainPlan(
        job=job,
        tokens=tokens,
        candidates_evaluated=len(runs),
        candidates_timed=found.timed,
        best=candidates(job, runs.take(kept), tokens, reliable, pue),
        reliability=reliable,
        asked_batch_tokens=asked_batch_tokens,
        schedules=tuple(schedules),
    )


def _unlike(found: Evaluated, order: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    """The fastest runs, one of each (tp, pp, cp, ep): variants of one layout say little new."""
    seen: set[tuple[int, ...]] = set()
    kept: list[int] = []
    runs = found.runs
    for index in order:
        key = (int(runs.tp[index]), int(runs.pp[index]), int(runs.cp[index]), int(runs.ep[index]))
        if key not in seen:
            seen.add(key)
            kept.append(int(index))
        if len(kept) == most:
            break
    return np.array(kept)


def candidates(
    job: TrainJob, runs: Runs, tokens: float | None, reliable: Reliability, pue: float = 1.0
) -> tuple[TrainCandidate, ...]:
    """Explain some runs.

    Args:
        tokens: of the whole run [tokens].
        reliable: what failures cost.
        pue: power of the site over that of the machines; power by the nameplate has it already [1].
    """
    step, memory = job.step(runs), job.memory(runs)
    watts = job.chip_w(runs, step)
    mfu, causal, hfu = job.utilisation(runs, step.step)
    found: list[TrainCandidate] = []
    for index in range(len(runs)):
        step_s = float(step.step[index])
        parts = step.at(index)
        days = usd = kwh = None
        power = power_of(job.cluster, float(watts[index]))
        if tokens is not None:
            hours = tokens / job.global_batch_tokens * step_s / reliable.goodput / 3600.0
            days = hours / 24.0
            chip_hours = hours * job.cluster.num_chips
            price = job.cluster.usd_per_chip_hour
            usd = chip_hours * price if price is not None else None
            kwh = chip_hours * power.site_w(pue) / 1000.0 if power is not None else None
        found.append(
            TrainCandidate(
                layout=runs.layout(index),
                step_s=step_s,
                step=parts,
                memory=memory.at(index),
                mfu=float(mfu[index]),
                mfu_causal=float(causal[index]),
                hfu=float(hfu[index]),
                tokens_per_s_per_chip=job.global_batch_tokens / step_s / job.cluster.num_chips,
                days=days,
                usd=usd,
                kwh=kwh,
                binds=binding(parts, float(runs.micro_batches(job.global_batch_sequences)[index])),
                levels=crossings(job, runs, index),
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
    found = shares(parts, micro_batches)
    return max(found, key=lambda name: found[name])
