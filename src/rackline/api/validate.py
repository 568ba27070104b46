"""`validate`: predict measured cases, or turn results of a benchmark into cases."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict, get_args

from rackline.api.answer import Answer, SideFile, Verbatim, Watch, asks
from rackline.api.groups import IMPORTED, Described
from rackline.api.question import (
    Option,
    Texts,
    option,
    question,
)
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.files import check_outputs, write_text
from rackline.late import late
from rackline.units import format_percent, several

with late:
    from rackline import validation
    from rackline.bands import bands
    from rackline.display import figure
    from rackline.validation import (
        coverage,
        importers,
        laboratories,
        page,
        refit as validation_refit,
        refit_report,
        report,
        run,
        scoreboard,
        train_fit,
    )


LeftOut = Literal["model", "chip", "stack", "version", "laboratory", "half", "source"]
Format = Literal["vllm", "genai-perf", "aiperf", "inferencex", "inference-perf", "guidellm"]
_MOST_WARNINGS = 20


@question
class ValidateQuestion(Described):
    """How far off are the predictions of measured cases, by metric, model, chip, stack and precision?"""

    files: Texts = option(
        "text",
        "measured cases, one JSON object per line, also compressed (.gz); the cases that rackline ships by default; "
        "with `import_format`, benchmark results",
        default=None,
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
        "compare with a stored scoreboard; exit with 1 if the median or p90 of a metric, or the median of a group of "
        "30 cases or more, got worse by more than 5 %, or if coverage fell",
        default=None,
    )
    refit: LeftOut | None = option(
        "text",
        "cross-validate: refit the serving parameters without each model, chip, stack, version of a stack, "
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
    headroom: bool = option(
        "switch",
        "show how often the headroom of `plan --confidence` would have been enough, with the laboratory, then the "
        "model, of each case left out: at 80 and 90 %, in total and by group",
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
        group=IMPORTED,
        output=True,
    )

    def check_options(self) -> None:
        """Refuse what only an import needs without one, an import of nothing, and refits that exclude each other.

        Raises:
            InputError: such options.
        """
        if self.import_format is not None:
            self.refuse("headroom", allowed="only without `import_format`")
            require(bool(self.files), what="files", given="nothing", allowed="the results of a load generator")
        else:
            self.refuse(
                "model",
                "chip",
                "output",
                "layout",
                allowed="only with `import_format`, which says what the results lack",
            )
            self._check_refits()
        super().check_options()

    def _check_refits(self) -> None:
        if self.write_stacks is not None:
            self.refuse("headroom", allowed="only without `write_stacks`")
            return
        if self.ablation or self.refit is not None:
            self.refuse("headroom", allowed="only without `refit` and `ablation`")
        require(
            self.stored is None or (not self.ablation and self.refit is None),
            what="stored",
            given=self.stored,
            allowed="only without `refit` and `ablation`",
        )
        require(
            not self.ablation or self.refit is None,
            what="ablation",
            given="with other refits",
            allowed="`ablation` alone",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Predicted cases.

    Args:
        board: how far off they are.
        worse: what is worse than in the stored scoreboard; None where none was given.
        likely: errors of the computed and of the likely numbers by metric, each case without its laboratory.
        headroom: how often headroom from other laboratories, then other models, was enough; None if not asked for.
    """

    json_keys: ClassVar = ("*board", "worse", "likely", "headroom")

    board: scoreboard.Scoreboard
    worse: tuple[str, ...] | None = None
    likely: tuple[laboratories.LikelyStats, ...] = ()
    headroom: tuple[laboratories.HeadroomCoverage, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """The scoreboard without each effect in turn.

    Args:
        effects: one per row.
    """

    effects: tuple[refit_report.Ablated, ...]


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
    not_written: tuple[train_fit.NotWritten, ...] = ()


Found: TypeAlias = "Validated | Ablation | Imported | StacksWritten | validation_refit.Refit | train_fit.TrainRefit"
Answered: TypeAlias = "Answer[ValidateQuestion, Found]"


def case_files(question: ValidateQuestion) -> tuple[str, ...]:
    """Return the files whose cases a question is about; those that rackline ships if it names none."""
    return question.files or tuple(map(str, validation.shipped_cases()))


def text_of(answer: Answered, width: int) -> Iterable[Any]:
    found, elapsed_s = answer.result, answer.elapsed_s
    if isinstance(found, Validated):
        if answer.question.files:
            yield report.scoreboard_report(found.board, likely=found.likely, elapsed_s=elapsed_s, width=width)
        else:
            yield report.shipped_report(found.board, likely=found.likely, elapsed_s=elapsed_s)
        if found.headroom is not None:
            yield from (table.table() for table in laboratories.coverage_tables(found.headroom))
    elif isinstance(found, validation_refit.Refit):
        yield refit_report.refit_report(found, elapsed_s=elapsed_s, width=width)
    elif isinstance(found, train_fit.TrainRefit):
        yield refit_report.train_refit_report(found, elapsed_s=elapsed_s)
    elif isinstance(found, Ablation):
        yield refit_report.ablation_report(found.effects, elapsed_s=elapsed_s)
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

    found: Ablation | validation_refit.Refit | train_fit.TrainRefit
    elapsed_s: float


def data_of(answer: Answered) -> Validated | CasesData | StacksWritten | Timed:
    found = answer.result
    if isinstance(found, Imported):
        return {"cases": [json.loads(line) for line in found.lines.splitlines()]}
    if isinstance(found, Validated | StacksWritten):
        return found
    return Timed(found=found, elapsed_s=answer.elapsed_s)


def summary_of(answer: Answered) -> str:
    found = answer.result
    if isinstance(found, Validated):
        medians = ", ".join(
            f"{name} {format_percent(stats.median_abs_error)}"
            for name, stats in found.board.metrics.items()
            if stats.supported
        )
        supported = found.board.num_cases - len(found.board.unsupported)
        return f"median |error|: {medians or 'none'}; {supported:,} of {found.board.num_cases:,} cases predicted"
    if isinstance(found, Imported):
        return several(found.lines.count("\n"), "case")
    return f"{type(found).__name__} of {', '.join(case_files(answer.question))}"


def rows_of(answer: Answered) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, Validated):
        return found.board.groups
    if isinstance(found, Ablation):
        return found.effects
    if isinstance(found, Imported):
        return [json.loads(line) for line in found.lines.splitlines()]
    return [{"file": name} for name in found.files] if isinstance(found, StacksWritten) else found.folds


