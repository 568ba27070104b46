"""Classes of requests: their file, what is drawn, what became of each; a backlog; both loops; the frontend."""

from __future__ import annotations

import gc
import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.api.rates import classes_of
from rackline.api.simulate_options import SimulateQuestion
from rackline.api.traffic import load_of, requests_of
from rackline.errors import InputError
from rackline.simulation import POLICIES, Lengths, PlainClock, Pool, RankSpec, Requests, simulate
from rackline.simulation.autoscalers import AUTOSCALERS, Setting
from rackline.simulation.classes import ClassTraffic, over_time, steady
from rackline.simulation.entrance import ADMISSIONS, STAGES, AdmissionRule, Entrance, stages_of
from rackline.simulation.fleet import run_fleet
from rackline.simulation.fleet_pool import Scaled
from rackline.simulation.load import Load
from rackline.simulation.native import library
from rackline.simulation.routers import SessionAffinity

TWO = """
[[classes]]
name = "chat"
share = "60%"
input = "500"
output = 50
ttft = "300ms@p90"

[[classes]]
name = "reports"
share = "20%"
input = "1k"
output = 80
priority = 2
lengths = "lognormal"
e2e = "20s"
"""
BACKLOG = '\n[[classes]]\nname = "overnight"\noffline = true\nrequests = 60\ninput = 500\noutput = 40\n'
ASKED: dict[str, Any] = {"on": "dgx-h100", "chips": 2, "layout": "tp=1", "rate": "30", "requests": 400}


def _file(folder: Path, text: str = TWO) -> str:
    path = folder / "classes.toml"
    path.write_text(text)
    return str(path)


def _question(path: str, **more: Any) -> SimulateQuestion:
    return SimulateQuestion("llama-3.1-8b", **(ASKED | {"classes": path} | more))


