"""The guided lecture: its numbers are those of the ledger, its figures show them, and its texts say them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

import rackline as rl
from rackline.api.answer import Watch, answer
from rackline.api.lecture import LectureQuestion
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.ledger.guide import Chapter, Picture, Step, chapters, plain_number, read_guess, summary
from rackline.ledger.said import claims
from rackline.ledger.table import ledger
from rackline.web.data import site

WITHIN = 1e-3  # a crossing is found on straight lines between points


def _steps() -> Iterator[tuple[Chapter, Step]]:
    return ((chapter, step) for chapter in chapters() for step in chapter.steps)


def test_every_segment_of_the_lecture_has_its_chapter() -> None:
    assert [chapter.segment for chapter in chapters()] == [1, 2, 3, 4, 5, 6, 7]
    assert all(5 <= len(chapter.steps) <= 8 for chapter in chapters())
    for chapter in chapters():
        assert len({step.id for step in chapter.steps}) == len(chapter.steps)
        assert {step.figure for step in chapter.steps} == set(chapter.drawings)


def test_a_step_asks_for_what_its_figure_answers() -> None:
    for chapter, step in _steps():
        name = f"{chapter.id}: {step.id}"
        assert "{value}" in step.after, name
        assert step.ask.endswith("?"), name
        assert not re.search(r"\{(?!value)", step.ask + step.after), name
        drawing = chapter.drawings[step.figure]
        assert drawing.read(step.reads, step.marks) == pytest.approx(step.value, rel=WITHIN), name
        if step.choices:
            assert step.right in range(len(step.choices)), name
            assert step.low is None, name
            continue
        assert step.low is not None, name
        assert step.high is not None, name
        assert step.low < step.value < step.high, name
        assert step.verdict(step.value) == f"You said {step.said(step.value)}: within 10 %. {step.answer}", name
        assert step.said(step.value) in step.answer, name


def test_an_exchange_is_drawn_over_that_of_one_domain() -> None:
    drawings = next(chapter.drawings for chapter in chapters() if {"crossing", "time"} <= set(chapter.drawings))
    exchange = drawings["time"].curves["exchange"]
    assert exchange[-1] == pytest.approx(1.0)
    assert exchange[0] == max(exchange) > 2.0


def test_the_number_of_a_step_is_the_one_that_its_claim_computes() -> None:
    shown = {step.claim for _, step in _steps() if step.computed}
    found = {claim: {one.label: one.value for one in ledger(claim=claim)[0].computed} for claim in shown}
    for chapter, step in _steps():
        if step.computed:
            assert found[step.claim][step.computed] == step.value, (chapter.id, step.id)


def test_numbers_that_no_claim_computes_are_few_and_have_a_closed_form() -> None:
    own = {step.id for chapter in chapters() for step in chapter.steps if not step.computed}
    assert own == {"floor", "crowd", "crossover", "held", "zero"}


def test_steps_belong_to_the_segment_of_their_chapter() -> None:
    cards = 11
    segments = {one.id: one.segment for one in claims()}
    for chapter in chapters():
        near = {chapter.segment, chapter.segment + 1, cards}
        assert {segments[step.claim] for step in chapter.steps} <= near


def test_curves_have_a_number_at_each_place() -> None:
    for chapter in chapters():
        for drawing in chapter.drawings.values():
            assert np.all(np.diff(drawing.places) > 0.0)
            for values in drawing.curves.values():
                assert len(values) == len(drawing.places)
                assert np.all(np.isfinite(values))
                assert "y" not in drawing.log or min(values) > 0.0


def test_crossings_and_lowest_points_lie_between_points() -> None:
    drawing = chapters(5)[0].drawings["cost"]
    low = drawing.lowest("in all")
    assert low not in drawing.places
    assert drawing.at("in all", low) <= min(drawing.curves["in all"]) * 1.001
    assert np.isnan(drawing.meeting("in all", "use"))


@pytest.mark.parametrize(
    ("text", "plain"),
    [("50.0 %", "50 %"), ("$0.500", "$0.5"), ("10.50 s", "10.5 s"), ("100", "100"), ("1.05M", "1.05M")],
)
def test_written_numbers_lose_zeros_at_their_end(text: str, plain: str) -> None:
    assert plain_number(text) == plain


def _step(chapter: int, name: str) -> Step:
    return next(one for one in chapters(chapter)[0].steps if one.id == name)


@pytest.mark.parametrize(
    ("chapter", "name", "line", "guess"),
    [
        (1, "floor", "2 ms", 2e-3),
        (1, "knee", "2.5k", 2500.0),
        (1, "crowd", "3", 2.0),
        (2, "crossing", "40 %", 0.4),
        (2, "room", "10TB", 1e13),
        (2, "room", "", None),
        (5, "shipped", "0", 0.0),
    ],
)
def test_a_guess_is_read_with_its_unit(chapter: int, name: str, line: str, guess: float | None) -> None:
    assert read_guess(_step(chapter, name), line) == guess


@pytest.mark.parametrize(
    ("chapter", "name", "line"), [(1, "floor", "soon"), (1, "crowd", "4"), (2, "crossing", "200 %")]
)
def test_what_is_no_guess_is_refused_in_a_line(chapter: int, name: str, line: str) -> None:
    with pytest.raises(InputError, match=rf"^guess: got '{line}', allowed: a .*; q to end$"):
        read_guess(_step(chapter, name), line)


@pytest.mark.parametrize(
    ("guess", "how"),
    [(2500.0, "within 10 %"), (300.0, "8.3 times too low"), (10000.0, "4 times too high"), (0.0, "too low")],
)
def test_a_verdict_says_the_factor(guess: float, how: str) -> None:
    assert _step(1, "knee").verdict(guess).startswith(f"You said {guess:,.0f}: {how}. 2,500 sequences: ")


class Reader(Watch):
    """Answers with lines, and notes what it was told."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.lines: Iterator[str] = iter(lines)
        self.told: list[Any] = []

    def says(self, *parts: Any) -> None:
        self.told += parts

    def asks(self, what: str) -> str | None:
        return next(self.lines, None)


