"""Spelling of the documentation and of what the package says; words of the field are in tests/data/field-words.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIP = "*.svg,*.png,*.json,*.ipynb,*/vendor/*"
WORDS = ROOT / "tests" / "data" / "field-words.txt"
PLACES = ("docs", "src", "bench", "mkdocs.yml")


def spelled(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words", str(WORDS), "--skip", SKIP, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_words_are_spelled_right() -> None:
    pages = [path.name for path in ROOT.glob("*.md")]
    done = spelled(*PLACES, *pages)
    assert done.returncode == 0, done.stdout


def test_a_wrong_word_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The bandwith of a link.\n")
    assert "bandwith ==> bandwidth" in spelled(str(page)).stdout
