"""Each formula of the book stands beside the function that computes it, in one notation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "docs" / "book"
PAGES = [page for page in sorted(BOOK.glob("*.md")) if page.stem not in ("index", "notation")]
NAME = re.compile(r"`(rackline(?:\.\w+)+)`")


def sections(text: str) -> list[str]:
    """The parts of a page below its headings of the second level."""
    return re.split(r"(?m)^## ", text)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_formula_has_its_function_its_source_and_its_limits(page: Path) -> None:
    resolve = load_script("docs_reference").resolve
    text = page.read_text(encoding="utf-8")
    formulas = [part for part in sections(text) if "```math" in part]
    assert formulas
    for part in formulas:
        title = part.partition("\n")[0]
        named = [resolve(name) for name in NAME.findall(part)]
        assert any(callable(one) for one in named), f"{title}: names no function of rackline"
        assert re.search(r"Source|docstring", part), f"{title}: names no source"
        assert re.search(r"leaves? out|leaving out|assume|not count|ignore|holds for", part, re.I), (
            f"{title}: does not say what it leaves out"
        )
    for name in NAME.findall(text):
        resolve(name)
    assert "<!--= " in text, "no number is filled in"
    assert re.search(r"(?m)^## How far from measurements", text)


def test_a_name_that_does_not_exist_is_found() -> None:
    script = load_script("docs_reference")
    for name in ("rackline.passes.row.no_such_function", "rackline.no_such_package", "rackline.passes.row.a.b"):
        with pytest.raises(ValueError, match=r"has no|no such"):
            script.resolve(name)


def test_the_notation_uses_names_of_the_nomenclature() -> None:
    known = set(re.findall(r"(?m)^\| `(\w+)`", (ROOT / "docs" / "nomenclature.md").read_text(encoding="utf-8")))
    import rackline.serving.blackboard as bb

    known |= set(bb.__all__)
    rows = re.findall(r"(?m)^\| \$`.*?\| (.*?) \|", (BOOK / "notation.md").read_text(encoding="utf-8"))
    assert len(rows) >= 20
    for row in rows:
        for name in re.findall(r"`(\w+)`", row):
            assert name in known, name


def test_the_index_and_the_site_know_every_subject() -> None:
    index = (BOOK / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"({page.name})" not in index] == []
