"""Traffic, mixtures and uses mean the same in plan, compare, price and simulate."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.api.compare import CompareQuestion
from rackline.api.plan_parts import PlanQuestion
from rackline.api.price import PriceQuestion
from rackline.api.question import options
from rackline.api.simulate_options import SimulateQuestion
from rackline.errors import InputError

pytestmark = pytest.mark.usefixtures("searched_once")

MODEL, ON = "llama-3.1-8b", "dgx-h100"
MIX = "share,input,output\n0.8,500,200\n0.2,6000,400\n"


@pytest.fixture
def mix(tmp_path: Path) -> str:
    file = tmp_path / "mix.csv"
    file.write_text(MIX)
    return str(file)


@pytest.mark.parametrize("question", [CompareQuestion, PriceQuestion])
def test_options_of_traffic_are_those_of_plan(question: Any) -> None:
    of_plan, known = options(PlanQuestion), options(question)
    for name in ("use", "mix", "trace", "traffic", "requests", "users", "think_time", "peak_over_mean"):
        assert known[name] == of_plan[name], name
    assert "use" in {one.name for one in fields(SimulateQuestion)}
    assert options(SimulateQuestion)["use"].help is of_plan["use"].help


def test_compare_has_the_fleet_of_plan() -> None:
    asked: dict[str, Any] = {
        "input": "1k",
        "output": 200,
        "tpot": "40ms",
        "ttft": "2s",
        "users": 5000,
        "layout": "tp=1",
    }
    one = rl.plan(MODEL, on=ON, rent="on-demand", think_time="10s", **asked).result.fleet
    sides = rl.compare([f"{MODEL}@{ON}", f"{MODEL}@dgx-h200"], rent="on-demand", think_time="10s", **asked).to_dict()
    fleet = sides["sides"][0]["deployed"]["fleet"]
    assert fleet["copies"] == one.copies
    assert fleet["usd_per_hour"] == pytest.approx(one.usd_per_hour)
    assert fleet["interactive"]["users"] == 5000


def test_compare_refuses_traffic_of_chips() -> None:
    with pytest.raises(InputError, match="only with deployments"):
        rl.compare(["h100", "b200"], requests="5/s")


def test_requests_pay_the_rent_of_their_fleet_with_the_margin(mix: str) -> None:
    priced = rl.price(MODEL, on=ON, mix=mix, contexts="8k", requests="400/s", margin="25%").result
    found, engines = priced.offered, priced.engines
    demand = found.demand
    assert engines is not None
    assert demand is not None
    assert demand.fleet.usd_per_hour is not None
    # by hand: four requests of five have 500 + 200 tokens, the fifth 6,000 + 400
    tier = found.tiers[0]
    request = 0.8 * (500 * tier.input_usd + 200 * tier.output_usd) + 0.2 * (
        6000 * tier.input_usd + 400 * tier.output_usd
    )
    assert demand.request_usd == pytest.approx(request)
    assert 400 * 3600 * request == pytest.approx(1.25 * demand.fleet.usd_per_hour)
    ask: dict[str, Any] = {"requests": "400/s", "tpot": "50ms", "engine": engines.taken}
    planned = rl.plan(MODEL, on=ON, mix=mix, **ask).result.fleet
    assert planned.billed_chips == demand.fleet.billed_chips
    assert planned.usd_per_hour == pytest.approx(demand.fleet.usd_per_hour)


def test_less_traffic_leaves_more_idle_and_costs_more() -> None:
    asked: dict[str, Any] = {"use": "chat", "contexts": "4k", "layout": "tp=1", "calibration": "vllm"}
    usd = [rl.price(MODEL, on=ON, requests=f"{rate}/s", **asked).result.offered for rate in (20, 200)]
    assert usd[0].terms.utilisation < usd[1].terms.utilisation
    assert usd[0].tiers[0].output_usd > usd[1].tiers[0].output_usd


def test_the_margin_is_earned_over_the_prompts_of_a_mixture(mix: str) -> None:
    found = rl.price(MODEL, on=ON, mix=mix, contexts="4k,8k", layout="tp=1").result.offered
    short, long = (tier for tier in found.tiers if tier.mode == "standard")
    assert short.way.lengths.mean == 500
    assert long.way.lengths.mean == 6000
    assert (short.output_len, long.output_len) == (200, 400)
    assert short.margin == pytest.approx(0.3)
    assert short.output_usd < long.output_usd


def test_prompts_beyond_the_last_tier_are_refused(mix: str) -> None:
    with pytest.raises(InputError, match="tiers that hold every prompt"):
        rl.price(MODEL, on=ON, mix=mix, contexts="4k")


def test_a_utilisation_and_traffic_exclude_each_other() -> None:
    with pytest.raises(InputError, match="either a utilisation or `requests`"):
        rl.price(MODEL, on=ON, requests="5/s", utilisation="50%")
    with pytest.raises(InputError, match="together with `users`"):
        rl.price(MODEL, on=ON, think_time="5s")


def test_simulate_takes_lengths_hits_and_limits_of_a_use() -> None:
    run = rl.simulate(MODEL, on=ON, use="agents", rate=2, requests=40, chips=1).result
    assert run.use.filled.keys() == {"input", "output", "cache_hit", "tpot", "ttft"}
    requests = run.requests
    assert (requests.input_len == 8600).all()
    assert requests.computed is not None
    assert np.allclose(requests.computed, 0.59 * 8600, atol=1.0)
    slo = run.run.slo
    assert (slo.ttft_s, slo.tpot_s) == (2.0, 0.04)
    assert (slo.ttft_percentile, slo.tpot_percentile) == (99.0, 99.0)
    cold = rl.simulate(MODEL, on=ON, use="agents", rate=2, requests=40, chips=1, input=8600, output=180).result
    assert cold.requests.computed is None
    assert run.run.result.ttft_s.mean() < cold.run.result.ttft_s.mean()


def test_simulate_keeps_what_was_asked() -> None:
    run = rl.simulate(MODEL, on=ON, use="chat", rate=2, requests=40, chips=1, output=50, slo="ttft=1s").result
    assert run.use.filled.keys() == {"input"}
    assert (run.requests.output_len == 50).all()
    assert run.run.slo.tpot_s is None


def test_a_cache_hit_share_needs_requests_that_find_nothing_else() -> None:
    with pytest.raises(InputError, match="only without `prefix_caching`"):
        rl.simulate(MODEL, on=ON, rate=2, input="1k", output=100, cache_hit=0.5, prefix_caching=True)
