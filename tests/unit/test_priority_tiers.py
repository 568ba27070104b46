"""Latencies of each priority tier of a simulated run."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import rackline as rl
from helpers import call
from rackline.api.simulate import Simulated

SERVED: dict[str, Any] = {
    "on": "dgx-h100",
    "chips": 1,
    "layout": "tp=1",
    "input": 2000,
    "output": 100,
    "requests": 1500,
    "rate": 22,
    "high_priority_share": 0.2,
    "max_num_seqs": 24,
}


@cache
def run_under(policy: str, slo: str | None = None) -> tuple[Simulated, dict[str, Any]]:
    found = rl.simulate("llama-3.1-8b", policy=policy, slo=slo, **SERVED)
    assert isinstance(found.result, Simulated)
    return found.result, found.to_dict()


def test_urgent_requests_wait_less_and_the_others_pay_for_it() -> None:
    urgent, others = run_under("priority")[1]["by_priority"]
    assert (urgent["priority"], others["priority"]) == (0, 1)
    assert urgent["queue_s"]["p90"] < 0.5 * others["queue_s"]["p90"]
    assert urgent["ttft_s"]["mean"] < others["ttft_s"]["mean"]
    first, second = run_under("chunked")[1]["by_priority"]
    assert second["ttft_s"]["mean"] < others["ttft_s"]["mean"]
    assert first["ttft_s"]["mean"] == pytest.approx(second["ttft_s"]["mean"], rel=0.3)


def test_tiers_are_the_requests_of_the_run() -> None:
    """Oracle: the columns of the run, cut by hand."""
    found, data = run_under("priority", "ttft=1s,tpot=50ms@p90")
    result = found.run.result
    tiers = result.requests.priority
    assert tiers is not None
    assert sum(tier["requests"] for tier in data["by_priority"]) == data["requests"]
    measured = result.window().places
    assert len(measured) == data["measured"]["requests"]
    for tier in data["by_priority"]:
        mine = [at for at in measured if tiers[at] == tier["priority"]]
        first = np.array([result.first_s[at] - result.arrival_s[at] for at in mine])
        assert tier["ttft_s"]["p90"] == pytest.approx(float(np.percentile(first, 90)))
        within = np.mean([result.ttft_s[at] <= 1.0 and result.tpot_s[at] <= 0.05 for at in mine])
        assert tier["slo_attainment"] == pytest.approx(float(within))
    sizes = [int(np.sum(tiers[measured] == tier["priority"])) for tier in data["by_priority"]]
    means = [tier["e2e_s"]["mean"] for tier in data["by_priority"]]
    whole = sum(size * mean for size, mean in zip(sizes, means, strict=True)) / len(measured)
    assert data["e2e_s"]["mean"] == pytest.approx(whole)


def test_equal_requests_have_no_tiers() -> None:
    asked: dict[str, Any] = {**SERVED, "high_priority_share": 0, "requests": 50}
    assert rl.simulate("llama-3.1-8b", **asked).to_dict()["by_priority"] == []


@pytest.mark.parametrize("width", [80, 100])
def test_the_report_shows_each_tier(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    server = "llama-3.1-8b --on dgx-h100 --chips 1 --input 2k --output 50 --policy priority --compare policy=chunked"
    traffic = "--requests 200 --rate 20 --high-priority-share 20% --slo ttft=1s"
    asked = ("simulate", *server.split(), *traffic.split())
    text = call(capsys, *asked)
    assert "by priority" in text
    assert "within the limits: " in text
    assert "to first token, p99, tier 0" in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    tiers = json.loads(call(capsys, *asked, "--json"))["by_priority"]
    assert [tier["priority"] for tier in tiers] == [0, 1]
