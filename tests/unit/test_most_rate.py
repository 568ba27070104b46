"""The bound of what the passes of a deployment allow: no scheduler of the simulator does better, at any load."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from helpers import deploy, system
from rackline.parallel import Layout, Routing
from rackline.search import Choice, SearchSpace, plan
from rackline.search.finalists import serve_kinds
from rackline.search.served import Group, Service, Simulated
from rackline.search.sustained_rate import (
    NoSustainedRate,
    SustainedRate,
    decode_s,
    most_rate,
    most_requests_per_s,
    prompt_s,
    sustained_rate,
)
from rackline.serving.stack import stack_of
from rackline.serving.workload import Mixture, Workload
from rackline.simulation import Handover, Pool, Requests, Result, pool_of, simulate
from rackline.simulation.clock import PlainClock
from rackline.simulation.policies import POLICIES
from rackline.simulation.server import RankSpec
from rackline.simulation.workloads import OpenLoop
from rackline.system import Constraints, Demand

SHORT, LONG, CHAT = (
    Workload(input_len=2000, output_len=4),
    Workload(input_len=300, output_len=300),
    Workload(input_len=1500, output_len=100),
)
TWO = Workload.of_mixture(Mixture.of(np.array([3.0, 1.0]), np.array([200.0, 3000.0]), np.array([150.0, 20.0])))
ENGINES: dict[str, tuple[str, str, str, Layout, str, int]] = {
    "dense": ("llama-3.1-8b", "dgx-h100", "vllm", Layout(), "bf16", 2048),
    "small chunks": ("llama-3.1-8b", "dgx-h100", "trtllm", Layout(tp=2), "fp8", 512),
    "pipeline": ("llama-3.1-8b", "dgx-h100", "vllm", Layout(tp=2, pp=2), "bf16", 2048),
    "windows": ("gpt-oss-120b", "dgx-h100", "vllm", Layout(tp=2, moe_tp=2), "mxfp4", 2048),
    "ranks": ("deepseek-v3", "gb200-nvl72", "sglang", Layout(attention_dp=8, ep=8), "fp8", 2048),
}


@cache
def pool(name: str, passes: str, slots: int, overlap: bool = False) -> Pool:
    what, on, stack, layout, label, budget = ENGINES[name]
    deployment = deploy(what, layout, on=on, label=label, calibration=stack)
    own = stack_of(deployment.calibration).with_values(
        {"scheduler.max_num_seqs": slots, "scheduler.max_batched_tokens": budget}
    )
    return pool_of(deployment, own, policy_name=passes, two_batch_overlap=overlap, replicas=1)


def group(own: Pool, work: Workload, front: Pool | None = None) -> Group:
    return Group(
        pool=own,
        prefill=None if front is None else Handover(pool=front, tokens_per_s=1e9),
        copies=1,
        prefill_chips_share=0.0,
        beyond_s=0.0,
        workload=work,
    )


def served(one: Group, rate: float, count: int) -> tuple[float, float]:
    """(requests over the time of all passes [requests/s], mean time per output token [s]) from first to last."""
    work = one.workload
    loop = OpenLoop(
        input_len=round(work.input_len), output_len=round(work.output_len), lengths=work.mixture, measured=count
    )
    found = simulate(replace(loop, warm_up=0).requests(rate, 0, 0.0), one.pool, prefill=one.prefill, compiled=False)
    lasted = found.busy_s if one.prefill is None else float(found.finish_s.max() - found.arrival_s.min())
    return len(found.finish_s) / lasted, float(found.tpot_s.mean())


@pytest.mark.parametrize("passes", ["chunked", "prefill_first", "decode_first"])
@pytest.mark.parametrize(
    ("name", "work", "slots"),
    [
        ("dense", SHORT, 64),
        ("dense", TWO, 100),
        ("small chunks", CHAT, 40),
        ("pipeline", LONG, 30),
        ("windows", LONG, 60),
        ("ranks", SHORT, 3),
    ],
)
def test_no_scheduler_does_better(name: str, work: Workload, slots: int, passes: str) -> None:
    """Below and beyond what an engine can do: its rate is within the bound for the time per token that it has."""
    one = group(pool(name, passes, slots), work)
    most = most_requests_per_s(one, Constraints())[0]
    for load in (0.4, 3.0):
        rate, tpot_s = served(one, load * most, 250)
        assert rate <= most_requests_per_s(one, Constraints(tpot_s=tpot_s))[0] <= most * (1 + 1e-9)
    assert rate >= 0.4 * most  # the bound is no idle one


def test_ranks_that_wait_for_each_other_and_two_batches_at_a_time() -> None:
    for overlap in (False, True):
        one = group(pool("ranks", "prefill_first", 20, overlap), CHAT)
        most = most_requests_per_s(one, Constraints())[0]
        rate, tpot_s = served(one, 2.0 * most, 250)
        assert 0.5 * most <= rate <= most_requests_per_s(one, Constraints(tpot_s=tpot_s))[0]


@pytest.mark.parametrize("slots", [1, 5, 40, 150])
def test_fewer_slots_are_a_scheduler_too(slots: int) -> None:
    """Behind a prefill pool: an engine with many slots does no better at the speed of a few that are full."""
    front = replace(pool("dense", "prefill_first", 64), replicas=60)
    rate, _ = served(group(pool("dense", "chunked", slots), LONG, front), 1e4, 10 * slots + 100)
    tpot_s = slots / (rate * (LONG.output_len - 1.0))  # without the wait for a slot
    most = most_requests_per_s(group(pool("dense", "chunked", 200), LONG, front), Constraints(tpot_s=tpot_s))[0]
    assert 0.75 * most <= rate <= most


def test_a_prefill_pool_is_as_fast_as_its_prompts() -> None:
    front = pool("dense", "prefill_first", 64)
    one = group(replace(pool("dense", "chunked", 64), replicas=20), SHORT, front)
    most = most_requests_per_s(one, Constraints())[0]
    rate, _ = served(one, 3.0 * most, 400)
    assert 0.7 * most <= rate <= most
    assert most == pytest.approx(1.0 / prompt_s(front, SHORT))


def plain(slots: int, passes: str = "chunked", ranks: int = 1) -> Pool:
    return Pool(
        clock=PlainClock(base_s=0.01, per_sequence_s=1e-4, per_kv_s=1e-7, per_prompt_token_s=1e-5),
        spec=RankSpec(pool_tokens=10_000_000, max_num_seqs=slots),
        policy=POLICIES.find(passes),
        ranks=ranks,
    )


def test_the_bound_of_a_linear_engine() -> None:
    """Step 10 ms + 0.1 ms a sequence + 0.1 µs a cached token; a prompt token 10 µs."""
    work = Workload(input_len=1000, output_len=101)
    sequence_s = 1e-4 + 1e-7 * 1049.5
    full_s = (0.01 + 50 * sequence_s) / 50
    assert decode_s(plain(51), work, [Constraints()])[0] < decode_s(plain(50), work, [Constraints()])[0] <= full_s
    assert decode_s(plain(50), work, [Constraints()])[0] == pytest.approx(full_s, rel=0.02)
    assert prompt_s(plain(50), work) == pytest.approx(1000 * 1e-5)
    assert decode_s(plain(50, ranks=4), work, [Constraints()])[0] == pytest.approx(full_s / 4, rel=0.05)
    assert prompt_s(plain(50, ranks=4), work) == pytest.approx(1000 * 1e-5 / 4)
    least_s = decode_s(plain(50), work, [Constraints()])[0]
    apart, mixed = (
        most_requests_per_s(group(plain(50, passes), work), Constraints())[0] for passes in ("prefill_first", "chunked")
    )
    assert apart == pytest.approx(1.0 / (100 * least_s + 0.01))
    assert mixed == pytest.approx(1.0 / (100 * least_s))
    # as many as fit into 14 ms, of short contexts
    kept = (0.014 - 0.01) / (1e-4 + 1e-7 * 1000)
    limited = decode_s(plain(50), work, [Constraints(tpot_s=0.014)])[0]
    assert limited == pytest.approx((0.01 + kept * sequence_s) / kept, rel=0.06)
    assert limited <= (0.01 + kept * sequence_s) / kept * (1 + 1e-9)
    # nine of ten requests within the limit, the others as slow as with all slots
    most = decode_s(plain(50), work, [Constraints(tpot_s=0.014, tpot_percentile=90.0)])[0]
    assert most == pytest.approx(0.9 * limited + 0.1 * least_s)
    assert decode_s(plain(50), work, [Constraints(tpot_s=0.0101)])[0] == np.inf
    assert most_requests_per_s(group(plain(50), work), Constraints(tpot_s=0.0101))[0] == 0.0


def test_long_answers_may_be_slower_than_the_mean_request() -> None:
    """A mean over requests limits tokens less: here a quarter of the requests has nearly all of them."""
    few = Workload.of_mixture(Mixture.of(np.array([3.0, 1.0]), np.array([1000.0, 1000.0]), np.array([2.0, 398.0])))
    same = Workload(input_len=1000, output_len=101)
    limit = Constraints(tpot_s=0.014)
    assert few.output_len == same.output_len
    assert decode_s(plain(200), few, [limit])[0] < 0.9 * decode_s(plain(200), same, [limit])[0]
    assert decode_s(plain(200), few, [limit])[0] >= decode_s(plain(200), few, [Constraints()])[0]


# what is simulated and what is not


@cache
def small_plan() -> tuple[Choice, Service]:
    """One layout, with a rate that holds."""
    serves = system("llama-3.1-8b", on="dgx-h100", calibration="vllm", routing=Routing()).with_chips(1)
    demand = Demand(workload=CHAT, limits=Constraints(tpot_s=0.02, ttft_s=1.0))
    found = plan(serves, demand, SearchSpace(layouts=[Layout()]), prefill=None).best
    assert found is not None
    assert found.sustained is not None
    return found, Service(system=serves, prefill_system=serves, demand=demand)


def unserved(*_: object, **__: object) -> Simulated:
    raise AssertionError("simulated")


def test_what_the_passes_allow_is_simulated_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, service = small_plan()
    most = most_rate(choice.estimate, service)
    assert most > choice.requests_per_s
    monkeypatch.setattr(Group, "run", unserved)
    none = sustained_rate(choice.estimate, service, above=1.02 * most)
    assert isinstance(none, NoSustainedRate)
    assert "its passes alone cost at least 1.02 times as much" in none.reason
    for above in (0.0, 0.97 * most):
        with pytest.raises(AssertionError, match="simulated"):
            sustained_rate(choice.estimate, service, above=above)


def test_what_cannot_win_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, service = small_plan()
    rate, runs = choice.requests_per_s, list[Requests]()
    run = Group.run

    def counted(self: Group, requests: Requests, seed: int) -> Result:
        runs.append(requests)
        return run(self, requests, seed)

    monkeypatch.setattr(Group, "run", counted)
    none = sustained_rate(choice.estimate, service, above=1.3 * rate)
    assert isinstance(none, NoSustainedRate)
    assert len(runs) == 1
    assert "at that rate it is more than 95 % full" in none.reason
    again = sustained_rate(choice.estimate, service, above=0.9 * rate, max_num_seqs=choice.max_num_seqs)
    assert isinstance(again, SustainedRate)
    assert again.requests_per_s == pytest.approx(rate, rel=0.1)  # short runs may promise a little more or less


@pytest.mark.parametrize(("dearer", "wins"), [(1.02, True), (0.98, False)])
def test_a_kind_is_held_against_the_cost_of_the_other(
    monkeypatch: pytest.MonkeyPatch, dearer: float, wins: bool
) -> None:
    """The second kind wins where its rate is above the one at which it costs as much as the first."""
    choice, service = small_plan()
    promised = choice.sustained
    assert promised is not None
    other = replace(choice, sustained=None, estimate=replace(choice.estimate, usd_per_mtok_output_all_in=100.0))

    def found(
        estimate: object, _: Service, above: float = 0.0, *, max_num_seqs: int | None = None
    ) -> SustainedRate | NoSustainedRate:
        if max_num_seqs is not None:
            return NoSustainedRate(reason="fewer slots serve less")
        if estimate is choice.estimate:
            assert above == 0.0
            return promised
        rate = dearer * 100.0 * choice.estimate.requests_per_s / choice.usd_per_mtok_output_all_in
        return replace(promised, requests_per_s=rate) if rate > above else NoSustainedRate(reason="no")

    monkeypatch.setattr("rackline.search.finalists.sustained_rate", found)
    monkeypatch.setattr("rackline.search.finalists.confirmed_rate", lambda _, __, rate: rate)
    (first, _), (second, _) = serve_kinds(service, ([replace(choice, sustained=None)], [other]))
    assert first is not None
    assert second is not None
    assert (second.sustained is not None) == wins
    assert (second.usd_with_leftover < first.usd_with_leftover) == wins


def test_the_first_of_all_is_simulated_whatever_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: with nothing to be dearer than, nothing is too dear."""
    choice, service = small_plan()
    monkeypatch.setattr("rackline.search.sustained_rate.most_requests_per_s", lambda *limits: [0.0] * (len(limits) - 1))
    monkeypatch.setattr(Group, "run", unserved)
    with pytest.raises(AssertionError, match="simulated"):
        serve_kinds(service, ([replace(choice, sustained=None)], []))
