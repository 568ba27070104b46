"""bench/refresh_docs.py runs, on a page, a tutorial, a picture and a table, and writes the structure that is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
SOME = {
    "numbers/docs/book/roofline.md": {"docs/book/roofline.md"},
    "outputs/chip-architect": {"docs/tutorials/chip-architect.md"},
    "figures/fit": {"docs/images/fit.svg", "docs/images/fit-dark.svg"},
    "packages": {"docs/architecture.md"},
    "tables/head-to-head": {"docs/accuracy/head-to-head.md"},
    "tables/prices": {"docs/accuracy/prices.md"},
}

script = load_script("refresh_docs")


@pytest.mark.parametrize("part", SOME)
def test_a_part_is_written_with_the_structure_that_is_stored(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, faults = script.refresh([part], tmp_path)
    assert faults == []
    assert {path.relative_to(ROOT).as_posix() for path in changed} == SOME[part]
    assert capsys.readouterr().out.startswith(f"{part.partition('/')[0]}: ")
    shown, figures = load_script("shown"), load_script("figures")
    for name in SOME[part]:
        stored, fresh = ((place / name).read_text(encoding="utf-8") for place in (ROOT, tmp_path))
        if name.endswith(".svg"):
            assert figures.structure(fresh) == figures.structure(stored)
        else:
            assert shown.missing(stored.splitlines(), fresh.splitlines()) == []
            assert len(fresh.splitlines()) == len(stored.splitlines())


def test_check_says_what_is_stale_and_writes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "architecture.md"
    page.parent.mkdir()
    text = script.DOCS.joinpath("architecture.md").read_text(encoding="utf-8")
    page.write_text(text.replace("| `passes` |", "| `tables` |"), encoding="utf-8")
    before = page.read_bytes()
    assert [path.name for path in script.refresh(["packages"], tmp_path, check=True)[0]] == ["architecture.md"]
    assert page.read_bytes() == before
    script.refresh(["packages"], tmp_path)
    assert script.refresh(["packages"], tmp_path, check=True) == ([], [])


def test_a_line_that_a_command_no_longer_prints_is_a_fault(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "tutorials" / "chip-architect.md"
    page.parent.mkdir(parents=True)
    text = (ROOT / "docs" / "tutorials" / page.name).read_text(encoding="utf-8")
    page.write_text(text.replace("```text\n", "```text\na line of another version\n", 1), encoding="utf-8")
    _, faults = script.refresh(["outputs/chip-architect"], tmp_path)
    assert len(faults) == 1
    assert "no longer prints: a line of another version" in faults[0]


def test_a_name_that_no_part_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="figures has nothing with the name no-such"):
        script.refresh(["figures/no-such"], tmp_path)
    with pytest.raises(SystemExit):
        script.main(["--only", "no-such"])


def test_every_part_says_what_it_writes_and_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(script.PARTS | script.LONG)
    for part in script.LONG.values():
        for word in part.command:
            assert not word.endswith(".py") or (ROOT / word).is_file(), word
