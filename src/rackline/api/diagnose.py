"""`diagnose`: why a measured run is slower than its deployment allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text

from rackline.api.answer import Answer, Watch, asks
from rackline.api.question import Question, Texts, option, question
from rackline.api.verbs import Entry
from rackline.errors import InputError, unknown_name
from rackline.late import late
from rackline.units import format_percent, format_seconds

with late:
    from rackline import validation
    from rackline.report import column, wording
    from rackline.validation import cases, diagnosis, observed_report

_SHOWN = 6
_LIKELY, _POSSIBLE, _SURE = 0.5, 0.02, 0.8


@question
class DiagnoseQuestion(Question):
    """Why is a server slower than its deployment allows?"""

    files: Texts = option(
        "text",
        "observed runs with their deployment, as `observe --save` and `validate --import` write, or a `runs.json`",
        several=True,
        kw_only=False,
    )
    run: str | None = option("text", "the run of the files, by its id; all by default", default=None)
    calibration: str = option(
        "text",
        "calibration of a server without a fault: auto (that of the run's stack), a stack or a TOML file",
        default="auto",
    )
    well: Texts = option(
        "text",
        "runs of the same server when it was well, as `observe --save` writes: how far it is from its simulation then "
        "is no fault; may be repeated",
        several=True,
        repeated=True,
        default=None,
    )
    url: str = option("text", "address of the server, for the next experiment", default="http://localhost:8000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """Causes of what was slow, run by run.

    Args:
        runs: one per run of the files.
        commands: the next experiment of each run as a command; empty where there is none.
    """

    json_keys: ClassVar = ("runs", "commands")

    runs: tuple[diagnosis.Diagnosis, ...]
    commands: tuple[str, ...]


def _head(found: diagnosis.Diagnosis) -> tuple[str, str]:
    """The answer in a line, and the colour of its frame."""
    first = found.suspects[0] if found.suspects else None
    if first is None or found.nothing >= max(first.probability, _LIKELY):
        sure = "nothing is wrong" if found.nothing >= _SURE else "most likely nothing is wrong"
        return f"{sure}: {format_percent(found.nothing)}", "green"
    second = found.suspects[1] if len(found.suspects) > 1 else None
    if second and min(first.probability, second.probability) >= _LIKELY:
        return f"{first.cause.title}; and {second.cause.title}", "red"
    if first.probability >= _LIKELY:
        return f"{first.cause.title}: {format_percent(first.probability)}", "red"
    return f"no clear cause; the likeliest, {format_percent(first.probability)}: {first.cause.title}", "yellow"


def _compared(found: diagnosis.Diagnosis) -> str:
    """Measured against expected, in a sentence."""
    ratio = found.measured_s / found.expected_s
    slower = f"{ratio:.2f} times" if ratio >= 1.0 else f"{1.0 / ratio:.2f} times faster than"
    text = (
        f"a request takes {format_seconds(found.measured_s)}, {slower} the {format_seconds(found.expected_s)} expected"
    )
    return f"{text} ({found.within:+.1f} standard errors of the prediction), over {found.requests:,} requests"


def _text(answer: Answer[DiagnoseQuestion, Diagnosed], width: int) -> Iterable[Any]:
    for found, command in zip(answer.result.runs, answer.result.commands, strict=True):
        said, style = _head(found)
        lines = [_compared(found)]
        if found.experiment is not None and command:
            tells = "tells" if found.experiment.tells else "does best, but does not surely tell,"
            first, second = (one.cause.key for one in found.suspects[:2])
            lines.append(f"next: {found.experiment.load} {tells} {first} from {second}, in about "
                         f"{format_seconds(found.experiment.duration_s)}:\n{command}")  # fmt: skip
        body = Text.assemble((said, "bold"), *(f"\n{line}" for line in lines))
        yield column.spaced([wording.Box(body, found.run_id, "", style), _sheet(found)])


def _shown(found: diagnosis.Diagnosis) -> list[diagnosis.Suspect]:
    likely = [one for one in found.suspects if one.probability >= _POSSIBLE][:_SHOWN]
    return likely or list(found.suspects[:1])


def _sheet(found: diagnosis.Diagnosis) -> column.Sheet[Any]:
    Column = column.Column
    columns: list[column.Column[diagnosis.Suspect]] = [
        Column("cause", "cause", "words"),
        Column("probability", "probability", "share"),
        Column("share_of_gap", "of the gap", "share"),
        Column("size", "size", "words", _size, priority=1),
        Column("check", "look at", "words", priority=2),
    ]
    nothing = f"nothing wrong: {format_percent(found.nothing)}"
    return column.Sheet("causes", columns, _shown(found), "causes, the likeliest first", nothing)


def _size(one: diagnosis.Suspect) -> str:
    """The size of a cause with its unit."""
    if not one.cause.unit or not one.probability:
        return "-"
    if one.cause.unit.startswith("s "):
        return f"{format_seconds(one.size)}{one.cause.unit[1:]}"
    return f"{one.size:.3g} {one.cause.unit}"


@asks(
    DiagnoseQuestion,
    text=_text,
    summary=lambda answer: "; ".join(f"{found.run_id}: {_head(found)[0]}" for found in answer.result.runs),
    rows=lambda answer: [
        {
            "run": found.run_id,
            "cause": one.cause.key,
            "probability": one.probability,
            "share_of_gap": one.share_of_gap,
            "size": one.size,
            "unit": one.cause.unit,
        }
        for found in answer.result.runs
        for one in found.suspects
    ],
    figures={"causes": lambda answer: observed_report.causes_figure(answer.result.runs)},
    entry=Entry(
        group="Measure",
        place=4,
        line="Why a measured server is slower than its deployment allows.",
        elsewhere="reads files",
        examples="""
    rackline observe http://localhost:8000 --users 16 --input 1k --output 200 \\
      --model llama-3.1-8b --on dgx-h100 --chips 1 --stack vllm -o observed.jsonl
    rackline diagnose observed.jsonl
    rackline diagnose observed.jsonl --run "my run" --json
