"""Spelling of the documentation and of what the package says.

codespell looks everywhere for common mistakes; tests/data/field-words.txt are names that it takes for one. Prose is
held to a dictionary as well: English, and the words of the field and British forms in tests/data/dictionary.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from spellchecker import SpellChecker

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
SKIP = "*.svg,*.png,*.json,*.ipynb,*/vendor/*,*/history/*"
WORDS = ROOT / "tests" / "data" / "field-words.txt"
PLACES = ("docs", "src", "bench", "mkdocs.yml")
FIELD = ROOT / "tests" / "data" / "dictionary.txt"
NOT_PROSE = re.compile(
    r"^```.*?^```|<!--.*?-->|<[^>]+>|`[^`]*`|\]\([^)]*\)|https?://\S+", re.M | re.S
)  # fences, filled-in expressions, tags, code, addresses
WORD = re.compile(r"(?<![\w@./-])[a-z]+(?:'[a-z]+)?(?![\w/])")  # capitals begin names, which no dictionary has


def spelled(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words", str(WORDS), "--skip", SKIP, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)


def test_words_are_spelled_right() -> None:
    pages = [path.name for path in ROOT.glob("*.md")]
    done = spelled(*PLACES, *pages)
    assert done.returncode == 0, done.stdout


def test_a_wrong_word_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The bandwith of a link.\n")
    assert "bandwith ==> bandwidth" in spelled(str(page)).stdout


def unknown(pages: list[Path]) -> Iterator[str]:
    """Words of prose that neither dictionary has, with their pages."""
    english, field = SpellChecker(), set(FIELD.read_text(encoding="utf-8").split())
    for page in pages:
        words = set(WORD.findall(NOT_PROSE.sub(" ", page.read_text(encoding="utf-8"))))
        for word in sorted(words):
            plain = word.removesuffix("'s")
            if len(plain) > 1 and plain not in english and plain not in field:
                yield f"{page.name}: {word}"


def test_prose_is_in_the_dictionary() -> None:
    found = list(unknown([*ROOT.glob("*.md"), *load_script("shown").pages()[1:]]))
    assert found == [], f"mend these, or add terms of the field to {FIELD.relative_to(ROOT)}"


def test_a_word_that_nobody_knows_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The throughputt of `sgemmm` on a [rack](rackk.md), an engine's roofline.\n")
    assert list(unknown([page])) == ["page.md: throughputt"]