def figure_of(answer: Answered) -> figure.Figure:
    if not isinstance(answer.result, Validated):
        raise InputError(what="plot", given=answer.question.ask, allowed="only without `refit` and `ablation`")
    return report.parity_figure(answer.result.board)


def notes(answer: Answered) -> Iterable[str]:
    found = answer.result
    if isinstance(found, Imported) and found.file is not None:
        yield f"{several(found.lines.count(chr(10)), 'case')} written to {found.file}"
    elif isinstance(found, StacksWritten):
        yield from (f"written: {name}" for name in found.files)
        yield from (f"{one.reason}; printed instead" for one in found.not_written)
    else:
        board: scoreboard.Scoreboard | None = getattr(found, "board", None)  # those of refits warn as well
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


def _write_stored(answer: Answered, path: Path, _: str) -> None:
    if isinstance(answer.result, Validated):
        page.write_stored(answer.result.board, case_files(answer.question), path)


def _write_docs(answer: Answered, path: Path, _: str) -> None:
    found = answer.result
    if isinstance(found, Ablation):
        block = "ablation", refit_report.ablation_markdown(found.effects)
    elif isinstance(found, validation_refit.Refit):
        block = f"left out by {found.by}", refit_report.refit_markdown(found)
        if found.by in ("model", "laboratory"):
            scores = held_out_scores(found, case_files(answer.question), answer.question.calibration)
            held = coverage.coverage_markdown(coverage.held_out_coverage(scores, found.by), found.by)
            page.fill_block(path, *page.marks(f"intervals left out by {found.by}"), held)
    elif isinstance(found, train_fit.TrainRefit):
        block = f"training left out by {found.by}", refit_report.train_refit_markdown(found)
    elif not isinstance(found, Validated):
        raise InputError(what="write_docs", given=str(path), allowed="only for a scoreboard, refits and ablation")
    elif found.board.both_ways and len(found.board.both_ways) == found.board.num_cases:
        block = "unknown speculation", page.speculation_markdown(found.board.both_ways)
    else:
        block = page.block_of(page.stored_form(found.board, case_files(answer.question)))
    page.fill_block(path, *page.marks(block[0]), block[1])


