"""Which numbers the parts of a question take: each field of each object at values on both sides of its bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from helpers import deploy
from rackline.errors import RacklineError
from rackline.posttraining.job import AnswerLengths
from rackline.pricing.costs import Rent
from rackline.pricing.offered import Terms
from rackline.pricing.unknowns import Range
from rackline.scaling.budget import PhaseMfu, Usage
from rackline.scaling.law import LossLaw
from rackline.serving.capacity import TrainLine
from rackline.serving.curve import balance_batch
from rackline.serving.fleet import Traffic
from rackline.serving.open_loop import Population
from rackline.serving.workload import Speculation, Workload
from rackline.simulation.agents import Skewed
from rackline.simulation.fleet_pool import Failures
from rackline.simulation.load import Load
from rackline.simulation.prefix_cache import CacheRules, TierSpec
from rackline.simulation.requests import Requests
from rackline.simulation.server import AdapterSlots, RankSpec
from rackline.simulation.workloads import Lengths, Sessions
from rackline.system import Constraints

NUMBERS = (-1.0, -1e-9, 0.0, 1e-9, 0.5, 1.0, 1.5, 2.0, 1e6, 1e13, math.inf, math.nan)
LAW = {"irreducible_loss": 1.7, "params_coefficient": 400.0, "tokens_coefficient": 400.0, "params_exponent": 0.34}
MADE: dict[str, Callable[[], Any]] = {
    "Lengths": lambda: Lengths(input_len=1000.0, output_len=200.0),
    "Sessions": lambda: Sessions(turns=5.0, think_s=10.0),
    "Workload": lambda: Workload(input_len=1000.0, output_len=200.0),
    "Speculation": lambda: Speculation(draft_tokens=3, tokens_per_step=2.0),
    "Traffic": lambda: Traffic(tokens_per_s=1e6),
    "Population": lambda: Population(users=100.0),
    "TrainLine": lambda: TrainLine(interval_s=0.02, capacity=100.0, arrivals_per_s=1000.0),
    "Skewed": lambda: Skewed(median=10.0, mean=20.0),
    "Failures": lambda: Failures(per_host_day=0.01, repair_s=3600.0),
    "TierSpec": lambda: TierSpec(name="host", tokens=1e6, tokens_per_s=1e6),
    "CacheRules": CacheRules,
    "AdapterSlots": lambda: AdapterSlots(slots=4, load_s=0.01),
    "RankSpec": lambda: RankSpec(pool_tokens=100_000),
    "Constraints": lambda: Constraints(tpot_s=0.05, ttft_s=2.0),
    "AnswerLengths": lambda: AnswerLengths(mean=500.0, spread=0.6, longest=2000.0),
    "Rent": lambda: Rent(usd_per_chip_hour=2.0),
    "Terms": Terms,
    "Range": lambda: Range(low=1.0, high=2.0),
    "Usage": Usage,
    "PhaseMfu": lambda: PhaseMfu(pretrain=0.4, rl=0.3, inference=0.1),
    "LossLaw": lambda: LossLaw(name="x", tokens_exponent=0.28, **LAW),
}


def numbers_of(made: Any) -> list[str]:
    """Fields that hold a number, or None where one may stand."""
    return [
        one.name
        for one in fields(made)
        if one.init
        and not isinstance(getattr(made, one.name), bool)
        and (isinstance(getattr(made, one.name), int | float) or "float | None" in str(one.type))
    ]


def said(made: Any, name: str, value: float) -> str:
    """What is said of a value, without the value."""
    whole = isinstance(getattr(made, name), int) and math.isfinite(value) and value == int(value)
    try:
        replace(made, **{name: int(value) if whole else value})
    except RacklineError as refused:
        return re.sub(r": got [^,]+", ": got it", str(refused))
    return "taken"


@cache
def of(kind: str) -> dict[str, dict[str, list[str]]]:
    """Field → what is said → the values of which it is."""
    made = MADE[kind]()
    found: dict[str, dict[str, list[str]]] = {}
    for name in numbers_of(made):
        each: dict[str, list[str]] = {}
        for value in NUMBERS:
            each.setdefault(said(made, name, value), []).append(f"{value:g}")
        found[name] = each
    return found


@pytest.mark.parametrize("kind", MADE)
def test_what_is_taken_is_one_range(kind: str) -> None:
    """No number between two that are taken is refused, but for whole numbers and zero as "none"."""
    for name, outcomes in of(kind).items():
        taken = [float(value) for value in outcomes.get("taken", ()) if value not in ("nan", "0")]
        inside = [value for value in NUMBERS if taken and min(taken) < value < max(taken) and value != 0.0]
        refused = [value for value in inside if value not in taken and value == int(value)]
        assert refused == [], name


@pytest.mark.parametrize("kind", MADE)
def test_nothing_takes_what_is_no_number(kind: str) -> None:
    """A field that is compared with a bound refuses NaN as well."""
    bounded = {name: each for name, each in of(kind).items() if len(each) > 1}
    assert [name for name, each in bounded.items() if "nan" in each.get("taken", ())] == []


def test_loads_have_finite_rates_of_zero_or_more() -> None:
    def tried(edges: list[float], rates: list[float]) -> str:
        try:
            Load(edges_s=np.array(edges), rates_per_s=np.array(rates))
        except RacklineError as refused:
            return str(refused)
        return "taken"

    assert tried([0.0, 1.0, 2.0], [1.0, 0.0]) == "taken"
    for edges, rates in (
        ([0.0, 1.0, 2.0], [1.0, -1.0]),
        ([0.0, 1.0, 2.0], [0.0, 0.0]),
        ([0.0, 1.0, 2.0], [1.0, math.inf]),
        ([0.0, 1.0, 2.0], [1.0, math.nan]),
    ):
        assert tried(edges, rates) != "taken", (edges, rates)


def test_arrivals_come_at_a_rate_above_zero() -> None:
    from rackline.simulation.workloads import poisson

    random = np.random.default_rng(0)
    assert np.diff(poisson(random, 20_000, 4.0)).mean() == pytest.approx(0.25, rel=0.03)
    for rate in (0.0, -1.0):
        with pytest.raises(RacklineError, match="rate: got"):
            poisson(random, 3, rate)


def test_first_requests_arrive_in_order_and_others_whenever_they_may() -> None:
    """Of three requests the last belongs to a session: it comes a pause after the one before it."""
    lengths = np.array([10, 10, 10])
    made = Requests(
        arrival_s=np.array([0.0, 5.0, 1.0]), input_len=lengths, output_len=lengths, after=np.array([-1, -1, 0])
    )
    assert made.hash_tokens == 512  # a block of Mooncake's traces
    for after in (None, np.array([-1, -1, -1])):
        with pytest.raises(RacklineError, match=r"arrival_s: got 1\.0, allowed: at least 5, the one before it"):
            Requests(arrival_s=np.array([0.0, 5.0, 1.0]), input_len=lengths, output_len=lengths, after=after)


def test_the_balanced_batch_leaves_the_cache_out_unless_it_is_told_a_context() -> None:
    deployment = deploy("llama-3.1-8b", "tp=1", on="dgx-h100")
    alone = balance_batch(deployment)
    assert alone == balance_batch(deployment, 0.0)
    assert alone < balance_batch(deployment, 500.0)