def test_a_file_gives_shares_limits_and_tiers(tmp_path: Path) -> None:
    chat, reports, overnight = classes_of(_question(_file(tmp_path, TWO + BACKLOG)))
    assert (chat.share, reports.share, overnight.share) == (pytest.approx(0.75), pytest.approx(0.25), None)
    assert [(one.latency, one.seconds, one.percentile) for one in chat.limits] == [("ttft_s", 0.3, 90.0)]
    assert [(one.latency, one.seconds, one.percentile) for one in reports.limits] == [("e2e_s", 20.0, 99.0)]
    assert (chat.priority, reports.priority, overnight.priority) == (0, 2, 3)
    requests = requests_of(_question(_file(tmp_path, TWO + BACKLOG)), inf)
    assert requests.classes is not None
    assert np.bincount(requests.classes).tolist()[2] == 60
    assert np.mean(requests.classes[requests.classes < 2] == 0) == pytest.approx(0.75, abs=0.06)
    assert set(requests.input_len[requests.classes == 0].tolist()) == {500}
    assert len(set(requests.input_len[requests.classes == 1].tolist())) > 50
    assert requests.rate_per_s == pytest.approx(30.0 * 460 / 400, rel=0.15)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "an empty file"),
        ("classes = 3", "got 'classes'"),
        ('[[classes]]\nname = "a"\nshare = 1\ninput = 5\noutput = 5\ncolour = 1', "class 1: key: got 'colour'"),
        ("[[classes]]\nshare = 1\ninput = 5\noutput = 5", "class 1: name"),
        ('[[classes]]\nname = "a"\ninput = 5\noutput = 5', "class 1: share: got 'nothing'"),
        ('[[classes]]\nname = "a"\nshare = 1\nrate = "2/s"\ninput = 5\noutput = 5', "got 'share and rate'"),
        ('[[classes]]\nname = "a"\nshare = 1\noutput = 5', "class 1: input: got 'nothing'"),
        ('[[classes]]\nname = "a"\nshare = 1\ninput = 5\noutput = 5\nttft = "soon"', "class 1: ttft"),
        ('[[classes]]\nname = "a"\nshare = 1\ninput = 5\noutput = 5\nlengths = "lognormol"', "nearest: lognormal"),
        ('[[classes]]\nname = "a"\noffline = true\ninput = 5\noutput = 5', "class 1: requests: got 'nothing'"),
        ('[[classes]]\nname = "a"\noffline = true\nrequests = 3\ninput = 5\noutput = 5', "offline classes alone"),
        ('[[classes]]\nname = "a"\nshare = 1\nfill = 0.5\ninput = 5\noutput = 5', "only with offline = true"),
        (TWO + TWO, "chat twice"),
        ('[[classes]]\nname = "a"\nload = "day"\nrate = "1/s"\ninput = 5\noutput = 5', "only with `load`"),
    ],
)
def test_a_bad_file_says_where(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        requests_of(_question(_file(tmp_path, text)), inf)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rate": None, "users": 4}, "only without `classes`"),
        ({"input": "1k"}, "only without `classes`"),
        ({"rate": None}, "rate of all classes"),
        ({"admit": "queue"}, "nearest: queue=100"),
        ({"admit": "probabilistic=3"}, "without a number"),
        ({"admit": "quueue=3"}, "nearest: queue"),
        ({"router": "llmd"}, "nearest: llm-d"),
        ({"frontend": "dynamos"}, "nearest: dynamo"),
        ({"frontend": "dynamo=0"}, "frontend servers"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        rl.simulate("llama-3.1-8b", **(ASKED | {"classes": _file(tmp_path)} | more))


def test_a_rule_for_the_less_urgent_needs_some() -> None:
    asked = ASKED | {"input": "500", "output": 50, "admit": "saturation"}
    with pytest.raises(InputError, match="nearest: concurrency"):
        rl.simulate("llama-3.1-8b", **asked)


def test_an_answer_by_class_is_what_the_columns_say(tmp_path: Path) -> None:
    path = _file(tmp_path, TWO + BACKLOG)
    answer = rl.simulate("llama-3.1-8b", classes=path, admit="queue=1", **(ASKED | {"rate": "90"}))
    data = json.loads(json.dumps(answer.to_dict()))
    result = answer.result.run.result  # pyright: ignore[reportAttributeAccessIssue]
    kinds = np.asarray(result.requests.classes)
    assert answer.result.run.server.pool.policy.name == "priority"  # pyright: ignore[reportAttributeAccessIssue]
    assert data["refused"] == int(result.refused.sum()) > 0
    assert data["requests"] == data["finished"] + data["refused"] + data["unfinished"] == 460
    for number, one in enumerate(data["by_class"]):
        mine = kinds == number
        done = np.isfinite(result.finish_s) & mine
        assert one["requests"] == mine.sum() == one["finished"] + one["refused"]
        assert one["refused_share"] == pytest.approx(one["refused"] / one["requests"])
        assert one["ttft_s"]["p99"] == pytest.approx(float(np.percentile(result.ttft_s[done], 99)))
    chat, reports, overnight = data["by_class"]
    within = np.mean((result.ttft_s <= 0.3)[kinds == 0])  # NaN where a request was refused: not within
    assert chat["attained"] == pytest.approx(float(within))
    assert chat["limits"][0]["holds"] == (within >= 0.9)
    assert overnight["finished"] == 60
    assert (overnight["refused"], overnight["limits"], reports["priority"]) == (0, [], 2)
    assert "attained" not in overnight
    assert answer.plot("classes").title == "Latency percentiles"
    assert answer.tables()["by_class"]["name"] == ["chat", "reports", "overnight"]


def test_the_backlog_fills_what_is_idle_and_is_no_load() -> None:
    """One replica, two places: the backlog gets a place while nobody waits, and leaves it to one who comes."""
    lengths = Lengths(input_len=1, output_len=1000)
    kinds = [
        ClassTraffic(name="now", lengths=Lengths(input_len=1, output_len=100), rate_per_s=0.5),
        ClassTraffic(name="later", lengths=lengths, priority=1, offline=True, requests=10),
    ]
    requests = steady(np.random.default_rng(1), kinds, 40, 0.0)
    spec = RankSpec(pool_tokens=100_000, max_num_seqs=2, max_batched_tokens=1000)
    pool = Pool(clock=PlainClock(base_s=0.01), spec=spec, policy=POLICIES.find("preemptive"))
    result = simulate(requests, pool, router="least-loaded", admission=AdmissionRule(name="concurrency", limit=5.0))
    online = requests.classes == 0
    assert result.finished.all()
    assert not result.refused.any()  # two of the backlog in flight would fill the limit
    assert float(result.queue_s[online].max()) < 1.1  # at most the rest of another that came
    assert result.preempted[~online].sum() > 0
    alone = simulate(requests.pick(online), pool)
    assert float(result.e2e_s[online].mean()) < float(alone.e2e_s.mean()) + 0.05
    data = {one["name"]: one for one in result.by_class()}
    assert data["later"]["finished"] == 10
    assert data["later"]["output_tokens_per_s"] == pytest.approx(10_000 / result.makespan_s)


def _load(rates: list[float]) -> Load:
    return Load(edges_s=np.arange(len(rates) + 1) * 60.0, rates_per_s=np.array(rates))


def _fleet(requests: Any, pool: Pool, most: int = 3, **more: Any) -> Any:
    setting = Setting(capacity_per_s=4.0, running=3.0, kv_use=0.1, start_s=10.0, begin=1, arrivals_s=requests.arrival_s)
    scaled = Scaled(pool=pool, scaler=AUTOSCALERS.find("hpa"), setting=setting, least=1, most=most, chips=1)
    return run_fleet(requests, scaled, seconds=240.0, entrance=Entrance(**more))


def test_a_fleet_counts_what_it_refuses_and_does_not_grow_for_a_backlog() -> None:
    lengths = Lengths(input_len=10, output_len=40)
    spec = RankSpec(pool_tokens=20_000, max_num_seqs=4, max_batched_tokens=1000)
    pool = Pool(clock=PlainClock(base_s=0.02), spec=spec, policy=POLICIES.find("priority"))
    busy, quiet = _load([2.0, 30.0, 2.0, 0.5]), _load([0.2] * 4)
    kinds = [
        ClassTraffic(name="a", lengths=lengths, share=0.5),
        ClassTraffic(name="b", lengths=lengths, share=0.5, priority=1),
        ClassTraffic(name="later", lengths=lengths, priority=2, offline=True, requests=500),
    ]
    requests = over_time(np.random.default_rng(2), kinds, [busy.scaled(busy.mean_per_s / 2)] * 2)
    run = _fleet(requests, pool, admission=AdmissionRule(name="queue", limit=2.0), router="least-loaded")
    assert run.refused_requests > 100
    assert run.answered + run.refused_requests + run.unanswered == run.count == len(requests)
    assert sum(one["refused"] for one in run.by_class()) == run.refused_requests
    assert sum(row.requests for row in run.online.windows(60.0, None)) == run.count - 500
    still = over_time(np.random.default_rng(3), kinds, [quiet.scaled(0.1)] * 2)
    alone = _fleet(still, pool)
    assert alone.most_replicas == 1
    assert alone.by_class()[2]["finished"] > 200  # a replica of 4 places that is free 1 s in 5 answers 5 a second


def test_a_class_has_rates_of_its_own_over_time(tmp_path: Path) -> None:
    own = tmp_path / "night.csv"
    own.write_text("time,rate\n0,0\n30,4\n")
    text = TWO.replace('share = "20%"', f'load = "{own}"')
    question = _question(_file(tmp_path, text), load="day", load_time="2min", rate="5", requests=None)
    requests = requests_of(question, inf)
    late = requests.arrival_s[requests.classes == 1]
    assert float(late.min()) > 60.0  # stretched with the load, which it is part of
    assert len(late) == pytest.approx(4 * 60, rel=0.25)
    whole = load_of(question)
    assert whole.mean_per_s == pytest.approx(5.0 + 2.0)
    again = requests_of(question, inf)
    assert again.arrival_s.tolist() == requests.arrival_s.tolist()


@pytest.mark.skipif(library() is None, reason="the compiled loop is missing")
@pytest.mark.parametrize(
    ("router", "rule"),
    [("least-loaded", None), ("llm-d", None), ("dynamo-kv", "saturation"), ("round-robin", "probabilistic")],
)
@pytest.mark.parametrize("name", ["priority", "preemptive"])
def test_the_loop_in_c_serves_tiers_as_the_one_in_python(name: str, router: str, rule: str | None) -> None:
    from rackline.api.answer import Watch
    from rackline.api.resolve import named
    from rackline.api.server import server_of

    asked = SimulateQuestion("llama-3.1-8b", on="dgx-h100", layout="tp=1", chips=2, rate="1", input="500", output=50,
                             kv_tokens=12_000, max_num_seqs=6, policy=name)  # fmt: skip
    model, cluster = named(asked, Watch())
    pool = server_of(asked, model, cluster, 512, 8000, Watch()).pool
    lengths = Lengths(input_len=1500, output_len=120, spread="lognormal")
    kinds = [
        ClassTraffic(name="a", lengths=lengths, share=0.4),
        ClassTraffic(name="b", lengths=lengths, share=0.6, priority=1),
        ClassTraffic(name="c", lengths=lengths, priority=2, offline=True, requests=40, fill=0.5),
    ]
    requests = steady(np.random.default_rng(4), kinds, 300, 16.0)
    admission = None if rule is None else AdmissionRule(name=rule, seed=1)
    runs = [
        simulate(requests, pool, router=router, admission=admission, skip_bad=True, compiled=compiled)
        for compiled in (True, False)
    ]
    first, second = runs
    assert first.preempted.any()
    for column in ("engine_s", "admitted_s", "first_s", "finish_s"):
        np.testing.assert_allclose(getattr(first, column), getattr(second, column), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(first.preempted, second.preempted)
    np.testing.assert_array_equal(first.refused, second.refused)
    assert first.blocks_left == second.blocks_left == 0
    assert (first.finished | first.refused).all()


def test_published_frontends_pass_what_was_published() -> None:
    """Rates of whole requests, at the prompts they were measured with."""
    published = {"dynamo": (7.43, 60_000), "dynamo-cached": (22.88, 60_000), "llm-d": (130.0, 55_000),
                 "tensorrt-llm": (1 / 43.7e-3, 38_000)}  # fmt: skip
    for name, (rate, prompt) in published.items():
        stage = STAGES[name]
        assert stage.servers * stage.tokens_per_s / prompt == pytest.approx(rate)
    (one, two) = stages_of("llm-d, 120k/s=16")
    assert (one.name, two.servers, two.tokens_per_s) == ("llm-d", 16, 120e3)


def test_an_answer_says_that_the_frontend_binds(capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, Any] = {
        "on": "dgx-h100",
        "chips": 8,
        "layout": "tp=1",
        "input": "60k",
        "output": 20,
        "requests": 150,
    }
    slow, fast = (
        rl.simulate("llama-3.1-8b", rate="10", frontend=text, replicas=8, cache_hit="95%", **asked)
        for text in ("dynamo", "dynamo=64")
    )
    data, other = slow.to_dict(), fast.to_dict()
    assert data["frontend"][0]["requests_per_s"] == pytest.approx(7.43)
    assert data["frontend"][0]["utilization"] == pytest.approx(10 / 7.43, rel=0.2)
    assert (data["frontend_binds"], other["frontend_binds"]) == (True, False)
    assert other["ttft_s"]["p99"] < 0.5 * data["ttft_s"]["p99"]
    assert "the frontend binds" in slow._repr_html_()
    users = rl.simulate("llama-3.1-8b", users=40, frontend="dynamo", cache_hit="95%", **asked).to_dict()
    assert users["requests_per_s"] == pytest.approx(7.43, rel=0.1)  # a closed loop goes at the pace of the frontend


def test_a_load_of_classes_under_a_policy(tmp_path: Path) -> None:
    path = _file(tmp_path, TWO + BACKLOG)
    asked = {key: value for key, value in ASKED.items() if key != "requests"} | {"rate": "20"}
    answer = rl.simulate("llama-3.1-8b", classes=path, load="day", load_time="3min", autoscale=["hpa"],
                         admit="saturation=2", router="llm-d", frontend="dynamo=32", **asked)  # fmt: skip
    policies = answer.to_dict()["policies"]
    assert [one["policy"] for one in policies] == ["hpa", "oracle"]
    for one in policies:
        by = {row["name"]: row for row in one["by_class"]}
        assert by["chat"]["refused"] == by["overnight"]["refused"] == 0
        assert by["overnight"]["finished"] == 60
        assert by["chat"]["requests"] + by["reports"]["requests"] == one["requests"]
        assert one["frontend"][0]["servers"] == 32
    assert "hpa, by class" in answer._repr_html_()
    assert answer.plot("classes").title == "Classes of requests over time"


def test_a_new_replica_has_no_number_of_one_that_is_still_there() -> None:
    class Replica:
        pass

    requests = Requests(
        arrival_s=np.zeros(80), input_len=np.ones(80, int), output_len=np.ones(80, int),
        after=np.where(np.arange(80) < 40, -1, np.arange(80) - 40),
    )  # fmt: skip
    router, gone, stays = SessionAffinity(requests), Replica(), Replica()
    standing: Any = SimpleNamespace(replicas=[gone, stays])
    router.choose(0, standing)
    standing.replicas = [stays, Replica()]
    del gone
    gc.collect()
    assert {router.choose(request, standing) for request in range(40)} == {0, 1}


@pytest.mark.parametrize(
    ("rule", "field"), [(ADMISSIONS.find("queue"), "queued"), (ADMISSIONS.find("concurrency"), "loads")]
)
@pytest.mark.parametrize(("counts", "expected"), [((1, 2), True), ((2, 2), False), ((0, 5), False), ((0, 0), True)])
def test_a_limit_counts_all_replicas_together(rule: Any, field: str, counts: tuple[int, int], expected: bool) -> None:
    """Two a replica, of two replicas: one more comes in while there are fewer than four."""
    standing: Any = SimpleNamespace(replicas=[None, None], queued=(9, 9), loads=(9, 9))
    setattr(standing, field, counts)
    admission = rule(2.0, np.random.default_rng(0))
    assert admission.admits(standing, urgent=False) is expected
    assert admission.admits(standing, urgent=True) is expected
