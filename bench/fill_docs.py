"""Numbers in the prose of README and docs/, filled in by `bench/refresh_docs.py --only numbers`.

    A B200 does <!--= f"{ridge:.0f}" -->281<!--/--> multiplies while it reads one weight.

The expression sees the names of the Python fences before it on the page and the functions of `HELPERS`; what it gives
stands between the marks. Sites and GitHub show the number alone. What the Python examples of a page print is filled in
as well. tests/docs/test_examples.py evaluates all of it again and compares the words, and numbers within 20 %.
"""

from __future__ import annotations

import doctest
import json
import re
import statistics
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from shown import LEFT_OUT, ROOT, ExampleChecker, same  # a sibling in this folder
from sybil import Document, Example, Region, Sybil
from sybil.parsers.abstract.doctest import DocTestStringParser

SCOREBOARD = ROOT / "tests" / "validation" / "scoreboard.json"
STACKS = ("trtllm", "vllm", "sglang", "atom")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FILLED = re.compile(r"(?<!`)(?P<mark><!--= (?P<code>.+?) -->)(?P<shown>.*?)<!--/-->", re.S)
FENCE = re.compile(r"^[ \t]*(?P<marks>`{3,}|~{3,}).*?^[ \t]*(?P=marks)[ \t]*$", re.M | re.S)


class FilledParser:
    """Finds the numbers that are filled in, for sybil; those inside of fences are left alone."""

    def __call__(self, document: Document) -> Iterable[Region]:
        fences = [found.span() for found in FENCE.finditer(document.text)]
        for found in FILLED.finditer(document.text):
            if not any(start <= found.start() < end for start, end in fences):
                yield Region(found.start(), found.end(), parsed=found, evaluator=check)


def check(example: Example) -> str | None:
    """What is wrong with a number on a page, for sybil."""
    found = value(example.parsed["code"], example.namespace)
    shown = example.parsed["shown"]
    return None if same(shown, found) else f"the page shows {shown!r}, computed is {found!r}: run bench/refresh_docs.py"


def value(code: str, names: dict[str, Any]) -> str:
    """What an expression gives, as text."""
    return str(eval(code, {**HELPERS, **names}))  # our own pages, as their fences are


def percent(share: float) -> str:
    """A share as per cent, one digit behind the point below ten: 0.0583 is "5.8 %"."""
    return f"{100 * share:.1f} %" if abs(share) < 0.1 else f"{100 * share:.0f} %"


def number(amount: float, digits: int = 3) -> str:
    """A number of so many significant digits, thousands apart: 13129.8 is "13,100"."""
    rounded = float(f"{amount:.{digits}g}")
    if rounded == 0 or abs(rounded) >= 1e15 or abs(rounded) < 1e-4:
        return f"{amount:.{digits}g}"
    if rounded.is_integer() and abs(rounded) >= 10 ** (digits - 1):
        return f"{rounded:,.0f}"
    whole = len(f"{abs(int(rounded))}") if abs(rounded) >= 1 else 0
    return f"{rounded:,.{max(digits - whole, 0)}f}" if whole else f"{rounded:.{digits}g}"


@cache
def scoreboard() -> dict[str, Any]:
    """The stored scoreboard of the open cases."""
    return json.loads(SCOREBOARD.read_text(encoding="utf-8"))


def scored(metric: str, part: str = "median_abs_error", **group: str) -> str:
    """A number of the stored scoreboard: `scored("tpot_s")`, `scored("tpot_s", "n")`, `scored("step_s", kind="train")`.

    Raises:
        KeyError: the scoreboard has no such number.
    """
    if not group:
        found = scoreboard()["metrics"][metric]
    else:
        ((by, name),) = group.items()
        rows = scoreboard()["groups"]
        found = next((row for row in rows if (row["by"], row["group"], row["metric"]) == (by, name, metric)), None)
        if found is None:
            raise KeyError(f"no {metric} of {by} {name}")
    return f"{found[part]:,}" if part == "n" else percent(found[part])


