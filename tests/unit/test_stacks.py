"""Stacks beside each other: what can be called cheaper, what cannot be separated, and that each was asked."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.api.plan import Planned, WhatIf
from rackline.api.question import options
from rackline.bands.bands import LIMITED, SHARES, Band, Evidence, shipped_bands
from rackline.bands.defaults import stacks_on
from rackline.bands.stack_choice import SURE, StackCost, Stacks, drawn

pytestmark = pytest.mark.usefixtures("searched_once")

QWEN: dict[str, Any] = {"on": "dgx-h200", "chips": 8, "input": "2k", "output": 500, "tpot": "40ms"}
LLAMA: dict[str, Any] = {"on": "dgx-h100", "input": "2k", "output": 300, "tpot": "30ms", "serving": "aggregated"}
README: dict[str, Any] = {"on": "gb200-nvl72", "input": "4k", "output": "1k", "tpot": "30ms", "ttft": "2s"}


def errors(stack: str = "a", spread: float = 0.2, middle: float = 0.0) -> Band:
    """Ratios that are spread evenly in the logarithm."""
    ratios = np.exp(middle + spread * np.linspace(-1.0, 1.0, len(SHARES))).tolist()
    of = Evidence(stack=stack, kind="dense", chip="c")
    return Band(
        metric="tpot_s", of=of, low=ratios[0], high=ratios[-1], num_cases=30, num_models=3, quantiles=tuple(ratios)
    )


def one(stack: str, cost: float, *, share: float = 0.9, **of_errors: float) -> StackCost:
    """An answer of a stack that was simulated."""
    return StackCost(
        stack=stack, version="1", cost=cost, basis="simulated", own_share=share, errors=errors(stack, **of_errors)
    )


def weighed(*found: StackCost) -> Stacks:
    """The verdict; the first is the one of which most is known."""
    stacks = Stacks.of(found)
    assert stacks is not None
    return stacks


def test_equal_stacks_cannot_be_separated() -> None:
    found = weighed(one("known", 1.0), one("other", 1.0))
    assert (found.verdict, found.taken) == ("not separable", "known")
    assert [each.stack for each in found.open] == ["known", "other"]
    assert found.rows[1].chance == pytest.approx(0.5, abs=0.05)
    assert found.to_measure in ("known", "other")


def test_a_little_cheaper_is_not_cheaper() -> None:
    found = weighed(one("known", 1.05), one("other", 1.0))
    assert (found.verdict, found.taken) == ("not separable", "known")
    assert [row.found.stack for row in found.rows] == ["other", "known"]


def test_much_cheaper_is_cheaper() -> None:
    found = weighed(one("known", 1.5), one("other", 1.0))
    assert (found.verdict, found.taken) == ("cheaper", "other")
    assert found.rows[1].beaten_by == "other"
    assert (found.rows[1].chance or 0.0) >= SURE
    assert found.to_measure == ""


def test_a_stack_that_is_known_to_be_slower_than_predicted_is_dearer() -> None:
    assert weighed(one("known", 1.5), one("other", 1.0, middle=0.5)).verdict == "not separable"
    assert weighed(one("known", 1.5), one("other", 1.0, middle=1.2)).taken == "known"


@pytest.mark.parametrize("cost", [1.0, 0.2])
def test_rows_that_stand_in_never_win(cost: float) -> None:
    found = weighed(one("borrowed", cost, share=0.69), one("known", 2.0))
    assert found.taken == "known"
    assert [each.stack for each in found.open] == ["borrowed", "known"]
    assert weighed(one("borrowed", cost, share=0.71), one("known", 2.0)).taken == "borrowed"


def test_without_measured_servers_of_its_own_a_stack_never_wins() -> None:
    cheap = replace(one("other", 0.2), errors=errors("*"))
    assert weighed(one("known", 2.0), cheap).taken == "known"


def test_where_nothing_stands_the_first_is_taken_and_not_called_cheaper() -> None:
    found = weighed(one("known", 2.0, share=0.5), one("other", 1.0, share=0.4))
    assert (found.verdict, found.taken) == ("not separable", "known")
    assert weighed(one("known", 2.0, share=0.5)).verdict == "not separable"


def test_what_has_no_answer_stays_with_its_reason() -> None:
    none = replace(one("known", float("inf")), reason="fits nowhere")
    found = weighed(none, one("other", 1.0))
    assert found.taken == "other"
    assert found.rows[-1].found.reason == "fits nowhere"
    assert Stacks.of([none]) is None


def test_draws_are_the_same_in_every_run_and_differ_between_stacks() -> None:
    ratios = errors().quantiles
    again = drawn.__wrapped__("a", ratios)
    assert np.array_equal(drawn("a", ratios), again)
    assert not np.array_equal(drawn("a", ratios), drawn("b", ratios))
    assert np.quantile(drawn("a", ratios), 0.5) == pytest.approx(1.0, rel=0.03)
    assert drawn("a", ratios).min() >= ratios[0]
    assert drawn("a", ratios).max() <= ratios[-1]


def test_the_ratios_of_a_band_run_between_its_ends() -> None:
    kept = [band for band in shipped_bands().values() if band.quantiles]
    assert {band.metric for band in kept} == set(LIMITED)
    for band in kept:
        assert len(band.quantiles) == len(SHARES)
        assert list(band.quantiles) == sorted(band.quantiles)
        assert (band.quantiles[SHARES.index(0.05)], band.quantiles[SHARES.index(0.95)]) == (band.low, band.high)


def planned(model: str, **ask: Any) -> Planned:
    """The result of a plan."""
    found = rl.plan(model, **ask).result
    assert isinstance(found, Planned)
    return found


@pytest.mark.parametrize(("model", "ask"), [("qwen3-235b-a22b", QWEN), ("llama-3.1-70b", LLAMA)])
def test_each_stack_that_is_named_gives_its_row(model: str, ask: dict[str, Any]) -> None:
    found = planned(model, **ask)
    stacks, chip = found.stacks, found.plan.system.cluster.chip
    assert stacks is not None
    assert {row.found.stack for row in stacks.rows} == set(stacks_on(chip))
    for row in stacks.rows:
        alone = planned(model, **ask, calibration=row.found.stack)
        assert alone.stacks is None
        best = alone.plan.best
        assert best is not None
        if row.found.basis == "bound":
            assert row.found.cost <= best.usd_with_leftover
        else:
            assert row.found.cost == pytest.approx(best.usd_with_leftover, rel=1e-12)
        if row.found.stack == stacks.taken:
            assert found.plan.best is not None
            assert found.plan.best.label() == best.label()


def test_only_what_could_win_is_simulated_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly any errors, stacks that are dearer by their estimates are settled at a bound."""
    from rackline.bands import defaults as of_bands

    def narrow(stack: str, *_: object, **__: object) -> Band:
        return errors(stack, spread=1e-3)

    monkeypatch.setattr(of_bands, "errors_of", narrow)
    found = planned("llama-3.1-70b", **LLAMA).stacks
    assert found is not None
    assert found.verdict == "cheaper"
    bounds = [row.found for row in found.rows if row.found.basis == "bound"]
    assert bounds
    for each in bounds:
        best = planned("llama-3.1-70b", **LLAMA, calibration=each.stack).plan.best
        assert best is not None
        assert found.best.cost < each.cost <= best.usd_with_leftover


