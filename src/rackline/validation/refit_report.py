"""Leave-one-out refits as tables; the ablation: each effect is switched off in turn, the others are refitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from rich.console import Group
from rich.text import Text

from rackline.display.column import spaced
from rackline.display.wording import composed, of_key
from rackline.errors import InputError
from rackline.fitting.solver import Done
from rackline.parallel import Deployment
from rackline.passes.calibration import UNIT, Calibration, OperationCalibration
from rackline.processes import mapped
from rackline.serving.stack import Stack
from rackline.units import format_seconds
from rackline.validation.cases import Case, CaseSet
from rackline.validation.fit_cases import FIRST_TOKEN, prepare, shipped_numbers
from rackline.validation.page import PageTable
from rackline.validation.refit import Fold, Refit, ranges, score_fold
from rackline.validation.report import percent, scoreboard_report
from rackline.validation.scoreboard import Stats, by_metric, statistics
from rackline.validation.serving_fit import fit_numbers
from rackline.validation.train_fit import TrainRefit


def refit_report(found: Refit, *, elapsed_s: float | None = None, width: int = 100) -> Group:
    """Report of `rackline validate --refit`.

    Args:
        elapsed_s: wall time of the refits [s].
        width: columns of the terminal.
    """
    said = f"serving parameters refitted without each {found.by}, scored on the held-out cases"
    queued = "".join(f"\n  {name}" for name in found.memory_bound)
    tables = [
        _summary(found).table(),
        _numbers(found.ranges()).table(),
        Text(f"requests queue for memory, not counted where KV fits:{queued}", style="dim") if queued else None,
        scoreboard_report(found.board, width=width),
    ]
    return Group(_head(said, elapsed_s), spaced(tables))


def _head(said: str, elapsed_s: float | None) -> Text:
    return composed((said, "bold"), None if elapsed_s is None else (f", {format_seconds(elapsed_s)}", "dim"), "\n")


_HEADS = ("median", "p90", "bias", "in sample: median", "in sample: p90", "in sample: bias", "mean of models")


def _summary(found: Refit) -> PageTable:
    """Errors left out and in sample of each metric, and of ttft_s where the KV fits."""

    rows: list[tuple[str, ...]] = []
    for metric, left_out in by_metric(found.board.scores).items():
        name, worst = found.worst_group(metric)
        text = f"{name.rsplit('/', 1)[-1]} {percent(worst)}" if name else "-"
        both = [*_cells(left_out), *_cells(found.whole.metrics.get(metric, statistics(())))]
        rows.append((metric, *both, percent(found.macro_median(metric)), text))
        if metric == "ttft_s" and found.memory_bound:
            fits = [found.where_kv_fits(scores) for scores in (found.board.scores, found.whole.scores)]
            rows.append(("ttft_s, KV fits", *(cell for stats in fits for cell in _cells(stats)), "", ""))
    title = f"each {found.by} held out, and a fit to all cases"
    return PageTable(title=title, heads=("measured", *_HEADS, "worst model"), rows=rows)


def _cells(stats: Stats) -> list[str]:
    return [percent(stats.median_abs_error), percent(stats.p90_abs_error), percent(stats.bias, signed=True)]


def _numbers(ranges: Mapping[str, tuple[float, float, float]]) -> PageTable:
    rows = [(name, *(of_key(name, value) for value in values)) for name, values in ranges.items()]
    return PageTable(title="fitted parameters", heads=("number", "least", "most", "all cases"), rows=rows)


def refit_markdown(found: Refit) -> str:
    """The refits as Markdown tables."""
    said = f"Serving parameters are refitted without each {found.by} in turn and scored on the held-out cases."
    sheets = (_summary(found), *_groups(found), _numbers(found.ranges()))
    return "\n".join([said, *(line for sheet in sheets for line in sheet.markdown())])


_TOGETHER = (
    ("tpot_s", "ttft_s", "request_s", "served_tokens_per_s"),
    ("pools_tpot_s", "pools_ttft_s", "pools_request_s"),
    ("prefill_s", "token_s", "total_s"),
)


def _groups(found: Refit) -> list[PageTable]:
    """Errors of each group left out: of single engines, pools, single batches, the rest."""
    known = list(dict.fromkeys(one.metric for one in found.board.scores))
    rest = [metric for metric in known if not any(metric in kind for kind in _TOGETHER)]
    sheets: list[PageTable] = []
    for metrics in ([metric for metric in kind if metric in known] for kind in (*_TOGETHER, rest)):
        cells = [(fold, [_pair(fold.metrics.get(metric)) for metric in metrics]) for fold in found.folds]
        rows = [(one.left_out, str(one.num_cases), *own) for one, own in cells if set(own) != {"-"}]
        if metrics:
            sheets.append(PageTable(heads=(f"left out {found.by}", "cases", *metrics), rows=rows))
    return sheets


def _pair(stats: Stats | None) -> str:
    """Median and 90th percentile of the errors of a group."""
    return f"{percent(stats.median_abs_error)} / {percent(stats.p90_abs_error)}" if stats else "-"


_NAMES = {"source": "source", "model": "model family", "chip": "chip"}


def _training(found: TrainRefit) -> PageTable:
    named = [
        ("in sample", found.whole.stats),
        (f"each {_NAMES[found.by]} held out", found.left_out),
        *((f"without {fold.left_out}", fold.stats) for fold in found.folds),
    ]
    cells = [
        (name, str(one.supported), *_cells(one)[:2], percent(one.share_within_20), percent(one.bias, signed=True))
        for name, one in named
    ]
    title = "error of the step time, |predicted / measured - 1|"
    return PageTable(title=title, heads=("", "cases", "median error", "p90", "within 20 %", "bias"), rows=cells)


def _train_numbers(found: TrainRefit) -> PageTable:
    return _numbers(ranges(found.whole.numbers, [fold.numbers for fold in found.folds]))


def _notes(found: TrainRefit) -> str:
    spread, pairs = found.repeat_spread, found.repeat_spread["pairs"]
    repeats = f"; the same configuration in another release or at another scale ({pairs} pairs) differs by "
    repeats += (
        f"{percent(spread['median'])} (median), {percent(spread['p90'])} (p90)"
        if pairs
        else "nothing: there are no repeats"
    )
    lost = f"; {found.unsupported} cases have no prediction" if found.unsupported else ""
    return f"median of the {_NAMES[found.by]} medians {percent(found.median_of_medians)}{repeats}{lost}"


def train_refit_report(found: TrainRefit, *, elapsed_s: float | None = None) -> Group:
    """Report of `rackline validate --refit` for training cases.

    Args:
        elapsed_s: wall time of the refits [s].
    """
    head = _head(f"training parameters refitted without each {_NAMES[found.by]} in turn", elapsed_s)
    note = Text(_notes(found), style="dim")
    return Group(head, _training(found).table(), note, Text(""), _train_numbers(found).table())


def train_refit_markdown(found: TrainRefit) -> str:
    """The refits as Markdown tables."""
    said = f"Training parameters are refitted without each {_NAMES[found.by]} in turn; {_notes(found)}."
    return "\n".join([said, *_training(found).markdown(), *_train_numbers(found).markdown()])


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
    numbers: Callable[[Calibration], Calibration] = lambda found: found
    scheduler: Callable[[Stack], Stack] = lambda found: found

    def change(self, deployment: Deployment) -> Deployment:
        """The deployment without the effect."""
        return replace(deployment, calibration=self.numbers(deployment.calibration))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablated:
    """One effect switched off, and the scoreboard without it."""

    json_keys: ClassVar = ("effect=name", "without", "numbers=fold.numbers", "metrics")

    name: str
    without: str
    fold: Fold

    @property
    def metrics(self) -> dict[str, Stats]:
        """Errors of each metric."""
        found = self.fold.metrics
        return {metric: found.get(metric, statistics(())) for metric in METRICS}


def _without_small_kernels(numbers: Calibration) -> Calibration:
    kept = {key: value for key, value in numbers.operations.items() if key[0] != "elementwise"}
    return replace(numbers, operations={**kept, ("elementwise", "*"): _TINY_KERNELS})


def _without_custom_all_reduce(numbers: Calibration) -> Calibration:
    custom = ("all_reduce_one", "all_reduce_two")
    kept = {name: value for name, value in numbers.collectives.items() if not name.startswith(custom)}
    return replace(numbers, collectives=kept)


EFFECTS: Mapping[str, Effect] = {
    effect.name: effect
    for effect in (
        Effect(name="nothing", without="all effects on, refitted"),
        Effect(name="rank skew", without="ranks do not wait for each other", fixed={"rank_skew_s": 0.0}),
        Effect(name="prefill slowdown", without="prefill as fast as its kernels", fixed={"prefill_slowdown": 1.0}),
        Effect(name="eager floor", without="all passes in CUDA graphs", fixed={"eager_s_per_layer": 0.0}),
        Effect(
            name="routing popularity",
            without="experts chosen uniformly",
            scheduler=lambda stack: stack.with_values({"experts.popular": False}),
        ),
        Effect(
            name="separate quantisation",
            without="always fused",
            numbers=lambda found: replace(found, separate_quantise=()),
        ),
        Effect(
            name="synchrony",
            without="prompts arrive independently",
            scheduler=lambda stack: stack.with_values({"arrivals.synchrony": 0.0}),
        ),
        Effect(name="burst", without="no request waits for the initial burst", fixed={"burst_share": 0.0}),
        Effect(name="first token", without="no time outside the passes", fixed=dict.fromkeys(FIRST_TOKEN, 0.0)),
        Effect(
            name="mixed passes",
            without="prompts always alone in a pass",
            scheduler=lambda stack: stack.with_values({"scheduler.admission": "prefill_first"}),
        ),
        Effect(
            name="small kernels",
            without="norms, rotary embeddings, activations free",
            numbers=_without_small_kernels,
        ),
        Effect(name="custom all-reduce", without="NCCL's ring", numbers=_without_custom_all_reduce),
        Effect(name="kernels of the stack and chip", without="those of all chips", calibration_name="generic"),
        Effect(name="fitted kernels", without="ideal roofline", numbers=lambda found: UNIT),
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
            (row.name, row.without, *(cell for stats in row.metrics.values() for cell in cells(stats))) for row in rows
        ],
        texts=2,
    )


def ablation_markdown(rows: Sequence[Ablated]) -> str:
    """The table of a page."""
    said = (
        "Each effect is switched off in turn, the other parameters are refitted, all served cases scored (in sample)."
    )
    return "\n".join([said, *ablation_sheet(rows).markdown()])


def ablation_report(rows: Sequence[Ablated], *, elapsed_s: float | None = None) -> Group:
    """Report of `rackline validate --ablation`.

    Args:
        elapsed_s: wall time of the refits [s].
    """
    head = _head("each effect switched off in turn, the other parameters refitted to all cases", elapsed_s)
    return Group(head, ablation_sheet(rows).table())