@cache
def kernels(kind: str, part: str = "median_error") -> str:
    """An error of the shipped calibrations: the median over fits of the kernels of a kind, on shapes left out of them.

    Args:
        kind: "gemm bf16", "gemm fp8 and fp4", "attention prefill", "attention decode", "mla", "moe" or
            "custom all-reduce".
        part: median_error, p90_error, family_median_error (whole families of shapes left out), or ideal_median_error
            (the peaks alone).

    Raises:
        KeyError: no fit of that kind.
    """
    stated = [getattr(one, part) for one in fits_of(kind)]
    found = [error for error in stated if error is not None]
    if not found:
        raise KeyError(f"no {part} of {kind}")
    return percent(statistics.median(found))


def fits_of(kind: str, stacks: Iterable[str] = STACKS) -> list[Any]:
    """The fits of the kernels of a kind in the shipped calibrations of stacks."""
    from rackline.catalog import calibration_record
    from rackline.fitting.report import kind_of

    found: list[Any] = []
    for record in map(calibration_record, stacks):
        if kind == "custom all-reduce":
            found += [one for one in record.collective if one.collective_class == "all_reduce_one_shot"]
        else:
            found += [one for one in record.operation if kind_of(one.operation_class, one.dtype) == kind]
    return found


@cache
def left_out_tables(by: str) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """What docs/accuracy/left-out.md says of what was left out of the fits: metric -> columns, left out -> columns.

    `rackline validate --refit` takes minutes, so what it wrote there is read here.
    """
    page = (ROOT / "docs" / "accuracy" / "left-out.md").read_text(encoding="utf-8")
    block = re.search(rf"<!-- left out by {by}: begin -->(.*?)<!-- left out by {by}: end -->", page, re.S)
    if block is None:
        raise KeyError(f"docs/accuracy/left-out.md has no tables of what was left out by {by}")
    metrics: dict[str, dict[str, str]] = {}
    groups: dict[str, dict[str, str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", block[1], re.M):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        for row in rows if head[0] == "measured" else ():
            metrics[row[0]] = dict(zip(head[1:], row[1:], strict=True))
        for row in rows if head[0].startswith("left out") else ():
            known = groups.setdefault(row[0], {"cases": row[1]})
            for metric, cell in zip(head[2:], row[2:], strict=True):
                known |= dict(zip((f"{metric} median", f"{metric} p90"), cell.split(" / "), strict=False))
    return metrics, groups


def left_out(by: str, metric: str, part: str = "median") -> str:
    """The error with each model, chip, stack or laboratory left out of the fits: `left_out("model", "tpot_s")`."""
    return left_out_tables(by)[0][metric][part]


def left_out_range(by: str, metric: str, part: str = "median") -> str:
    """The least and the largest of them by what was left out, in whole per cent: "7 to 16 %"."""
    texts = [row.get(f"{metric} {part}", "-") for row in left_out_tables(by)[1].values()]
    values = sorted(float(text.rstrip(" %")) for text in texts if text != "-")
    return f"{values[0]:.0f} to {values[-1]:.0f} %"


def worst_left_out(by: str, metric: str, part: str) -> str:
    """A part of the error of the worst of them by the median: its p90, or the number of its cases."""
    rows = [row for row in left_out_tables(by)[1].values() if row.get(f"{metric} median", "-") != "-"]
    worst = max(rows, key=lambda row: float(row[f"{metric} median"].rstrip(" %")))
    return worst[part] if part == "cases" else f"{float(worst[f'{metric} {part}'].rstrip(' %')):.0f} %"


def left_out_table(by: str, *metrics: str) -> str:
    """Rows of a table: the error of each model, chip, stack or laboratory that was left out, the largest first."""
    rows: list[str] = []
    for name, row in left_out_tables(by)[1].items():
        pairs = [(row.get(f"{metric} median", "-"), row.get(f"{metric} p90", "-")) for metric in metrics]
        cells = ["-" if median == "-" else f"{median} / {p90}" for median, p90 in pairs]
        if set(cells) != {"-"}:
            rows.append(f"| {name} | {row['cases']} | {' | '.join(cells)} |")
    return "\n".join(
        ["\n| left out | cases | " + " | ".join(metrics) + " |", "|---|---:|" + "---:|" * len(metrics), *rows, ""]
    )


def kernel_fits() -> str:
    """How many fits of kernels the shipped calibrations of stacks hold."""
    from rackline.catalog import calibration_record

    return f"{sum(len(calibration_record(name).operation) for name in STACKS):,}"


def glossary() -> str:
    """The rows of the glossary, those of the command line among them."""
    from rackline.cli.main import TERMS

    rows = [f"| {one.words} | {one.meaning} |" for one in sorted(TERMS, key=lambda one: one.words.lower())]
    return "\n".join(["\n| term | meaning |", "|---|---|", *rows, ""])


HELPERS = {
    "glossary": glossary,
    "kernel_fits": kernel_fits,
    "kernels": kernels,
    "left_out": left_out,
    "left_out_range": left_out_range,
    "left_out_table": left_out_table,
    "left_out_tables": left_out_tables,
    "number": number,
    "percent": percent,
    "scored": scored,
    "worst_left_out": worst_left_out,
}


class Printed(ExampleChecker):
    """Notes what the last example printed where the page shows something else."""

    def __init__(self) -> None:
        self.last: str | None = None

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Accept any output; what differs by more than white space and left out parts is noted."""
        self.last = None if doctest.OutputChecker.check_output(self, want, got, optionflags) else got
        return True


def filled(path: Path) -> str:
    """Return a page with its numbers and the outputs of its examples filled in."""
    printed = Printed()
    document = sybil_of_docs(OPTIONS, printed).parse(path)
    text = document.text
    pieces: list[tuple[int, int, str]] = []
    for example in document.examples():
        parsed = example.parsed
        if isinstance(parsed, re.Match):
            shown = value(parsed["code"], example.namespace)
            pieces.append((parsed.start("shown"), parsed.end("shown"), shown))
            continue
        printed.last = None
        example.evaluate()
        if isinstance(parsed, doctest.Example) and printed.last is not None and LEFT_OUT not in parsed.want:
            want = "".join(f"{' ' * parsed.indent}{line}\n" for line in parsed.want.splitlines())
            # below its source; the region's end is not that of the page
            start = text.index("\n" + want.rstrip("\n"), example.region.start) + 1
            got = "".join(f"{' ' * parsed.indent}{line}\n" for line in printed.last.splitlines())
            pieces.append((start, start + len(want.rstrip("\n")), got.rstrip("\n")))
    for start, end, shown in sorted(pieces, reverse=True):
        text = text[:start] + shown + text[end:]
    return text


class PyconParser:
    """Reads `pycon` fences as doctest sessions."""

    def __init__(self, options: int, checker: doctest.OutputChecker) -> None:
        from sybil.evaluators.doctest import DocTestEvaluator
        from sybil.parsers.markdown import CodeBlockParser

        evaluator = DocTestEvaluator(options)
        vars(evaluator.runner)["_checker"] = checker
        self.fences = CodeBlockParser(language="pycon", evaluator=lambda example: None)
        self.sessions = DocTestStringParser(evaluator)

    def __call__(self, document: Document) -> Iterator[Region]:
        for fence in self.fences(document):
            for region in self.sessions(fence.parsed, document.path):
                region.adjust(fence, fence.parsed)
                yield region


def sybil_of_docs(options: int, checker: doctest.OutputChecker | None = None) -> Sybil:
    """Return what runs on a page: Python fences, pycon fences, numbers."""
    from sybil.parsers.markdown import PythonCodeBlockParser

    checker = checker or ExampleChecker()
    python = PythonCodeBlockParser(doctest_optionflags=options)
    vars(python.doctest_parser.evaluator.runner)["_checker"] = checker
    return Sybil(parsers=[python, PyconParser(options, checker), FilledParser()])
