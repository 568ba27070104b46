"""Phrases that are not the field's English: each with what to write instead.

Applied to source files (names, strings, docstrings, comments) and to the documentation, but not to docs/history. A
phrase that is right in one place gets a line in `EXCEPTIONS` with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
HISTORY = ROOT / "docs" / "history"

PHRASES: dict[str, str] = {
    "so many": "name the number: `n`, `count`, 'this many', 'a number of'",
    "for people": "'terminal report', 'display name', 'as text'",
    "of everything that is drawn": "'random seed'",
    "whatever": "'any', 'regardless of', 'independent of'",
    "flops": "'FLOP' for an amount, 'FLOP/s' for a rate",
    "one a line": "'one per line'",
    "object a line": "'one object per line'",
    "row a request": "'one row per request'",
    "silicon": "'measured', 'chip': say which",
    "come about": "'are computed', 'result from'",
    "comes about": "'is computed', 'results from'",
    "what the memory leaves": "'the memory left free'",
    "made traffic": "'synthetic traffic'",
    "time of arrival": "'arrival time'",
    "times of arrival": "'arrival times'",
    "gaps between requests": "'inter-arrival times'",
    "gaps between arrivals": "'inter-arrival times'",
    "percentiles of latency": "'latency percentiles'",
    "tails of latency": "'latency tails'",
    "limits of latency": "'latency limits'",
    "rate of requests": "'request rate'",
    "hands the cache over": "'transfers the KV cache'",
    "computed again": "'recomputed'",
    "caches something": "'has a KV cache or state'",
    "for ever": "'forever'",
    "unlike chips": "'different chips'",
    "is served before it is believed": "say what is checked and how",
    "holds the limits": "'meets the limits'",
    "hold the limits": "'meet the limits'",
    "without end": "'without bound', 'forever'",
    "tokens a step": "'tokens per step'",
    "token a step": "'token per step'",
    "tokens a chip": "'tokens per chip'",
    "requests a chip": "'requests per chip'",
    "once a case": "'once per case'",
    "one a row": "'one per row'",
    "of the asked": "'of the requested'",
    "the asked": "'the requested'",
    "what the memory holds": "'what fits in memory'",
    "soonest ttft": "'lowest ttft'",
    "in the mean": "'mean', 'on average'",
    "arrivals at random": "'Poisson arrivals', 'random arrivals'",
    "come at random": "'arrive at random', 'Poisson arrivals'",
    "keep the limit": "'meet the limit'",
    "keeps the limit": "'meets the limit'",
    "keep the limits": "'meet the limits'",
    "keeps the limits": "'meets the limits'",
    "looked at": "'evaluated', 'considered', 'searched'",
    "whoever": "who it is",
    "arrivals in turn": "'round-robin'",
    "nine of ten measured": "'90 % of measured'",
    "blazing": "a figure",
    "seamless": "what it does",
    "state-of-the-art": "a figure and what it is compared with",
    "cutting-edge": "a figure and what it is compared with",
    "world-class": "a figure and what it is compared with",
}
"""Phrase → what to write instead. Any white space, quote or comment mark may stand between its words."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("src/rackline/lab/transformer.py", "flops"): "key of XLA's cost analysis",
    ("src/rackline/units.py", "flops"): "spelling that is accepted as input",
    ("src/rackline/validation/forms.py", "flops"): "key of stored training cases",
    ("docs/nomenclature.md", "flops"): "says that the word is not used",
}


_BETWEEN = re.compile(r"[\s\"#]+")


def _pattern(phrase: str) -> re.Pattern[str]:
    words = _BETWEEN.pattern.join(map(re.escape, phrase.split(" ")))
    return re.compile(rf"(?<![a-z]){words}(?![a-z])", re.IGNORECASE)


_PATTERNS = {phrase: _pattern(phrase) for phrase in PHRASES}


def found_in(text: str) -> list[tuple[int, str]]:
    """Line and phrase of each occurrence."""
    flat = _BETWEEN.sub(" ", text).lower()  # a look for plain text first is twenty times as fast as the patterns
    places = [
        (text.count("\n", 0, match.start()) + 1, phrase)
        for phrase, pattern in _PATTERNS.items()
        if phrase in flat
        for match in pattern.finditer(text)
    ]
    return sorted(places)


def test_words() -> None:
    found = [
        f"{name}:{line}: '{phrase}'; write {PHRASES[phrase]}"
        for path in FILES
        if HISTORY not in path.parents
        for name in [path.relative_to(ROOT).as_posix()]
        for line, phrase in found_in(path.read_text(encoding="utf-8"))
        if (name, phrase) not in EXCEPTIONS
    ]
    assert not found, "\n".join(found)


def test_exceptions_are_needed() -> None:
    for name, phrase in EXCEPTIONS:
        phrases = [one for _, one in found_in((ROOT / name).read_text(encoding="utf-8"))]
        assert phrase in phrases, f"{name} no longer has '{phrase}': drop the exception"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("seed: of everything\n    that is drawn", ["of everything that is drawn"]),
        ('"run the traffic so "\n    "many times as fast"', ["so many"]),
        ("FLOPS of a chip", ["flops"]),
        ("FLOP/s of a chip, 12 FLOP", []),
        ("one per line", []),
    ],
)
def test_phrases_are_found_across_lines(text: str, found: list[str]) -> None:
    assert [phrase for _, phrase in found_in(text)] == found
