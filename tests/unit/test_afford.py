"""What a budget buys, each answer worked out again from the plan alone."""

from __future__ import annotations

import itertools
import json
import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import rackline as rl
from rackline.api import afford
from rackline.api.answer import Watch, find_verb
from rackline.cli.main import run
from rackline.errors import InputError

SMALL: dict[str, Any] = {"on": "dgx-h100", "input": "2k", "output": 300, "layout": "tp=4", "serving": "aggregated"}
HOURS = 730.0


@pytest.fixture(scope="module")
def served() -> dict[str, float]:
    """A replica of four chips: its rate, and how long a request takes there."""
    best = rl.plan("llama-3.1-70b", tpot="40ms", ttft="2s", calibration="vllm", chips=4, **SMALL).result.plan.best
    return {"rate": best.requests_per_s, "request_s": best.ttft_s + 299 * best.tpot_s}


def asked(**more: Any) -> Any:
    given = {"tpot": "40ms", "ttft": "2s", "calibration": "vllm", "chips": 4, **SMALL, **more}
    return rl.afford("llama-3.1-70b", **given).result


def test_a_founder_asks_how_many_users_a_budget_buys(served: dict[str, float]) -> None:
    """$20,000 a month at $2.95: machines of eight chips, two replicas each; users by Little's law."""
    (offer,) = asked(budget="20k/month", terms="on-demand", think_time="20s").offers
    (way,) = offer.ways
    chips = math.floor(20_000 / (2.95 * HOURS) / 4) * 4  # a cluster of four chips is a unit itself
    assert way.num_chips == chips
    assert way.usd_per_month == pytest.approx(chips * 2.95 * HOURS)
    users = chips / 4 * served["rate"] * (20.0 + served["request_s"])
    assert way.users == pytest.approx(users, rel=0.02)
    assert way.usd_per_user == pytest.approx(way.usd_per_month / way.users)


def test_one_more_unit_would_not_be_paid() -> None:
    for way in asked(budget="50k/month", think_time="20s").offers[0].ways:
        assert way.within_budget
        assert way.usd_per_month <= 50_000
        assert way.usd_per_month + 4 * way.usd_per_chip_hour * HOURS > 50_000


def test_a_planner_asks_what_users_cost(served: dict[str, float]) -> None:
    (offer,) = asked(users=1000, think_time="20s", terms=["reserved-3y", "on-demand"]).offers
    by_kind = {way.terms: way for way in offer.ways}
    copies = math.ceil(1000 / (served["rate"] * (20.0 + served["request_s"])) * 0.98)
    for title, usd in (("on demand", 2.95), ("reserved for three years", 1.3)):
        way = by_kind[title]
        assert abs(way.copies - copies) <= 1
        assert way.usd_per_month == pytest.approx(4 * way.copies * usd * HOURS)
        assert way.usd_per_user == pytest.approx(way.usd_per_month / 1000)
        assert way.requests_per_month * way.usd_per_request == pytest.approx(way.usd_per_month)
    # each user sends a request every think time and response
    every_s = 1000 * HOURS * 3600 / by_kind["on demand"].requests_per_month
    assert 20.0 < every_s < 20.0 + served["request_s"] * 1.05


def test_an_operator_asks_for_requests() -> None:
    (offer,) = asked(requests="10/s", terms="owned", users=None).offers
    (way,) = offer.ways
    assert way.requests_per_month == pytest.approx(10 * HOURS * 3600)
    assert way.users is None
    assert way.usd_per_user is None


def test_an_operator_asks_to_survive_a_host() -> None:
    """A replica on four of the eight chips of a host: two copies stand by for each host."""
    given = {"users": 1000, "think_time": "20s", "terms": "on-demand", "chips": None}
    bare = asked(**given).offers[0].ways[0]
    one = asked(**given, survive=1).offers[0].ways[0]
    assert (bare.spare_copies, one.spare_copies) == (0, 2)
    assert one.copies == bare.copies
    assert one.num_chips == bare.num_chips + 8
    often = asked(**given, availability="99.9%").offers[0].ways[0]
    assert often.spare_copies == 2


def test_a_swing_mixes_owned_and_on_demand() -> None:
    ways = asked(users=3000, think_time="20s", peak_over_mean=1.8).offers[0].ways
    mixed = ways[-1]
    assert "on demand at the peak" in mixed.terms
    demand = next(way for way in ways if way.terms == "on demand")
    held = min(way.usd_per_month for way in ways[:-1] if way.terms.startswith("reserved"))
    assert mixed.usd_per_month < min(demand.usd_per_month, held)
    assert mixed.num_chips == demand.num_chips


def test_an_analyst_asks_which_model() -> None:
    found = rl.afford(
        ["llama-3.1-8b", "llama-3.1-70b"], on="dgx-h100", budget="30k/month", input="2k", output=300,
        tpot="40ms", think_time="10s", serving="aggregated", calibration="vllm", layout="tp=4", terms="reserved-3y",
    ).result  # fmt: skip
    users = [offer.best.users for offer in found.offers]
    assert [offer.model for offer in found.offers] == ["llama-3.1-8b", "llama-3.1-70b"]
    assert users == sorted(users, reverse=True)
    assert [offer.quality.score for offer in found.offers] == [48.3, 66.4]


def test_an_engineer_sees_why_nothing_serves() -> None:
    (offer,) = rl.afford("llama-3.1-405b", on="l40s-8", budget="30k/month", price="1", any_layout=True).result.offers
    assert not offer.ways
    assert "needs" in offer.reason or "fit" in offer.reason


