"""Intervals of predicted numbers."""

import pytest

from rackline.validation.bands import find_band, shipped_bands
from rackline.validation.intervals import intervals


def test_an_interval_is_the_prediction_times_the_band_of_its_group() -> None:
    (found,) = intervals({"tpot_s": 0.020}, "trtllm", "fp8")
    band = find_band(shipped_bands(), "tpot_s", "trtllm", "fp8")
    assert found.low == pytest.approx(0.020 * band.low)
    assert found.high == pytest.approx(0.020 * band.high)
    assert found.low < found.predicted < found.high
    assert found.group == "trtllm fp8"
    assert found.num_cases == band.num_cases >= 20


def test_a_small_group_takes_the_band_of_its_stack_and_says_so() -> None:
    (found,) = intervals({"tpot_s": 0.020}, "sglang", "int4")
    assert found.group == "sglang"


def test_an_unknown_stack_takes_the_band_of_all() -> None:
    (found,) = intervals({"tpot_s": 0.020}, "no-such-stack", "fp8")
    assert found.group == "all stacks"


def test_rates_and_costs_follow_the_time_per_token() -> None:
    names = ("tpot_s", "output_tokens_per_s_per_chip", "usd_per_mtok_output")
    found = {i.metric: i for i in intervals(dict.fromkeys(names, 1.0), "trtllm", "fp8")}
    tpot, rate, cost = (found[name] for name in names)
    assert (cost.low, cost.high) == (tpot.low, tpot.high)
    assert rate.low == pytest.approx(1 / tpot.high)
    assert rate.high == pytest.approx(1 / tpot.low)


def test_what_no_case_measures_has_no_interval() -> None:
    assert intervals({"dollars_per_mtok": 1.0}, "trtllm", "fp8") == []
