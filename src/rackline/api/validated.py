"""The question of `validate`, and what it finds: how each result is printed and written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, get_args

from rackline.api.answer import Answer, SideFile, Verbatim
from rackline.api.option import MOST_CHIPS, Option, option, tokens, whole
from rackline.api.question import Question, question
from rackline.errors import InputError
from rackline.files import write_text

if TYPE_CHECKING:
    from rackline.api.option import MaybeLayout, MaybeNumber, MaybeWhole, Texts
    from rackline.report.figure import Figure
    from rackline.validation.ablation import Ablated
    from rackline.validation.refit import Refit
    from rackline.validation.scoreboard import Score, Scoreboard
    from rackline.validation.train_fit import NotWritten, TrainRefit

LeftOut = Literal["model", "chip", "stack", "version", "laboratory", "half", "source"]
Format = Literal["vllm", "genai-perf", "aiperf", "inferencex", "inference-perf", "guidellm"]
_IMPORT = "Only with --import"


def _imported(help_text: str, *, default: None = None) -> Any:
    return option("text", help_text, default=default, group=_IMPORT)


@question
class ValidateQuestion(Question):
    """How far off are the predictions of measured cases, by metric, model, chip, stack and precision?"""

    ask: ClassVar[str] = "validate"

    files: Texts = option(
        "text",
        "measured cases, one JSON object per line; with `import_format`, benchmark results",
        several=True,
        kw_only=False,
    )
    calibration: str = option(
        "text",
        "calibration: auto (the case's own stack), a stack, unit (ideal roofline) or a TOML file",
        default="auto",
    )
    strict: bool = option("switch", "exit with 1 if a case cannot be predicted", default=False)
    stored: str | None = option(
        "text",
        "compare with a stored scoreboard; exit with 1 if a median or p90 got worse or coverage fell",
        default=None,
    )
    refit: LeftOut | None = option(
        "text",
        "leave one group out: refit the serving parameters without each model, chip, stack, version of a stack, "
        "laboratory or half of the configurations in turn and score the held-out cases; with training cases only, "
        "the training parameters without each source, model family or chip",
        default=None,
        choices=get_args(LeftOut),
    )
    ablation: bool = option(
        "switch",
        "switch off each serving effect in turn, refit the other parameters and score all cases",
        default=False,
    )
    write_stacks: str | None = option(
        "text",
        "fit the training parameters to the training cases and write the training stacks to FOLDER",
        default=None,
        output=True,
    )
    import_format: Format | None = option(
        "text",
        f"import results of a load generator: {', '.join(get_args(Format))}; those that hold each request become "
        "observed runs",
        default=None,
        flag="--import",
        choices=get_args(Format),
    )
    output: str | None = option(
        "text",
        "file for the imported cases; standard output by default",
        default=None,
        short="o",
        group=_IMPORT,
        output=True,
    )
    model: str | None = _imported("model of the imported results, if the file does not name it as rackline does")
    chip: str | None = _imported("chip of the imported results")
    num_chips: MaybeWhole = whole(
        "number of chips that served the imported results", default=None, maximum=MOST_CHIPS, group=_IMPORT
    )
    layout: MaybeLayout = _imported("parallel layout of the imported results, such as tp=4")
    precision: str | None = _imported("data types, such as fp8; those of the released checkpoint by default")
    stack: str | None = _imported("serving software")
    input_len: MaybeNumber = tokens("mean prompt tokens, if the file does not say", default=None, group=_IMPORT)
    output_len: MaybeNumber = tokens("mean output tokens, if the file does not say", default=None, group=_IMPORT)
    concurrency: MaybeWhole = whole("concurrent requests, if the file does not say", default=None, group=_IMPORT)


_MOST_WARNINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Predicted cases.

    Args:
        board: how far off they are.
        worse: what is worse than in the stored scoreboard; None where none was given.
    """

    json_keys: ClassVar = ("*board", "worse")

    board: Scoreboard
    worse: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """The scoreboard without each effect in turn.

    Args:
        effects: one per row.
    """

    effects: tuple[Ablated, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Cases of a benchmark's results.

    Args:
        lines: one JSON object per line.
        file: to which they were written, if to one.
    """

    lines: str
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksWritten:
    """Training stacks that were written.

    Args:
        files: their names.
        not_written: those whose files failed, with what they would hold.
    """

    files: tuple[str, ...]
    not_written: tuple[NotWritten, ...] = ()


if TYPE_CHECKING:
    Found = Validated | Ablation | Imported | StacksWritten | Refit | TrainRefit
    Answered = Answer[ValidateQuestion, Found]


def text_of(answer: Answered, width: int) -> Iterable[Any]:
    from rackline.validation.refit import Refit
    from rackline.validation.refit_report import ablation_report, refit_report, train_refit_report
    from rackline.validation.report import scoreboard_report
    from rackline.validation.train_fit import TrainRefit

    found, elapsed_s = answer.result, answer.elapsed_s
    if isinstance(found, Validated):
        yield scoreboard_report(found.board, elapsed_s=elapsed_s, width=width)
    elif isinstance(found, Refit):
        yield refit_report(found, elapsed_s=elapsed_s, width=width)
    elif isinstance(found, TrainRefit):
        yield train_refit_report(found, elapsed_s=elapsed_s)
    elif isinstance(found, Ablation):
        yield ablation_report(found.effects, elapsed_s=elapsed_s)
    elif isinstance(found, Imported) and found.file is None:
        yield Verbatim(found.lines)
    elif isinstance(found, StacksWritten):
        yield from (Verbatim(one.toml) for one in found.not_written)


class CasesData(TypedDict):
    """Cases, in the form that `validate` reads."""

    cases: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What was found and how long it took [s]."""

    json_keys: ClassVar = ("*found", "elapsed_s")

    found: Ablation | Refit | TrainRefit
    elapsed_s: float


def data_of(answer: Answered) -> Validated | CasesData | StacksWritten | Timed:
    found = answer.result
    if isinstance(found, Imported):
        return {"cases": [json.loads(line) for line in found.lines.splitlines()]}
    if isinstance(found, Validated | StacksWritten):
        return found
    return Timed(found=found, elapsed_s=answer.elapsed_s)


def summary_of(answer: Answered) -> str:
    from rackline.units import format_percent

    found = answer.result
    if isinstance(found, Validated):
        medians = ", ".join(
            f"{name} {format_percent(stats.median_abs_error)}" for name, stats in found.board.metrics.items()
        )
        supported = found.board.num_cases - len(found.board.unsupported)
        return f"median |error|: {medians or 'none'}; {supported:,} of {found.board.num_cases:,} cases predicted"
    if isinstance(found, Imported):
        return f"{found.lines.count(chr(10))} cases"
    return f"{type(found).__name__} of {', '.join(answer.question.files)}"


def rows_of(answer: Answered) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, Validated):
        return found.board.groups
    if isinstance(found, Ablation):
        return found.effects
    if isinstance(found, Imported):
        return [json.loads(line) for line in found.lines.splitlines()]
    return [{"file": name} for name in found.files] if isinstance(found, StacksWritten) else found.folds


