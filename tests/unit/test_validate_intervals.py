"""Intervals of predicted numbers."""

import re
from typing import Any

import pytest

import rackline as rl
from helpers import deploy
from rackline.arch import model
from rackline.bands.bands import (
    Evidence,
    find_band,
    interval_line,
    intervals,
    of_deployment,
    of_training,
    shipped_bands,
)

TRTLLM = Evidence(stack="trtllm", kind="dense", chip="h100-sxm", layout="tp")


def test_an_interval_is_the_prediction_times_the_band_of_its_group() -> None:
    (found,) = intervals({"tpot_s": 0.020}, TRTLLM)
    band = find_band(shipped_bands(), "tpot_s", TRTLLM)
    assert found.low == pytest.approx(0.020 * band.low)
    assert found.high == pytest.approx(0.020 * band.high)
    assert found.low < found.predicted < found.high
    assert found.group == band.of.text()
    assert found.group.startswith("trtllm dense")
    assert found.num_cases == band.num_cases >= 20


def test_an_unknown_stack_takes_the_band_of_all() -> None:
    (found,) = intervals({"tpot_s": 0.020}, Evidence(stack="no-such-stack"))
    assert found.group == "all stacks"


def test_pools_have_bands_of_their_own() -> None:
    of = Evidence(stack="trtllm", kind="mixture", chip="gb200", layout="pools")
    (found,) = intervals({"tpot_s": 0.020}, of)
    assert found.low == pytest.approx(0.020 * find_band(shipped_bands(), "pools_tpot_s", of).low)


def test_rates_and_costs_follow_the_time_per_token() -> None:
    names = ("tpot_s", "output_tokens_per_s_per_chip", "usd_per_mtok_output")
    found = {i.metric: i for i in intervals(dict.fromkeys(names, 1.0), TRTLLM)}
    tpot, rate, cost = (found[name] for name in names)
    assert (cost.low, cost.high) == (tpot.low, tpot.high)
    assert rate.low == pytest.approx(1 / tpot.high)
    assert rate.high == pytest.approx(1 / tpot.low)


def test_what_no_case_measures_has_no_interval() -> None:
    assert intervals({"dollars_per_mtok": 1.0}, TRTLLM) == []


def test_the_ideal_roofline_has_no_interval() -> None:
    assert of_deployment(deploy("llama-3.1-8b", calibration="unit"), {"tpot_s": 0.01}) == []
    (found,) = of_deployment(deploy("llama-3.1-8b", calibration="vllm", on="dgx-h100"), {"tpot_s": 0.01})
    assert "vllm dense" in found.group


def test_every_cost_of_a_line_has_its_own_band() -> None:
    """$0.57 all-in must not stand beside the band of the output's part alone."""
    costs = {"usd_per_mtok_input": 0.10, "usd_per_mtok_output": 0.30, "usd_per_mtok_output_all_in": 0.57}
    found = intervals(costs, TRTLLM)
    assert all(one.low < costs[one.metric] < one.high for one in found)
    line = interval_line(found)
    for one, name in zip(found, ("input", "output", "output, all-in"), strict=True):
        assert f"cost per M {name} {one.low:,.3g} to {one.high:,.3g}" in line


def test_a_plan_at_its_limit_says_what_its_band_risks() -> None:
    ask: dict[str, Any] = {
        "on": "dgx-h100",
        "chips": 1,
        "layout": "tp=1",
        "mode": "chunked=2048",
        "serving": "aggregated",
        "ttft": "60s",
    }
    near, far = (
        rl.plan("llama-3.1-8b", **ask, input=1000, output=100, tpot=tpot, calibration="trtllm")
        for tpot in ("20ms", "10s")
    )
    lines = [one.verb.interval(one) for one in (near, far)]
    (near_line,), (far_line,) = ([one for one in text.splitlines() if one.startswith("of such")] for text in lines)
    found = re.fullmatch(r"of such servers (\d+) % keep tpot ≤ 20.0 ms, 99 % keep ttft ≤ 1.00 min", near_line)
    assert found is not None
    assert 10 < int(found[1]) < 90  # at its limit, about as many are slower as faster
    assert far_line == "of such servers 99 % keep tpot ≤ 10.0 s, 99 % keep ttft ≤ 1.00 min"


def test_a_line_says_which_measurements() -> None:
    step = of_training(model("llama-3.1-8b"), "h100-sxm", "nemo", 2.0)
    line = interval_line(step, "runs")
    assert line.startswith("90 % of measured runs (")
    assert "lay within: step " in line
    assert interval_line([]) == ""