def _write_bands(answer: Answered, path: Path, _: str) -> None:
    """Write the error bands of these values."""
    files, found = case_files(answer.question), answer.result
    if not isinstance(found, Validated | validation_refit.Refit):
        raise InputError(what="write_bands", given=str(path), allowed="only for served cases")
    scores = found.board.scores
    if isinstance(found, validation_refit.Refit):
        scores = held_out_scores(found, files, answer.question.calibration)
    write_text(path, bands.to_toml(coverage.make_bands(scores), files), what="write_bands")


def held_out_scores(
    found: validation_refit.Refit, files: tuple[str, ...], calibration: str = "auto"
) -> list[scoreboard.Score]:
    """Scores of all cases of some files, predicted without what the fit of their kind was scored on.

    What was left out stands for a new model; training cases are left out by source; kinds of cases that no number is
    fitted to are scored as they are.

    Args:
        found: the refits of the served cases.
        files: all cases.
        calibration: as of the question.
    """
    scores = list(found.board.scores)
    known = {(score.groups["kind"], score.case_id) for score in scores}
    cases = validation.read_cases(files)
    others = tuple(
        case
        for case in cases.cases
        if case.kind not in (*scoreboard.SERVED, "train") and (case.kind, case.case_id) not in known
    )
    if others:
        unfitted = validation.CaseSet(cases=others, unsupported=(), unknown_keys={})
        scores += run.score_cases(unfitted, calibration, num_worst=0).scores
    if any(case.kind == "train" for case in cases.cases):
        scores += [score for fold in train_fit.refit_training(cases, "source").folds for score in fold.scores]
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
            require(name not in outputs, what=name, given="a file", allowed="only without `refit` and `ablation`")
    require(
        not question.ablation or "write_bands" not in outputs,
        what="ablation",
        given="with error bands",
        allowed="`ablation` alone",
    )


def _warnings(board: scoreboard.Scoreboard) -> Iterable[str]:
    """Where cases are wrong in themselves: one line a cause, with its first place."""
    lines: dict[str, list[str]] = {}
    for case in board.bad_input:
        lines.setdefault(case.cause, []).append(case.where)
    for cause, places in list(lines.items())[:_MOST_WARNINGS]:
        more = f" (and {len(places) - 1:,} more)" if len(places) > 1 else ""
        yield f"warning: {places[0]}{more}: {cause}"
    if len(lines) > _MOST_WARNINGS:
        yield f"warning: {len(lines) - _MOST_WARNINGS:,} more causes; --json has all"