def figure_of(answer: Answered) -> Figure:
    from rackline.validation.figure import parity_figure

    if not isinstance(answer.result, Validated):
        raise InputError(what="plot", given=answer.question.ask, allowed="only without `refit` and `ablation`")
    return parity_figure(answer.result.board)


def notes(answer: Answered) -> Iterable[str]:
    found = answer.result
    if isinstance(found, Imported) and found.file is not None:
        yield f"{found.lines.count(chr(10))} cases written to {found.file}"
    elif isinstance(found, StacksWritten):
        yield from (f"written: {name}" for name in found.files)
        yield from (f"{one.reason}; printed instead" for one in found.not_written)
    else:
        board: Scoreboard | None = getattr(found, "board", None)  # those of refits warn as well
        if board is not None:
            yield from _warnings(board)
        if isinstance(found, Validated):
            yield from (f"worse: {line}" for line in found.worse or ())


def status(answer: Answered) -> int:
    """1 where a check failed: worse than before, or a case without a prediction; 2 where a file was not written."""
    found = answer.result
    if isinstance(found, StacksWritten):
        return 2 if found.not_written else 0
    if not isinstance(found, Validated):
        return 0
    return int(bool(found.worse) or (answer.question.strict and bool(found.board.unsupported)))


def _write_stored(answer: Answered, path: Path) -> None:
    from rackline.validation.scoreboard import write_stored

    if isinstance(answer.result, Validated):
        write_stored(answer.result.board, answer.question.files, path)


