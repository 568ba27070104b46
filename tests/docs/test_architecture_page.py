"""docs/architecture.md is short, and names no package, module or file that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
MOST_WORDS = 1500
PLACES = (ROOT, ROOT / "src" / "rackline")
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#:]+)")
# a path, a file with an ending, or a dotted name of the package
PATH = re.compile(r"[\w./-]+/[\w./-]*|[\w-]+\.(?:py|c|toml|md|json|txt|js)|rackline(?:\.\w+)+")
NOT_OURS = {"config.json"}  # of a model


def gone(text: str) -> list[str]:
    """Return what a page names that is not in the repository."""
    named = [word for word in CODE.findall(text) if PATH.fullmatch(word) and word not in NOT_OURS]
    paths = [word.replace(".", "/") if word.startswith("rackline.") else word for word in named]
    missing = [
        word
        for word, path in zip(named, paths, strict=True)
        if not any((place / path).exists() for place in (*PLACES, ROOT / "src"))
        if not (ROOT / "src" / f"{path}.py").is_file()
    ]
    return missing + [link for link in LINK.findall(text) if not (PAGE.parent / link).exists()]


def test_it_names_nothing_that_is_gone() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert gone(text) == []
    assert len(CODE.findall(text)) > 60


@pytest.mark.parametrize("name", ["search/no_such.py", "no_such.toml", "no_such/", "rackline.passes.no_such"])
def test_a_file_that_is_gone_is_found(name: str) -> None:
    assert gone(f"See `{name}`, `passes/row.py`, `api/`, `rackline.passes.row`, `--tpot` and `tests/docs`.") == [name]
    assert gone("See [this](no-such-page.md) and [that](book/index.md#a).") == ["no-such-page.md"]


def test_it_is_short() -> None:
    words = [word for word in PAGE.read_text(encoding="utf-8").split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS


def test_its_table_has_every_package_of_the_import_contract() -> None:
    script = load_script("packages")
    table = PAGE.read_text(encoding="utf-8").split(script.BEGIN)[1].split(script.END)[0]
    assert re.findall(r"^\| `(\w+)` \| [A-Z].{10,} \| \d+ \|$", table, re.M) == list(script.names())
