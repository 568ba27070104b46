"""Paid chips that the replicas of an answer leave free: a second kind of replica serves on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

import rackline as rl
from helpers import planned
from rackline.api.plan import Planned
from rackline.arch import model
from rackline.hardware import billed_chips, cluster
from rackline.parallel import Layout
from rackline.passes import calibration
from rackline.plain import plain
from rackline.report.deployments_report import decision_card
from rackline.search import Plan, PrefillPool, SearchSpace
from rackline.serving.workload import Workload
from rackline.system import Constraints

NAME, LIMITS = "llama-3.1-8b", Constraints(tpot_s=0.05, ttft_s=2.0)
WORK = Workload(input_len=2000, output_len=200)
NODE = cluster("dgx-h100")


@cache
def of_layouts(
    *layouts: Layout, chips: int = 8, served: bool = False, stack: str = "auto", prefill: PrefillPool | None = None
) -> Plan:
    return planned(
        model(NAME),
        NODE.with_num_chips(chips),
        WORK,
        calibration=calibration(stack, NODE.chip),
        constraints=LIMITS,
        search_space=SearchSpace(layouts=layouts or None, any_layout=True),
        prefill=prefill,
        served=served,
    )


def test_chips_that_are_paid_and_free_serve_too() -> None:
    """pp=3 leaves two of eight: they serve what a plan for two chips serves, and what is paid stays the same."""
    best = of_layouts(Layout(pp=3), served=True).best
    assert best is not None
    assert (best.num_chips, best.billed_chips) == (6, 8)
    beside = best.leftover
    assert beside is not None
    assert beside.num_chips == 2
    assert beside.choice.basis == "simulated"
    assert beside.choice.tpot_s <= 0.05
    assert beside.choice.ttft_s <= 2.0
    alone = planned(
        model(NAME),
        NODE.with_num_chips(2),
        WORK,
        precisions=[best.precision],
        calibration=calibration("auto", NODE.chip),
        constraints=LIMITS,
        search_space=SearchSpace(any_layout=True),
        prefill=None,
    ).best
    assert alone is not None
    assert beside.requests_per_s == pytest.approx(alone.requests_per_s, rel=0.02)
    assert best.requests_per_s_with_leftover == best.requests_per_s + beside.requests_per_s
    hour = best.usd_with_leftover * best.requests_per_s_with_leftover * WORK.output_len * 3600 / 1e6
    assert NODE.usd_per_chip_hour is not None
    assert hour == pytest.approx(8 * NODE.usd_per_chip_hour)
    assert best.usd_with_leftover < best.usd_per_mtok_output_all_in


@pytest.mark.parametrize("stack", ["vllm", "trtllm"])
def test_the_search_counts_it(stack: str) -> None:
    """Of the contenders, the cheapest with all that is paid is the answer."""
    layouts = [Layout(pp=3), Layout(pp=5), Layout(tp=2), Layout(tp=4), Layout(pp=6)]
    alone = [of_layouts(layout, stack=stack).best for layout in layouts]
    costs = [one.usd_with_leftover for one in alone if one is not None]
    found = of_layouts(*layouts, stack=stack).best
    assert found is not None
    assert found.usd_with_leftover == pytest.approx(min(costs), rel=1e-6)
    ranked = sorted((one for one in alone if one), key=lambda one: one.usd_with_leftover)
    bare = sorted((one for one in alone if one), key=lambda one: one.usd_per_mtok_output_all_in)
    assert ranked != bare, "with what is left over another order"


def test_chips_that_two_pools_leave_serve_too() -> None:
    pools = of_layouts(Layout(pp=3), prefill=PrefillPool()).pools
    assert pools is not None
    assert pools.prefill_pool is not None
    assert pools.decode_pool is not None
    assert pools.leftover is not None
    used = pools.prefill_pool.num_chips + pools.decode_pool.num_chips
    assert pools.billed_chips - used == pools.leftover.num_chips > 0
    assert pools.usd_with_leftover < pools.usd_per_mtok_output_all_in


@pytest.mark.parametrize(
    ("layout", "chips", "expected"),
    [
        (Layout(pp=3, dp=2), 8, (2, 1)),
        (Layout(pp=5), 8, (3, 1)),
        (Layout(tp=8), 8, (0, 0)),
        (Layout(pp=3, dp=4), 16, (2, 2)),
        (Layout(pp=12), 16, (4, 1)),
    ],
)
def test_free_chips_lie_together(layout: Layout, chips: int, expected: tuple[int, int]) -> None:
    from rackline.search.finalists import free_places

    place = cluster("h100-96").with_num_chips(chips)
    best = of_layouts(Layout(pp=3)).best
    assert best is not None
    used = layout.dp * layout.chips_per_replica
    paid = int(billed_chips(place, chips))
    estimate = replace(best.estimate, layout=layout, billed_chips=paid)  # type: ignore[call-arg]
    choice = replace(best, estimate=estimate, leftover=None)
    assert choice.num_chips == used
    assert free_places(place, choice) == expected


def test_an_answer_that_uses_all_has_none() -> None:
    best = of_layouts().best
    assert best is not None
    assert best.num_chips == best.billed_chips
    assert best.leftover is None
    assert best.usd_with_leftover == best.usd_per_mtok_output_all_in
    assert plain(best)["leftover"] is None


def test_it_is_shown_and_launched() -> None:
    asked: dict[str, Any] = {"on": "dgx-h100", "input": 2000, "output": 200, "tpot": "50ms", "ttft": "2s"}
    answer = rl.plan(NAME, **asked, layout="pp=3", any_layout=True, serving="aggregated", engine="vllm", launch=True)
    assert isinstance(answer.result, Planned)
    best = answer.result.plan.best
    assert best is not None
    assert best.leftover is not None
    assert answer.result.launch is not None
    assert [one.role for one in answer.result.launch] == ["both", "both", "router"]
    data = answer.to_dict()["best"]
    assert data["leftover"]["num_chips"] == 2
    assert data["requests_per_s"] > data["main"]["requests_per_s"]
    # the first line is what the answer was chosen by: all that is paid for
    screen = StringIO()
    Console(width=120, file=screen).print(*answer.text(120))
    first = screen.getvalue().splitlines()[1]
    assert "per M output tokens" in first
    assert float(first.split()[1].lstrip("$")) == pytest.approx(best.usd_with_leftover, rel=0.005)
    assert "8 chips" in first
    card = {one.name: one.value for one in decision_card(answer.result.plan, best, None, ())["numbers"]}
    assert card["Cost"] == pytest.approx(best.usd_with_leftover)
    assert NODE.usd_per_chip_hour is not None
    assert card["A month"] == pytest.approx(8 * NODE.usd_per_chip_hour * 365.25 * 24 / 12, rel=0.01)


def test_fleets_and_comparisons_count_it() -> None:
    """One copy is the replicas of a machine with the engine on its free chips; the machine is paid once."""
    from rackline.report.compare_report import deployment_side
    from rackline.search.extensions import plan_fleet
    from rackline.serving.fleet import Traffic

    answer = of_layouts(Layout(pp=3))
    best = answer.best
    assert best is not None
    assert best.leftover is not None
    each = best.requests_per_s_with_leftover * WORK.output_len
    found = plan_fleet(Traffic(tokens_per_s=2.5 * each), answer)
    assert found is not None
    assert found.copies * found.copy_tokens_per_s >= 2.5 * each
    # a copy is one replica of three chips and one engine of one: five of them, on three machines
    assert (found.copies, found.num_chips, found.billed_chips) == (5, 20, 24)
    assert found.usd_per_mtok_output_all_in == pytest.approx(best.usd_with_leftover * 3 / 2.5)
    side = deployment_side("one", answer, engine="", bands={})
    assert side.values["usd_per_mtok_output_all_in"] == pytest.approx(best.usd_with_leftover)
    assert side.values["requests_per_s"] == pytest.approx(best.requests_per_s_with_leftover)
    assert side.deployed is not None
    assert plain(side.deployed)["leftover"] == best.leftover.choice.layout.label()
