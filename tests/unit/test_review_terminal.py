"""What a review of the terminal found does not come back."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

import rackline as rl
from rackline.api.answer import answer, find_verb
from rackline.units import format_count, format_rate, format_watts

ASKED = {"model": "llama-3.1-8b", "on": "dgx-h100", "batch": "32", "context": "8k", "layout": "tp=1"}


def _screen(found: Any, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    for part in found.text(width):
        console.print(part)
    return out.getvalue()


def test_explain_answers_before_it_tells_its_inputs() -> None:
    text = _screen(answer(find_verb("explain").question.from_params(ASKED)), 80)
    places = [text.index(one) for one in ("a pass", "━●", "operation", "numbers put in", "where amounts")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "written", [format_watts(151_000.0), format_rate(6.26034e12), format_count(1040.0), format_watts(700.0)]
)
def test_numbers_have_three_digits_and_one_unit(written: str) -> None:
    assert re.fullmatch(r"\d[\d,]*(\.\d+)?[kMBT]?( [kMGTP]?(W|B/s))?", written), written
    assert len(re.sub(r"\D", "", written)) <= 4


@pytest.mark.parametrize("width", [80, 120])
def test_sources_are_read_whole(width: int) -> None:
    """An address that is longer than its column breaks; before, its end was cut without a sign."""
    found = rl.chips("h100-sxm")
    text = "".join(_screen(found, width).split())
    for source in found.result.chips[0].sources:
        assert "".join((source.citation or "").split()) in text
        assert source.url is None or source.url in text
