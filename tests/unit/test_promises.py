"""Every answer of a plan is served, and holds its limits when it is served again; see bench/promises.py for many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rackline as rl
from rackline.search import Plan
from scripts import load_script

promises: Any = load_script("promises")

SMALL: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "on": "dgx-h100",
    "chips": 1,
    "layout": "tp=1",
    "precision": "bf16",
    "serving": "aggregated",
}
ASKED: list[tuple[dict[str, Any], str]] = [
    ({"input": 1000, "output": 2, "calibration": "vllm"}, "held"),
    ({"input": "8k", "output": 10, "tpot": "20ms@mean", "calibration": "trtllm"}, "held"),
    ({"input": 100, "output": 3, "tpot": "30ms@p99", "ttft": "2s@p99", "calibration": "sglang"}, "held"),
    ({"input": 3000, "output": 2, "use": "batch", "calibration": "vllm"}, "held"),
    ({"input": "16k", "output": 4, "ttft": "100ms", "calibration": "trtllm"}, "infeasible"),
    ({"input": 500, "output": 8, "tpot": "1ms", "calibration": "sglang"}, "infeasible"),
]


REQUESTS = 20_000


@pytest.mark.parametrize(("asked", "outcome"), ASKED)
def test_a_promise_is_kept_or_there_is_a_reason(asked: dict[str, Any], outcome: str) -> None:
    checked = promises.check(SMALL | asked, REQUESTS, highest=False)
    assert checked.outcome == outcome or (outcome == "held" and checked.outcome == "near"), checked.detail


def test_pools_keep_theirs() -> None:
    asked = {"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 2, "input": 1000, "output": 4, "tpot": "8ms@p90"}
    asked |= {"precision": "bf16", "layout": "tp=1", "calibration": "vllm"}
    checked = promises.check(asked, REQUESTS, highest=False)
    assert checked.outcome in ("held", "near"), checked.detail


def test_a_promise_that_was_not_served_or_does_not_hold_is_noticed() -> None:
    plan: Plan = promises.plan_of(rl.plan(**SMALL, input=1000, output=4, tpot="15ms", calibration="vllm"))
    best = plan.best
    assert best is not None
    assert best.sustained is not None
    more = replace(best, sustained=replace(best.sustained, requests_per_s=2.0 * best.requests_per_s))
    assert promises.served_longer(more, plan, REQUESTS, highest=False).outcome == "broken"


@pytest.mark.parametrize("rate", [0.7, 0.95, 1.0, 1.2])
def test_the_highest_rate_is_found_from_both_sides(rate: float) -> None:
    assert promises.share_of_highest(rate, lambda tried: tried <= 1.0) == pytest.approx(rate, rel=0.01)


def test_questions_cover_what_they_say() -> None:
    asked = promises.questions(300, 1)
    assert min(question["output"] for question in asked) < 4
    assert max(question["output"] for question in asked) > 1200
    assert {question["chips"] for question in asked} == {1, 2, 4, 8}
    limits = [question[name] for question in asked for name in ("tpot", "ttft") if name in question]
    assert {limit.partition("@")[2] for limit in limits} == {"mean", "p90", "p99"}
