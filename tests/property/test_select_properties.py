"""What is picked from a table of operating points, against every point looked at one after another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, strategies as st

from helpers import planned, system
from rackline.arch import model
from rackline.hardware import cluster
from rackline.parallel import Layout, Routing
from rackline.passes import calibration
from rackline.passes.features import Array
from rackline.search import Basis, SearchSpace
from rackline.search.points import OperatingPoints, idle_chips, least_cost, pareto_front
from rackline.search.single_engines import CONTENDERS, select
from rackline.search.space import Space
from rackline.serving.workload import Mode, Workload
from rackline.system import Constraints

LAYOUTS = [Layout(tp=1), Layout(tp=2), Layout(tp=4), Layout(pp=3)]
MODES = [Mode(max_batched_tokens=1024), Mode(max_batched_tokens=8192)]
LIMITS = Constraints(tpot_s=0.5, ttft_s=0.6)


@cache
def space() -> Space:
    serves = system("llama-3.1-8b", on="dgx-h100", label="fp8", calibration="auto", routing=Routing())
    among = SearchSpace(layouts=LAYOUTS, modes=MODES, batches=np.arange(1.0, 13.0))
    return Space.of(serves, Workload(input_len=1000, output_len=200), among)


@dataclass(frozen=True)
class Known:
    """An estimate of which every point is known: between two of them there is nothing better."""

    points: OperatingPoints
    basis: ClassVar[Basis] = "open_loop_estimate"
    slack: ClassVar[tuple[float, float]] = (1.05, 1.1)

    @property
    def space(self) -> Space:
        return space()

    def between(self, engines: Array, per_rank: Array) -> OperatingPoints:
        pairs = set(zip(engines.tolist(), per_rank.tolist(), strict=True))
        here = zip(self.points.engine.tolist(), self.points.per_rank.tolist(), strict=True)
        return self.points.take(np.flatnonzero([pair in pairs for pair in here]))

    def caveat(self, layout: Layout, mode: Mode, steepness: float) -> str:
        return "steep" if steepness > 0.5 else ""


def drawn(seed: int) -> OperatingPoints:
    """Points with many equal values."""
    rng = np.random.default_rng(seed)
    engine, per_rank = (each.ravel() for each in np.meshgrid(np.arange(8), np.arange(1.0, 13.0), indexing="ij"))

    def draw(low: float, high: float) -> Array:
        return np.round(rng.uniform(low, high, engine.size), 1)

    alone_s = draw(0.1, 0.7)
    return OperatingPoints(
        engine=engine,
        kind=np.zeros(engine.size, dtype=int),
        per_rank=per_rank,
        tpot_s=draw(0.2, 2.0),
        ttft_s=alone_s + draw(0.0, 0.4),
        alone_s=alone_s,
        cost=draw(1.0, 9.0),
        rate=draw(1.0, 9.0),
        free_bytes=1e9 * draw(-1.0, 2.0),
        utilisation=draw(0.2, 1.3),
        prompt_cost_share=draw(0.0, 1.0),
        steepness=draw(0.0, 1.0),
    )


@given(st.integers(0, 10_000))
def test_the_answer_is_the_cheapest_point_within_the_limits(seed: int) -> None:
    points = drawn(seed)
    found = select(points, LIMITS, Known(points))
    kept = [
        at
        for at in range(len(points))
        if points.free_bytes[at] >= 0
        and points.utilisation[at] < 1
        and points.tpot_s[at] <= 0.5
        and points.ttft_s[at] <= 0.6
    ]
    if kept:
        assert found.refined[0].usd_per_mtok_output_all_in == min(points.cost[at] for at in kept)
        costs = [one.usd_per_mtok_output_all_in for one in found.refined]
        assert costs == sorted(costs)
        contenders = found.contenders()
        assert contenders[0] == found.refined[0]
        if any(points.steepness[at] <= 0.5 for at in kept) and len(contenders) >= CONTENDERS:
            layouts = {(one.layout, one.precision.label): one for one in reversed(found.refined)}
            assert any(not one.caveat for one in contenders) or all(one.caveat for one in layouts.values())
    else:  # the simulation decides what is within the error of the estimate
        assert all(one.tpot_s <= 0.5 * 1.05 and one.ttft_s <= 0.6 * 1.1 for one in found.refined)
    assert all(one.tpot_s <= 0.5 * 1.05 for one in (*found.refined, *found.ranked))
    for one in found.rejected:
        assert one.excess > 0
    front = pareto_front(np.where(points.serves, 1 / points.tpot_s, np.nan), points.cost)
    assert [one.tpot_s for one in found.pareto] == points.tpot_s[front].tolist()


@given(st.integers(1, 8), st.floats(0.1, 10.0), st.floats(1.0, 500.0), st.floats(1.0, 500.0), st.floats(0.0, 1.0))
def test_no_engine_on_idle_chips_makes_it_cheaper_than_the_bound(
    size: int, usd: float, rate: float, most_rate: float, part: float
) -> None:
    """The rent of all paid chips over what both kinds of engines yield, the second at any rate up to the most."""
    used, idle = (float(each) for each in idle_chips(cluster("dgx-h100"), size))
    rent = usd * used * rate
    true = rent / (used * rate + idle * part * most_rate)
    least = float(least_cost(np.array(usd), np.array(rate), np.array(used), np.array(idle), most_rate))
    assert least <= true * (1 + 1e-12)
    if part == 1.0:
        assert least == pytest.approx(true)


def test_the_bound_holds_for_the_engines_that_are_found() -> None:
    """Engines of a plan on chips that are left over, with the largest rate of any engine that keeps the limits."""
    place = cluster("dgx-h100")
    numbers, work = calibration("auto", place.chip), Workload(input_len=2000, output_len=200)
    among = SearchSpace(layouts=[Layout(pp=3), Layout(tp=2, pp=3), Layout(pp=6), Layout(tp=4)], any_layout=True)

    def plan_of(space: SearchSpace | None) -> float:
        limits = Constraints(tpot_s=0.05)
        found = planned(
            model("llama-3.1-8b"),
            place,
            work,
            calibration=numbers,
            constraints=limits,
            search_space=space,
            prefill=None,
            served=False,
        )
        best = found.best
        assert best is not None
        if space is None:
            return max(one.output_tokens_per_s_per_chip for one in (*found.ranked, best))
        assert best.leftover is not None
        rate = best.output_tokens_per_s_per_chip
        used, idle = np.array(float(best.num_chips)), np.array(float(best.billed_chips - best.num_chips))
        most = plan_of(None)
        least = least_cost(np.array(best.usd_per_mtok_output_all_in), np.array(rate), used, idle, most)
        rounding = 1.0 + 1e-12  # equal where the engine on the idle chips is the best of all
        assert float(least) <= best.usd_with_leftover * rounding
        assert best.usd_with_leftover < best.usd_per_mtok_output_all_in
        return most

    plan_of(among)
