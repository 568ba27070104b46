"""A plan is served before it is believed: the rate that it promises, against the simulator with other arrivals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from helpers import cluster, deploy, model, numbers, planned, system, types
from rackline.api.compare import CompareQuestion
from rackline.errors import InputError
from rackline.parallel import Layout, Routing
from rackline.passes import Batch
from rackline.search import Choice, PrefillPool, SearchSpace
from rackline.search.served import Service, group_of
from rackline.search.sustained_rate import MOST_LOAD, NoSustainedRate, sustained_rate
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import stack, stack_of
from rackline.serving.workload import Workload
from rackline.simulation import Lengths, Requests, open_arrivals, pool_of, simulate
from rackline.simulation.clock import Chunk, TableClock
from rackline.simulation.decoding import Extremes
from rackline.simulation.statistics import latency, queue_grows
from rackline.simulation.workloads import OpenLoop
from rackline.system import Constraints, Demand
from rackline.units import parse_limit

WORK = Workload(input_len=1000, output_len=200)
LIMITS = {
    "mean": Constraints(tpot_s=0.03, ttft_s=0.8),
    "percentiles": Constraints(tpot_s=0.04, tpot_percentile=90.0, ttft_s=1.0, ttft_percentile=99.0),
    "none": Constraints(),
}


def site(limits: Constraints, name: str = "llama-3.1-70b", on: str = "dgx-h100") -> Service:
    serves = system(name, on=on, label=None, calibration="auto", routing=Routing())
    return Service(system=serves, prefill_system=serves, demand=Demand(workload=WORK, limits=limits))


@cache
def answer(which: str, *, pools: bool) -> Choice:
    """Llama 70B in fp8 on a DGX H100, one engine or pools."""
    found = planned(
        model("llama-3.1-70b"),
        cluster("dgx-h100"),
        WORK,
        precisions=[types("fp8", "llama-3.1-70b", "dgx-h100")],
        calibration=numbers("auto", "dgx-h100"),
        constraints=LIMITS[which],
        prefill=PrefillPool() if pools else None,
    )
    choice = found.best
    assert choice is not None
    assert choice.serving == ("disaggregated" if pools else "aggregated")
    return choice


@pytest.mark.parametrize(
    ("which", "pools"),
    [("mean", False), ("mean", True), ("percentiles", False), ("percentiles", True), ("none", False)],
)
def test_the_limits_hold_at_the_promised_rate(which: str, pools: bool) -> None:
    choice = answer(which, pools=pools)
    promised = choice.sustained
    assert promised is not None
    assert promised.simulated.requests == len(promised.simulated.e2e_s.values) >= 3000
    assert all(over <= 1.0 for over in promised.simulated.over_limits(LIMITS[which]).values())
    assert 0.0 < choice.utilisation <= MOST_LOAD + 1e-12
    assert choice.batch_size <= choice.max_num_seqs * choice.layout.attention_dp * choice.layout.pp
    # Little's law: what is in flight is what arrives times how long it stays
    replicas = choice.layout.dp
    stays = promised.simulated.e2e_s.mean - (promised.simulated.ttft_s.mean if pools else 0.0)
    in_flight = choice.requests_per_s * stays
    if which == "none":  # near its capacity a server lets requests wait, and those are not in flight
        assert choice.batch_size * replicas <= in_flight * 1.02
    else:
        assert choice.batch_size * replicas == pytest.approx(in_flight, rel=0.15 if not pools else 1e-6)
    price = cluster("dgx-h100").usd_per_chip_hour
    assert price is not None
    each = price / 3600.0 * choice.billed_chips / choice.requests_per_s
    assert choice.usd_per_mtok_output_all_in == pytest.approx(each / 200 * 1e6)
    parts = 1000 * choice.usd_per_mtok_input + 200 * choice.usd_per_mtok_output
    assert parts == pytest.approx(200 * choice.usd_per_mtok_output_all_in)


@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("which", ["mean", "percentiles"])
def test_other_arrivals_hold_them_too(which: str, pools: bool) -> None:
    choice = answer(which, pools=pools)
    promised = choice.sustained
    assert promised is not None
    group = group_of(choice.estimate, site(LIMITS[which]), choice.max_num_seqs)
    again = group.serve(choice.requests_per_s, choice.tpot_s, seed=11, measured=promised.simulated.requests)
    for first, second in ((promised.simulated.ttft_s, again.ttft_s), (promised.simulated.tpot_s, again.tpot_s)):
        assert second.mean == pytest.approx(first.mean, rel=0.15)
        # the intervals of both overlap
        # an end that the run is too short to bound is not a number
        assert not first.p99_interval["low"] > second.p99_interval["high"]
        assert not second.p99_interval["low"] > first.p99_interval["high"]
    latencies = {"tpot_s": again.tpot_s, "ttft_s": again.ttft_s}
    for name, limit_s, percentile in LIMITS[which].latencies():
        assert latencies[name].at(percentile) <= 1.05 * limit_s


def test_a_higher_rate_breaks_a_limit() -> None:
    choice = answer("mean", pools=False)
    assert choice.sustained is not None
    group = group_of(choice.estimate, site(LIMITS["mean"]), choice.max_num_seqs)
    over = group.serve(1.06 * choice.requests_per_s, choice.tpot_s).over_limits(LIMITS["mean"])
    assert max(over.values()) > 1.0


def test_one_replica_with_every_nth_arrival_is_all_of_them_behind_a_router() -> None:
    """The group against the whole deployment from an empty start, the beginning left out: means of four runs of each.

    At nine tenths of the promised rate: nearer to what a replica can do, queues make the time to first token of runs of
    4,000 requests differ by a tenth.
    """
    choice = answer("mean", pools=False)
    assert choice.sustained is not None
    layout = choice.layout
    assert layout.dp > 1
    group = group_of(choice.estimate, site(LIMITS["mean"]), choice.max_num_seqs)
    rate, late = 0.9 * choice.requests_per_s, slice(6000, 14_000)
    lengths = Lengths(input_len=1000, output_len=200, spread="fixed")
    one, router = np.zeros(3), np.zeros(3)
    for seed in range(1, 5):
        found = group.serve(rate, choice.tpot_s, seed=seed)
        one += (found.tpot_s.mean, found.ttft_s.mean, found.tpot_s.p99)
        traffic = open_arrivals(np.random.default_rng(seed), 16_000, rate, lengths)
        whole = simulate(traffic, replace(group.pool, replicas=layout.dp), beyond_s=group.beyond_s)
        tpot_s = whole.tpot_s[late]
        router += (tpot_s.mean(), whole.ttft_s[late].mean(), np.percentile(tpot_s, 99))
    np.testing.assert_array_less(np.abs(router / one - 1.0), (0.03, 0.05, 0.08))


def test_a_percentile_costs_more_than_the_mean() -> None:
    rates: list[float] = []
    for percentile in (None, 90.0, 99.0):
        limits = Constraints(ttft_s=0.12, ttft_percentile=percentile)
        found = planned(
            model("llama-3.1-8b"),
            cluster("dgx-h100").with_num_chips(1),
            WORK,
            precisions=[types("bf16", "llama-3.1-8b", "dgx-h100")],
            calibration=numbers("auto", "dgx-h100"),
            constraints=limits,
        ).best
        assert found is not None
        rates.append(found.requests_per_s)
    assert rates[0] > rates[1] > rates[2]


def test_what_cannot_be_served_says_so() -> None:
    steady = answer("mean", pools=True).estimate
    assert hasattr(steady, "decode")
    shared = replace(steady, decode=replace(steady.decode, layout=replace(steady.decode.layout, cp=2)))  # type: ignore[union-attr, call-arg]
    found = sustained_rate(shared, site(LIMITS["mean"]))
    assert isinstance(found, NoSustainedRate)
    assert not found.simulated
    assert "context parallelism is not simulated" in found.reason


def test_a_group_of_pools_too_large_to_simulate_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer("mean", pools=True)
    monkeypatch.setattr("rackline.search.sustained_rate.MOST_IN_GROUP", 1)
    none = sustained_rate(found.estimate, site(LIMITS["mean"]))
    assert isinstance(none, NoSustainedRate)
    assert not none.simulated
    assert "in flight on a group of both pools, more than 1" in none.reason


def test_limits_that_no_rate_keeps_are_an_answer() -> None:
    """Not even a request that is alone has its first token in 50 ms."""
    found = planned(
        model("llama-3.1-70b"),
        cluster("dgx-h100"),
        WORK,
        precisions=[types("fp8", "llama-3.1-70b", "dgx-h100")],
        calibration=numbers("auto", "dgx-h100"),
        constraints=Constraints(ttft_s=0.05, ttft_percentile=99.9),
        prefill=None,
        search_space=SearchSpace(layouts=[Layout(tp=8)]),
    )
    assert found.best is None
    assert "lowest ttft" in found.reason


# the pieces


def test_requests_that_have_begun_decode_at_once() -> None:
    pool = pool_of(deploy("llama-3.1-8b", Layout(), on="dgx-h100"), stack("vllm"), replicas=1)
    begun = Requests(
        arrival_s=np.zeros(2),
        input_len=np.array([1000, 1000]),
        output_len=np.array([50, 50]),
        computed=np.array([1000, 600]),
    )
    found = simulate(begun, pool)
    assert np.isnan(found.first_s[0])
    assert np.isfinite(found.first_s[1])
    assert np.all(np.isfinite(found.finish_s))
    assert found.blocks_left == 0
    fresh = simulate(replace(begun, computed=None), pool)
    assert found.finish_s.max() < fresh.finish_s.max()


@pytest.mark.parametrize("policy", ["chunked", "prefill_first", "decode_first"])
def test_a_request_whose_only_token_came_with_its_prompt_ends_at_once(policy: str) -> None:
    pool = pool_of(deploy("llama-3.1-8b", Layout(), on="dgx-h100"), stack("vllm"), policy_name=policy, replicas=1)
    whole = np.array([1000, 1000, 1000])
    found = simulate(
        Requests(arrival_s=np.array([0.0, 0.0, 5.0]), input_len=whole, output_len=np.array([1, 1, 2]), computed=whole),
        pool,
    )
    assert found.finish_s[:2] == pytest.approx([0.0, 0.0])
    assert 5.0 < found.finish_s[2] < 5.1
    assert found.blocks_left == 0


@pytest.mark.parametrize("output_len", [2, 3, 8, 1000])
def test_what_decodes_at_the_start_has_a_token_to_come(output_len: int) -> None:
    begun = 500
    found = OpenLoop(input_len=100, output_len=output_len).requests(1.0, begun, 2.0)
    assert found.computed is not None
    left = found.output_len[:begun]
    assert (left.min(), left.max()) == (2 if output_len <= begun else 3, output_len)
    assert np.all(found.computed[:begun] + left == 100 + output_len)


@pytest.mark.parametrize("computed", [[-1, 0], [0, 1001]])
def test_more_than_the_prompt_cannot_be_there(computed: list[int]) -> None:
    with pytest.raises(InputError, match=r"computed.*allowed: 0 up to the prompt"):
        Requests(
            arrival_s=np.zeros(2),
            input_len=np.array([1000, 1000]),
            output_len=np.array([5, 5]),
            computed=np.array(computed),
        )


@pytest.mark.parametrize("overlap", [False, True])
def test_the_clock_runs_two_batches_as_the_engine_does(overlap: bool) -> None:
    deployment = deploy("deepseek-v3", Layout(attention_dp=8, ep=8), on="gb200-nvl72", label="fp8")
    around = stack_of(deployment.calibration)
    engine = engine_of(deployment, around)
    clock = TableClock.of(deployment, around, two_batch_overlap=overlap)
    times = engine.time_table(overlap)
    step = engine.decode_s(Batch(decode_sequences=64.0, context_len=4500.0), times, two_batch_overlap=overlap)
    assert clock.steps(np.full(64, 4500.0), np.zeros(1), 512.0)[0] == pytest.approx(float(step))
    prompts = engine.seconds(Batch(prefill_sequences=4.0, chunk_tokens=4000.0), times, two_batch_overlap=overlap)
    expected = float(engine.with_prompts_s(0.0, prompts))
    chunks = [Chunk(4000, 0)] * 4
    assert clock.prompts(0, 0.0, 0.0, chunks, 8 * 16_000.0, 0.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layout", "prefill", "work"),
    [
        (Layout(), PrefillPool(layouts=[Layout(dp=7)]), Workload(input_len=199, output_len=3)),
        (Layout(pp=4), None, Workload(input_len=110, output_len=202)),
        (Layout(tp=2), None, Workload(input_len=1000, output_len=200)),
    ],
    ids=["bursts of prompts", "micro-batches", "one engine"],
)
def test_the_capacity_is_what_an_overloaded_server_finishes_in_the_long_run(
    layout: Layout, prefill: PrefillPool | None, work: Workload
) -> None:
    """Also of seven replicas whose prompts end in bursts, and of micro-batches, each with slots of its own."""
    serves = system("llama-3.1-8b", on="dgx-h100", label=None, calibration="vllm", routing=Routing())
    found = planned(
        serves.model,
        serves.cluster,
        work,
        calibration=serves.calibration,
        constraints=Constraints(tpot_s=0.086),
        prefill=prefill,
        search_space=SearchSpace(layouts=[layout]),
    )
    choice = found.best
    assert choice is not None
    assert choice.serving == ("aggregated" if prefill is None else "disaggregated")
    service = Service(system=serves, prefill_system=serves, demand=found.demand)
    group = group_of(choice.estimate, service, choice.max_num_seqs)
    capacity = group.capacity(choice.tpot_s).requests_per_s
    loop = OpenLoop(input_len=round(work.input_len), output_len=round(work.output_len), measured=40_000)
    finish_s = np.sort(group.run(loop.requests(1.5 * capacity / group.copies, 0, 1.0), 1).finish_s)
    rate = group.copies * (30_000 - 10_000) / (finish_s[30_000] - finish_s[10_000])
    assert rate == pytest.approx(capacity, rel=0.02)


def test_the_same_gaps_at_every_rate_and_every_nth_of_them() -> None:
    loop = OpenLoop(input_len=100, output_len=50, servers=4)
    slow, fast = loop.requests(1.0, 10, 2.0), loop.requests(2.0, 10, 1.0)
    assert fast.arrival_s[10:] * 2.0 == pytest.approx(slow.arrival_s[10:])
    gaps = np.diff(slow.arrival_s[10:])
    assert gaps.mean() == pytest.approx(1.0, rel=0.05)
    assert gaps.std() == pytest.approx(0.5, rel=0.05)  # of four exponential gaps
    assert slow.computed is not None
    assert np.all(slow.computed[:10] == slow.input_len[:10])
    assert np.all(slow.input_len + slow.output_len == 150)


@pytest.mark.parametrize("before_s", [0.0, 2000.0])
@pytest.mark.parametrize(
    ("load", "number", "grows"),
    [
        (0.97, 4000, False),
        (1.03, 4000, False),
        (1.2, 4000, True),
        (1.5, 4000, True),
        (0.95, 40_000, False),
        (1.03, 40_000, True),
    ],
)
def test_a_growing_queue_is_told_from_a_long_one(load: float, number: int, before_s: float, grows: bool) -> None:
    """One server, one arrival a second on average: beyond its rate the queue grows, also one that was long before."""
    arrival_s = np.cumsum(np.random.default_rng(0).exponential(1.0, number + 1000))
    finish_s, free_s = np.empty_like(arrival_s), before_s
    for index, time_s in enumerate(arrival_s.tolist()):
        free_s = finish_s[index] = max(time_s, free_s) + load
    measured = slice(500, number + 500)
    assert queue_grows(arrival_s[measured], finish_s[measured]) == grows


def test_the_interval_holds_the_percentile_of_most_runs() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(50):
        found = latency(rng.exponential(1.0, 3000))
        low, high = found.p99_interval["low"], found.p99_interval["high"]
        assert low <= found.p99 <= high
        inside += low <= np.log(100.0) <= high
    assert inside >= 44
    assert found.at(None) == found.mean
    assert found.at(99.0) == found.p99


def test_extremes_are_those_of_the_values() -> None:
    rng = np.random.default_rng(2)
    values: dict[int, int] = {}
    extremes = Extremes(values)
    for key in range(3000):
        values[key] = int(rng.integers(0, 50))
        extremes.add(key, values[key])
        while len(values) > rng.integers(1, 40):
            del values[int(rng.choice(list(values)))]
        assert extremes.most() == max(values.values())
        assert extremes.least() == min(values.values())


def test_limits_are_read_with_their_percentile() -> None:
    assert parse_limit("2s", name="--ttft") == (2.0, 99.0)
    assert parse_limit("50ms@p90", name="--tpot") == (0.05, 90.0)
    assert parse_limit("2min@mean", name="--ttft") == (120.0, None)
    assert parse_limit(0.05, name="tpot") == (0.05, 99.0)
    asked = CompareQuestion(["a@b", "c@d"], tpot="50ms@p90", ttft="2s")
    assert (asked.tpot, asked.ttft) == ("0.05s@p90", 2.0)
    assert CompareQuestion.from_params(asked.to_params()) == asked == CompareQuestion.from_data(asked.to_data())
    for text in ("2s@", "2s@90", "2s@p", "2s@p100", "@p99", "2s@q99"):
        with pytest.raises(InputError, match="--ttft"):
            parse_limit(text, name="--ttft")
