"""Fit of the training stacks' parameters to published steps, with sources left out, and the fitted stacks as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np

from rackline.catalog import names
from rackline.errors import InputError
from rackline.files import rounded, toml_text, write_text
from rackline.fitting.solver import Done, Parameter, fit, groups_of, leave_out
from rackline.passes.features import Array
from rackline.plain import plain
from rackline.training.stack import IDEAL, TrainingStack, training_stack
from rackline.validation.cases import Case, CaseSet
from rackline.validation.resolve import Resolver
from rackline.validation.run import scores_of
from rackline.validation.scoreboard import Score, Stats, statistics
from rackline.validation.train_cases import TrainCases, find_stack, prepare_training

NOISE = 0.05
"""Spread of one configuration between releases, the scale of residuals (median of repeats 2 to 4 %)."""


def _n(name: str, prior: float, spread: float, low: float, high: float) -> Parameter:
    """A parameter of a number by its dotted key: alone, with "generation dtype" for slowdowns, or with one stack."""
    return Parameter(name=name, start=prior, spread=spread, low=low, high=high)


_TABLES = ("kernels.gemm_slowdown", "kernels.expert_slowdown")
"""Numbers of a stack that differ by generation and data type."""
_COMMON: tuple[Parameter, ...] = (
    _n("kernels.gemm_slowdown ampere *", 1.15, 0.15, 0.8, 2.0),
    _n("kernels.gemm_slowdown hopper bf16", 1.15, 0.15, 0.8, 2.0),
    _n("kernels.gemm_slowdown hopper *", 1.15, 0.15, 0.8, 2.0),
    _n("kernels.gemm_slowdown blackwell bf16", 1.15, 0.15, 0.8, 2.0),
    _n("kernels.gemm_slowdown blackwell fp8", 1.15, 0.15, 0.8, 2.0),
    _n("kernels.gemm_slowdown blackwell fp4", 1.15, 0.15, 0.8, 2.0),
    # a compiled step runs the products that were timed alone, and engines of their own move what chips exchange
    _n("kernels.gemm_slowdown tpu *", 1.0, 0.05, 0.8, 2.0),
    _n("kernels.gemm_slowdown * *", 1.15, 0.15, 0.8, 2.0),  # chips without measurements stay at the prior
    _n("kernels.expert_slowdown hopper *", 1.1, 0.15, 0.8, 2.0),
    _n("kernels.flash_forward", 1.1, 0.15, 0.8, 2.5),
    _n("kernels.flash_backward", 1.3, 0.15, 0.9, 2.0),
    _n("kernels.elementwise", 1.0, 0.4, 0.3, 4.0),
    _n("kernels.quantise", 1.0, 0.4, 0.2, 4.0),
    _n("kernels.permute", 4.0, 0.5, 0.5, 12.0),
    _n("kernels.unfused", 10.0, 1.0, 1.0, 120.0),
    _n("kernels.state", 10.0, 0.7, 1.0, 100.0),
    _n("communication.tensor_exposed", 0.3, 0.5, 0.05, 1.0),
    _n("communication.context_exposed", 0.3, 0.5, 0.05, 1.0),
    _n("communication.expert_inside", 1.0, 0.5, 0.1, 3.0),
    _n("communication.expert_outside", 1.2, 0.5, 0.1, 4.0),
    _n("communication.data_exposed", 0.7, 0.4, 0.05, 1.5),
    _n("communication.shard_exposed", 0.5, 0.4, 0.05, 1.0),
    _n("host.dense_s", 0.9e-3, 0.4, 0.1e-3, 4e-3),
    _n("host.moe_s", 5e-3, 0.25, 0.3e-3, 20e-3),
    _n("host.expert_s", 0.1e-3, 0.3, 0.01e-3, 0.3e-3),
    _n("host.state_s", 5e-3, 0.5, 0.3e-3, 20e-3),
    _n("host.grace_over_x86", 0.6, 0.4, 0.2, 1.5),
)


@cache
def fitted_numbers() -> tuple[Parameter, ...]:
    """All fitted parameters: those that stacks share, and those of single stacks of the catalogue."""
    own = (
        _n(f"{one.key} {stack}", one.prior, one.spread, one.low, one.high)
        for stack in names("training_stacks")
        for one in training_stack(stack).evidence.own
    )
    return (*_COMMON, *own)


def stacks_with(values: Mapping[str, float], base: Mapping[str, TrainingStack]) -> dict[str, TrainingStack]:
    """Stacks with these parameters; everything else is unchanged."""
    stacks: dict[str, TrainingStack] = {}
    for name, stack in base.items():
        evidence = stack.evidence
        numbers: dict[str, float] = {}
        tables: dict[str, dict[tuple[str, str], float]] = {table: {} for table in _TABLES}
        for number in fitted_numbers():
            key, *of = number.name.split(" ")
            if key in tables:
                tables[key][of[0], of[1]] = values[number.name]
            elif not of or of == [evidence.numbers_of or name]:
                numbers[key] = values[number.name]
        fitted = {key: value for key, value in (numbers | tables).items() if key not in evidence.stated}
        stacks[name] = stack.with_values(fitted)
    return stacks


def base_stacks(cases: TrainCases) -> dict[str, TrainingStack]:
    """The catalogue's stacks that the cases ran under."""
    return {name: find_stack(name) for name in dict.fromkeys(cases.stacks)}