def _write_docs(answer: Answered, path: Path) -> None:
    from rackline.validation.ablation import write_docs as write_ablation
    from rackline.validation.page import write_docs as write_scoreboard
    from rackline.validation.refit import Refit
    from rackline.validation.refit_report import write_refit_docs, write_train_refit_docs
    from rackline.validation.scoreboard import stored_form
    from rackline.validation.speculation import write_docs as write_speculation
    from rackline.validation.train_fit import TrainRefit

    found = answer.result
    if isinstance(found, Ablation):
        write_ablation(found.effects, path)
    elif isinstance(found, Refit):
        write_refit_docs(found, path)
        if found.by in ("model", "laboratory"):
            from rackline.validation.coverage import write_coverage_docs

            files = answer.question.files
            write_coverage_docs(held_out_scores(found, files, answer.question.calibration), found.by, path)
    elif isinstance(found, TrainRefit):
        write_train_refit_docs(found, path)
    elif not isinstance(found, Validated):
        raise InputError(what="write_docs", given=str(path), allowed="only for a scoreboard, refits and ablation")
    elif found.board.both_ways and len(found.board.both_ways) == found.board.num_cases:
        write_speculation(found.board.both_ways, path)
    else:
        write_scoreboard(stored_form(found.board, answer.question.files), path)


def _write_bands(answer: Answered, path: Path) -> None:
    """Write the error bands of these values."""
    from rackline.bands.bands import to_toml
    from rackline.validation.coverage import make_bands
    from rackline.validation.refit import Refit

    files, found = answer.question.files, answer.result
    if not isinstance(found, Validated | Refit):
        raise InputError(what="write_bands", given=str(path), allowed="only for served cases")
    scores = (
        held_out_scores(found, files, answer.question.calibration) if isinstance(found, Refit) else found.board.scores
    )
    write_text(path, to_toml(make_bands(scores), files), what="write_bands")


def held_out_scores(found: Refit, files: tuple[str, ...], calibration: str = "auto") -> list[Score]:
    """Scores of all cases of some files, predicted without what the fit of their kind was scored on.

    What was left out stands for a new model; training cases are left out by source; kinds of cases that no number is
    fitted to are scored as they are.

    Args:
        found: the refits of the served cases.
        files: all cases.
        calibration: as of the question.
    """
    from rackline.validation import CaseSet, read_cases
    from rackline.validation.run import score_cases
    from rackline.validation.scoreboard import SERVED
    from rackline.validation.train_fit import refit_training

    scores = list(found.board.scores)
    known = {(score.groups["kind"], score.case_id) for score in scores}
    cases = read_cases(files)
    others = tuple(
        case for case in cases.cases if case.kind not in (*SERVED, "train") and (case.kind, case.case_id) not in known
    )
    if others:
        unfitted = CaseSet(cases=others, unsupported=(), unknown_keys={})
        scores += score_cases(unfitted, calibration, num_worst=0).scores
    if any(case.kind == "train" for case in cases.cases):
        scores += [score for fold in refit_training(cases, "source").folds for score in fold.scores]
    return scores


FILES = {
    "write_stored": SideFile(
        option=Option(kind="text", help="write the scoreboard to FILE.json, for `stored`"), write=_write_stored
    ),
    "write_docs": SideFile(
        option=Option(
            kind="text",
            help="write the scoreboard (refits with their intervals, ablation) to the marked block of a Markdown page, "
            "or of the page of a folder that has it",
        ),
        write=_write_docs,
        folders=True,
    ),
    "write_bands": SideFile(
        option=Option(
            kind="text",
            help="write the error bands of these cases to FILE.toml; with `refit`, from held-out predictions",
        ),
        write=_write_bands,
    ),
}


def refuse(question: ValidateQuestion, outputs: frozenset[str]) -> None:
    """Outputs that this question does not have."""
    if question.refit is not None or question.ablation:
        for name in ("plot", "write_stored"):
            if name in outputs:
                raise InputError(what=name, given="a file", allowed="only without `refit` and `ablation`")
    if question.ablation and "write_bands" in outputs:
        raise InputError(what="ablation", given="with error bands", allowed="`ablation` alone")


def _warnings(board: Scoreboard) -> Iterable[str]:
    """Where cases are wrong in themselves: one line a cause, with its first place."""
    lines: dict[str, list[str]] = {}
    for case in board.bad_input:
        lines.setdefault(case.cause, []).append(case.where)
    for cause, places in list(lines.items())[:_MOST_WARNINGS]:
        more = f" (and {len(places) - 1:,} more)" if len(places) > 1 else ""
        yield f"warning: {places[0]}{more}: {cause}"
    if len(lines) > _MOST_WARNINGS:
        yield f"warning: {len(lines) - _MOST_WARNINGS:,} more causes; --json has all"
