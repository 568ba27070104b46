"""Compare what a page of the docs shows with what a fresh run prints: words, lines and columns, not today's digits.

Numbers of an answer move when a calibration becomes better, and that must not break a test. What has to stay is the
structure: a command that works, lines and columns that are still there, as many numbers as before.
"""

from __future__ import annotations

import doctest
import math
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
HISTORY = DOCS / "history"
LEFT_OUT = "..."  # stands for lines that a page leaves out
TOLERANCE = 0.2  # of a number of an example; better calibrations move one by a few per cent
LAST_DIGITS = 2.0  # so many units of the last digit that is shown are never a difference of structure
ALIKE = 0.4  # share of equal words from which a line with numbers is the same line with another decision in it
NUMBER = re.compile(r"(?<!\w)[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?")
# the prefix or unit of time behind a number: 990 ms may become 1.01 s
_SCALE = r"(?:\s?(?:ms|µs|us|ns|s|min|h|days?|hours?|minutes?)\b|\s?[kMGTPEmµ](?=(?:i?B|W|FLOP)\b)|\s?[kKMBT]\b)?"
_SCALED = re.compile(NUMBER.pattern + _SCALE)
_BARS = re.compile("[█▏▎▍▌▋▊▉─━●│╭╮╰╯]+")


def pages() -> list[Path]:
    """Return README and every page of docs/, without the closed log in docs/history."""
    return [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if HISTORY not in page.parents)]


def shape(text: str) -> str:
    """Return a text with `#` for each number, without bars, borders and runs of white space."""
    return " ".join(_SCALED.sub("#", _BARS.sub(" ", text)).split())


def numbers(text: str) -> list[str]:
    """Return the numbers of a text as they are written."""
    return NUMBER.findall(text)


def same(shown: str, printed: str) -> bool:
    """Check that two texts have the same words, and numbers within `TOLERANCE` or two units of their last digit."""
    if shape(shown) != shape(printed):
        return False
    pairs = zip(numbers(shown), numbers(printed), strict=True)
    return all(_near(before, after) for before, after in pairs)


def _near(shown: str, printed: str) -> bool:
    before, after = (float(text.replace(",", "").replace("−", "-")) for text in (shown, printed))
    mantissa = shown.partition("e")[0]
    digits = len(mantissa.partition(".")[2])
    last = LAST_DIGITS * 10.0**-digits if digits and mantissa == shown else 0.0
    return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=last)


def places(lines: Sequence[str], printed: Sequence[str]) -> list[int | None]:
    """Find the lines of a page among the printed ones, in their order.

    A line without numbers, such as the head of a table, has to be there word by word. A line with numbers may have
    another decision in it: the first word, the number of columns and `ALIKE` of all words have to be the same.

    Args:
        lines: shown by the page; `...` and empty lines have no place.
        printed: by a fresh run.

    Returns:
        The place of each line; None for a line that is not printed any more, and for lines without a place.
    """
    found: list[int | None] = []
    start = 0
    for line in lines:
        wanted = shape(line)
        at = _place(line, printed, start) if wanted and line != LEFT_OUT else None
        found.append(at)
        start = start if at is None else at + 1
    return found


def _place(line: str, printed: Sequence[str], start: int) -> int | None:
    wanted, shapes = shape(line), [shape(other) for other in printed]
    for at in range(start, len(shapes)):
        if shapes[at] == wanted:
            return at
    width = _columns(line)
    for at in range(start, len(shapes)):  # a long sentence breaks elsewhere when its digits change
        following = " ".join(shapes[at : at + 3])
        if width < _TABLE and shapes[at] and f" {wanted} " in f" {following} ":
            return at
    if "#" not in wanted:
        return None
    words = wanted.split()
    alike = [
        (SequenceMatcher(None, words, shapes[at].split(), autojunk=False).ratio(), -at)
        for at in range(start, len(shapes))
        if shapes[at].split()[:1] == words[:1] and (width < _TABLE or _columns(printed[at]) == width)
    ]
    best, at = max(alike, default=(0.0, 0))
    return -at if best >= ALIKE else None


_TABLE = 3  # columns from which a line is a row of a table


def _columns(line: str) -> int:
    return len(re.split(r"\s{2,}", _BARS.sub(" ", line).strip()))


def missing(lines: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the shown lines that a fresh run does not print any more."""
    found = zip(lines, places(lines, printed), strict=True)
    return [line for line, at in found if at is None and shape(line) and line != LEFT_OUT]


class ExampleChecker(doctest.OutputChecker):
    """Accepts what an example prints if it is the same as what the page shows but for a few digits."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Check one output, as doctest asks for it."""
        return super().check_output(want, got, optionflags) or same(want, got)
