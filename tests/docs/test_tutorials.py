"""Tutorials are true: each command still prints the lines that the page shows, and each number of the prose is shown.

Digits are not compared: `bench/refresh_docs.py --only outputs` fills in those of today.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
README = ROOT / "README.md"
READERS = {"inference-engineer", "capacity-planner", "training-lead", "chip-architect", "price-analyst", "learner"}

script = load_script("tutorials")


def test_one_tutorial_for_each_reader() -> None:
    assert {page.stem for page in PAGES} == READERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_numbers_of_the_prose_are_shown(page: Path) -> None:
    assert list(script.unexplained(page.read_text(encoding="utf-8"))) == []


def test_a_number_that_nothing_shows_is_found() -> None:
    text = "It costs $4.20 and 1,300 W (6 / 4 = 1.5), 1.5 times.\n\n```text\n$4.20\n```\n"
    assert list(script.unexplained(text)) == ["no output shows the 1,300 of the text"]
    assert list(script.unexplained("(6 / 4 = 1.6)")) == ["6 / 4 is 1.5, not 1.6"]


def test_numbers_of_the_prose_follow_what_is_shown() -> None:
    text = "25.3 against 18.0 (25.3 / 18.0 = 1.41): 1.41 times, `25.3`, Llama 3.1, 12 of 25.\n\n```text\n25.3\n```\n"
    assert script.with_numbers(text, {"25.3": "27.0", "3.1": "4", "12": "13"}) == (
        "27.0 against 18.0 (27.0 / 18.0 = 1.50): 1.50 times, `25.3`, Llama 3.1, 12 of 25.\n\n```text\n25.3\n```\n"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_shows_figure_and_action(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file in re.findall(r'(?:srcset|src)="\.\./(images/[^"]+)"', text):
        assert (ROOT / "docs" / file).is_file(), file
    assert "-dark.svg" in text
    assert re.search(r"^## (What to do|Decision)", text, re.M), "a tutorial ends in an action"
    assert len(list(script.commands(text))) >= 2


@pytest.mark.parametrize(
    "page", [README, *(pytest.param(page, marks=pytest.mark.nightly) for page in PAGES)], ids=lambda page: page.stem
)
def test_commands_print_the_lines_that_are_shown(page: Path) -> None:
    _, faults = script.refreshed(page.read_text(encoding="utf-8"))
    assert faults == []


HEAD = "```bash\nrackline chips h100 --ridge\n```\n\n```text\n"


def test_numbers_of_a_shown_line_are_those_of_today() -> None:
    text, faults = script.refreshed(
        f"It is 400.\n\n{HEAD}...\nh100-sxm     400  591    -       295    295      -  25.5 ms\n```\n"
    )
    assert faults == []
    assert "h100-sxm     295  591" in text
    assert text.startswith("It is 295.")


@pytest.mark.parametrize(
    "line",
    [
        "h100-sxm is fast",
        "h100-sxm     295  591",  # columns are gone
        "chip        bf16  fp8  mxfp8  memory",  # a column of the head has another name
    ],
)
def test_a_line_that_is_no_longer_printed_is_a_fault(line: str) -> None:
    _, (fault,) = script.refreshed(f"{HEAD}{line}\n```\n")
    assert f"no longer prints: {line}" in fault