def test_the_answer_says_what_is_taken_and_what_would_separate() -> None:
    answer = rl.plan("llama-3.1-70b", **LLAMA)
    data, (said,) = answer.to_dict(), answer.defaults
    stacks = data["stacks"]
    assert said.startswith(f"stack {stacks['taken']}, most is known of it; not separable: ")
    assert said.endswith(f"; to separate: {stacks['measurement']}")
    assert data["calibration"].partition(" ")[0] == stacks["taken"]
    assert stacks["verdict"] in said
    given = shlex.split(stacks["measurement"])
    assert given[:2] == ["rackline", "observe"]
    from rackline.api.observe import ObserveQuestion

    keywords = {name.removeprefix("--"): value for name, value in zip(given[3::2], given[4::2], strict=True)}
    assert set(keywords) <= set(options(ObserveQuestion))
    asked = ObserveQuestion(given[2], **keywords)
    assert (asked.input, asked.output) == (2000, 300)
    assert asked.stack in {row["stack"] for row in stacks["rows"]}
    full = "".join(str(part) for part in rl.plan("llama-3.1-70b", **LLAMA, full=True)._repr_html_().split())
    assert "stacks,eachaskedasifitwerenamed" in full


def test_explain_of_the_printed_layout_names_the_same_stack() -> None:
    """By default, or as the answer of the plan says."""
    for model, ask in (("qwen3-235b-a22b", QWEN), ("llama-3.1-70b", LLAMA), ("deepseek-v3", README)):
        answer = rl.plan(model, **ask)
        taken = answer.to_dict()["stacks"]["taken"]
        layout = replace(answer.result.plan.best.layout, dp=1).label()
        plain = rl.explain(model, on=ask["on"], batch=64, context="4k", layout=layout)
        default = plain.result.explanation.deployment.calibration.name
        assert (default == taken) != (f"explain takes {default} (--calibration)" in answer.defaults[0])


