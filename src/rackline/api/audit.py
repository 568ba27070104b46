"""`audit`: whether somebody's results can be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args

from rich.text import Text

from rackline.api.answer import Answer, Watch, asks
from rackline.api.question import (
    MOST_CHIPS,
    MaybeLayout,
    MaybeNumber,
    MaybeWhole,
    Question,
    Texts,
    option,
    question,
    tokens,
    whole,
)
from rackline.api.validate import Format
from rackline.api.verbs import Entry
from rackline.late import late
from rackline.units import format_bytes, format_seconds

with late:
    from rackline.report import column, wording
    from rackline.validation import audit as audited, audit_report, importers, reported

_GIVEN = "What the files do not say"
_STYLES = {"impossible": "red", "explained": "yellow", "implausible": "yellow", "plausible": "green"}
_WORDS = {"impossible": "impossible", "explained": "explained if", "implausible": "implausible",
          "plausible": "plausible"}  # fmt: skip
_SHOWN = 40


def _stated(help_text: str) -> Any:
    return option("text", help_text, default=None, group=_GIVEN)


@question
class AuditQuestion(Question):
    """Can these results of a benchmark be true?"""

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
    model: str | None = _stated("model of the results")
    chip: str | None = _stated("chip of the results")
    num_chips: MaybeWhole = whole("number of chips that served", default=None, maximum=MOST_CHIPS, group=_GIVEN)
    layout: MaybeLayout = _stated("parallel layout, such as tp=4")
    precision: str | None = _stated("data types, such as fp8; those of the released checkpoint by default")
    stack: str | None = _stated("serving software")
    input_len: MaybeNumber = tokens("mean prompt tokens", default=None, group=_GIVEN)
    output_len: MaybeNumber = tokens("mean output tokens", default=None, group=_GIVEN)
    concurrency: MaybeWhole = whole("requests in flight", default=None, group=_GIVEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Rows of somebody's results with what speaks against each.

    Args:
        rows: in the order of the files.
        columns: what the columns of tables were read as.
        verdicts: number of rows by verdict.
    """

    json_keys: ClassVar = ("rows", "columns", "verdicts")

    rows: tuple[audited.Audited, ...]
    columns: tuple[reported.Mapped, ...]
    verdicts: dict[str, int]


def _head(found: Audit) -> str:
    counts = [f"{count} {_WORDS[name]}" for name, count in found.verdicts.items() if count]
    return f"{', '.join(counts)} of {len(found.rows)} rows"


def _text(answer: Answer[AuditQuestion, Audit], width: int) -> Iterable[Any]:
    found = answer.result
    worst = next((name for name, count in found.verdicts.items() if count), "plausible")
    passed = sum(one.passed for one in found.rows)
    lines = [f"{passed:,} checks passed"]
    lacking = Counter(one.lacks for one in found.rows if one.lacks)
    lines += [f"without a prediction, {count}: {why}" for why, count in lacking.most_common(3)]
    body = Text.assemble((_head(found), "bold"), *(f"\n{line}" for line in lines))
    yield wording.Box(body, "audit", "", _STYLES[worst])
    if found.columns:
        yield _columns(found)
    yield _findings(found)


def _columns(found: Audit) -> column.Sheet[Any]:
    Column = column.Column
    columns: list[column.Column[reported.Mapped]] = [
        Column("heading", "column"),
        Column("quantity", "read as", "text", lambda one: one.quantity or "-"),
        Column("unit", "in", "text", lambda one: _unit(one) if one.quantity else "-"),
        Column("given", "by", "text", lambda one: "--map" if one.given else "guess", priority=1),
    ]
    return column.Sheet("columns", columns, found.columns, "columns", "another meaning: --map HEADING=QUANTITY:UNIT")


def _unit(one: reported.Mapped) -> str:
    names = {1.0: "s", 1e-3: "ms", 1e-6: "us", 60.0: "min"}
    if one.quantity in reported.TIMES:
        return names.get(one.unit, f"{one.unit:g} s")
    return "-" if one.unit == 1.0 else f"times {one.unit:g}"


def _findings(found: Audit) -> column.Sheet[Any]:
    Column = column.Column
    rows = sorted(_rows_of(found), key=lambda row: audited.VERDICTS.index(row["verdict"]))
    columns: list[column.Column[Any]] = [
        Column("row", "row", "words"),
        Column("verdict", "verdict", "text", lambda row: _WORDS[row["verdict"]]),
        Column("check", "check"),
        Column("number", "number", "figures", lambda row: _written(row["number"], row["unit"])),
        Column("bound", "bound", "figures", lambda row: _written(row["bound"], row["unit"])),
        Column("text", "if, or because", "words"),
        Column("title", "compares", "words", priority=1),
    ]
    more = f"{len(rows) - _SHOWN} more: --json" if len(rows) > _SHOWN else ""
    return column.Sheet("findings", columns, rows[:_SHOWN], "checks that failed", more or ("" if rows else "none"))


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
    text=_text,
    summary=lambda answer: _head(answer.result),
    rows=lambda answer: _rows_of(answer.result),
    figures={"ratios": lambda answer: audit_report.audit_figure(answer.result.rows)},
    status=lambda answer: int(not any(one.passed or one.findings for one in answer.result.rows)),
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
    rows, columns = reported.read_reported(question.files, question.form, given, reported.mappings(question.map or ()))
    with watch.moving("checking rows"):
        found = audited.Auditor().audit(rows)
    counts = Counter(one.verdict for one in found)
    return Audit(rows=found, columns=columns, verdicts={name: counts[name] for name in audited.VERDICTS})