def fit_numbers(
    cases: TrainCases, rows: Array, base: Mapping[str, TrainingStack], start: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Fit all parameters to some cases.

    Minimises the soft-L1 loss of ln(predicted / measured) over NOISE, plus the squares of ln(value / prior) over each
    parameter's spread: a parameter that the cases do not depend on stays at its prior.

    Args:
        rows: mask or indices of the cases to fit.
        base: stacks with everything that is not fitted.
        start: initial values.
    """
    seen = cases.take(np.flatnonzero(rows) if rows.dtype == bool else rows)
    target = np.log(seen.measured_s)
    parameters = [
        replace(one, start=one.start if start is None else start[one.name], prior=one.start) for one in fitted_numbers()
    ]
    return fit(
        parameters,
        lambda values: np.log(seen.predict(stacks_with(values, base))) - target,
        noise=NOISE,
        loss="robust cases",
        max_nfev=40,
    ).values


_CITATION = (
    "fitted to published training steps of dgxc-benchmarking, Megatron-Bridge, Megatron-LM, LLM Foundry, MaxText and "
    "tpu-recipes; "
    "see docs/accuracy.md"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotWritten:
    """A stack whose file could not be written.

    Args:
        file: its file name.
        reason: why it could not be written.
        toml: its content.
    """

    file: str
    reason: str
    toml: str


def write_stacks(stacks: Mapping[str, TrainingStack], folder: Path) -> tuple[list[Path], list[NotWritten]]:
    """Write one file per stack, with the fitted parameters replaced and everything else kept.

    Args:
        folder: an existing folder.

    Returns:
        The files, and those that could not be written, with their content, because a fit takes minutes.
    """
    written: list[Path] = []
    failed: list[NotWritten] = []
    for name, stack in stacks.items():
        path, text = folder / f"{name}.toml", stack_toml(stack)
        try:
            write_text(path, text, what="--write-stacks")
            written.append(path)
        except InputError as error:
            failed.append(NotWritten(file=str(path), reason=str(error), toml=text))
    return written, failed


def stack_toml(stack: TrainingStack) -> str:
    """Return the file of a stack: what is fitted, what differs from the defaults, and what has a source."""
    own = {number.key for number in stack.evidence.own}
    shared = dict.fromkeys(number.name.split(" ")[0] for number in _COMMON)
    fitted = [key for key in shared if key not in stack.evidence.stated]

    def table_of(record: Any, default: Any, prefix: str = "") -> dict[str, Any]:
        data: dict[str, Any] = {}
        for field in fields(record):
            value, usual = getattr(record, field.name), getattr(default, field.name)
            key = f"{prefix}{field.name}"
            if is_dataclass(value):
                data[field.name] = table_of(value, usual, f"{key}.")
            elif key in _TABLES:
                data[field.name] = _slowdowns(value)
            elif key in fitted or key in own:
                data[field.name] = rounded(value)
            elif value != usual or field.metadata.get("stated") or any(one.covers(key) for one in stack.sources):
                data[field.name] = plain(value)
        return {key: value for key, value in data.items() if value != {}}

    head = {"name": stack.name, "full_name": stack.full_name, "aliases": stack.aliases}
    data = head | {key: value for key, value in table_of(stack, IDEAL).items() if key not in (*head, "sources")}
    fitted = [f"{key}.*" if key in _TABLES else key for key in fitted]
    kept = [source for source in stack.sources if not set(source.fields) & set(fitted)]
    data["sources"] = [source.model_dump(mode="json", exclude_none=True, exclude_defaults=True) for source in kept]
    data["sources"].append({"fields": fitted, "kind": "derived", "citation": _CITATION})
    comment = "Written by `rackline validate --write-stacks`; change the cases or the fit, not this file."
    return toml_text(data, [comment])


def _slowdowns(table: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    """Return a table of slowdowns as files write it."""
    return [
        {"generation": generation, "dtype": dtype, "ratio": rounded(ratio)}
        for (generation, dtype), ratio in table.items()
    ]


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
        repeat_spread: how far cases of one configuration are apart.
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
    repeat_spread: RepeatSpread
    unsupported: int

    @property
    def left_out(self) -> Stats:
        """Errors of all cases when they were held out."""
        return statistics([score for fold in self.folds for score in fold.scores])

    @property
    def median_of_medians(self) -> float:
        """Median over the folds of their median errors."""
        return float(np.median([fold.stats.median_abs_error for fold in self.folds]))


def family(case: Case) -> str:
    """Model family of a case."""
    name = case.model.rsplit("/", 1)[-1].lower()
    return next((label for start, label in FAMILIES if start in name), name or "-")


def fold_of(case: Case, by: TrainLeftOut) -> str:
    """The fold of a case; the source of a training case is its stack."""
    return {"source": case.stack, "model": family(case), "chip": case.chip}[by] or "-"


def repeat_spread(cases: TrainCases) -> RepeatSpread:
    """Spread of the time of a step over its work, among cases of one configuration in several releases or scales."""
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
        return {"pairs": 0, "median": float("nan"), "p90": float("nan")}
    return {"pairs": len(apart), "median": float(np.median(apart)), "p90": float(np.quantile(apart, 0.9))}


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
        repeat_spread=repeat_spread(ready),
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
