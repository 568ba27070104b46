"""More options, chips, data types or schedulers never make the answer dearer, nor do looser limits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import rackline as rl
from scripts import load_script

more_choice = load_script("more_choice")


@pytest.mark.parametrize("question", more_choice.questions(2, seed=57), ids=lambda question: question["model"])
def test_more_choice_never_costs_more(question: dict[str, Any]) -> None:
    assert more_choice.dearer(question) == []


def test_a_looser_limit_never_costs_more() -> None:
    """Smaller caps of running sequences are tried: with the largest one, looser limits once cost 3.8 % more."""
    asked: dict[str, Any] = {"calibration": "vllm", "chips": 4, "input": 200, "output": 50, "ttft": "4s", "price": 2}
    costs: list[float] = []
    for tpot in ("15ms", "20ms", "25ms", "40ms"):
        plan = rl.plan("phi-4", on="dgx-h200", serving="aggregated", tpot=tpot, **asked).result.plan
        assert plan.best is not None
        costs.append(plan.cost_of(plan.best))
    for tight, loose in pairwise(costs):
        assert loose <= tight * (1.0 + more_choice.SLACK)
