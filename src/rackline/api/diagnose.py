"""`audit` and `diagnose`: whether results of a benchmark can be true, and why a measured server is slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from rich.text import Text

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import Described
from rackline.api.question import (
    Question,
    Texts,
    option,
    options,
    question,
)
from rackline.api.validate import Format
from rackline.api.verbs import Entry
from rackline.errors import require, unknown_name
from rackline.late import late
from rackline.units import format_bytes, format_percent, format_seconds, several

with late:
    from rackline import validation
    from rackline.display import column, wording
    from rackline.validation import (
        audit as audited,
        cases,
        diagnosis,
        importers,
        observed_report,
        reported,
    )


_STYLES = {"impossible": "red", "explained": "yellow", "implausible": "yellow", "plausible": "green"}
_WORDS = {"impossible": "impossible", "explained": "explained if", "implausible": "implausible",
          "plausible": "plausible"}  # fmt: skip
_SHOWN_FINDINGS = 40


@question
class AuditQuestion(Described):
    """Can these results of a benchmark be true?"""

    headings = dict.fromkeys(options(Described), "What the files do not say")

    files: Texts = option(
        "text",
        "results: tables in CSV, Markdown or HTML, cases or results in JSON, or with `form` those of a load generator",
        several=True,
        kw_only=False,
    )
    form: Format | None = option(
        "text",
        f"load generator that wrote the files: {', '.join(get_args(Format))}",
        default=None,
        choices=get_args(Format),
    )
    map: Texts | None = option(
        "text",
        'what a column holds: "HEADING=QUANTITY" or, of a time or with a factor, "HEADING=QUANTITY:UNIT", such as '
        '"Latency (ms)=ttft_s:ms"; guessed by its heading otherwise; "HEADING=" leaves it out; '
        "may be repeated",
        several=True,
        repeated=True,
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Rows of somebody's results with what speaks against each.

    Args:
        rows: in the order of the files.
        columns: what the columns of tables were read as.
        verdicts: number of rows by verdict.
    """

    rows: tuple[audited.Audited, ...]
    columns: tuple[reported.Mapped, ...]
    verdicts: dict[str, int]


def _verdicts(found: Audit) -> str:
    counts = [f"{count} {_WORDS[name]}" for name, count in found.verdicts.items() if count]
    return f"{', '.join(counts)} of {several(len(found.rows), 'row')}"


def _audit_text(answer: Answer[AuditQuestion, Audit], width: int) -> Iterable[Any]:
    found = answer.result
    worst = next((name for name, count in found.verdicts.items() if count), "plausible")
    passed = sum(one.passed for one in found.rows)
    lines = [f"{passed:,} checks passed"]
    lacking = Counter(one.lacks for one in found.rows if one.lacks)
    lines += [f"without a prediction, {count}: {why}" for why, count in lacking.most_common(3)]
    body = Text.assemble((_verdicts(found), "bold"), *(f"\n{line}" for line in lines))
    yield wording.Box(body, "audit", "", _STYLES[worst])
    if found.columns:
        yield _columns(found)
    yield _findings(found)


def _columns(found: Audit) -> column.Sheet[reported.Mapped]:
    return column.Sheet(
        "columns",
        [
            column.Column("heading", "column"),
            column.Column("quantity", "read as", "text", lambda one: one.quantity or "-"),
            column.Column("unit", "in", "text", lambda one: _unit(one) if one.quantity else "-"),
            column.Column("given", "by", "text", lambda one: "--map" if one.given else "guess", priority=1),
        ],
        found.columns,
        "columns",
        "another meaning: --map HEADING=QUANTITY:UNIT",
    )


def _unit(one: reported.Mapped) -> str:
    names = {1.0: "s", 1e-3: "ms", 1e-6: "us", 60.0: "min"}
    if one.quantity in reported.TIMES:
        return names.get(one.unit, f"{one.unit:g} s")
    return "-" if one.unit == 1.0 else f"times {one.unit:g}"


def _findings(found: Audit) -> column.Sheet[Any]:
    rows = sorted(_rows_of(found), key=lambda row: audited.VERDICTS.index(row["verdict"]))
    columns: list[column.Column[Any]] = [
        column.Column("row", "row", "words"),
        column.Column("verdict", "verdict", "text", lambda row: _WORDS[row["verdict"]]),
        column.Column("check", "check"),
        column.Column("number", "number", "figures", lambda row: _written(row["number"], row["unit"])),
        column.Column("bound", "bound", "figures", lambda row: _written(row["bound"], row["unit"])),
        column.Column("text", "if, or because", "words"),
        column.Column("title", "compares", "words", priority=1),
    ]
    more = f"{len(rows) - _SHOWN_FINDINGS} more: --json" if len(rows) > _SHOWN_FINDINGS else ""
    return column.Sheet(
        "findings", columns, rows[:_SHOWN_FINDINGS], "checks that failed", more or ("" if rows else "none")
    )


