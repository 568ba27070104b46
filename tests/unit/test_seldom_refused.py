"""Values and combinations that are seldom given: what is refused, in which words, and what edges come to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import model
from rackline import hardware, scaling
from rackline.errors import InputError, RacklineError
from rackline.parallel.exchange import ExpertRouting, dispatch_traffic
from rackline.pricing.compare import rank_correlation
from rackline.serving.workload import PLAIN, Mixture, Workload, Workloads
from rackline.simulation.clock import PlainClock
from rackline.simulation.decode_steps import steps_before
from rackline.training.runs import experts_problem, parse_train_layout
from rackline.validation.tables import whole

LENGTHS = {"input_len": np.array([100.0, 200.0]), "output_len": np.array([10.0, 20.0])}
DENSE, MIXTURE = model("llama-3.1-8b"), model("qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shares": np.array([1.0, 0.0])}, "share: got 0.0, allowed: more than 0"),
        ({"shares": np.array([1.0, math.nan])}, "share: got nan, allowed: more than 0"),
        ({"input_len": np.array([100.0, 0.0])}, "input_len: got 0.0, allowed: at least 1 token"),
        ({"output_len": np.array([math.inf, 5.0])}, "output_len: got inf, allowed: at least 1 token"),
    ],
)
def test_a_mixture_refuses_its_worst_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mixture.of(**{"shares": np.array([1.0, 1.0]), **LENGTHS, **given}, name="mix.csv")


def test_a_part_of_a_mixture_without_requests_is_none() -> None:
    mixture = Mixture.of(np.array([1.0, 3.0]), name="mix.csv", **LENGTHS)
    assert mixture.between(200.0, 900.0) is None
    part = mixture.between(100.0, 200.0)
    assert part is not None
    assert part.input_len.tolist() == [200.0]


def test_unlike_workloads_are_not_combined() -> None:
    plain, cached = Workload(input_len=100, output_len=10), Workload(input_len=100, output_len=10, cache_hit=0.5)
    for pair in ([cached, cached], [plain, replace(plain, equal_lengths=not plain.equal_lengths)]):
        with pytest.raises(InputError, match="nothing cached, equal_lengths and output_spread the same"):
            Workloads.of(pair)
    assert Workloads.of([plain, plain]).input_len.shape == (2, 1)


def test_no_drafts_are_one_token_a_step() -> None:
    assert PLAIN.label() == "one token per step"


@pytest.mark.parametrize(
    ("of", "layout", "why", "nearest"),
    [
        (DENSE, "ep=2", "a dense model has no ep or expert_tp", "ep=1"),
        (MIXTURE, "ep=24", "ep=24 does not divide the 128 experts", "ep=16"),
        (MIXTURE, "expert_tp=5", "expert_tp=5 does not divide d_expert=768", "expert_tp=1"),
        (MIXTURE, "tp=2,ep=4", "ep·expert_tp = 4 must divide tp·cp·dp = 2", "ep=2"),
        (MIXTURE, "tp=2,dp=2,ep=4", None, None),
        (DENSE, "tp=2", None, None),
    ],
)
def test_experts_that_cannot_be_cut(of: Any, layout: str, why: str | None, nearest: str | None) -> None:
    named = {"tp": 1, "cp": 1, "dp": 1, "ep": 1, "expert_tp": 1} | parse_train_layout(layout)
    assert experts_problem(SimpleNamespace(**named), of) == (None if why is None else (why, nearest))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=2,tp=4", "tp once"),
        ("zero=4", "layout zero: got '4', allowed: 0, 1, 2 or 3; nearest: 1"),
        ("tp=0", "layout tp: got '0', allowed: a whole number of at least 1; nearest: 1"),
        ("tq=2", "nearest: tp=2"),
    ],
)
def test_settings_of_training_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(RacklineError) as refused:
        parse_train_layout(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scaling.fit_loss_law([1e8, 1e9], [1e9], [3.0]), "arrays of equal length"),
        (lambda: scaling.fit_loss_law([1e8, 1e9], [1e9, 1e10], [3.0, 2.5]), "to fit five constants"),
        (lambda: scaling.fit_frontier([1e20, 1e20], [1e9, 1e9]), "at least two compute budgets"),
        (lambda: scaling.fit_frontier([1e20, 1e21], [1e9]), "at least two compute budgets"),
        (lambda: scaling.isoflop_minimum([1e8, 1e9], [3.0, 2.0]), "at least three sizes"),
        (lambda: scaling.isoflop_minimum([1e8, 1e9, 1e10], [2.0, 3.0, 2.0]), "a minimum between the sizes"),
    ],
)
def test_points_that_determine_no_law(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_rank_correlation_of_few_or_equal_values_is_zero() -> None:
    assert rank_correlation([1.0, 2.0], [2.0, 1.0]) == 0.0
    assert rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1.0


def test_chips_of_two_domains_without_a_network_between_have_no_path() -> None:
    one_box = hardware.cluster("l40s-8")
    assert one_box.scale_out is None
    with pytest.raises(InputError, match="chips: got '0 and 9', allowed: one domain of 8 chips"):
        hardware.path_between(one_box, 0, 9)
    assert hardware.path_between(one_box, 0, 7) == hardware.path_between(one_box, 3, 4)


@pytest.mark.parametrize("first", [0.1, 0.3, 1.0 / 3.0])
@pytest.mark.parametrize("slope", [0.0, 0.1, 0.01, -0.01])
def test_steps_that_start_within_a_time_are_counted_one_by_one(first: float, slope: float) -> None:
    for most in (1, 7, 25):
        for room_s in [0.0, *(math.fsum(first + k * slope for k in range(n)) for n in range(1, 9)), 1.05, 2.71, 40.0]:
            passed, steps = 0.0, 0
            while steps < most and (steps == 0 or passed < room_s - 1e-12):
                passed += first + steps * slope
                steps += 1
            assert abs(steps_before(room_s, first, slope, most) - steps) <= (abs(passed - room_s) < 1e-9)


def test_a_plain_clock_is_linear_in_what_it_is_given() -> None:
    clock = PlainClock(base_s=1.0, per_sequence_s=0.5, per_kv_s=0.01, per_prompt_token_s=0.1)
    grown = clock.steps(np.array([100.0, 300.0]), np.array([0.0, 10.0]), 2.0)
    assert grown.tolist() == pytest.approx([1.0 + 1.0 + 4.0, 1.0 + 1.0 + 4.2])
    assert clock.straight(2, 400.0, 300.0, 2.0) == pytest.approx(grown[0])


def test_copies_by_picks_go_where_the_experts_are() -> None:
    even = ExpertRouting(num_ranks=2, num_experts=4, experts_per_token=2)
    picked = replace(even, picks=np.array([0.9, 0.6, 0.3, 0.2]))
    sent = dispatch_traffic(picked, 10.0, 2.0, once_per_rank=False).sent
    assert sent.tolist() == [[pytest.approx(30.0), pytest.approx(10.0)]] * 2
    assert dispatch_traffic(even, 10.0, 2.0, once_per_rank=False).sent.tolist() == [[20.0, 20.0]] * 2


def test_a_cell_that_is_no_whole_number_is_refused() -> None:
    row: Any = {"seq_len": "2.5", "num_chips": "8"}
    assert whole(row, "num_chips") == 8
    with pytest.raises(InputError, match=r"seq_len: got '2\.5', allowed: a whole number"):
        whole(row, "seq_len")