""",
    ),
)
def diagnose(question: DiagnoseQuestion, watch: Watch) -> Diagnosed:
    """Rank the causes of a slow run by how likely each makes what its client saw.

    The run is served again by the simulator, under sixteen faults of many sizes and under the errors that the
    calibration itself has; see `rackline.validation.diagnosis`. The next experiment is the quickest load that tells the
    two leading causes apart.

    Raises:
        InputError: no run in the files, or none of this id.

    Example:
        >>> import rackline as rl
        >>> rl.diagnose("no-such-run.jsonl")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: ...
    """
    every = _runs(question.files)
    if question.run is not None:
        ids = [case.case_id for case in every]
        every = [case for case in every if case.case_id == question.run]
        if not every:
            raise unknown_name("run", question.run, ids)
    well = _runs(question.well) if question.well else []
    found: list[diagnosis.Diagnosis] = []
    with watch.counting("the first run", "compared") as done:
        for number, case in enumerate(every):
            found.append(
                diagnosis.diagnose(
                    case,
                    question.calibration,
                    well,
                    lambda key, at, of, number=number: done(key, number * of + at, len(every) * of),
                )
            )
    return Diagnosed(
        runs=tuple(found), commands=tuple(_command(one, question.url, every[at]) for at, one in enumerate(found))
    )


def _runs(files: Sequence[str]) -> list[cases.Case]:
    """The runs of some files.

    Raises:
        InputError: none.
    """
    every = [case for case in validation.read_cases(files).cases if case.kind in ("observed", "requests")]
    if not every:
        allowed = "runs with their requests, as `observe --save` writes"
        raise InputError(what="files", given=", ".join(files), allowed=allowed)
    return every


def _command(found: diagnosis.Diagnosis, url: str, case: cases.Case) -> str:
    """The next experiment as a command; the deployment stands in the run's file."""
    if found.experiment is None:
        return ""
    known = {"model": case.model, "stack": f"{case.stack}={case.stack_version}" if case.stack_version else case.stack}
    options = " ".join(f"--{name} {value}" for name, value in known.items() if value)
    return f"rackline observe {url} {found.experiment.options} {options} --yes -o next.jsonl"