def test_compare_takes_the_stack_of_the_plan() -> None:
    names = ["qwen3-235b-a22b@dgx-h200", "llama-3.1-70b@dgx-h200"]
    more = {key: value for key, value in QWEN.items() if key in ("input", "output", "tpot")}
    found = rl.compare(names, **more)
    for name, side in zip(names, found.result.sides, strict=True):
        alone = planned(name.partition("@")[0], on="dgx-h200", **more)
        assert alone.plan.best is not None
        assert side.deployed.engine == alone.plan.system.calibration.name
        assert side.values["tpot_s"] == alone.plan.best.tpot_s
    assert {said.partition(":")[0] for said in found.defaults} == set(names)


def test_a_what_if_keeps_the_stack_of_the_answer_and_says_so() -> None:
    ask: dict[str, Any] = {**QWEN, "serving": "aggregated"}
    taken = planned("qwen3-235b-a22b", **ask).plan.system.calibration.name
    found = rl.plan("qwen3-235b-a22b", **ask, what_if="hbm_bandwidth=5TB/s,10TB/s")
    assert isinstance(found.result, WhatIf)
    assert {point.plan.system.calibration.name for point in found.result.points} == {taken}
    assert "is kept at every value" in found.defaults[1]
    assert found.to_dict()["stacks"]["taken"] == taken


def test_prices_compare_stacks_by_the_first_tier() -> None:
    ask: dict[str, Any] = {"on": "dgx-h200", "contexts": ["32k"], "layout": "pp=1"}
    found = rl.price("qwen3-235b-a22b", **ask)
    stacks = found.result.stacks
    assert stacks is not None
    deployment = found.result.offered.deployment
    assert deployment is not None
    assert deployment.calibration.name == stacks.taken
    named = rl.price("qwen3-235b-a22b", **ask, calibration=stacks.taken)
    assert [(tier.input_usd, tier.output_usd) for tier in named.result.offered.tiers if not tier.reason] == [
        (tier.input_usd, tier.output_usd) for tier in found.result.offered.tiers if not tier.reason
    ]


def test_a_question_with_one_stack_asks_no_others() -> None:
    assert planned("llama-3.1-8b", on="mi300x-8", chips=1, input="1k", output=200).stacks is None
    assert planned("llama-3.1-8b", on="dgx-h100", chips=1, input="1k", output=200, launch="vllm").stacks is None
