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
    ({"input": "8k", "output": 10, "tpot": "20ms", "calibration": "trtllm"}, "held"),
    ({"input": 100, "output": 3, "tpot": "30ms@p99", "ttft": "2s@p99", "calibration": "sglang"}, "held"),
    ({"input": 3000, "output": 2, "use": "batch", "calibration": "vllm"}, "held"),
    ({"input": "16k", "output": 4, "ttft": "100ms", "calibration": "trtllm"}, "infeasible"),
    ({"input": 500, "output": 8, "tpot": "1ms", "calibration": "sglang"}, "infeasible"),
]


@pytest.mark.parametrize(("asked", "outcome"), ASKED)
def test_a_promise_is_kept_or_there_is_a_reason(asked: dict[str, Any], outcome: str) -> None:
    found = promises.check(SMALL | asked, seeds=(7,))
    assert found.outcome == outcome, found.detail


def test_pools_keep_theirs() -> None:
    asked = {"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 2, "input": 1000, "output": 4, "tpot": "8ms@p90"}
    found = promises.check(asked | {"precision": "bf16", "layout": "tp=1", "calibration": "vllm"}, seeds=(7,))
    assert found.outcome == "held", found.detail


def test_a_promise_that_was_not_served_or_does_not_hold_is_noticed() -> None:
    plan: Plan = promises.plan_of(rl.plan(**SMALL, input=1000, output=4, tpot="15ms", calibration="vllm"))
    best = plan.best
    assert best is not None
    assert best.sustained is not None
    assert promises.kept(best, plan, (7,)).outcome == "held"
    assert promises.kept(replace(best, sustained=None, not_simulated="too dear"), plan, (7,)).outcome == "not simulated"
    more = replace(best, sustained=replace(best.sustained, requests_per_s=2.0 * best.requests_per_s))
    assert promises.kept(more, plan, (7,)).outcome == "broken"


def test_what_is_not_finite_is_noticed() -> None:
    assert promises.all_finite({"a": [1.0, {"b": 2}], "c": None, "d": "nan"})
    assert not promises.all_finite({"a": [1.0, {"b": float("nan")}]})
    assert not promises.all_finite((float("inf"),))


def test_questions_cover_what_they_say() -> None:
    asked = promises.questions(300, 1)
    assert {one["output"] for one in asked} == set(range(2, 9))
    assert min(one["input"] for one in asked) < 200
    assert max(one["input"] for one in asked) > 12_000
    assert {one["chips"] for one in asked} == {1, 2, 4, 8}
    assert {one["calibration"] for one in asked} == {"vllm", "sglang", "trtllm"}
