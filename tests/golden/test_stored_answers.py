"""Answers of a hundred cheap questions are the stored ones: data, screen and figures; what moves shows in a diff.

`questions.toml` has the commands. `answers/NAME.json` holds what one of them says: numbers with six digits, long lists
thinned beside their sums, the screen of 100 columns, and the figures as data. After a change that is meant to move
answers, write them anew and read the diff:

    PYTHONPATH=tests uv run python tests/golden/test_stored_answers.py write          # all of them
    PYTHONPATH=tests uv run python tests/golden/test_stored_answers.py write explain-decode rl
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import shlex
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest
from rich.text import Text

from asking import WIDTH, asking
from helpers import run_command
from rackline.api.answer import Answer
from rackline.api.verbs import entries
from rackline.errors import RacklineError
from rackline.plain import plain
from rackline.report.column import sheets_of
from scripts import load_script
from stored import PAGE_WIDTH, laid_out, lines_of

HERE = Path(__file__).resolve().parent
ANSWERS = HERE / "answers"
MOST_ROWS, KEPT_ROWS = 8, 4  # of lists and tables
MOST_LINES = 150  # of texts
LONGEST_EXPRESSION, LONGEST_REPEATED = 120, 80  # characters
STYLED = 20  # characters of a part in one style
TOLERANCE, LEAST = 1e-5, 1e-15
NUMBER, LONG_NUMBER = re.compile(r"\d[\d,.]*"), re.compile(r"\d+\.\d{10,}")
VOLATILE = {"schema_version", "elapsed_s", "rackline_version"}

_ASKED = tomllib.loads((HERE / "questions.toml").read_text(encoding="utf-8"))
QUESTIONS: dict[str, str] = _ASKED["questions"]
REFUSALS, HELP = "refusals", "help"
NAMES = [*QUESTIONS, REFUSALS, HELP]


def rounded(value: Any) -> Any:
    """Numbers with six digits, long lists thinned, expressions of figures by their beginning and a digest."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return thinned(value)
    if isinstance(value, str) and "datum" in value and len(value) > LONGEST_EXPRESSION:
        return f"{value[: LONGEST_EXPRESSION // 2]} … {hashlib.sha256(value.encode()).hexdigest()[:8]}"
    if isinstance(value, str):  # numbers in expressions of figures, whose last digits are the machine's
        return LONG_NUMBER.sub(lambda number: f"{float(number[0]):.6g}", value)
    if isinstance(value, float):
        short = float(f"{value:.6g}")
        return 0 if abs(short) < LEAST else int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value


def thinned(values: list[Any]) -> Any:
    """A list; rows of equal keys as columns; of many entries every nth, with the sum of all numbers."""
    words = all(isinstance(one, str) for one in values) and len(values) <= MOST_LINES
    step = 1 if len(values) <= MOST_ROWS or words else math.ceil(len(values) / KEPT_ROWS)
    found: dict[str, Any] = {} if step == 1 else {"of": len(values), "every": step}
    keys = list(values[0]) if values and isinstance(values[0], dict) else []
    if len(values) > 1 and keys and all(isinstance(one, dict) and list(one) == keys for one in values):
        columns = {key: [one[key] for one in values] for key in keys if key not in VOLATILE}
        found["columns"] = {key: alike([rounded(one) for one in column[::step]]) for key, column in columns.items()}
        sums = {key: total(column) for key, column in columns.items() if step > 1 and total(column) is not None}
        return found | ({"sums": sums} if sums else {})
    if step == 1:
        return [rounded(one) for one in values]
    sums = {} if total(values) is None else {"sum": total(values)}
    return {**found, "values": [rounded(one) for one in values[::step]], **sums}


def alike(values: list[Any]) -> Any:
    """A column; of one value alone that value and how often it stands there."""
    return values if any(one != values[0] for one in values) else {"all": values[0], "of": len(values)}


def total(values: list[Any]) -> Any:
    """The sum of the numbers of a list; None where it has none."""
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    return rounded(math.fsum(numbers)) if numbers else None


