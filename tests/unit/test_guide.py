"""The guided lecture: its numbers are those of the ledger, and its texts say them."""

from __future__ import annotations

import pytest

from rackline.ledger import ledger
from rackline.ledger.guide import Chapter, Step, chapters

STEPS = [pytest.param(chapter, step, id=f"{chapter.id}-{step.id}") for chapter in chapters() for step in chapter.steps]

# Steps whose number the claim itself computes; the others are closed forms at the chapter's own deployment.
OF_THE_CLAIM = ("knee", "alone", "slow", "cache", "ring", "bubble", "many")


@pytest.mark.parametrize(("chapter", "step"), STEPS)
def test_a_step_asks_for_what_can_be_answered(chapter: Chapter, step: Step) -> None:
    assert "{value}" in step.after
    assert step.ask.endswith((".", "?"))
    if step.choices:
        assert step.right in range(len(step.choices))
        return
    assert step.low is not None
    assert step.high is not None
    assert step.low <= step.value <= step.high


@pytest.mark.parametrize(("chapter", "step"), [one for one in STEPS if one.values[1].id in OF_THE_CLAIM])
def test_the_number_of_a_step_is_one_of_its_claim(chapter: Chapter, step: Step) -> None:
    found = next(one for one in ledger() if one.claim.id == step.claim)
    values = [value.value for value in found.computed if value.value is not None]
    assert any(value == pytest.approx(step.value, rel=1e-9) for value in values), values


def test_steps_belong_to_the_segment_of_their_chapter() -> None:
    segments = {one.claim.id: one.claim.segment for one in ledger()}
    for chapter in chapters():
        assert {segments[step.claim] for step in chapter.steps} <= {chapter.segment, chapter.segment + 1}
