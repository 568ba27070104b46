"""Leave-one-out: serving parameters are refitted without each model, chip or stack and scored on the held-out cases.

Kernel calibrations are fitted to tables of single operations, not to served requests, so they need no refit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal
from zlib import crc32

import numpy as np

from rackline.catalog import release
from rackline.catalog.index import stack_name
from rackline.errors import InputError
from rackline.fitting.solver import Done
from rackline.passes.features import Array
from rackline.processes import mapped
from rackline.serving.stack import Stack
from rackline.validation.cases import Case, CaseSet, Unsupported, laboratory_of, shape_of
from rackline.validation.fit_cases import (
    FitCases,
    ServingNumbers,
    fit_power,
    flat,
    has_power,
    prepare,
    shipped_numbers,
)
from rackline.validation.predict import Predictor
from rackline.validation.resolve import Resolver, version_of
from rackline.validation.run import scores_of
from rackline.validation.scoreboard import SERVED, Score, Scoreboard, Stats, by_metric, statistics
from rackline.validation.serving_fit import (
    ELSEWHERE,
    FEWEST as OF_SINGLE,
    FEWEST_MEDIANS as OF_ENGINE,
    NAME as SINGLE,
    NAMES,
    Prompts,
    Step,
    fit_engine,
    fit_numbers,
    fit_pools,
    fit_prompts,
    is_of_older_engine,
    prepared,
    prompts_of,
    steps_of,
    with_engine,
    with_slowdown,
)

LeftOut = Literal["model", "chip", "stack", "version", "laboratory", "half"]
EVERYTHING = ""
"""Name of the fold that leaves nothing out."""
MANY = 15
"""Least number of cases of a group that is named as the worst [cases]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A refit, and the scores of the cases that it did not see.

    Args:
        left_out: model, chip, stack, version, laboratory or half of the configurations that the fit did not see;
            EVERYTHING where it saw all cases.
        num_cases: cases that are scored [count].
        numbers: what was fitted to the others.
        power: numbers of the chips' power (`fit_cases.FITTED`), fitted to the others; none where no case states power.
        engine: the four numbers of an older engine (`serving_fit.NAMES`), fitted to the others; none where no case
            states medians. The slowdown of single batches (`serving_fit.NAME`) where there are some.
        scores: of the cases left out; of all cases where nothing is.
        memory_bound: ids of scored cases whose batch the memory bounds, so that requests queue for it.
    """

    json_keys: ClassVar = ("left_out", "cases=num_cases", "numbers=numbers.flat", "engine", "power", "metrics")

    left_out: str
    num_cases: int
    numbers: ServingNumbers
    scores: tuple[Score, ...]
    memory_bound: tuple[str, ...]
    engine: Mapping[str, float] = field(default_factory=dict[str, float])
    power: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def metrics(self) -> dict[str, Stats]:
        """Errors of each metric on the scored cases."""
        return by_metric(self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """All folds.

    Args:
        by: what is held out in turn.
        folds: one per model, chip or stack, the largest first.
        whole: the fit to all cases, scored on all cases.
        board: scores of the cases when they were held out.
    """

    json_keys: ClassVar = (
        "left_out_by=by",
        "*board",
        "macro_median=macro_medians",
        "ttft_s_where_kv_fits.left_out=left_out_where_kv_fits",
        "ttft_s_where_kv_fits.in_sample=in_sample_where_kv_fits",
        "memory_bound",
        "in_sample.numbers=whole.numbers.flat",
        "in_sample.power=whole.power",
        "in_sample.metrics=in_sample.metrics",
        "in_sample.groups=in_sample.groups",
        "folds",
    )

    by: LeftOut
    folds: tuple[Fold, ...]
    whole: Fold
    board: Scoreboard

    @property
    def memory_bound(self) -> tuple[str, ...]:
        """Cases whose batch is limited by memory in any fold."""
        names = [name for fold in (*self.folds, self.whole) for name in fold.memory_bound]
        return tuple(dict.fromkeys(names))

    def where_kv_fits(self, scores: Sequence[Score]) -> Stats:
        """Errors of the time to first token, without the cases that queue for memory."""
        waiting = set(self.memory_bound)
        return statistics([one for one in scores if one.metric == "ttft_s" and one.case_id not in waiting])

    def macro_median(self, metric: str) -> float:
        """Mean over models of their median errors, equally weighted."""
        found = [group.stats for group in self.board.groups if group.by == "model" and group.metric == metric]
        return float(np.mean([stats.median_abs_error for stats in found if stats.supported]))

    def worst_group(self, metric: str) -> tuple[str, float]:
        """(name, median error) of the worst model with at least MANY cases; ("", nan) if there is none."""
        found = [
            (group.group, group.stats.median_abs_error)
            for group in self.board.groups
            if group.by == "model" and group.metric == metric and group.stats.supported >= MANY
        ]
        return max(found, key=lambda one: one[1], default=("", float("nan")))

    def ranges(self) -> dict[str, tuple[float, float, float]]:
        """Parameter → (least, greatest value over the folds, value in the fit to all cases)."""
        return ranges(_all_numbers(self.whole), list(map(_all_numbers, self.folds)))

    @property
    def macro_medians(self) -> dict[str, float]:
        """Mean over models of their median errors, by metric."""
        return {metric: self.macro_median(metric) for metric in self.board.metrics}

    @property
    def left_out_where_kv_fits(self) -> Stats:
        """Errors of the time to first token when held out, without the cases that queue for memory."""
        return self.where_kv_fits(self.board.scores)

    @property
    def in_sample_where_kv_fits(self) -> Stats:
        """The scores of the fit to all cases, on the cases whose KV cache fits."""
        return self.where_kv_fits(self.whole.scores)

    @property
    def in_sample(self) -> Scoreboard:
        """Scores of the fit to all cases."""
        return Scoreboard(
            calibration=self.board.calibration,
            num_cases=self.whole.num_cases,
            scores=self.whole.scores,
            unsupported=self.board.unsupported,
        )


def ranges(whole: Mapping[str, float], folds: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float, float]]:
    """Parameter → (least, greatest value over the folds, value in the fit to all cases)."""
    known = {name: [fold[name] for fold in folds if name in fold] or [value] for name, value in whole.items()}
    return {name: (min(known[name]), max(known[name]), value) for name, value in whole.items()}


def _all_numbers(fold: Fold) -> dict[str, float]:
    return {**fold.numbers.flat, **fold.engine, **fold.power}


def _half(case: Case) -> str:
    pools = (case.values.get("prefill"), case.values.get("decode"))
    parts = repr((case.model, case.chip, case.stack, case.precision, case.layout, *pools))
    return ("first half", "second half")[crc32(parts.encode()) % 2]


_FOLDS: Mapping[LeftOut, Callable[[Case], str]] = {
    "model": lambda case: shape_of(case.model) or "-",
    "chip": lambda case: case.chip or "-",
    "stack": lambda case: stack_name(case.stack) or "-",
    "version": lambda case: f"{stack_name(case.stack) or '-'} {release(version_of(case)) or 'unknown'}",
    "laboratory": laboratory_of,
    "half": _half,
}


def fold_name(case: Case, by: LeftOut) -> str:
    """The fold that a case belongs to."""
    return _FOLDS[by](case)


def refit(
    found: CaseSet,
    by: LeftOut,
    *,
    calibration: str = "auto",
    processes: int = 2,
    done: Done | None = None,
) -> Refit:
    """Refit without each model, chip, stack, version or laboratory in turn and score what was left out.

    Args:
        found: cases; served requests with a time per output token count, and single batches to which a number is
            fitted. Numbers are fitted to single engines; pools of prefill and decode workers add two, medians of an
            older engine four, single batches of an engine before CUDA graphs one.
        by: what to leave out.
        calibration: "auto" (each case's own stack), a stack or a file.
        processes: number of processes; 1 runs everything in this one [count].
        done: called with (what, finished, all) after each fold.

    Raises:
        InputError: there are fewer than two folds.
    """
    single = {one.case.case_id for one in prompts_of(found.cases, calibration)}
    cases = tuple(
        case
        for case in found.cases
        if (case.kind in SERVED and "tpot_s" in case.measured)
        or (case.kind == "static-batch" and case.case_id in single)
    )
    names = list(dict.fromkeys(fold_name(case, by) for case in cases))
    if not any(case.kind == "serve" for case in cases):
        raise InputError(what=f"--refit {by}", given="no case of kind serve", allowed="at least some, to fit to")
    if len(names) < 2:
        raise InputError(
            what=f"--refit {by}",
            given=f"{len(names)} {by} with served requests",
            allowed="at least two to leave one out",
        )
    sizes = {name: sum(fold_name(case, by) == name for case in cases) for name in names}
    names.sort(key=lambda name: (sizes[name], name))  # folds that hold out little take longest, so they come first
    folds = dict(mapped(_Prepared.of, (cases, calibration, by), (EVERYTHING, *names), processes, done))
    left_out = tuple(sorted((folds[name] for name in names), key=lambda fold: -fold.num_cases))
    whole = folds[EVERYTHING]
    pools = [case for case in cases if case.kind == "serve-disaggregated"]
    unsupported = (
        *prepare(_with_means(cases), calibration_name=calibration).unsupported,
        *_predicted(pools, predictor_of(calibration, whole.numbers.stack))[1],
    )
    return Refit(
        by=by,
        folds=left_out,
        whole=whole,
        board=Scoreboard(
            calibration=calibration,
            num_cases=len(cases),
            scores=tuple(one for fold in left_out for one in fold.scores),
            unsupported=unsupported,
        ),
    )


def predictor_of(calibration: str, change: Callable[[Stack], Stack]) -> Predictor:
    """Predicts cases with changed stacks."""
    return Predictor(resolver=Resolver(calibration_name=calibration, change=change))


def _with_means(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if not is_of_older_engine(case)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """Cases with the kernel times of their engines, which all folds of a process share.

    Args:
        cases: of all kinds.
        calibration: as of `refit`.
        by: what is left out in turn.
        served: single engines whose means are known.
        medians: single engines of an older version, whose medians are.
        prompts: single batches before CUDA graphs.
    """

    cases: tuple[Case, ...]
    calibration: str
    by: LeftOut
    served: FitCases
    medians: list[Step]
    prompts: list[Prompts]

    @classmethod
    def of(cls, cases: tuple[Case, ...], calibration: str, by: LeftOut) -> Callable[[str], Fold]:
        """What refits these cases without the group of a name."""
        return cls(
            cases=cases,
            calibration=calibration,
            by=by,
            served=prepare(_with_means(cases), calibration_name=calibration),
            medians=steps_of([case for case in cases if is_of_older_engine(case)], calibration),
            prompts=prompts_of(cases, calibration),
        ).fold

    def fold(self, name: str) -> Fold:
        """Everything refitted without the group of a name, and that group scored."""

        def seen(case: Case) -> bool:
            return not name or fold_name(case, self.by) != name

        def scored(case: Case) -> bool:
            return not name or fold_name(case, self.by) == name

        ready = self.served
        fitted_to = np.array([seen(case) for case in ready.cases], dtype=bool)
        start = shipped_numbers(ready, self.cases[0])
        # a fold of pools only does not hold out any case of the fit
        numbers = fit_numbers(ready, start, fitted_to) if not name or not fitted_to.all() else start
        pools = [case for case in self.cases if case.kind == "serve-disaggregated"]
        numbers = fit_pools([case for case in pools if seen(case)], numbers, self.calibration)
        fold = score_fold(ready, numbers, np.array([scored(case) for case in ready.cases], dtype=bool), name)
        scores = _predicted(filter(scored, pools), predictor_of(self.calibration, numbers.stack))[0]
        # an older engine, with the power that its predictions leave to the chips
        steps = [step for step in self.medians if seen(step.case)]
        engine = fit_engine(steps) if len(steps) >= OF_ENGINE else ELSEWHERE
        of_engine = with_engine(engine)
        predictor = predictor_of(self.calibration, lambda found: of_engine(numbers.stack(found)))
        powers = fit_power(prepared(filter(has_power, filter(seen, self.cases)), predictor.power))
        own = [step.case for step in self.medians if scored(step.case)]
        scores += _predicted(own, replace(predictor, powers=powers))[0]
        further: dict[str, float] = dict(zip(NAMES, engine.tolist(), strict=True)) if self.medians else {}
        prompts = [one for one in self.prompts if seen(one.case)]
        if len(prompts) >= OF_SINGLE:
            further[SINGLE] = fit_prompts(prompts)
            slower = with_slowdown(further[SINGLE], {one.stack for one in self.prompts})
            own = [one.case for one in self.prompts if scored(one.case)]
            scores += _predicted(own, predictor_of(self.calibration, slower))[0]
        return replace(
            fold,
            num_cases=fold.num_cases + len({one.case_id for one in scores}),
            scores=(*fold.scores, *scores),
            engine=further,
            power=flat(powers),
        )


def _predicted(cases: Iterable[Case], predictor: Predictor) -> tuple[list[Score], list[Unsupported]]:
    """Scores of cases under fitted numbers, and those without a prediction."""
    scores: list[Score] = []
    unsupported: list[Unsupported] = []
    asked = list(cases)
    for case, values in zip(asked, predictor.predict_all(asked), strict=True):
        if isinstance(values, dict):
            scores += scores_of(case, values)
        else:
            unsupported.append(Unsupported.of(case, str(values), bad_input=True))
    return scores, unsupported


def score_fold(ready: FitCases, numbers: ServingNumbers, scored: Array, left_out: str = EVERYTHING) -> Fold:
    """Score some cases under these parameters.

    Args:
        scored: mask of the cases to score, shape (cases,).
    """
    rows = [int(index) for index in np.flatnonzero(scored)]
    predicted = ready.predict(numbers, rows)
    scores = [one for index in rows for one in scores_of(ready.cases[index], ready.values(predicted, index))]
    return Fold(
        left_out=left_out,
        num_cases=len(rows),
        numbers=numbers,
        scores=tuple(scores),
        memory_bound=tuple(ready.cases[index].case_id for index in rows if predicted.memory_bound[index]),
    )
