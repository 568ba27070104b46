"""Tutorials are true: each command prints what the page shows, and each number of the prose is one that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
README = ROOT / "README.md"
READERS = {"inference-engineer", "capacity-planner", "training-lead", "chip-architect", "price-analyst", "learner"}
SMALL = 12  # numbers up to here are counted, not computed
# a calculation in the prose: `a / b = c`, with c checked here
CALCULATION = re.compile(r"\(((?:[\d.,]+ [-+*/] )+[\d.,]+) = ([\d.,]+)\)")
# the `$` of money and the units behind a number do not matter
PROSE_NUMBER = re.compile(r"(?<![\w.-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
NAME = re.compile(r"Llama \d(?:\.\d)?(?: \d+B)?|\b\d+B\b|\b[A-Z]+\d+\b")  # of models and chips


def prose_and_fences(text: str) -> tuple[str, str]:
    fences = re.findall(r"^```.*?^```$", text, re.M | re.S)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    prose = re.sub(r"<picture>.*?</picture>|\]\([^)]*\)|`[^`]*`|^#.*$", " ", prose, flags=re.M)
    return prose, "\n".join(fences)


def unexplained(text: str) -> Iterator[str]:
    """Numbers of the prose that no fence shows and no calculation yields."""
    prose, fences = prose_and_fences(text)
    shown = set(PROSE_NUMBER.findall(fences))
    for left, right in CALCULATION.findall(prose):
        value = eval(left.replace(",", ""), {"__builtins__": {}})
        digits = len(right.partition(".")[2])
        if round(value, digits) == float(right.replace(",", "")):
            shown.add(right)
        else:
            yield f"{left} is {value:.4g}, not {right}"
    for number in PROSE_NUMBER.findall(NAME.sub(" ", CALCULATION.sub(" ", prose))):
        small = "." not in number and float(number.replace(",", "")) <= SMALL
        if not small and number not in shown:
            yield number


def test_one_tutorial_for_each_reader() -> None:
    assert {page.stem for page in PAGES} == READERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_numbers_of_the_prose_are_shown(page: Path) -> None:
    assert not list(unexplained(page.read_text(encoding="utf-8")))


def test_a_number_that_nothing_shows_is_found() -> None:
    text = "It costs $4.20 and 1,300 W (6 / 4 = 1.5), 1.5 times.\n\n```text\n$4.20\n```\n"
    assert list(unexplained(text)) == ["1,300"]
    assert list(unexplained("(6 / 4 = 1.6)")) == ["6 / 4 is 1.5, not 1.6"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_shows_figure_and_action(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file in re.findall(r'(?:srcset|src)="\.\./(images/[^"]+)"', text):
        assert (ROOT / "docs" / file).is_file(), file
    assert "-dark.svg" in text
    assert re.search(r"^## (What to do|Decision)", text, re.M), "a tutorial ends in an action"
    assert len(list(load_script("tutorials").commands(text))) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.stem)
def test_commands_print_what_is_shown(page: Path) -> None:
    assert load_script("tutorials").work(page, store=False) == []


def test_a_changed_number_and_a_changed_word_are_faults(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    head = "```bash\nrackline chips h100 --ridge\n```\n\n```text\n"
    page.write_text(f"{head}...\nh100-sxm     400  591    -       295    295      -  25.5 ms\n```\n")
    (fault,) = load_script("tutorials").work(page, store=False)
    assert "stored 400" in fault
    assert load_script("tutorials").work(page, store=True) == []
    assert "h100-sxm     295  591" in page.read_text()
    page.write_text(f"{head}h100-sxm is fast\n```\n")
    (fault,) = load_script("tutorials").work(page, store=True)
    assert "no longer prints: h100-sxm is fast" in fault
