"""Leave-one-out: training parameters are refitted without each source or model family and scored on the held-out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypedDict

import numpy as np

from rackline.catalog import names
from rackline.errors import InputError
from rackline.fitting.solver import Done, groups_of, leave_out
from rackline.passes.features import Array
from rackline.training.stack import TrainingStack
from rackline.validation.cases import Case, CaseSet
from rackline.validation.resolve import Resolver
from rackline.validation.run import scores_of
from rackline.validation.scoreboard import Score, Stats, statistics
from rackline.validation.train_cases import TrainCases, find_stack, prepare_training
from rackline.validation.train_fit import base_stacks, fit_numbers, stacks_with

TrainLeftOut = Literal["source", "model", "chip"]
FAMILIES = (
    ("deepseek", "deepseek"),
    ("llama-4", "llama 4"),
    ("llama", "llama 3"),
    ("qwen3", "qwen 3"),
    ("gpt-oss", "gpt-oss"),
    ("mpt", "mpt"),
    ("nemotron-4", "nemotron 4"),
    ("nemotron", "nemotron hybrids"),
    ("grok", "grok"),
    ("gpt", "gpt"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFold:
    """One refit: what was held out, the fitted parameters, and the scores of the held-out cases."""

    json_keys: ClassVar = ("left_out", "*stats", "numbers")

    left_out: str
    numbers: Mapping[str, float]
    scores: tuple[Score, ...]

    @property
    def stats(self) -> Stats:
        """Errors of the held-out cases."""
        return statistics(self.scores)


class RepeatSpread(TypedDict):
    """Pairs of cases of one configuration: their number, and the median and 90th percentile of |a / b - 1|."""

    pairs: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRefit:
    """All refits of one kind.

    Args:
        by: what was held out in turn.
        folds: all refits, the largest fold first.
        whole: the fit to all cases.
        spread: (pairs, median, 90th percentile) of the difference between cases of one configuration.
        unsupported: cases without a prediction [count].
    """

    json_keys: ClassVar = (
        "left_out_by=by",
        "left_out",
        "median_of_medians",
        "in_sample=whole.stats",
        "numbers=whole.numbers",
        "folds",
        "repeat_spread",
        "unsupported",
    )

    by: TrainLeftOut
    folds: tuple[TrainFold, ...]
    whole: TrainFold
    spread: tuple[int, float, float]
    unsupported: int

    @property
    def left_out(self) -> Stats:
        """Errors of all cases when they were held out."""
        return statistics([score for fold in self.folds for score in fold.scores])

    @property
    def median_of_medians(self) -> float:
        """Median over the folds of their median errors."""
        return float(np.median([fold.stats.median_abs_error for fold in self.folds]))

    @property
    def repeat_spread(self) -> RepeatSpread:
        """The spread as a dictionary."""
        pairs, median, p90 = self.spread
        return {"pairs": pairs, "median": median, "p90": p90}


def family(case: Case) -> str:
    """Model family of a case."""
    name = case.model.rsplit("/", 1)[-1].lower()
    return next((label for start, label in FAMILIES if start in name), name or "-")


def fold_of(case: Case, by: TrainLeftOut) -> str:
    """The fold of a case; the source of a training case is its stack."""
    return {"source": case.stack, "model": family(case), "chip": case.chip}[by] or "-"


def repeat_spread(cases: TrainCases) -> tuple[int, float, float]:
    """Spread of cases of one configuration in several releases or at several scales.

    Returns:
        (pairs, median, 90th percentile of |a / b - 1| of the time of a step over its work).
    """
    groups: dict[tuple[object, ...], list[float]] = {}
    for index, case in enumerate(cases.cases):
        layout = cases.parts.runs.layout(index)
        values = case.values
        key = (
            case.model,
            values.get("num_layers"),
            case.chip,
            case.precision,
            layout.tp,
            layout.pp,
            layout.cp,
            layout.ep,
            layout.micro_batch,
            layout.recompute,
            values["seq_len"],
        )
        work = case.number("global_batch") / case.num_chips
        groups.setdefault(key, []).append(float(cases.measured_s[index]) / work)
    apart = [abs(a / b - 1.0) for found in groups.values() for i, a in enumerate(found) for b in found[i + 1 :]]
    if not apart:
        return 0, float("nan"), float("nan")
    return len(apart), float(np.median(apart)), float(np.quantile(apart, 0.9))


def refit_training(
    found: CaseSet,
    by: TrainLeftOut,
    *,
    done: Done | None = None,
) -> TrainRefit:
    """Refit without each source, model family or chip in turn and score the held-out cases.

    Args:
        found: cases, of which those of kind train are used.
        done: called with (what, finished, all) after each fold.

    Raises:
        InputError: there are fewer than two folds.
    """
    ready, unsupported = prepare_training(Resolver(), [case for case in found.cases if case.kind == "train"])
    groups = {} if ready is None else dict(sorted(groups_of(fold_of(case, by) for case in ready.cases).items()))
    if ready is None or len(groups) < 2:
        raise InputError(
            what=f"--refit {by}",
            given=f"{len(groups)} {by} with training cases",
            allowed="at least two to leave one out",
        )
    base = base_stacks(ready)
    everything = np.ones(len(ready.cases), dtype=bool)
    start = fit_numbers(ready, everything, base)

    def scored(numbers: Mapping[str, float], rows: Array) -> tuple[Score, ...]:
        predicted = ready.predict(stacks_with(numbers, base))
        index = np.flatnonzero(rows).tolist()
        return tuple(score for i in index for score in scores_of(ready.cases[i], {"step_s": float(predicted[i])}))

    folds = [
        TrainFold(left_out=fold.name, numbers=fold.fitted, scores=fold.scored)
        for fold in leave_out(groups, lambda held: fit_numbers(ready, ~held, base, start), scored, done)
    ]
    return TrainRefit(
        by=by,
        folds=tuple(sorted(folds, key=lambda fold: -len(fold.scores))),
        whole=TrainFold(left_out="", numbers=start, scores=scored(start, everything)),
        spread=repeat_spread(ready),
        unsupported=len(unsupported),
    )


def fitted_stacks(found: CaseSet) -> dict[str, TrainingStack]:
    """All training stacks of the catalogue with parameters fitted to these cases.

    Raises:
        InputError: no training case can be predicted.
    """
    ready, _ = prepare_training(Resolver(), [case for case in found.cases if case.kind == "train"])
    if ready is None:
        raise InputError(what="--write-stacks", given="no training case", allowed="cases of kind train")
    numbers = fit_numbers(ready, np.ones(len(ready.cases), dtype=bool), base_stacks(ready))
    return stacks_with(numbers, {name: find_stack(name) for name in names("training_stacks")})