def _written(value: float, unit: str) -> str:
    """A number of a check with its unit."""
    return format_seconds(value) if unit == "s" else format_bytes(value) if unit == "B" else f"{value:.3g}"


def _rows_of(found: Audit) -> list[dict[str, Any]]:
    return [
        {"row": one.row.row_id, "where": one.row.where, "check": finding.key, "title": finding.title,
         "verdict": finding.verdict, "number": finding.number, "bound": finding.bound, "unit": finding.unit,
         "text": finding.text}
        for one in found.rows for finding in one.findings
    ]  # fmt: skip


@asks(
    AuditQuestion,
    text=_audit_text,
    summary=lambda answer: _verdicts(answer.result),
    rows=lambda answer: _rows_of(answer.result),
    figures={"ratios": lambda answer: audited.audit_figure(answer.result.rows)},
    status=lambda answer: int(not any(one.passed or one.findings for one in answer.result.rows)),
    simulates=True,
    entry=Entry(
        group="Measure",
        place=5,
        line="Whether somebody's benchmark results can be true.",
        elsewhere="reads files",
        examples="""
    rackline audit results.csv --model llama-3.1-70b --chip h100-sxm
    rackline audit page.html --map "Latency (ms)=ttft_s:ms" --json
    rackline audit result.json --form vllm --chip h100-sxm --num-chips 4 --layout tp=4
    rackline audit cases.jsonl --plot ratios.svg
""",
    ),
)
def audit(question: AuditQuestion, watch: Watch) -> Audit:
    """Check results row by row: what holds by definition, what physics allows, and what measured servers deviate by.

    A row is impossible where it contradicts itself or the peak of its chips, explained where something that it does
    not mention would lift the contradiction, implausible where hardly a measured server is as far from its prediction.

    Raises:
        InputError: a file cannot be read or holds no row, or a mapping names no column or quantity.

    Example:
        >>> import rackline as rl
        >>> rl.audit("no-such-table.csv")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: ...
    """
    given = importers.Given(**{one.name: getattr(question, one.name) for one in fields(importers.Given)})
    mappings = reported.mappings(question.map or ())
    rows, columns = reported.read_reported(question.files, question.form, given, mappings)
    with watch.moving("checking rows"):
        found = audited.Auditor().audit(rows)
    counts = Counter(one.verdict for one in found)
    return Audit(rows=found, columns=columns, verdicts={name: counts[name] for name in audited.VERDICTS})


_SHOWN_CAUSES = 6
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


def _diagnose_text(answer: Answer[DiagnoseQuestion, Diagnosed], width: int) -> Iterable[Any]:
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


def _sheet(found: diagnosis.Diagnosis) -> column.Sheet[diagnosis.Suspect]:
    likely = [one for one in found.suspects if one.probability >= _POSSIBLE][:_SHOWN_CAUSES]
    return column.Sheet(
        "causes",
        [
            column.Column("cause", "cause", "words"),
            column.Column("probability", "probability", "share"),
            column.Column("share_of_gap", "of the gap", "share"),
            column.Column("size", "size", "words", _size, priority=1),
            column.Column("check", "look at", "words", priority=2),
        ],
        likely or found.suspects[:1],
        "causes, the likeliest first",
        f"nothing wrong: {format_percent(found.nothing)}",
    )


def _size(one: diagnosis.Suspect) -> str:
    """The size of a cause with its unit."""
    if not one.cause.unit or not one.probability:
        return "-"
    if one.cause.unit.startswith("s "):
        return f"{format_seconds(one.size)}{one.cause.unit[1:]}"
    return f"{one.size:.3g} {one.cause.unit}"


@asks(
    DiagnoseQuestion,
    text=_diagnose_text,
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
    simulates=True,
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
    require(every, what="files", given=", ".join(files), allowed="runs with their requests, as `observe --save` writes")
    return every


def _command(found: diagnosis.Diagnosis, url: str, case: cases.Case) -> str:
    """The next experiment as a command; the deployment stands in the run's file."""
    if found.experiment is None:
        return ""
    known = {"model": case.model, "stack": f"{case.stack}={case.stack_version}" if case.stack_version else case.stack}
    options = " ".join(f"--{name} {value}" for name, value in known.items() if value)
    return f"rackline observe {url} {found.experiment.options} {options} --yes -o next.jsonl"
