"""Loads over time, rules of autoscalers, start-up, failures, and `simulate --load`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.api.answer import Watch
from rackline.api.resolve import named
from rackline.api.server import server_of
from rackline.api.simulate_options import SimulateQuestion
from rackline.errors import InputError
from rackline.search.scaled_fleet import Following
from rackline.simulation import Handover, Lengths
from rackline.simulation.autoscalers import AUTOSCALERS, Seen, Setting
from rackline.simulation.entrance import Entrance
from rackline.simulation.fleet import run_fleet
from rackline.simulation.fleet_pool import LOADER_BYTES_PER_S, Failures, Places, Scaled, start_up
from rackline.simulation.load import SHAPES, Load, profile, read_load, shape
from rackline.simulation.native import library

NONE = np.zeros(0)
TRACE = Path("../shared/traces/mooncake_conversation_trace.jsonl")


def _seen(time_s: float, *, ready: int = 1, starting: int = 0, running: int = 0, waiting: int = 0, arrived: int = 0,
          kv_use: float = 0.0) -> Seen:  # fmt: skip
    return Seen(time_s, ready, starting, running, waiting, kv_use, arrived)


def _setting(**more: float) -> Setting:
    usual = {"capacity_per_s": 2.0, "running": 10.0, "kv_use": 0.5, "start_s": 60.0}
    return Setting(begin=1, arrivals_s=NONE, **(usual | more))  # pyright: ignore[reportArgumentType]


def test_arrivals_follow_the_rates() -> None:
    load = Load(edges_s=np.array([0.0, 100.0, 200.0, 300.0, 400.0]), rates_per_s=np.array([50.0, 0.0, 0.0, 200.0]))
    for cv in (1.0, 0.0, 3.0):
        times = load.arrivals(np.random.default_rng(0), cv)
        counts, _ = np.histogram(times, load.edges_s)
        assert np.all(np.diff(times) >= 0)
        assert counts[1] == counts[2] == 0
        assert counts[[0, 3]] == pytest.approx([5000, 20000], rel=0.002 if cv == 0 else 0.1)
    assert load.mean_per_s == pytest.approx(62.5)
    assert load.lasting(800.0).mean_per_s == pytest.approx(62.5)
    assert load.scaled(1.0).peak_per_s == pytest.approx(3.2)


def test_gaps_of_a_poisson_load_are_exponential() -> None:
    load = Load(edges_s=np.array([0.0, 1000.0, 2000.0]), rates_per_s=np.array([10.0, 20.0]))
    times = load.arrivals(np.random.default_rng(1))
    for low, rate in ((0.0, 10.0), (1000.0, 20.0)):
        gaps = np.diff(times[(times >= low) & (times < low + 1000.0)])
        assert gaps.mean() == pytest.approx(1.0 / rate, rel=0.05)
        assert gaps.std() == pytest.approx(1.0 / rate, rel=0.07)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_their_mean_and_say_what_is_assumed(name: str) -> None:
    load = shape(name, 3.0)
    assert load.mean_per_s == pytest.approx(3.0)
    assert load.estimated
    assert load.seconds == (7 if name == "week" else 1) * 86400.0


def test_a_table_is_read_with_clock_times_and_units(tmp_path: Path) -> None:
    file = tmp_path / "day.csv"
    file.write_text("rate,time\n2/s,08:00\n180/min,08:30\n4,9:00\n")
    load = read_load(file)
    assert load.edges_s.tolist() == [0.0, 1800.0, 3600.0, 5400.0]
    assert load.rates_per_s.tolist() == [2.0, 3.0, 4.0]
    file.write_text("time,rate\n0,1\n2min,5\n")
    assert read_load(file).edges_s.tolist() == [0.0, 120.0, 240.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "columns time and rate"),
        ("time,rat\n0,1\n1,2\n", "nearest: rate for rat"),
        ("time,rate\n0,1\n", "1 rates"),
        ("time,rate\n0,1\n0,2\n", "line 3: time: got '0'"),
        ("time,rate\n0,1\nsoon,2\n", "line 3: time: got 'soon'"),
        ("time,rate\n0,1\n1,fast\n", "line 3: rate: got 'fast'"),
        ("time,rate\n0,1\n1\n", "line 3: load: got '1 cells'"),
        ("time,rate\n0,0\n1,0\n", "some of them above 0"),
    ],
)
def test_a_bad_table_says_where(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        read_load(file)


def test_a_trace_gives_its_rates_and_lengths() -> None:
    if not TRACE.exists():
        pytest.skip(f"no {TRACE}")
    requests = rl.simulation.read_trace(TRACE)
    load = profile(requests, "trace")
    assert load.mean_per_s * load.seconds == pytest.approx(len(requests))
    found = rl.simulate("llama-3.1-8b", on="dgx-h100", chips=8, layout="tp=1", load=str(TRACE), load_time="10min",
                        rate="0.5", autoscale=["oracle"], slo="ttft=30s,tpot=100ms").result  # fmt: skip
    run = found.fleet.first.run
    assert run.seconds == 600.0
    assert run.count == pytest.approx(300, abs=60)
    assert float(run.requests.input_len.mean()) == pytest.approx(float(requests.input_len.mean()), rel=0.3)


def test_kubernetes_grows_by_the_ratio_within_its_bounds() -> None:
    policy = AUTOSCALERS.find("hpa")(_setting())
    assert policy.wish(_seen(0.0, ready=2, running=21)) == 2  # within a tenth of the target
    assert policy.wish(_seen(15.0, ready=2, running=23)) == 3
    assert policy.wish(_seen(30.0, ready=2, starting=1, running=40)) == 4  # those that start count, without load
    assert policy.wish(_seen(45.0, ready=2, starting=2, running=41)) == 4
    assert policy.wish(_seen(60.0, ready=4, running=900)) == 8  # at most twice or four more
    assert policy.wish(_seen(75.0, ready=0, starting=8)) == 8  # without a ready pod there is no metric
    assert [policy.wish(_seen(time, ready=8, running=8)) for time in (90.0, 360.0, 375.0)] == [8, 8, 1]


def test_kubernetes_on_kv_use_reads_the_cache() -> None:
    policy = AUTOSCALERS.find("hpa-kv")(_setting())
    assert policy.wish(_seen(0.0, ready=2, kv_use=1.0)) == 2
    assert policy.wish(_seen(15.0, ready=2, kv_use=1.7)) == 4


def test_keda_wakes_at_a_poll_and_sleeps_after_its_cooldown() -> None:
    policy = AUTOSCALERS.find("keda")(_setting())
    assert policy.wish(_seen(0.0, ready=0)) == 0
    assert policy.wish(_seen(15.0, ready=0, waiting=3)) == 0  # between two polls
    assert policy.wish(_seen(30.0, ready=0, waiting=3)) == 1
    assert policy.wish(_seen(45.0, ready=1, waiting=12)) == 3  # five waiting each
    assert policy.wish(_seen(60.0, ready=3, waiting=0)) == 3
    assert [policy.wish(_seen(time, ready=3)) for time in (300.0, 315.0, 330.0)] == [3, 3, 0]
    policy = AUTOSCALERS.find("keda")(_setting())
    policy.wish(_seen(0.0, ready=1, waiting=1))
    assert [policy.wish(_seen(time, ready=1)) for time in (270.0, 300.0)] == [1, 0]
    policy = AUTOSCALERS.find("keda")(_setting())
    assert policy.wish(_seen(0.0, ready=4, waiting=21)) == 4  # within a tenth of five waiting each
    assert policy.wish(_seen(15.0, ready=2, waiting=20)) == 4  # at twice the target there are twice as many


def test_the_planner_divides_its_prediction_by_the_rate_of_a_replica() -> None:
    policy = AUTOSCALERS.find("dynamo-planner")(_setting())
    assert policy.interval_s == 180.0
    assert policy.wish(_seen(0.0, ready=3)) == 3
    assert [policy.wish(_seen(180.0 * n, arrived=720)) for n in (1, 2, 3)] == [2, 2, 2]  # 4 a second, 2 each
    rising = [policy.wish(_seen(180.0 * n, arrived=720 + 180 * (n - 3))) for n in range(4, 30)]
    assert rising[-1] > np.ceil((720 + 180 * 26) / 180.0 / 2.0) - 1  # the trend is followed
    assert rising == sorted(rising)


def test_the_seasonal_forecast_is_the_day_before() -> None:
    day = Load(edges_s=np.array([0.0, 43200.0, 86400.0]), rates_per_s=np.array([1.0, 9.0]))
    policy = AUTOSCALERS.find("seasonal")(replace(_setting(start_s=100.0), history=day))
    assert policy.wish(_seen(0.0)) == 1
    assert policy.wish(_seen(42900.0, arrived=300)) == 5  # the second half begins before those would be ready
    alone = AUTOSCALERS.find("seasonal")(_setting())
    assert alone.wish(_seen(0.0, ready=2)) == 2
    wishes = [alone.wish(_seen(300.0 * n, arrived=3000 if n % 288 == 10 else 300)) for n in range(1, 400)]
    assert wishes[:12] == [1] * 9 + [5, 1, 1]  # on the first day only after it came
    assert wishes[293:299] == [1, 5, 5, 5, 1, 1]  # on the second before


def test_the_oracle_begins_before_the_load_comes() -> None:
    arrivals = np.concatenate([np.linspace(0.0, 599.0, 600), np.linspace(600.0, 1199.0, 5700)])
    policy = AUTOSCALERS.find("oracle")(replace(_setting(start_s=120.0), arrivals_s=arrivals))
    assert [policy.wish(_seen(time)) for time in (0.0, 460.0, 470.0, 1185.0)] == [1, 1, 5, 5]


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest: keda"):
        AUTOSCALERS.find("kedda")


def test_a_start_is_bound_by_the_slower_of_loader_and_link() -> None:
    fast, slow = (start_up("warm", 140e9, 4, 1, link) for link in (100e9, 2e9))
    assert fast.weights_s == pytest.approx(140e9 / (4 * LOADER_BYTES_PER_S))
    assert slow.weights_s == pytest.approx(70.0)
    assert start_up("cold", 140e9, 4, 1, 2e9).seconds > slow.seconds + 600.0


def test_hosts_fail_at_their_rate_and_racks_at_their_share() -> None:
    failures = Failures(per_host_day=0.1, repair_s=600.0, rack_hosts=8, rack_share=0.2)
    found = failures.draw(np.random.default_rng(3), 64, 86400.0 * 1000)
    alone = sum(len(one.hosts) == 1 for one in found)
    assert alone == pytest.approx(64 * 100 * 0.8, rel=0.05)
    assert sum(len(one.hosts) for one in found) == pytest.approx(64 * 100, rel=0.05)
    assert [one.time_s for one in found] == sorted(one.time_s for one in found)


def test_pools_share_chips() -> None:
    places = Places(6)
    assert [places.take(4, 0.0), places.take(4, 0.0)] == [(), None]
    places.give_back((), 4)
    assert places.take(4, 0.0) == ()


def _real(**more: object) -> tuple[Scaled, SimulateQuestion]:
    question = SimulateQuestion("llama-3.1-8b", on="dgx-h100", layout="tp=1", chips=8, rate="1", input="500", output=50)
    model, cluster = named(question, Watch())
    server = server_of(question, model, cluster, 512, 8000, Watch())
    setting = Setting(capacity_per_s=4.0, running=3.0, kv_use=0.01, start_s=45.0, begin=1, arrivals_s=NONE)
    return Scaled(pool=server.pool, scaler=AUTOSCALERS.find("hpa"), setting=setting, least=1, most=8, chips=1), question


@pytest.mark.parametrize("router", ["round-robin", "least-loaded"])
@pytest.mark.parametrize("pools", [1, 2])
def test_the_loop_in_c_gives_the_same_fleet(router: str, pools: int) -> None:
    if library() is None:
        pytest.skip("the compiled loop is missing")
    scaled, _ = _real()
    load = Load(edges_s=np.arange(5) * 120.0, rates_per_s=np.array([2.0, 20.0, 5.0, 0.5]))
    requests = load.draw(np.random.default_rng(4), Lengths(input_len=500, output_len=50, spread="lognormal"))
    outages = Failures(per_host_day=300.0, repair_s=60.0).draw(np.random.default_rng(6), 8, 480.0)
    front = replace(scaled, most=3) if pools == 2 else None
    handover = Handover(pool=scaled.pool, tokens_per_s=4e5, latency_s=1e-5) if pools == 2 else None
    runs = [
        run_fleet(requests, scaled, seconds=480.0, entrance=Entrance(router=router), front=front, handover=handover,
                  outages=outages, places=Places(10, 8, 2, 2), compiled=compiled)
        for compiled in (True, False)
    ]  # fmt: skip
    assert runs[0].lost_requests > 0
    assert runs[0].answered == len(requests)
    for name in ("admitted_s", "first_s", "finish_s"):
        first, second = (getattr(run, name) for run in runs)
        assert first == pytest.approx(second, rel=1e-9)
    assert runs[0].chip_seconds == pytest.approx(runs[1].chip_seconds)
    assert runs[0].retries.tolist() == runs[1].retries.tolist()


ASKED = {"on": "dgx-h100", "chips": 8, "layout": "tp=1", "input": "500", "output": 100, "slo": "ttft=1s,tpot=30ms"}


def _table(folder: Path) -> str:
    file = folder / "load.csv"
    file.write_text("time,rate\n0,5\n60s,60\n120s,10\n")
    return str(file)


def test_an_answer_has_dollars_misses_and_regret(tmp_path: Path) -> None:
    answer = rl.simulate("llama-3.1-8b", load=_table(tmp_path), autoscale=["hpa", "keda"], price=2.0, **ASKED)
    found = answer.result
    data = answer.to_dict()
    assert [one["policy"] for one in data["policies"]] == ["hpa", "keda", "oracle"]
    oracle = data["policies"][-1]
    for one in data["policies"]:
        assert one["usd"] == pytest.approx(2.0 * one["chip_hours"])
        assert sum(window["requests"] for window in one["windows"]) == one["requests"] == found.fleet.first.run.count
        assert one["unanswered"] == 0
        assert one["over_perfect"] == pytest.approx(one["chip_hours"] / data["perfect_chip_hours"] - 1.0)
    assert oracle["over_oracle"] is None
    assert data["policies"][0]["over_oracle"] == pytest.approx(
        data["policies"][0]["chip_hours"] / oracle["chip_hours"] - 1.0
    )
    assert json.loads(json.dumps(data)) == data
    assert len(answer.to_frame()) == 24 * 3
    assert answer.plot().spec["vconcat"]
    again = rl.simulate("llama-3.1-8b", load=_table(tmp_path), autoscale=["hpa", "keda"], price=2.0, **ASKED)
    assert again.to_dict()["policies"] == data["policies"]


def test_seeds_give_intervals(tmp_path: Path) -> None:
    found = rl.simulate("llama-3.1-8b", load=_table(tmp_path), seeds=3, **ASKED).result
    outcome = found.fleet.first.outcome
    alone = [
        rl.simulate("llama-3.1-8b", load=_table(tmp_path), seed=seed, **ASKED).result.fleet.first.outcome
        for seed in range(3)
    ]
    assert outcome.ttft_p99_s == pytest.approx(np.mean([one.ttft_p99_s for one in alone]))
    assert outcome.intervals is not None
    half = 4.302653 * np.std([one.ttft_p99_s for one in alone], ddof=1) / np.sqrt(3.0)
    assert outcome.intervals["ttft_p99_s"] == pytest.approx(half, rel=1e-4)


def test_limits_that_no_replica_keeps_are_an_answer(tmp_path: Path) -> None:
    answer = rl.simulate("llama-3.1-8b", load=_table(tmp_path), **(ASKED | {"slo": "ttft=1us"}))
    assert "meets the limits at no rate" in answer.to_dict()["reason"]
    assert answer.to_dict()["policies"] == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"load": "dya", "rate": "5"}, "nearest: day"),
        ({"load": "day"}, "rate: got 'nothing'"),
        ({"load": "day", "rate": "5", "autoscale": ["hap"]}, "nearest: hpa"),
        ({"autoscale": ["hpa"], "rate": "5"}, "autoscale: got 'hpa', allowed: only with `load`"),
        ({"load": "day", "rate": "5", "users": 3}, "users: got 3, allowed: only without `load`"),
        ({"load": "day", "rate": "5", "start_up": "wram"}, "nearest: warm"),
        ({"load": "day", "rate": "5", "weights_from": "dsk"}, "nearest: disk"),
        ({"load": "day", "rate": "5", "failures": "publishd"}, "nearest: published"),
        ({"load": "day", "rate": "5", "spare_hosts": 1}, "spare_hosts: got 1, allowed: only with `failures`"),
        ({"load": "day", "rate": "5", "min_replicas": 99}, "nearest: 8"),
    ],
)
def test_bad_input_is_one_line(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as error:
        rl.simulate("llama-3.1-8b", **(ASKED | given))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plan_follows_a_load_for_the_fewest_chip_hours(tmp_path: Path) -> None:
    asked = {"on": "dgx-h100", "chips": 8, "input": 500, "output": 100, "tpot": "30ms@p99", "ttft": "1s@p99"}
    answer = rl.plan("llama-3.1-8b", serving="aggregated", load=_table(tmp_path), **asked)
    found = answer.result.over_time
    data = answer.to_dict()["over_time"]
    assert data["load"]["peak_per_s"] == 60.0
    assert data["slo"] == {
        "ttft_s": 1.0,
        "ttft_percentile": 99.0,
        "tpot_s": 0.03,
        "tpot_percentile": 99.0,
    }
    runnable = [one for one in data["tried"] if one["holds"] and one["policy"] != "oracle"]
    assert data["best"]["chip_hours"] == min(one["chip_hours"] for one in runnable)
    assert {one["policy"] for one in data["tried"]} == {"fixed", "hpa", "dynamo-planner", "oracle"}
    assert all(one["chip_hours"] > data["perfect_chip_hours"] for one in runnable)
    alone = rl.simulate("llama-3.1-8b", on="dgx-h100", chips=8, load=_table(tmp_path), layout=found.best.layout,
                        input=500, output=100, slo="ttft=1s,tpot=30ms@p99", autoscale=[found.best.outcome.policy],
                        precision=answer.result.plan.best.precision.label,
                        calibration=answer.result.plan.system.calibration.name)  # fmt: skip
    assert alone.result.fleet.first.outcome.chip_hours == pytest.approx(found.best.outcome.chip_hours)
    without = rl.plan("llama-3.1-8b", serving="aggregated", **asked).to_dict()
    assert "over_time" not in without
    assert without["best"]["layout"] == answer.to_dict()["best"]["layout"]


def test_a_plan_refuses_what_has_no_load() -> None:
    with pytest.raises(InputError, match="only with `load`"):
        rl.plan("llama-3.1-8b", on="dgx-h100", load_time="1h")
    with pytest.raises(InputError, match="requests: got 'nothing', allowed: the mean of a day"):
        rl.plan("llama-3.1-8b", on="dgx-h100", load="day")


def test_each_pool_begins_with_its_own_replicas() -> None:
    asked = ASKED | {"prefill_layout": "tp=2", "replicas": 3, "prefill_replicas": 1, "rate": "4"}
    found = rl.simulate("llama-3.1-8b", **asked, load="burst", load_time="5min", autoscale=["fixed"])
    assert found.to_dict()["policies"][0]["chip_hours"] == pytest.approx((1 * 2 + 3 * 1) * 5 / 60)


def test_layouts_that_follow_a_load_are_ordered_by_what_they_keep_and_cost() -> None:
    def outcome(policy: str, chip_hours: float, *, holds: bool) -> Any:
        return SimpleNamespace(outcome=SimpleNamespace(policy=policy, chip_hours=chip_hours, holds=holds))

    def runs(perfect: float, *ran: Any) -> Any:
        return SimpleNamespace(ran=ran, perfect_chip_hours=perfect, reason="")

    found = Following(
        runs={
            "tp=1": runs(3.0, outcome("hpa", 5.0, holds=False), outcome("fixed", 9.0, holds=True)),
            "tp=2": runs(2.0, outcome("oracle", 6.0, holds=True), outcome("keda", 7.0, holds=True)),
        },
        reasons={},
    )
    assert [(one.layout, one.outcome.policy) for one in found.tried] == [
        ("tp=2", "oracle"),
        ("tp=2", "keda"),
        ("tp=1", "fixed"),
        ("tp=1", "hpa"),
    ]
    assert found.best is not None
    assert found.best.outcome.policy == "keda"  # the oracle knows the load beforehand
    assert found.perfect_chip_hours == 2.0
    none = Following(runs={"tp=1": runs(3.0, outcome("hpa", 5.0, holds=False))}, reasons={})
    assert none.best is None