def test_the_guided_lecture_ends_where_nobody_answers() -> None:
    found = answer(LectureQuestion(guess=True, segment=3), Reader("50%", "", "what?", "9 %", "2")).result.steps
    assert [one.guess for one in found] == [0.5, None, 0.09, 2.0, None]
    assert found[0].factor == pytest.approx(1.5)
    assert summary(found) == "3 guesses, 1.5 times off on average; 5 steps in all"
    quit_at_once = answer(LectureQuestion(guess=True, claim="c20"), Reader("q", "2500")).result.steps
    assert [one.guess for one in quit_at_once] == [None]


def test_piped_guesses_are_answered_as_text_and_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdin", io.StringIO("many\n300\n"))
    assert run(["lecture", "--guess", "--claim", "C20"]) == 0
    out = capsys.readouterr().out
    assert "guess: got 'many', allowed: a number such as 2.5k; q to end" in out
    assert "You said 300: 8.3 times too low. 2,500 sequences:" in out
    assert "◆ read here   ┊ your guess" in out
    assert out.rstrip().endswith("1 guess, 8.3 times off on average; 1 step in all")
    monkeypatch.setattr("sys.stdin", io.StringIO("300"))
    assert run(["lecture", "--guess", "--claim", "C20", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["steps"][0]["factor"] == pytest.approx(2500 / 300)
    assert told.err == ""


def test_pictures_are_as_wide_as_the_terminal() -> None:
    for width in (60, 80):
        console = Console(width=width, file=io.StringIO())
        for chapter in chapters():
            for step in chapter.steps:
                console.print(Picture(chapter.drawings[step.figure], step, None if step.choices else step.low))
        lines = cast("io.StringIO", console.file).getvalue().splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width


def test_where_nobody_is_asked_the_steps_are_data() -> None:
    found = rl.lecture(guess=True)
    assert len(found.result.steps) == sum(len(chapter.steps) for chapter in chapters())
    row = json.loads(json.dumps(found.to_dict()))["steps"][2]
    assert row["claim"] == "C20"
    assert row["value"] == 2500.0
    assert row["guess"] is None
    assert row["answer"].startswith("2,500 sequences: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"segment": 9}, "segment: got 9, allowed: 1 to 7"),
        ({"claim": "C24"}, "claim: got 'C24', allowed: a claim that a step shows: C08, C09, "),
        ({"set": ["gb200:hbm_bytes_per_s=16TB/s"]}, "set: got .*, allowed: nothing together with"),
    ],
)
def test_what_the_guided_lecture_does_not_have_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        rl.lecture(guess=True, **options)


def test_views_link_claims_to_steps_that_there_are() -> None:
    steps = {f"#/guide?n={chapter.id}&k={step.id}": step.claim for chapter in chapters() for step in chapter.steps}
    links = {claim: link for claim, link in site()["links"].items() if link.startswith("#/guide")}
    assert {claim: steps[link] for claim, link in links.items()} == {claim: claim for claim in links}
    assert {claim for claim in steps.values() if claim.startswith("C")} <= set(site()["links"])