def once(value: Any, where: str, seen: dict[str, str]) -> Any:
    """Plain data in which a long part that stands twice is named by its first place."""
    if isinstance(value, list):
        return [once(one, f"{where}[{place}]", seen) for place, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    text = json.dumps(value)
    if len(text) > LONGEST_REPEATED:
        if text in seen:
            return {"same as": seen[text]}
        seen[text] = where
    return {key: once(one, f"{where}.{key}" if where else key, seen) for key, one in value.items()}


def figures(answer: Answer[Any, Any], *, whole: bool) -> Iterator[tuple[str, Any]]:
    """The figures of an answer as data, or why there is none; in short, all but words and rows as a digest."""
    for kind, draw in answer.verb.figures.items():
        try:
            found = draw(answer)
        except RacklineError as refused:
            yield kind, str(refused)
            continue
        spec = plain(found.spec)
        words = {"title": found.title, "subtitle": found.subtitle, "description": found.description}
        marks = {key: spec[key] for key in spec if whole or key == "data"}
        yield kind, words | marks | ({} if whole else in_short({key: spec[key] for key in spec if key != "data"}))


def in_short(spec: dict[str, Any]) -> dict[str, Any]:
    """A digest of the marks, axes and words of a figure, and what its numbers come to."""
    numbers: list[float] = []

    def without(value: Any) -> Any:
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            return [[key, without(one)] for key, one in pairs]
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers.append(value)
            return 0
        return value

    digest = hashlib.sha256(json.dumps(without(spec)).encode()).hexdigest()[:8]
    sizes = [math.log10(abs(one)) for one in numbers if one]
    weighted = math.fsum(place * size for place, size in enumerate(sizes, 1))  # what is exchanged shows
    found = [math.fsum(sizes), weighted / max(len(sizes), 1)]
    return {"marks": digest, "numbers": len(numbers), "orders of magnitude": found}


def styles(text: Text) -> dict[str, list[str]]:
    """Beginnings of what stands on a screen in each style; numbers as one sign."""
    found: dict[str, dict[str, None]] = {}
    for span in text.spans:
        for words in text.plain[span.start : span.end].splitlines():
            found.setdefault(str(span.style), {})[NUMBER.sub("#", words.strip())[:STYLED]] = None
    return {style: wrap(" | ".join(filter(None, every)), PAGE_WIDTH - 10) for style, every in found.items()}


def priorities(answer: Answer[Any, Any]) -> dict[str, list[str]]:
    """Columns that a narrow screen lacks, by table: those of the largest number go first."""
    sheets = {sheet.name: sheet.columns for sheet in sheets_of(answer.text())}
    return {name: found for name, columns in sheets.items()
            if (found := [f"{one.key} {one.priority}" for one in columns if one.priority])}  # fmt: skip


def asked(name: str) -> dict[str, Any]:
    """What a command says: as data, on the screen and as figures."""
    with asking() as here:
        folder = here.folder
        *first, last = QUESTIONS[name].split(" && ")
        for one in first:
            run_command(shlex.split(one), folder)
        here.answers.clear()
        here.bars.clear()
        before = set(folder.iterdir())
        ran = run_command(shlex.split(last), folder, colour=True)
        drawn, said_beside = Text.from_ansi(ran.out), Text.from_ansi(ran.err)
        out, err = lines_of(drawn.plain, folder), lines_of(said_beside.plain, folder)
        found: dict[str, Any] = {"command": f"rackline {QUESTIONS[name]}", "status": ran.status, "screen": out}
        found |= {"messages": err, "styles": styles(drawn) | styles(said_beside), "bars": here.bars}
        for answer in here.answers:
            found["in short"] = repr(answer)
            found["interval"] = answer.verb.interval(answer)
            found["card"] = plain(answer.verb.card(answer))
            found["answer"] = answer.to_dict()
            found["frame"] = [plain(row) for row in answer.verb.rows(answer)]
            found["figures"] = dict(figures(answer, whole=name in _ASKED["drawn_whole"]))
            found["columns that give way"] = priorities(answer)
            found["origins"] = list(answer.verb.origins(answer))
            found["documents"] = {title: text.splitlines() for title, text in answer.verb.documents(answer).items()}
        new = [one for one in set(folder.iterdir()) - before if one.name != "results"]
        files = [one for at in new for one in (at.rglob("*.toml") if at.is_dir() else [at])]
        found["files"] = {file.relative_to(folder).as_posix(): inside(file) for file in sorted(files)}
    return {key: one for key, one in found.items() if one not in ("", {}, [])}


def inside(file: Path) -> Any:
    """What a file holds: JSON as data, a table as its rows, other text as its lines."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return json.loads(text)
    if file.suffix == ".csv":
        return [{key: number(cell) for key, cell in row.items()} for row in csv.DictReader(text.splitlines())]
    return text.splitlines()


def number(cell: str) -> float | str:
    """A cell as a number where it is one."""
    try:
        return float(cell)
    except ValueError:
        return cell


def refusals() -> dict[str, Any]:
    """Status and message of each command that is refused."""
    with asking() as here:
        ran = {words: run_command(shlex.split(words), here.folder) for words in _ASKED["refused"]}
    return {words: [one.status, *lines_of(one.err, here.folder)] for words, one in ran.items()}


def helped() -> dict[str, Any]:
    """The whole help of each command."""
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", WIDTH)
        commands = ["", *entries(), "web", "lab", "measure", "new"]
        ran = {name: run_command([*name.split(), "--help-all" if name in entries() else "--help"], Path(temporary))
               for name in commands}  # fmt: skip
    return {name: [one.status, *lines_of(one.out + one.err, Path(temporary))] for name, one in ran.items()}


def kept(name: str) -> dict[str, Any]:
    """What is stored of a command, of all that are refused, or of the help."""
    if name in (REFUSALS, HELP):
        return refusals() if name == REFUSALS else helped()
    said = json.loads(json.dumps(asked(name), default=str))
    lines = {key: said.pop(key) for key in ("screen", "messages", "styles", "bars") if key in said}
    return {"command": said.pop("command"), "status": said.pop("status"), **lines, **once(rounded(said), "", {})}


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_the_stored_one(name: str) -> None:
    stored = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
    differences = load_script("golden_answers").differences
    moved = list(differences(stored, kept(name), rel=TOLERANCE, least=LEAST, apart=set()))
    assert not moved, "\n".join(
        [*moved[:20], f"{len(moved)} differ; if they should: tests/golden/test_stored_answers.py write {name}"]
    )


def test_each_stored_answer_is_asked_for() -> None:
    assert {file.stem for file in ANSWERS.glob("*.json")} == set(NAMES)


def main() -> int:
    """Write the answers of today."""
    names = sys.argv[2:] or NAMES
    if sys.argv[1:2] != ["write"] or not set(names) <= set(NAMES):
        print(__doc__)
        return 2
    if len(sys.argv) == 2:
        for file in ANSWERS.glob("*.json"):
            file.unlink()
    for name in names:
        start = time.process_time()
        file = ANSWERS / f"{name}.json"
        file.write_text(laid_out(kept(name)) + "\n", encoding="utf-8")
        print(f"{name}: {time.process_time() - start:.1f} s, {file.stat().st_size / 1e3:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
