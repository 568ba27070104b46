"""Ablation: each effect is switched off in turn, the remaining serving parameters are refitted, all cases scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from rackline.errors import InputError
from rackline.fitting.solver import Done
from rackline.parallel import Deployment
from rackline.passes.calibration import UNIT, Calibration, OperationCalibration
from rackline.processes import mapped
from rackline.serving.stack import Stack
from rackline.validation.cases import Case, CaseSet
from rackline.validation.fit_cases import FIRST_TOKEN, prepare, shipped_numbers
from rackline.validation.page import PageTable, fill_block
from rackline.validation.refit import Fold, score_fold
from rackline.validation.scoreboard import Stats, statistics
from rackline.validation.serving_fit import fit_numbers

BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"
METRICS = ("tpot_s", "ttft_s", "request_s")
_TINY_KERNELS = OperationCalibration(eta_compute=1e9, eta_memory=1e9, origin="left out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An effect that can be switched off.

    Args:
        name: display name.
        without: what takes its place, for display.
        fixed: parameters that are fixed then, instead of fitted.
        calibration_name: calibration of all cases, "auto" for that of each case's stack.
        numbers: change of the kernel calibration.
        scheduler: change of the stack.
    """

    name: str
    without: str
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    calibration_name: str = ""
    numbers: Callable[[Calibration], Calibration] | None = None
    scheduler: Callable[[Stack], Stack] | None = None

    def change(self, deployment: Deployment) -> Deployment:
        """The deployment without the effect."""
        if self.numbers is None:
            return deployment
        return replace(deployment, calibration=self.numbers(deployment.calibration))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablated:
    """One effect switched off, and the scoreboard without it."""

    json_keys: ClassVar = ("effect=name", "without", "numbers=fold.numbers", "metrics")

    name: str
    without: str
    fold: Fold

    def stats(self, metric: str) -> Stats:
        """Errors of one metric."""
        return statistics([one for one in self.fold.scores if one.metric == metric])

    @property
    def metrics(self) -> dict[str, Stats]:
        """Errors of each metric."""
        return {metric: self.stats(metric) for metric in METRICS}


def _fused(numbers: Calibration) -> Calibration:
    return replace(numbers, separate_quantise=())


def _without_small_kernels(numbers: Calibration) -> Calibration:
    kept = {key: value for key, value in numbers.operations.items() if key[0] != "elementwise"}
    return replace(numbers, operations={**kept, ("elementwise", "*"): _TINY_KERNELS})


def _without_custom_all_reduce(numbers: Calibration) -> Calibration:
    kept = {
        name: value
        for name, value in numbers.collectives.items()
        if not name.startswith(("all_reduce_one", "all_reduce_two"))
    }
    return replace(numbers, collectives=kept)


def _ideal(numbers: Calibration) -> Calibration:
    return UNIT


def _prompts_alone(stack: Stack) -> Stack:
    return replace(stack, admission="prefill_first")


def _uniform_experts(stack: Stack) -> Stack:
    return replace(stack, popular_experts=False)


def _one_by_one(stack: Stack) -> Stack:
    return replace(stack, synchrony=0.0)


EFFECTS: Mapping[str, Effect] = {
    effect.name: effect
    for effect in (
        Effect(name="nothing", without="all effects on, refitted"),
        Effect(name="rank skew", without="ranks do not wait for each other", fixed={"rank_skew_s": 0.0}),
        Effect(name="prefill slowdown", without="prefill as fast as its kernels", fixed={"prefill_slowdown": 1.0}),
        Effect(name="eager floor", without="all passes in CUDA graphs", fixed={"eager_s_per_layer": 0.0}),
        Effect(name="routing popularity", without="experts chosen uniformly", scheduler=_uniform_experts),
        Effect(name="separate quantisation", without="always fused", numbers=_fused),
        Effect(name="synchrony", without="prompts arrive independently", scheduler=_one_by_one),
        Effect(name="burst", without="no request waits for the initial burst", fixed={"burst_share": 0.0}),
        Effect(name="first token", without="no time outside the passes", fixed=dict.fromkeys(FIRST_TOKEN, 0.0)),
        Effect(name="mixed passes", without="prompts always alone in a pass", scheduler=_prompts_alone),
        Effect(
            name="small kernels",
            without="norms, rotary embeddings, activations free",
            numbers=_without_small_kernels,
        ),
        Effect(name="custom all-reduce", without="NCCL's ring", numbers=_without_custom_all_reduce),
        Effect(name="kernels of the stack and chip", without="those of all chips", calibration_name="generic"),
        Effect(name="fitted kernels", without="ideal roofline", numbers=_ideal),
    )
}


def ablation(
    found: CaseSet,
    *,
    calibration: str = "auto",
    effects: Sequence[str] = tuple(EFFECTS),
    processes: int = 2,
    done: Done | None = None,
) -> tuple[Ablated, ...]:
    """Switch each effect off in turn, refit the remaining parameters on all served cases and score these.

    Args:
        calibration: "auto" (each case's own stack), a stack or a file.
        effects: names of EFFECTS.
        processes: number of processes; 1 runs everything in this one [count].
        done: called with (what, finished, all) after each effect.

    Raises:
        InputError: no case is a served request.
    """
    cases = tuple(case for case in found.cases if case.kind == "serve" and "tpot_s" in case.measured)
    if not cases:
        raise InputError(what="--ablation", given="no served case", allowed="cases of kind serve with tpot_s")
    results = dict(mapped(_ablating, (cases, calibration), effects, processes, done))
    return tuple(results[name] for name in effects)


def _ablating(cases: tuple[Case, ...], calibration: str) -> Callable[[str], Ablated]:
    """What refits the cases without the effect of a name."""

    def ablated(name: str) -> Ablated:
        effect = EFFECTS[name]
        ready = prepare(
            cases,
            calibration_name=effect.calibration_name or calibration,
            change=effect.change,
            scheduler=effect.scheduler,
        )
        everything = np.ones(len(ready.cases), dtype=bool)
        numbers = fit_numbers(ready, shipped_numbers(ready), everything, fixed=effect.fixed)
        return Ablated(name=effect.name, without=effect.without, fold=score_fold(ready, numbers, everything))

    return ablated


def ablation_sheet(rows: Sequence[Ablated]) -> PageTable:
    """Errors without each effect."""
    kinds = ("median", "p90", "bias")

    def cells(stats: Stats) -> list[str]:
        errors = [f"{100 * error:.1f} %" for error in (stats.median_abs_error, stats.p90_abs_error)]
        return [*errors, f"{100 * stats.bias:+.1f} %"]

    return PageTable(
        title="median, 90th percentile and bias of the error",
        heads=("switched off", "instead", *(f"{metric} {kind}" for metric in METRICS for kind in kinds)),
        rows=[
            (row.name, row.without, *(cell for metric in METRICS for cell in cells(row.stats(metric)))) for row in rows
        ],
        texts=2,
    )


def markdown(rows: Sequence[Ablated]) -> str:
    """The table of a page."""
    said = (
        "Each effect is switched off in turn, the other parameters are refitted, all served cases scored (in sample)."
    )
    return "\n".join([said, *ablation_sheet(rows).markdown()])


def write_docs(rows: Sequence[Ablated], page: Path) -> None:
    """Replace the table of a page; see `rackline.validation.page.fill_block`."""
    fill_block(page, BEGIN, END, markdown(rows))