def test_a_budget_below_one_unit_says_the_smallest() -> None:
    answer = rl.afford("llama-3.1-70b", budget="1k/month", terms="on-demand", **SMALL)
    assert answer.result.offers[0].best is None
    smallest = 8 * 2.95 * HOURS
    assert answer.result.offers[0].ways[0].least_usd == pytest.approx(smallest)
    assert "$17,228" in str(answer)


def test_users_beyond_the_budget_say_what_they_cost() -> None:
    answer = rl.afford("llama-3.1-70b", users=5000, budget="20k/month", terms="on-demand", **SMALL)
    assert answer.result.offers[0].ways[0].within_budget is False
    assert "does not pay" in str(answer)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "budget.*users"),
        ({"budget": "3k/week"}, "40k/month"),
        ({"budget": "30k", "terms": "reserved"}, "nearest: reserved-3y"),
        ({"budget": "30k", "terms": "owned", "rent": "owned"}, "either `terms`"),
        ({"budget": "30k", "users": 3, "requests": "3/s"}, "users"),
        ({"budget": "30k", "traffic": "3M/s"}, "traffic"),
    ],
)
def test_bad_input(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rl.afford("llama-3.1-70b", **SMALL, **given)


def test_more_money_never_buys_fewer_users() -> None:
    users = [asked(budget=f"{budget}k/month", terms="spot").offers[0].best for budget in (10, 20, 40, 80)]
    assert all((a.users if a else 0) <= b.users for a, b in itertools.pairwise(users))


@pytest.mark.parametrize(
    "given",
    [
        {"budget": "40k/month"},
        {"users": 300},
        {"requests": "5/s", "budget": "40k/month"},
        {"budget": "100", "terms": "spot"},
        {"users": 300, "peak_over_mean": 1.5, "survive": 1, "price": "2"},
    ],
)
def test_what_is_printed_and_drawn(given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    line = ["afford", "llama-3.1-8b", "--on", "l40s-8", "--input=2k", "--output=200", "--layout=tp=1", *words]
    assert run(line) == 0
    shown = capsys.readouterr().out
    assert "llama-3.1-8b" in shown
    assert "None" not in shown
    assert "nan" not in shown
    assert run([*line, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["offers"][0]["model"] == "llama-3.1-8b"
    answer = rl.afford("llama-3.1-8b", on="l40s-8", input="2k", output=200, layout="tp=1", **given)
    assert len(answer.plot().spec["data"]["values"]) == len(answer.result.offers[0].ways)


def test_a_fleet_says_what_it_costs_a_month() -> None:
    fleet = rl.plan("llama-3.1-70b", users=500, tpot="40ms", ttft="2s", calibration="vllm", **SMALL).result.fleet
    assert fleet.usd_per_month == pytest.approx(fleet.billed_chips * 1.3 * HOURS)
    assert fleet.usd_per_user == pytest.approx(fleet.usd_per_month / 500)
    assert fleet.usd_per_request * fleet.requests_per_s * HOURS * 3600 == pytest.approx(fleet.usd_per_month)
    without = rl.plan("llama-3.1-70b", requests="5/s", tpot="40ms", calibration="vllm", **SMALL).result.fleet
    assert without.usd_per_user is None
    assert without.usd_per_request == pytest.approx(without.usd_per_hour / 3600 / 5)


def test_a_plan_says_its_month_and_that_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "plan",
        "llama-3.1-70b",
        "--on=dgx-h100",
        "--input=2k",
        "--output=300",
        "--layout=tp=4",
        "--calibration=vllm",
    ]
    assert run([*line, "--serving=aggregated", "--tpot=40ms"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "$10.4 an hour, $7,592 a month; $17,228 on demand" in shown
    assert run([*line, "--serving=aggregated", "--tpot=40ms", "--price=3"]) == 0
    assert "on demand" not in " ".join(capsys.readouterr().out.split())


def test_progress_names_each_pair_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []

    class Told(Watch):
        def counting(self, first: str, then: str) -> Any:
            assert (first, then) == ("planning the first", "planned")
            return nullcontext(lambda *what: told.append(what))

    offers = {"a": 2.0, "b": 1.0}
    named = lambda question, model, on, wanted: (SimpleNamespace(name=f"{model}@{on}", rank=offers[model]), "use")  # noqa: E731
    monkeypatch.setattr(afford, "_offer", named)
    question = afford.AffordQuestion(models=("a", "b"), on=("one",), budget=10.0)
    found = find_verb("afford").solve(question, Told())
    assert told == [("a@one", 1, 2), ("b@one", 2, 2)]
    assert [one.name for one in found.offers] == ["b@one", "a@one"]  # the best first
    assert found.use == "use"


def test_a_figure_of_nothing_says_why() -> None:
    figure = rl.afford("llama-3.1-405b", on="l40s-8", users=300, use="chat").plot()
    assert figure.subtitle == "no model fits on any cluster"
    assert figure.description == "$ a month: no model fits on any cluster."


@pytest.mark.parametrize(
    ("paid", "terms", "months"),
    [({"rent": "reserved-3y"}, "reserved for three years", 36), ({"rent": "on-demand"}, "on demand", 0),
     ({"price": 2.0}, "on demand", 0)],
    ids=str,
)  # fmt: skip
def test_a_rent_that_is_named_keeps_its_name_and_binds_as_long(paid: dict[str, Any], terms: str, months: int) -> None:
    (offer,) = asked(users=1000, think_time="20s", **paid).offers
    (way,) = offer.ways
    assert way.terms == terms
    assert way.bound_months == months
