"""`validate`: predict measured cases, or turn results of a benchmark into cases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rackline.api.answer import Answer, SideFile, Verbatim, asks
from rackline.api.option import MOST_CHIPS, Option, Quantity, count, layout_text, option, si, texts, tokens, whole
from rackline.api.question import Question
from rackline.api.watch import Watch
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import LayoutLike, Texts
    from rackline.report.figures import Figure
    from rackline.validation.ablation import Ablated
    from rackline.validation.cases import CaseSet
    from rackline.validation.refit import Refit
    from rackline.validation.scoreboard import Score, Scoreboard
    from rackline.validation.train_refit import TrainRefit

LeftOut = Literal["model", "chip", "stack", "source"]
Format = Literal["vllm", "genai-perf", "aiperf", "inferencex"]
_MOST_WARNINGS = 20
_IMPORT = "Only with --import"


def _imported(help_text: str) -> dict[str, Option]:
    return option("text", help_text, group=_IMPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateQuestion(Question):
    """How far off are the predictions of measured cases, by metric, model, chip, stack and precision?"""

    ask: ClassVar[str] = "validate"

    files: Texts = field(
        kw_only=False,
        metadata=option(
            "text",
            "cases, one JSON object a line; with `import_format`, results of a benchmark",
            positional=True,
            several=True,
        ),
    )
    calibration: str = field(
        default="auto",
        metadata=option("text", "auto (the case's own stack), a stack, unit (ideal roofline) or a TOML file"),
    )
    strict: bool = field(default=False, metadata=option("switch", "exit 1 when a case has no prediction"))
    stored: str | None = field(
        default=None,
        metadata=option(
            "text",
            "compare with a scoreboard written earlier; exit 1 when a median or p90 got worse or support fell",
        ),
    )
    refit: LeftOut | None = field(
        default=None,
        metadata=option(
            "text",
            "refit the serving numbers without each model, chip or stack in turn and score what was left out; with "
            "training cases alone, the training numbers without each source, model family or chip",
            choices=get_args(LeftOut),
        ),
    )
    ablation: bool = field(
        default=False,
        metadata=option(
            "switch", "switch each effect of serving off in turn, refit the other numbers and score all cases"
        ),
    )
    write_stacks: str | None = field(
        default=None,
        metadata=option(
            "text", "fit the training numbers to the training cases and write the training stacks into FOLDER"
        ),
    )
    import_format: Format | None = field(
        default=None,
        metadata=option(
            "text",
            f"read results of vllm bench serve, genai-perf, aiperf or InferenceX: {', '.join(get_args(Format))}",
            flag="--import",
            choices=get_args(Format),
        ),
    )
    output: str | None = field(
        default=None,
        metadata=option("text", "file for the imported cases; standard output by default", short="o", group=_IMPORT),
    )
    model: str | None = field(
        default=None,
        metadata=_imported("of the imported results, where the file does not say or says it by another name"),
    )
    chip: str | None = field(default=None, metadata=_imported("of the imported results"))
    num_chips: Quantity | None = field(
        default=None,
        metadata=whole("all chips that served the imported results", maximum=MOST_CHIPS, group=_IMPORT),
    )
    layout: LayoutLike | None = field(default=None, metadata=_imported("how they were used, such as tp=4"))
    precision: str | None = field(
        default=None, metadata=_imported("data types, such as fp8; that of the released checkpoint by default")
    )
    stack: str | None = field(default=None, metadata=_imported("serving software"))
    input_len: Quantity | None = field(
        default=None, metadata=tokens("mean prompt tokens, where the file does not say", group=_IMPORT)
    )
    output_len: Quantity | None = field(
        default=None, metadata=tokens("mean generated tokens, where the file does not say", group=_IMPORT)
    )
    concurrency: Quantity | None = field(
        default=None, metadata=whole("requests in flight, where the file does not say", group=_IMPORT)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Predicted cases.

    Args:
        board: how far off they are.
        worse: what is worse than in the stored scoreboard; None where none was given.
    """

    board: Scoreboard
    worse: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """The scoreboard without each effect in turn.

    Args:
        effects: one a row.
    """

    effects: tuple[Ablated, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Cases of a benchmark's results.

    Args:
        lines: one JSON object a line.
        file: to which they were written, if to one.
    """

    lines: str
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksWritten:
    """Training stacks that were written.

    Args:
        files: their names.
    """

    files: tuple[str, ...]


if TYPE_CHECKING:
    Found = Validated | Ablation | Imported | StacksWritten | Refit | TrainRefit
    Answered = Answer[ValidateQuestion, Found]


def _text(answer: Answered, width: int) -> Iterable[Any]:
    from rackline.validation.refit import Refit
    from rackline.validation.refit_report import ablation_report, refit_report
    from rackline.validation.report import scoreboard_report
    from rackline.validation.train_refit import TrainRefit
    from rackline.validation.train_report import train_refit_report

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


def _data(answer: Answered) -> Any:
    import json

    from rackline.report.plain import plain

    found = answer.result
    if isinstance(found, Validated):
        return {**plain(found.board), **({} if found.worse is None else {"worse": found.worse})}
    if isinstance(found, Imported):
        return {"cases": [json.loads(line) for line in found.lines.splitlines()]}
    if isinstance(found, StacksWritten):
        return found
    return {**plain(found), "elapsed_s": answer.elapsed_s}


def _summary(answer: Answered) -> str:
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
    return f"{type(found).__name__} of {', '.join(texts(answer.question.files))}"


def _rows(answer: Answered) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, Validated):
        return found.board.groups
    if isinstance(found, Ablation):
        return found.effects
    data = _data(answer)
    return data.get("folds") or data.get("cases") or [{"file": name} for name in data.get("files", ())]


def _figure(answer: Answered, kind: str) -> Figure:
    from rackline.validation.figure import parity_figure

    if not isinstance(answer.result, Validated):
        raise InputError(what="plot", given=answer.question.ask, allowed="only without `refit` and `ablation`")
    return parity_figure(answer.result.board)


def _notes(answer: Answered) -> Iterable[str]:
    found = answer.result
    if isinstance(found, Imported) and found.file is not None:
        yield f"{found.lines.count(chr(10))} cases written to {found.file}"
    elif isinstance(found, StacksWritten):
        yield from (f"written: {name}" for name in found.files)
    else:
        board: Scoreboard | None = getattr(found, "board", None)  # those of refits warn as well
        if board is not None:
            yield from _warnings(board)
        if isinstance(found, Validated):
            yield from (f"worse: {line}" for line in found.worse or ())


def _failed(answer: Answered) -> bool:
    found = answer.result
    if not isinstance(found, Validated):
        return False
    return bool(found.worse) or (answer.question.strict and bool(found.board.unsupported))


def _write_stored(answer: Answered, path: Path) -> None:
    from rackline.validation.stored import write_stored

    if isinstance(answer.result, Validated):
        write_stored(answer.result.board, texts(answer.question.files), path)


def _write_docs(answer: Answered, path: Path) -> None:
    from rackline.validation.ablation import write_docs as write_ablation
    from rackline.validation.refit import Refit
    from rackline.validation.refit_report import write_refit_docs
    from rackline.validation.speculation import write_docs as write_speculation
    from rackline.validation.stored import stored_form
    from rackline.validation.stored import write_docs as write_scoreboard
    from rackline.validation.train_refit import TrainRefit
    from rackline.validation.train_report import write_train_refit_docs

    found = answer.result
    if isinstance(found, Ablation):
        write_ablation(found.effects, path)
    elif isinstance(found, Refit):
        write_refit_docs(found, path)
    elif isinstance(found, TrainRefit):
        write_train_refit_docs(found, path)
    elif not isinstance(found, Validated):
        raise InputError(what="write_docs", given=str(path), allowed="only for a scoreboard, refits and ablation")
    elif found.board.both_ways and len(found.board.both_ways) == found.board.num_cases:
        write_speculation(found.board.both_ways, path)
    else:
        write_scoreboard(stored_form(found.board, texts(answer.question.files)), path)


def _write_bands(answer: Answered, path: Path) -> None:
    """Write the error bands of these values."""
    from rackline.validation.bands import make_bands, to_toml
    from rackline.validation.refit import Refit

    files, found = texts(answer.question.files), answer.result
    if not isinstance(found, Validated | Refit):
        raise InputError(what="write_bands", given=str(path), allowed="only for served cases")
    scores: Iterable[Score] = found.board.scores
    if isinstance(found, Refit):
        from rackline.validation import read_cases
        from rackline.validation.run import score_cases

        # what was left out stands for a new model; kinds of cases that no number is fitted to are scored as they are
        kinds = {score.groups["kind"] for score in scores}
        every = score_cases(read_cases(files), answer.question.calibration, num_worst=0).scores
        scores = [*scores, *(score for score in every if score.groups["kind"] not in kinds)]
    path.write_text(to_toml(make_bands(scores), files), encoding="utf-8")


def _existing(text: str, name: str) -> Path:
    return Path(text)


_FILES = {
    "write_stored": SideFile(
        option=Option(kind="text", help="write the scoreboard to FILE.json, for `stored`"), write=_write_stored
    ),
    "write_docs": SideFile(
        option=Option(
            kind="text", help="write the scoreboard (refits, ablation) into the marked block of a Markdown page"
        ),
        write=_write_docs,
        check=_existing,
    ),
    "write_bands": SideFile(
        option=Option(
            kind="text",
            help="write the error bands of these cases to FILE.toml; with `refit` from the refits that left them out",
        ),
        write=_write_bands,
    ),
}


def _refuse(question: ValidateQuestion, outputs: frozenset[str]) -> None:
    """Outputs that this question does not have."""
    if question.refit is not None or question.ablation:
        for name in ("plot", "write_stored"):
            if name in outputs:
                raise InputError(what=name, given="a file", allowed="only without `refit` and `ablation`")
    if question.ablation and "write_bands" in outputs:
        raise InputError(what="ablation", given="with error bands", allowed="`ablation` alone")


@asks(
    ValidateQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    data=_data,
    figure=_figure,
    files=_FILES,
    notes=_notes,
    failed=_failed,
    refuse=_refuse,
)
def validate(question: ValidateQuestion, watch: Watch) -> Found:
    """Predict measured cases and print how far off the predictions are, by metric, model, chip, stack and precision.

    A case that cannot be predicted is counted and named, never dropped. With an import format, results of a benchmark
    are turned into cases instead.

    Example:
        >>> import rackline as rl
        >>> rl.validate("no-such-cases.jsonl")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: ...
    """
    files = texts(question.files)
    if question.import_format is not None:
        return _import(question, files, question.import_format)
    for name in ("model", "chip", "output", "layout"):
        value = getattr(question, name)
        if value is not None:
            allowed = "only with `import_format`, which says what the results lack"
            raise InputError(what=name, given=value, allowed=allowed)
    if question.write_stacks is not None:
        return _write_stacks(files, question.write_stacks, watch)
    if question.ablation:
        if question.refit is not None:
            raise InputError(what="ablation", given="with other refits", allowed="`ablation` alone")
        return _ablation(files, question.calibration, watch)
    if question.refit is not None:
        return _refit(files, question.refit, question.calibration, watch)

    from rackline.validation import validate as run
    from rackline.validation.stored import read_stored, worse_than

    before = read_stored(Path(question.stored)) if question.stored else None
    with watch.moving("predicting cases"):
        board = run(files, question.calibration)
    return Validated(board=board, worse=None if before is None else tuple(worse_than(before, board)))


def _import(question: ValidateQuestion, files: tuple[str, ...], import_format: Format) -> Imported:
    from rackline.validation.importers import Given, import_results

    target = None if question.output is None else Path(question.output)
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        raise InputError(what="output", given=question.output, allowed="a file in a folder that exists")
    given = Given(
        model=question.model,
        chip=question.chip,
        num_chips=count(question.num_chips),
        layout=layout_text(question.layout),
        precision=question.precision,
        stack=question.stack,
        input_len=si(question.input_len),
        output_len=si(question.output_len),
        concurrency=count(question.concurrency),
    )
    lines = import_results(files, import_format, given)
    if target is not None:
        target.write_text(lines, encoding="utf-8")
    return Imported(lines=lines, file=question.output)


def _refit(files: tuple[str, ...], by: LeftOut, calibration: str, watch: Watch) -> Refit | TrainRefit:
    """Leave each one out in turn."""
    from rackline.validation import read_cases
    from rackline.validation.refit import refit

    cases = read_cases(files)
    if all(case.kind == "train" for case in cases.cases):
        return _refit_training(cases, by, watch)
    if by == "source":
        raise InputError(what="refit", given=by, allowed="model, chip or stack; source for training cases alone")
    with watch.counting(f"refitting without each {by}", "fitted without") as done:
        return refit(cases, by, calibration=calibration, done=done)


def _refit_training(cases: CaseSet, by: LeftOut, watch: Watch) -> TrainRefit:
    """Leave each source, model family or chip of training cases out in turn."""
    from rackline.validation.train_refit import refit_training

    if by == "stack":
        raise InputError(what="refit", given=by, allowed="source, model or chip for training cases", nearest="source")
    with watch.counting(f"refitting without each {by}", "fitted without") as done:
        return refit_training(cases, by, done=done)


def _ablation(files: tuple[str, ...], calibration: str, watch: Watch) -> Ablation:
    from rackline.validation import read_cases
    from rackline.validation.ablation import ablation

    with watch.counting("refitting without each effect", "fitted without") as done:
        return Ablation(effects=tuple(ablation(read_cases(files), calibration=calibration, done=done)))


def _write_stacks(files: tuple[str, ...], folder: str, watch: Watch) -> StacksWritten:
    """Fit the training numbers and write the stacks that hold them."""
    from rackline.validation import read_cases
    from rackline.validation.train_refit import fitted_stacks
    from rackline.validation.train_stacks import write_stacks

    target = Path(folder)
    if not target.is_dir():
        raise InputError(what="write_stacks", given=folder, allowed="a folder that exists")
    with watch.moving("fitting the training numbers"):
        stacks = fitted_stacks(read_cases(files))
    return StacksWritten(files=tuple(str(path) for path in write_stacks(stacks, target)))


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
