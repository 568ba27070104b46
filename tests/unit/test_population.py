"""Users who think: Little's law, and the fleet that they need."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

import rackline as rl
from rackline.serving.fleet import Part, Traffic, fleet_of_users
from rackline.serving.open_loop import Population, Response

PLAN = {
    "on": "dgx-h100",
    "chips": 1,
    "serving": "aggregated",
    "layout": "tp=1",
    "precision": "fp8",
    "input": 1000,
    "output": 200,
    "ttft": "1s",
    "tpot": "50ms",
}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 10**6),
    st.floats(0.0, 600.0),
    st.floats(0.01, 10.0),
    st.floats(1.0, 20.0),
    st.floats(0.01, 1e3),
    st.integers(1, 50),
)
def test_thinking_and_waiting_users_are_all_users(
    users: int, think_s: float, alone_s: float, slower: float, rate: float, copies: int
) -> None:
    response = Response(alone_s=alone_s, loaded_s=alone_s * slower, requests_per_s=rate)
    of = Population(users=users, think_s=think_s)
    found = of.requests_per_s(response, copies)
    if of.users / copies <= of.most(response):  # beyond, a copy is full
        assert found / copies * (think_s + response.at(found / copies)) == pytest.approx(users / copies, rel=1e-6)
    assert Population(users=users + 1, think_s=think_s).requests_per_s(response, copies) > found * (1 - 1e-12)


def test_a_fleet_has_no_more_users_a_copy_than_keep_its_limits() -> None:
    on = rl.cluster("dgx-h100")
    response = Response(alone_s=1.0, loaded_s=2.0, requests_per_s=10.0)  # 100 users who think 8 s
    for users, copies in ((1, 1), (100, 1), (101, 2), (1000, 10)):
        found = fleet_of_users(
            Population(users=users, think_s=8.0),
            Traffic(tokens_per_s=1.0),
            50.0,
            response,
            (Part(cluster=on, replica_chips=8),),
        )
        assert found.copies == copies
        assert found.interactive is not None
        assert found.interactive.users_per_copy == pytest.approx(100.0)
        assert found.requests_per_s is not None
        assert found.requests_per_s / copies <= 10.0 * (1 + 1e-9)
        assert found.traffic.tokens_per_s == pytest.approx(50.0 * found.requests_per_s)
    assert fleet_of_users(
        Population(users=100, think_s=8.0),
        Traffic(tokens_per_s=1.0, peak_over_mean=1.5),
        50.0,
        response,
        (Part(cluster=on, replica_chips=8),),
    ).copies == 2  # fmt: skip


@pytest.mark.parametrize(("users", "think"), [(0, 1.0), (5, -1.0)])
def test_nobody_and_negative_pauses_are_refused(users: float, think: float) -> None:
    with pytest.raises(rl.RacklineError):
        Population(users=users, think_s=think)


@pytest.mark.parametrize("users", [60, 250])
def test_users_of_a_plan_see_what_a_simulated_population_sees(users: int) -> None:
    planned = rl.plan("llama-3.1-8b", **PLAN, users=users, think_time="10s").result
    best, fleet = planned.plan.best, planned.fleet
    assert best is not None
    assert fleet is not None
    assert fleet.copies == 1
    served = rl.simulate(
        "llama-3.1-8b",
        on="dgx-h100",
        chips=1,
        layout="tp=1",
        precision=best.precision.label,
        users=users,
        think_time="10s",
        requests=5000,
        input=1000,
        output=200,
        calibration=planned.plan.system.calibration.name,  # of the stack that the plan takes
        policy=best.mode.admission.replace("_", "-"),
        max_num_seqs=best.max_num_seqs,
        max_batched_tokens=best.mode.max_batched_tokens,
    ).to_dict()
    assert fleet.interactive.response_s == pytest.approx(served["e2e_s"]["mean"], rel=0.15)


def test_requests_and_tokens_are_the_same_traffic() -> None:
    asked = {"requests": "30/s", "traffic": "6k/s"}
    by_rate, by_tokens = (
        rl.plan("llama-3.1-8b", **PLAN, **{name: value}).result.fleet for name, value in asked.items()
    )
    assert by_rate == by_tokens
    assert by_rate.requests_per_s == pytest.approx(30.0)
    per_minute = rl.plan("llama-3.1-8b", **PLAN, requests="1.8k/min").result.fleet
    assert per_minute.copies == by_rate.copies


class TestUse:
    def test_chat_is_the_default_and_says_so(self) -> None:
        answer = rl.plan("llama-3.1-8b", on="dgx-h100", chips=1)
        use, plan = answer.result.use, answer.result.plan
        assert (use.name, use.asked) == ("chat", False)
        assert set(use.filled) == {"input", "output", "tpot", "ttft"}
        assert plan.demand.limits.ttft_percentile == 99.0
        assert use.text.startswith("for chat (the default): input 1,155, output 211")

    def test_what_is_asked_for_stays(self) -> None:
        given = {"input": 3000, "output": 30, "tpot": "50ms", "ttft": "1s"}
        answer = rl.plan("llama-3.1-8b", on="dgx-h100", chips=1, **given)
        assert not answer.result.use.filled
        assert answer.result.plan.demand.limits.tpot_percentile == 99.0
        assert answer.result.use.text == ""

    def test_batch_limits_nothing(self) -> None:
        answer = rl.plan("llama-3.1-8b", on="dgx-h100", chips=1, use="batch")
        assert answer.result.plan.demand.limits.latencies() == []
        assert answer.result.plan.demand.workload.input_len == 1024

    def test_agents_bring_a_cached_prefix_with_their_own_prompt_only(self) -> None:
        own = rl.plan("llama-3.1-8b", on="dgx-h100", chips=1, use="agents").result.plan.demand.workload
        other = rl.plan("llama-3.1-8b", on="dgx-h100", chips=1, use="agents", input=5000).result.plan.demand.workload
        assert own.cache_hit == 0.59
        assert other.cache_hit == 0.0
