"""Fixing a neighbour of an answer never makes it cheaper, and how the highest rate is closed in on."""

from __future__ import annotations

import math

import pytest

from rackline.search.rate_capacity import rate_between
from scripts import load_script

optimum = load_script("optimum")
QUESTIONS = optimum.questions(60, 36)
# limits and workloads of all kinds; three of them had a cheaper neighbour
INDICES = (0, 7, 9, 12)
LONG = (2, 3, 11)


@pytest.mark.parametrize("index", [*INDICES, *(pytest.param(index, marks=pytest.mark.nightly) for index in LONG)])
def test_no_neighbour_of_the_answer_is_cheaper(index: int) -> None:
    found = optimum.looked_at(QUESTIONS[index])
    compared = [one for one in found if one.fixed_cost is not None]
    assert len(compared) >= 2
    assert [one for one in compared if one.outcome == "miss"] == []


def test_a_cheaper_neighbour_would_be_noticed() -> None:
    """With schedulers of one budget only, another budget is cheaper."""
    asked = {**QUESTIONS[7], "mode": ["chunked=8192"]}
    plan, better = optimum.served(asked), optimum.served({**asked, "mode": ["chunked=512"]})
    compared = optimum._compared(asked, "mode=chunked=512", plan, better.best)
    assert compared.outcome == "miss"
    assert compared.low > optimum.TIE


@pytest.mark.parametrize("full", [1.3, 2.0, 40.0])
def test_the_highest_rate_is_closed_in_on_from_both_sides(full: float) -> None:
    """Of a queue, latency over limit = alone / (1 - rate / full), 1 at a known rate."""
    alone, tolerance = 0.2, 0.005
    true = full * (1.0 - alone)
    low, high, held, runs = 0.3 * full, 0.99 * full, True, 0

    def over(rate: float) -> dict[str, float]:
        return {"ttft_s": alone / (1.0 - rate / full)}

    while high > low * (1.0 + tolerance):
        rate = rate_between(low, high, over(low), over(high), tolerance, held=held)
        assert low < rate < high
        held = over(rate)["ttft_s"] <= 1.0
        low, high = (rate, high) if held else (low, rate)
        runs += 1
    assert low <= true <= high
    assert runs <= 8


def test_where_a_queue_grows_rates_are_halved_by_ratio() -> None:
    assert rate_between(1.0, 4.0, {"": 0.5}, {"": math.inf}, 0.02, held=True) == 2.0
