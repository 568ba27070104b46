"""The guided lecture in the page: every step shows the ledger's number, read from its figure, after a guess."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from conftest import Watched
from rackline.ledger.guide import Step, chapters

STEPS = [
    pytest.param(chapter.id, step, id=f"{chapter.id}-{step.id}") for chapter in chapters() for step in chapter.steps
]
NUMBER = """id => {
    const step = rackline.data.get("guide").chapters.flatMap((one) => one.steps).find((one) => one.id === id);
    return rackline.guide.drawings[step.figure](step).number;
}"""
WITHIN = 2e-3  # the page's contexts of 128 tokens have a little cache, the closed form none


@pytest.mark.parametrize(("chapter", "step"), STEPS)
def test_a_guess_is_answered_with_the_number_of_the_ledger(watched: Watched, chapter: str, step: Step) -> None:
    wrong = ((step.right or 0) + 1) % len(step.choices) if step.choices else step.low if step.low else 0.01
    page = watched.open(f"guide?n={chapter}&k={step.id}&g={wrong}")
    assert page.evaluate(NUMBER, step.id) == pytest.approx(step.value, rel=WITHIN)
    told = page.locator(".told")
    expect(told).to_contain_text("You said ")
    said = re.search(r"([\d.,]+) ?(µs|ms|s|%)?", told.inner_text().removeprefix("You said ").split(". ", 1)[1])
    assert said, told.inner_text()
    scale = {"µs": 1e-6, "ms": 1e-3, "%": 1e-2}.get(said[2], 1.0)
    assert float(said[1].rstrip(".,").replace(",", "")) * scale == pytest.approx(step.value, rel=6e-3)


def test_the_figure_waits_for_the_guess(watched: Watched) -> None:
    page = watched.open("guide?n=batch&k=knee")
    assert watched.rows("guide-step") == []
    guess = page.get_by_label("Your guess", exact=True)
    guess.focus()
    page.keyboard.press("ArrowRight")
    assert list(watched.marks("guide-step")[0]) == ["batch_size"]
    page.get_by_role("button", name="Show").click()
    page.wait_for_selector(".body[data-ready]")
    assert {row["series"] for row in watched.rows("guide-step")} == {"the step", "compute", "HBM"}
    assert "k=knee&g=" in page.url
    page.go_back()
    page.wait_for_function("() => !rackline.drawn.get('guide-step').all().length")


def test_choices_are_made_with_the_keyboard(watched: Watched) -> None:
    page = watched.open("guide?n=batch&k=crowd")
    page.get_by_label("as long as for one").focus()
    page.keyboard.press("Space")
    expect(page.locator(".told")).to_contain_text("Right. It takes 1 times as long.")
    page.get_by_role("button", name="Next →").click()
    assert page.url.endswith("guide?n=batch&k=knee")


def test_a_claim_of_another_view_opens_at_its_own_step(watched: Watched) -> None:
    page = watched.open("pipeline")
    claim = page.locator("#claim-C61")
    claim.locator("summary").click()
    claim.get_by_role("link").click()
    expect(page.locator(".guess h2")).to_have_text("One batch in flight")


def test_unknown_steps_are_named(watched: Watched) -> None:
    page = watched.open("guide?n=batch&k=kneee")
    expect(page.locator("#ignored")).to_contain_text("k=kneee (allowed: floor, crowd, knee")
