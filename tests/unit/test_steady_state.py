"""Warm-up, intervals of percentiles and capacities, and runs that end when their percentiles are known."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.search.rate_capacity import rate_capacity
from rackline.simulation import (
    POLICIES,
    Lengths,
    PlainClock,
    Pool,
    RankSpec,
    Requests,
    Slo,
    closed_loop_of,
    open_arrivals,
    simulate,
)
from rackline.simulation.statistics import known_percentiles, percentile_interval, warm_up

ONE: dict[str, Any] = {"on": "dgx-h100", "chips": 1, "layout": "tp=1", "calibration": "vllm"}
POOL = Pool(
    clock=PlainClock(base_s=0.01, per_prompt_token_s=1e-4),
    spec=RankSpec(pool_tokens=200_000, max_num_seqs=32),
    policy=POLICIES.find("chunked"),
)


def autoregressive(seed: int, count: int, correlation: float) -> Array:
    """Exponentially distributed values whose normal scores follow a first-order autoregression."""
    from scipy import special

    noise = np.random.default_rng(seed).normal(size=count)
    start = noise[0]
    noise *= np.sqrt(1.0 - correlation**2)
    score = np.array(list(accumulate(noise[1:], lambda last, new: correlation * last + new, initial=start)))
    return -special.log_ndtr(-score)


def test_a_warm_up_is_left_out_and_a_trend_has_no_steady_state() -> None:
    rng = np.random.default_rng(1)
    series = rng.exponential(1.0, 3000)
    assert warm_up(series)[0] < 600
    assert warm_up(series)[1]
    begun = series.copy()
    begun[:300] += 10.0
    assert warm_up(begun) == (300, True)
    assert not warm_up(np.arange(3000.0) + series)[1]
    assert warm_up(series[:50]) == (0, False)


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0])
def test_intervals_hold_the_exact_percentile_of_correlated_values(percentile: float) -> None:
    """Exact: the quantile of the exponential distribution. Independent values would need a fifth of the interval."""
    exact = -np.log(1.0 - percentile / 100.0)
    inside = 0
    for seed in range(100):
        ends = percentile_interval(autoregressive(seed, 4000, 0.9), percentile)
        inside += not (exact < ends["low"] or exact > ends["high"])
    assert 85 <= inside <= 99


def test_few_values_bound_no_tail() -> None:
    values = np.random.default_rng(2).exponential(1.0, 200)
    assert np.isfinite(percentile_interval(values, 50.0)["high"])
    assert np.isnan(percentile_interval(values, 99.0)["high"])
    assert np.isfinite(percentile_interval(values, 99.0)["low"])
    assert np.isnan(percentile_interval(values[:10], 50.0)["low"])
    assert percentile_interval(np.full(2000, 3.0), 99.0) == {"low": 3.0, "high": 3.0}


def test_users_start_spread_over_their_think_time() -> None:
    users = 200
    requests = closed_loop_of(np.random.default_rng(0), 2000, users, Lengths(input_len=50, output_len=20), think_s=20.0)
    starts = requests.arrival_s[:users]
    assert starts.mean() == pytest.approx(20.0, rel=0.2)
    assert np.quantile(starts, 0.5) == pytest.approx(20.0 * np.log(2.0), rel=0.25)
    result = simulate(requests, POOL)
    first, last = (result.ttft_s[result.window().places[part]] for part in (slice(0, 200), slice(-200, None)))
    assert np.percentile(result.ttft_s[:users], 99) < 1.5 * np.percentile(result.ttft_s[users:], 99)
    assert first.mean() == pytest.approx(last.mean(), rel=0.3)


def test_the_burst_of_a_closed_loop_without_think_time_is_not_measured() -> None:
    requests = closed_loop_of(
        np.random.default_rng(0), 1500, 30, Lengths(input_len=300, output_len=30, spread="uniform")
    )
    result = simulate(requests, POOL)
    window, data = result.window(), result.summary()
    assert window.steady
    assert window.warm_up >= 10
    assert window.last > 0
    assert data["measured"]["requests"] + window.warm_up + window.last == 1500
    assert data["ttft_s"]["p99"] < np.percentile(result.ttft_s, 99)


def test_all_requests_of_a_trace_and_of_a_burst_count() -> None:
    rng = np.random.default_rng(0)
    lengths = Lengths(input_len=300, output_len=30)
    recorded = Requests(
        arrival_s=np.cumsum(rng.exponential(0.1, 400)), input_len=np.full(400, 300), output_len=np.full(400, 30)
    )
    for requests in (recorded, open_arrivals(rng, 400, np.inf, lengths)):
        measured = simulate(requests, POOL).summary()["measured"]
        assert (measured["requests"], measured["steady"]) == (400, None)


def test_a_queue_that_grows_does_not_keep_limits_of_short_runs() -> None:
    """Oracle: each of 32 places takes over 0.5 s, so 64 requests/s at most can start."""
    requests = open_arrivals(np.random.default_rng(3), 400, 100.0, Lengths(input_len=50, output_len=50))
    result = simulate(requests, POOL)
    assert result.overload() is not None
    assert not result.holds(Slo(ttft_s=1000.0))


def test_a_run_ends_when_its_percentiles_are_known() -> None:
    asked: dict[str, Any] = {**ONE, "rate": 10, "input": 500, "output": 20}
    data = rl.simulate("llama-3.1-8b", **asked).to_dict()
    assert data["measured"]["half_width"] <= 0.1
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        low, high = data[name]["p99_interval"].values()
        assert low <= data[name]["p99"] <= high
        assert high - low <= 0.2 * data[name]["p99"]
    assert data["requests"] >= 2000
    rough = rl.simulate("llama-3.1-8b", **asked, percentile_precision=0.5, slo="ttft=1s@p50").to_dict()
    assert rough["requests"] <= data["requests"]
    again = rl.simulate("llama-3.1-8b", **asked, requests=data["requests"]).to_dict()
    assert again["ttft_s"] == data["ttft_s"]
    fixed = rl.simulate("llama-3.1-8b", **asked, requests=60).to_dict()
    assert (fixed["requests"], fixed["measured"]["half_width"]) == (60, None)


def test_a_run_says_when_its_percentiles_stay_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rackline.api.simulate._MOST_REQUESTS", 2000)
    found = rl.simulate("llama-3.1-8b", **ONE, rate=10, input=500, output=20, percentile_precision=0.001)
    assert any("percentiles that were asked for" in text for text in found.warnings)


def test_a_daily_cycle_covers_whole_days_or_is_refused() -> None:
    rng, lengths = np.random.default_rng(0), Lengths(input_len=100, output_len=5)
    with pytest.raises(InputError, match="1728000"):
        open_arrivals(rng, 5000, 20.0, lengths, diurnal_amplitude=0.9)
    two = open_arrivals(rng, 20_000, 0.1, lengths, diurnal_amplitude=0.9)
    assert len(two) == 17_280
    assert two.arrival_s[-1] == pytest.approx(2 * 86400.0, rel=0.1)  # few come at night
    with pytest.raises(InputError, match="1728000"):
        rl.simulate("llama-3.1-8b", **ONE, rate=20, input=100, output=5, diurnal_amplitude=0.9)
    day = rl.simulate("llama-3.1-8b", **ONE, rate=0.02, input=100, output=5, diurnal_amplitude=0.9).to_dict()
    assert day["requests"] == 1728


@pytest.mark.parametrize("limits", [Slo(ttft_s=0.2, ttft_percentile=95.0), Slo(tpot_s=0.02, tpot_percentile=90.0)])
def test_a_capacity_stays_within_its_interval_when_the_run_is_twice_as_long(limits: Slo) -> None:
    lengths = Lengths(input_len=300, output_len=20, spread="uniform")
    short, long = (
        rate_capacity(
            open_arrivals(np.random.default_rng(8), count, 20.0, lengths),
            lambda faster: simulate(faster, POOL, compiled=False),
            limits,
        )
        for count in (2000, 4000)
    )
    assert short.rate_low <= short.rate_per_s <= short.rate_high
    assert short.rate_low <= long.rate_per_s <= short.rate_high
    assert short.half_width < 0.3


def test_a_capacity_of_a_short_run_is_not_bounded() -> None:
    lengths = Lengths(input_len=300, output_len=20, spread="uniform")
    found = rate_capacity(
        open_arrivals(np.random.default_rng(8), 100, 20.0, lengths),
        lambda faster: simulate(faster, POOL),
        Slo(ttft_s=0.2),
    )
    assert found.rate_per_s > 0
    assert np.isnan(found.rate_low)


def test_the_longest_request_of_a_trace_chooses_the_layout(tmp_path: Path) -> None:
    """The usual layout of DeepSeek V3 on this rack holds no request of 121k tokens (Mooncake's longest)."""
    asked: dict[str, Any] = {"on": "gb200-nvl72", "calibration": "sglang"}
    traces: dict[int, Path] = {}
    for longest in (2000, 121_000):
        traces[longest] = tmp_path / f"{longest}.csv"
        traces[longest].write_text(f"arrival_s,input_len,output_len\n0,1000,4\n1,{longest},4\n")
    usual, roomy = (rl.simulate("deepseek-v3", **asked, trace=str(path)) for path in traces.values())
    assert roomy.to_dict()["finished"] == 2
    layouts = [json.dumps(found.to_dict()["deployment"]["layout"]) for found in (usual, roomy)]
    assert layouts[0] != layouts[1]
    assert any("longest request, of 121,004 tokens" in text for text in roomy.defaults)
    assert not any("longest request" in text for text in usual.defaults)


def test_percentiles_are_those_of_their_names() -> None:
    values = np.random.default_rng(0).permutation(1000.0 * np.arange(4001.0))
    found = known_percentiles(np.append(values, np.nan))
    assert [found["p50"], found["p90"], found["p99"], found["mean"]] == [2_000_000, 3_600_000, 3_960_000, 2_000_000]
    for percentile, ends in (
        (50.0, found["p50_interval"]),
        (90.0, found["p90_interval"]),
        (99.0, found["p99_interval"]),
    ):
        assert ends == percentile_interval(values, percentile)
