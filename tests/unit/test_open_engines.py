"""Engines of a plan under random arrivals: the estimate that ranks them, and what the answer says of it."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from helpers import cluster, deploy, model, numbers, planned, system, types
from rackline.parallel import Layout, LayoutGrid, Routing
from rackline.plain import plain
from rackline.search import Candidate, Plan, SearchSpace
from rackline.search.candidate import PoolPair, open_loop_caveat
from rackline.search.estimates import OpenLoop
from rackline.search.served import Service, group_of
from rackline.search.space import Space
from rackline.search.sustained_rate import MOST_LOAD, SustainedRate, sustained_rate
from rackline.serving import Mode, Workload, open_loop
from rackline.serving.closed_loop import engine_of
from rackline.serving.prompt_queue import slot_wait_s
from rackline.serving.stack import stack_of
from rackline.system import Constraints, Demand

WORK = Workload(input_len=1000, output_len=200)
LIMITS = Constraints(tpot_s=0.03, ttft_s=0.5)
NAME, ON = "llama-3.1-70b", "dgx-h100"


@cache
def both_kinds() -> Plan:
    """One engine and pools, both considered."""
    return planned(
        model(NAME),
        cluster(ON),
        WORK,
        precisions=[types("fp8", NAME, ON)],
        calibration=numbers("auto", ON),
        constraints=LIMITS,
    )


def site() -> Service:
    serves = system(NAME, on=ON, label=None, calibration="auto", routing=Routing())
    return Service(system=serves, prefill_system=serves, demand=Demand(workload=WORK, limits=LIMITS))


@pytest.mark.parametrize("slots", [1, 16, 64])
@pytest.mark.parametrize("load", [0.85, 0.95])
def test_waiting_for_a_slot_is_that_of_a_recursion(slots: int, load: float) -> None:
    """Equal stays, first come first served: a request starts when the one `slots` before it has ended."""
    arrivals = np.cumsum(np.random.default_rng(slots).exponential(1.0 / (slots * load), 200_000))
    starts = arrivals.tolist()
    for index in range(slots, arrivals.size):
        starts[index] = max(starts[index], starts[index - slots] + 1.0)
    waited = float(np.mean(np.array(starts[20_000:]) - arrivals[20_000:]))
    assert float(slot_wait_s(slots * load, slots, 1.0)) == pytest.approx(waited, rel=0.15, abs=3e-3)


def test_many_engines_at_once_are_each_of_them_alone() -> None:
    """Token budgets and layouts are put into one array; a slot is waited for besides."""
    serves = system(NAME, on=ON, label="fp8", calibration="auto", routing=Routing()).with_chips(4)
    options = [Layout(tp=2), Layout(tp=4), Layout(tp=2, pp=2)]
    modes = [
        Mode(max_batched_tokens=1024),
        Mode(max_batched_tokens=8192),
        Mode(admission="prefill_first", max_batched_tokens=8192),
    ]
    space = Space(
        system=serves,
        workload=WORK,
        grid=LayoutGrid.of(options),
        modes=modes,
        batches=np.array([1.0, 8.0, 32.0]),
    )
    estimate = OpenLoop(space=space)
    together = estimate.grid(np.arange(len(options) * len(modes)))
    for index, (mode, layout) in enumerate(product(modes, options)):
        one = serves.engine(layout)
        found = together.take(np.flatnonzero(together.engine == index))
        state = open_loop(one, WORK, mode, found.per_rank)
        assert found.tpot_s == pytest.approx(state.tpot_s, rel=1e-9)
        rate = state.requests_per_s * WORK.output_len / layout.chips_per_replica
        assert np.all(found.rate <= rate * (1 + 1e-9))  # never above the closed loop
        assert found.rate[:4] == pytest.approx(rate[:4], rel=1e-9)
        served = found.serves
        assert np.any(served)
        if layout.chips_per_replica == 4:  # one replica: random arrivals
            assert np.all(found.ttft_s[served] >= state.ttft_s[served] * (1 - 1e-9))
            few = served & (found.per_rank <= 1.0)  # nobody waits for a slot
            assert found.ttft_s[few] == pytest.approx(state.ttft_s[few], rel=5e-3)
        else:  # two of them in turn
            assert np.all(found.ttft_s[served] <= state.ttft_s[served] * (1 + 1e-2))


def test_everything_says_what_it_rests_on() -> None:
    found = both_kinds()
    assert found.best is not None
    assert found.best.basis == "simulated"
    assert found.best.estimate.basis == "open_loop_estimate"
    assert found.disaggregated is not None
    for one in (*found.pareto, *found.ranked, *found.disaggregated.pareto):
        assert one.basis == "open_loop_estimate"
    data = plain(found)
    assert data["best"]["basis"] == "simulated"
    for shown in (data["best"]["estimate"], *data["pareto"], *data["ranked"], *data["disaggregated"]["pareto"]):
        assert shown["basis"] == "open_loop_estimate"
        assert isinstance(shown["caveat"], str)
    closed = planned(
        model(NAME),
        cluster(ON),
        WORK,
        precisions=[types("fp8", NAME, ON)],
        calibration=numbers("auto", ON),
        search_space=SearchSpace(layouts=[Layout(tp=4)]),
        prefill=None,
        served=False,
    )
    assert closed.best is not None
    assert closed.best.basis == closed.pareto[0].basis == "closed_loop_estimate"


def test_what_is_shown_is_in_the_order_of_what_is_shown() -> None:
    found = both_kinds()
    assert found.aggregated is not None
    costs = [one.usd_per_mtok_output_all_in for one in found.ranked]
    assert costs == sorted(costs)
    assert all(one.tpot_s <= 0.03 and one.ttft_s <= 0.5 and one.free_bytes >= 0 for one in found.ranked)
    assert found.aggregated.estimate.usd_per_mtok_output_all_in <= costs[0] * (1 + 1e-9)
    speeds = [one.tokens_per_s_per_user for one in found.pareto]
    costs = [one.usd_per_mtok_output_all_in for one in found.pareto]
    assert speeds == sorted(speeds, reverse=True)
    assert costs == sorted(costs, reverse=True)


def test_an_estimate_is_near_its_simulation() -> None:
    """At its own rate: the cheapest engine that is no fuller than what is promised, and a pair of pools."""
    found = both_kinds()
    engine = next(one for one in found.ranked if one.prefill_utilisation <= MOST_LOAD)
    estimates: list[tuple[Candidate | PoolPair, float]] = [(engine, engine.sequences_per_rank)]
    estimates += [
        (one.estimate, one.engine.sequences_per_rank) for one in found.choices if isinstance(one.estimate, PoolPair)
    ]
    assert len(estimates) == 2
    for estimate, sequences in estimates:
        group = group_of(estimate, site(), int(2 * sequences + 8))
        served = group.serve(estimate.requests_per_s, estimate.tpot_s, seed=5, measured=3000)
        assert estimate.tpot_s == pytest.approx(served.tpot_s.mean, rel=0.06)
        assert estimate.ttft_s == pytest.approx(served.ttft_s.mean, rel=0.3)


def test_a_kind_that_is_not_simulated_cannot_be_cheaper() -> None:
    found = both_kinds()
    best, other = found.best, found.runner_up
    assert best is not None
    assert best.sustained is not None
    assert other is not None
    assert other.sustained is not None or " to win" in f" {other.not_simulated}"
    again = sustained_rate(other.estimate, site())
    assert isinstance(again, SustainedRate)
    served = other.with_sustained_rate(again)
    assert served.usd_per_mtok_output_all_in >= best.usd_per_mtok_output_all_in


def test_caveats_name_what_is_off() -> None:
    assert open_loop_caveat(Layout(tp=4), 1.0) == ""
    assert "1 % more requests take 9 % more time" in open_loop_caveat(Layout(tp=4), 9.0)
    assert "8 attention-dp ranks" in open_loop_caveat(Layout(attention_dp=8, ep=8), 1.0)
    assert "15 % low" in open_loop_caveat(Layout(attention_dp=4, ep=4, pp=2), 1.0)


def test_a_limit_that_only_an_idle_engine_keeps_has_an_answer() -> None:
    """One sequence in flight on average meets others; fewer than one keep a tighter limit."""
    alone = engine_of(
        deploy(NAME, Layout(tp=8), on=ON, label="fp8", calibration="auto"),
        stack_of(numbers("auto", ON), cluster(ON).chip),
    )
    times = open_loop(alone, WORK, Mode(), np.array([0.25, 1.0])).tpot_s
    found = planned(
        model(NAME),
        cluster(ON),
        WORK,
        precisions=[types("fp8", NAME, ON)],
        calibration=numbers("auto", ON),
        constraints=Constraints(tpot_s=float(times.mean())),
        search_space=SearchSpace(modes=[Mode()], layouts=[Layout(tp=8)]),
        prefill=None,
    ).best
    assert found is not None
    assert isinstance(found.estimate, Candidate)
    assert found.estimate.batch_size < 1.0
    assert found.tpot_s <= float(times.mean())
