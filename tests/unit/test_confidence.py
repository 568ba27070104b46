"""Confidence in limits: headroom from measured servers, the chance that each limit holds, and whether both are true."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from rackline.api.plan import Planned
from rackline.bands.bands import LIMITED, SHARES, headroom_of, shipped_bands
from rackline.cli.main import run
from rackline.validation.coverage import make_bands
from rackline.validation.scoreboard import Score
from scripts import load_script

RATIOS = Path(__file__).resolve().parents[1] / "validation" / "held_out_ratios.csv"
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


def stored() -> list[Score]:
    """Measured over predicted of served cases without their model, as scores of a prediction of 1."""
    with RATIOS.open(encoding="utf-8") as file:
        return [
            Score(
                case_id=row["case"],
                where="",
                metric=row["metric"],
                measured=float(row["ratio"]),
                predicted=1.0,
                groups={"kind": "serve", **row},
            )
            for row in csv.DictReader(file)
        ]


def planned(**more: Any) -> Planned:
    found = rl.plan("llama-3.1-8b", **{**SMALL, **more}).result
    assert isinstance(found, Planned)
    return found


def test_of_plans_at_90_percent_85_to_95_percent_of_measured_servers_keep_the_limit() -> None:
    """Models left out of the fits and of the bands; of pools, most of which are of one model, random halves."""
    found = {(one.metric, one.share): one for one in load_script("confidence").kept_limits(stored(), (0.5, 0.9))}
    assert {metric for metric, _ in found} == set(LIMITED)
    for metric in LIMITED:
        assert 0.85 <= found[metric, 0.9].kept <= 0.95, metric
        assert 0.4 <= found[metric, 0.5].kept <= 0.6, metric
    assert found["tpot_s", 0.9].num_cases > 900


def test_the_shipped_bands_are_those_of_the_stored_ratios() -> None:
    made, shipped = make_bands(stored()), shipped_bands()
    assert made
    for key, one in made.items():
        assert shipped[key].quantiles == pytest.approx(one.quantiles, rel=2e-3), key
        assert shipped[key].low == pytest.approx(one.low, rel=2e-3)


@pytest.mark.parametrize("share", SHARES[1:-1])
def test_the_chance_at_a_quantile_is_its_share(share: float) -> None:
    for one in shipped_bands().values():
        if one.metric in LIMITED:
            assert one.share_within(one.ratio_within(share)) == pytest.approx(share, abs=1e-9)
            assert list(one.quantiles) == sorted(one.quantiles)


def test_a_plan_with_confidence_leaves_headroom_and_says_what_it_costs() -> None:
    plain, sure = planned(), planned(confidence="90%")
    assert plain.risk is not None
    assert sure.risk is not None
    assert plain.plan.best is not None
    assert sure.plan.best is not None
    room = headroom_of(0.9, sure.plan.system)
    assert room is not None
    assert sure.plan.best.tpot_s <= 0.02 / room.tpot["one"]
    assert sure.plan.best.ttft_s <= 1.0 / room.ttft["one"]
    assert all(one.chance >= 0.9 for one in sure.risk.limits)
    assert plain.risk.cost_ratio is None
    assert sure.risk.usd_without == pytest.approx(plain.plan.best.usd_with_leftover)
    assert sure.risk.cost_ratio == pytest.approx(sure.risk.usd / plain.risk.usd)
    assert sure.risk.usd >= plain.risk.usd


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
