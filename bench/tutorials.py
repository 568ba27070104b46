"""Outputs of commands in the tutorials and README, filled in by `bench/refresh_docs.py --only outputs`.

A `bash` fence holds one command, the `text` fence behind it lines of what it prints at 80 columns; `...` stands for
lines that are left out. The shown lines are replaced by those of a fresh run, and a number of the prose by what its
shown number became. A line that is not printed any more is a fault: a person has to read the prose again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shown import LEFT_OUT, NUMBER, ROOT, numbers, places, shape

PAGES = (*sorted((ROOT / "docs" / "tutorials").glob("*.md")), ROOT / "README.md")
SMALL = 12  # numbers up to here are counted by the author, not computed
NEAR = 0.03  # of a number in the prose, to the shown one that it stands for
_INSTALLS = ("pip", "uv")  # how a page begins, not what it shows
_PAIR = re.compile(r"^```bash\n(?P<command>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.M | re.S)
_FENCE = r"^```.*?^```$"
_NOT_PROSE = r"<picture>[^\n]*?</picture>|\]\([^)]*\)|`[^`]*`|^#[^\n]*$|<!--=.*?<!--/-->"
_NAME = r"Llama \d(?:\.\d)?(?: \d+B)?|\b\d+B\b|\b[A-Z]+\d+\b"  # of models and chips
# a calculation in the prose, which is worked out again
_CALCULATION = r"\((?P<left>(?:[\d.,]+ [-+*/] )+[\d.,]+) = (?P<right>[\d.,]+)\)"
# the `$` of money and the units behind a number do not matter
_NUMBER = r"(?<![\w.-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_PROSE = re.compile(
    f"(?P<other>{_FENCE}|{_NOT_PROSE}|{_NAME})|(?P<calculation>{_CALCULATION})|(?P<number>{_NUMBER})", re.M | re.S
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command with the lines of its output that a page shows; `start` and `end` are their place in the page."""

    words: list[str]
    lines: list[str]
    start: int
    end: int


def commands(text: str) -> Iterator[Shown]:
    """Yield the commands of a page with what is shown of each."""
    for match in _PAIR.finditer(text):
        words = shlex.split(match["command"].replace("\\\n", " "))
        if words[0] in _INSTALLS and not match["shown"]:
            continue
        shown = match["shown"] or ""
        start = match.start("shown") if match["shown"] else match.end()
        yield Shown(words=words, lines=shown.splitlines(), start=start, end=start + len(shown))


def output(words: list[str], folder: Path) -> str:
    """Run a rackline command at 80 columns and return what it prints.

    Raises:
        SystemExit: another program, or a command that fails.
    """
    from rackline.cli.main import run

    if words[:1] != ["rackline"]:
        raise SystemExit(f"a tutorial runs rackline, not: {shlex.join(words)}")
    before, place, printed = dict(os.environ), Path.cwd(), io.StringIO()
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as complaint:
            code = run(words[1:])
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ |= before
    if code:
        raise SystemExit(f"{shlex.join(words)}: exit {code}\n{complaint.getvalue()}")
    return printed.getvalue()


def refreshed(text: str) -> tuple[str, list[str]]:
    """Run the commands of a page.

    Returns:
        The page with the lines of today and the numbers of its prose after them; and the shown lines that are not
        printed any more, which a person has to mend.
    """
    faults: list[str] = []
    pieces: list[str] = []
    became: dict[str, set[str]] = {}
    end = 0
    with tempfile.TemporaryDirectory() as folder:
        for shown in commands(text):
            printed = [line.rstrip() for line in output(shown.words, Path(folder)).splitlines()]
            lines: list[str] = []
            for line, at in zip(shown.lines, places(shown.lines, printed), strict=True):
                if at is None and shape(line) and line != LEFT_OUT:
                    faults.append(f"{shlex.join(shown.words)} no longer prints: {line}")
                lines.append(line if at is None else printed[at])
                if len(numbers(line)) == len(numbers(lines[-1])):
                    for old, new in zip(numbers(line), numbers(lines[-1]), strict=True):
                        became.setdefault(old, set()).add(new)
            pieces += [text[end : shown.start], *(f"{line}\n" for line in lines)]
            end = shown.end
    page = "".join(pieces) + text[end:]
    return with_numbers(page, {old: min(new) for old, new in became.items() if len(new) == 1}), faults


def with_numbers(text: str, became: Mapping[str, str]) -> str:
    """Return a page in which the numbers of the prose are what they became, calculations worked out again."""
    worked_out: dict[str, tuple[str, str]] = {}
    became = dict(became)
    for match in _PROSE.finditer(text):
        if match["calculation"]:
            left = NUMBER.sub(lambda old: became.get(old[0], old[0]), match["left"])
            right = match["right"]
            if left != match["left"]:
                result = f"{_value(left):,.{len(right.partition('.')[2])}f}"
                worked_out[match[0]] = (left, result)
                became.setdefault(right, result)

    def replaced(match: re.Match[str]) -> str:
        if match["calculation"] and match[0] in worked_out:
            return "({} = {})".format(*worked_out[match[0]])
        if match["number"] and _is_large(match[0]):
            return became.get(match[0], match[0])
        return match[0]

    return _PROSE.sub(replaced, text)


def _is_large(number: str) -> bool:
    return "." in number or _number(number) > SMALL


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _value(expression: str) -> float:
    return float(eval(expression.replace(",", ""), {"__builtins__": {}}))  # digits and signs of our own pages


def unexplained(text: str) -> Iterator[str]:
    """Yield numbers of the prose that no fence shows, within 3 %, and that no calculation yields."""
    fences = "\n".join(re.findall(_FENCE, text, re.M | re.S))
    shown = {_number(number) for number in re.findall(_NUMBER, fences)}
    stated = list(_PROSE.finditer(text))
    for match in stated:
        if match["calculation"]:
            value, right = _value(match["left"]), match["right"]
            shown.add(_number(right))
            if round(value, len(right.partition(".")[2])) != _number(right):
                yield f"{match['left']} is {value:.4g}, not {right}"
    for match in stated:
        if match["number"] and _is_large(match[0]):
            value = _number(match[0])
            if not any(abs(value - other) <= NEAR * other for other in shown):
                yield f"no output shows the {match[0]} of the text"