@asks(
    ValidateQuestion,
    text=text_of,
    summary=summary_of,
    rows=rows_of,
    data=data_of,
    figures={"parity": figure_of},
    files=FILES,
    notes=notes,
    status=status,
    refuse=refuse,
    simulates=True,
    entry=Entry(
        group="Measure",
        place=2,
        line="Compare predictions with measured cases.",
        usual=("calibration", "stored", "import_format", "output"),
        request={
            "files": ["cases.jsonl"],
            "uploads": {
                "cases.jsonl": '{"id": "a", "kind": "static-batch", "source": "own", "model": "llama-3.1-8b", '
                '"chip": "h100-sxm", "num_chips": 1, "stack": "trtllm", "precision": "bf16", '
                '"layout": {"tp": 1}, "batch_size": 8, "input_len": 1000, "output_len": 100, '
                '"measured": {"token_s": 0.008}}\n'
            },
        },
        is_long=True,
        examples="""
    rackline validate
    rackline validate cases.jsonl --plot parity.html
    rackline validate cases.jsonl --calibration unit --json
    rackline validate --headroom
    rackline validate --import vllm result.json --chip h100-sxm \\
      --num-chips 4 --layout tp=4 --precision fp8 -o cases.jsonl
""",
    ),
)
def validate(question: ValidateQuestion, watch: Watch) -> Found:
    """Predict measured cases and print how far off the predictions are, by metric, model, chip, stack and precision.

    Without files, the cases are those that rackline ships: 2,800 published measurements whose licences allow it. A
    case that cannot be predicted is counted and named, never dropped. The likely numbers are scored too, with
    corrections from other laboratories only. With an import format, results of a benchmark are turned into cases
    instead.

    Example:
        >>> import rackline as rl
        >>> rl.validate("no-such-cases.jsonl")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: ...
    """
    if question.import_format is not None:
        return _import(question, question.files, question.import_format)
    files = case_files(question)
    if question.write_stacks is not None:
        return _write_stacks(files, question.write_stacks, watch)
    if question.ablation:
        with watch.counting("refitting without each effect", "fitted without") as done:
            cases = validation.read_cases(files)
            effects = refit_report.ablation(cases, calibration=question.calibration, done=done)
        return Ablation(effects=tuple(effects))
    if question.refit is not None:
        return _refit(files, question.refit, question.calibration, watch)

    before = page.read_stored(Path(question.stored)) if question.stored else None
    with watch.moving("predicting cases"):
        board = validation.validate(files, question.calibration)
    with watch.moving("predicting each laboratory from the others"):
        likely = laboratories.likely_stats(board.scores)
    return Validated(
        board=board,
        worse=None if before is None else tuple(page.worse_than(before, board)),
        likely=likely,
        headroom=_headroom(board, watch) if question.headroom else None,
    )


def _headroom(board: scoreboard.Scoreboard, watch: Watch) -> tuple[laboratories.HeadroomCoverage, ...]:
    """Return how often headroom was enough, without the laboratory and without the model of each case."""
    rows: list[laboratories.HeadroomCoverage] = []
    for left_out in ("laboratory", "model"):
        with watch.moving(f"leaving each {left_out} out"):
            rows += laboratories.headroom_coverage(board.scores, left_out)
    return tuple(rows)


def _import(question: ValidateQuestion, files: tuple[str, ...], import_format: Format) -> Imported:
    target = None if question.output is None else Path(question.output)
    check_outputs({"output": target}, {f"files {name}": name for name in files})
    given = importers.Given(**{one.name: getattr(question, one.name) for one in fields(importers.Given)})
    lines = importers.import_results(files, import_format, given)
    if target is not None:
        write_text(target, lines, what="output")
    return Imported(lines=lines, file=question.output)


def _refit(
    files: tuple[str, ...], by: LeftOut, calibration: str, watch: Watch
) -> validation_refit.Refit | train_fit.TrainRefit:
    """Leave each one out in turn; of training cases each source, model family or chip."""
    cases = validation.read_cases(files)
    with watch.counting(f"refitting without each {by}", "fitted without") as done:
        if any(case.kind != "train" for case in cases.cases):
            if by == "source":
                raise InputError(
                    what="refit", given=by, allowed="model, chip, stack, version, laboratory or half for servings"
                )
            return validation_refit.refit(cases, by, calibration=calibration, done=done)
        if by in ("stack", "version", "half", "laboratory"):
            raise InputError(
                what="refit", given=by, allowed="source, model or chip for training cases", nearest="source"
            )
        return train_fit.refit_training(cases, by, done=done)


def _write_stacks(files: tuple[str, ...], folder: str, watch: Watch) -> StacksWritten:
    """Fit the training numbers and write the stacks that hold them."""
    target = Path(folder)
    require(target.is_dir(), what="write_stacks", given=folder, allowed="a folder that exists")
    with watch.moving("fitting the training parameters"):
        written, failed = train_fit.write_stacks(train_fit.fitted_stacks(validation.read_cases(files)), target)
    return StacksWritten(files=tuple(map(str, written)), not_written=tuple(failed))
