"""Confidence in limits: headroom from measured servers, the chance that each limit holds, and whether both are true."""

from __future__ import annotations

from typing import Any

import pytest

import rackline as rl
from rackline.api.plan import Planned
from rackline.bands.spread import headroom_of, shipped_spreads
from rackline.cli.main import run
from rackline.validation.laboratories import headroom_coverage, likely_stats, make_spreads
from scripts import load_script

confidence = load_script("confidence")
SMALL: dict[str, Any] = {
    "on": "dgx-h100",
    "chips": 2,
    "layout": "tp=1",
    "serving": "aggregated",
    "calibration": "vllm",
    "input": 1000,
    "output": 100,
    "tpot": "20ms",
    "ttft": "1s",
}


def planned(**more: Any) -> Planned:
    found = rl.plan("llama-3.1-8b", **{**SMALL, **more}).result
    assert isinstance(found, Planned)
    return found


def test_left_out_laboratories_and_models_are_covered_as_often_as_accepted() -> None:
    """In total; of pools, 29 cases are left without the largest laboratory, so theirs may be further off."""
    scores = confidence.stored_scores()
    for left_out in ("laboratory", "model"):
        totals = {row.metric: row for row in headroom_coverage(scores, left_out) if not row.by}
        assert totals.keys() == set(confidence.METRICS)
        for metric, row in totals.items():
            single = not metric.startswith("pools_")
            assert row.is_accepted or not single, row
            assert 0.7 <= row.covered[0] <= 0.9, row
            assert 0.8 <= row.covered[1] <= 0.98, row
        assert totals["tpot_s"].num_cases > 900


def test_likely_numbers_are_no_worse_than_computed_ones() -> None:
    rows = likely_stats(confidence.stored_scores())
    assert {row.metric for row in rows} == set(confidence.METRICS)
    assert [row for row in rows if row.is_worse] == []


def test_the_shipped_spreads_are_those_of_the_stored_ratios() -> None:
    made, shipped = make_spreads(confidence.stored_scores()), shipped_spreads()
    assert made.keys() == shipped.keys()
    for key, spread in made.items():
        assert shipped[key].quantiles == pytest.approx(spread.quantiles, rel=2e-3), key
        assert shipped[key].likely == pytest.approx(spread.likely, rel=2e-3)


def test_a_plan_with_confidence_leaves_headroom_and_says_what_it_costs() -> None:
    usual, sure = planned(), planned(confidence="90%")
    assert usual.risk is not None
    assert sure.risk is not None
    assert sure.plan.best is not None
    room = headroom_of(0.9, sure.plan.system)
    assert room is not None
    assert sure.plan.best.tpot_s <= 0.02 / room.tpot["one"]
    assert sure.plan.best.ttft_s <= 1.0 / room.ttft["one"]
    assert all(one.chance >= 0.9 for one in sure.risk.limits)
    assert all(limit.chance >= 0.8 for limit in usual.risk.limits)
    assert (usual.risk.confidence, sure.risk.confidence) == (0.8, 0.9)
    assert sure.risk.usd_without == usual.risk.usd_without
    assert sure.risk.usd_without is not None
    assert sure.risk.cost_ratio == pytest.approx(sure.risk.usd / sure.risk.usd_without)
    assert sure.risk.usd >= usual.risk.usd
    assert planned(calibration="unit").risk is None


@pytest.mark.parametrize("share", [0.5, 0.8, 0.99])
def test_headroom_never_lets_a_prediction_exceed_a_limit(share: float) -> None:
    """Also where servers were faster than predicted, such as mixtures under TensorRT-LLM on H100."""
    room = headroom_of(share, planned(calibration="trtllm").plan.system)
    assert room is not None
    assert min(*room.tpot.values(), *room.ttft.values()) >= 1.0


def test_more_confidence_costs_no_less() -> None:
    costs = [planned(confidence=share).risk for share in (0.6, 0.75, 0.95)]
    usd = [one.usd for one in costs if one is not None]
    assert len(usd) == 3
    assert usd[0] <= usd[1] * 1.005 <= usd[2] * 1.005**2


def test_the_decision_box_draws_the_chance_and_json_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3.1-8b", *(text for name, value in SMALL.items() for text in (f"--{name}", str(value)))]
    assert run(words) == 0
    box = capsys.readouterr().out.partition("╰")[0]
    lines = [line for line in box.splitlines() if "kept by" in line]
    assert [line.split()[2] for line in lines] == ["tpot", "ttft"]
    assert all(line.count("┃") == 1 for line in lines)
    data = rl.plan("llama-3.1-8b", **SMALL).to_dict()["risk"]
    assert [one["metric"] for one in data["limits"]] == ["tpot_s", "ttft_s"]
    assert f"{data['limits'][0]['chance']:.0%}".replace("%", " %") in lines[0]
    for limit in data["limits"]:
        assert limit["low_s"] < limit["likely_s"] < limit["high_s"]
        assert limit["num_laboratories"] >= 1


def test_the_decision_box_says_each_and_what_no_headroom_would_cost(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3.1-8b", *(text for name, value in SMALL.items() for text in (f"--{name}", str(value)))]
    assert run([*words, "--confidence", "80%"]) == 0
    box = " ".join(capsys.readouterr().out.partition("╰")[0].replace("│", " ").split())
    assert "headroom: 80 of 100 such servers meet each limit; without it $" in box
    assert "ttft likely " in box


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"confidence": "30%"}, "50.0 % to 99.0 %"),
        ({"confidence": "100%"}, "50.0 % to 99.0 %"),
        ({"confidence": "sure"}, "a fraction such as 0.9 or 90%"),
        ({"confidence": "90%", "calibration": "unit"}, "a stack whose servers were measured"),
        ({"confidence": "90%", "tpot": None, "ttft": None, "use": "batch"}, "together with a limit"),
    ],
)
def test_bad_confidence_is_refused_in_one_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.InputError, match=says) as refused:
        planned(**more)
    assert "confidence" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_prices_leave_the_headroom_too() -> None:
    asked: dict[str, Any] = {"on": "dgx-h100", "layout": "tp=1", "contexts": "4k", "tpot": "15ms", "fast": "2"}
    plain, sure = (
        rl.price("llama-3.1-8b", **asked, **more).to_dict()["tiers"][0]["usd_per_mtok_output"]
        for more in ({}, {"confidence": "90%"})
    )
    assert sure > plain
