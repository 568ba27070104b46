"""Sliders of views that ask the library: between stored answers they interpolate, within the share that is stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from conftest import PATIENCE_MS, Watched
from rackline.api.answer import answer
from rackline.api.budget import BudgetQuestion
from rackline.api.prices import InferPricesQuestion, rent_of
from rackline.api.tiers import TiersQuestion
from rackline.pricing import cheapest, envelope, keeping_lines, tier_by_drain
from rackline.web.data import first_fields, views
from rackline.web.grids import GRIDS, WITHIN

POINTS = 24


def _points(name: str, *keys: str) -> list[dict[str, float]]:
    """Random values of the sliders of a view."""
    rng = np.random.default_rng(20261122)
    ends = [views()[name]["sliders"][key] for key in keys]
    drawn = np.exp([[rng.uniform(np.log(one["low"]), np.log(one["high"])) for one in ends] for _ in range(POINTS)])
    return [dict(zip(keys, point, strict=True)) for point in drawn.tolist()]


def _moved(watched: Watched, name: str, points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The numbers that the page shows at points."""
    watched.open(name)
    return watched.page.evaluate(
        "([name, points]) => points.map(point => rackline.grids.moved[name](rackline.data.get(`grid-${name}`), point))"
        ".map(found => ({ ...found.numbers, answer: found.answer }))",
        [name, points],
    )


def test_every_view_with_sliders_has_a_grid_and_says_how_far_it_is_off() -> None:
    assert {name for name, view in views().items() if "sliders" in view} == set(GRIDS) == set(WITHIN)


def test_tiers_between_the_stored_lengths_are_those_of_the_library(watched: Watched) -> None:
    points = _points("tiers", "prompt", "reuses", "hold_time")
    found: Any = answer(TiersQuestion.from_params(first_fields(views()["tiers"]))).result
    costs, rent = found.costs, rent_of(found.costs.deployment.cluster)
    near = 0
    for point, shown in zip(points, _moved(watched, "tiers", points), strict=True):
        lines = keeping_lines(costs, rent, point["prompt"])
        best = cheapest(envelope(lines, point["reuses"]), point["hold_time"])
        usd = float(best.usd(point["hold_time"], point["reuses"])) * 1e6 / point["prompt"]
        assert shown["usd_per_mtok"] == pytest.approx(usd, rel=WITHIN["tiers"])
        near += shown["name"] != best.name  # only where two cost the same
        ends = [span.until_s for span in envelope(lines, point["reuses"]) if np.isfinite(span.until_s)]
        assert shown["ends"] == pytest.approx(ends, rel=5 * WITHIN["tiers"])
        assert f"drain rule names {tier_by_drain(lines, point['hold_time']).name}" in shown["answer"]
    assert near <= 1


def test_readings_of_prices_between_the_stored_ones_are_those_of_the_library(watched: Watched) -> None:
    points: list[dict[str, Any]] = [*_points("prices", "margin", "utilisation")[:8]]
    sheets = views()["prices"]["stops"]
    asked = [{**point, "sheets": sheets[place % len(sheets)]} for place, point in enumerate(points)]
    for point, shown in zip(asked, _moved(watched, "prices", asked), strict=True):
        texts = {"sheets": point["sheets"], **{key: repr(point[key]) for key in ("margin", "utilisation")}}
        (reading,) = answer(InferPricesQuestion.from_params(texts)).result.sheets
        active = reading.find("active_params")
        assert active is not None
        for key in ("low", "high", "likely_low", "likely_high"):
            assert shown[key] == pytest.approx(getattr(active, key), rel=WITHIN["prices"])


def test_budgets_between_the_stored_ones_are_those_of_the_library(watched: Watched) -> None:
    fields = first_fields(views()["over-training"])
    points = _points("over-training", "traffic", "months")
    asked = [{**point, "quality_of": fields["quality_of"]} for point in points]
    for point, shown in zip(points, _moved(watched, "over-training", asked), strict=True):
        texts = {**fields, **{key: repr(value) for key, value in point.items()}}
        found: Any = answer(BudgetQuestion.from_params(texts)).result
        best = found.budget.optimum
        wanted = {
            "active_params": float(best.params),
            "tokens": float(best.tokens),
            "flop": float(best.lifetime_flop),
            "usd": found.budget.usd,
            "overtraining_factor": found.budget.overtraining_factor,
            "compute_optimal_over_optimum": found.budget.compute_optimal_over_optimum,
        }
        assert {key: shown[key] for key in wanted} == pytest.approx(wanted, rel=WITHIN["over-training"])


@pytest.mark.parametrize(
    ("name", "figure", "key", "entry", "field"),
    [
        ("tiers", "tiers-cost", "prompt", "2,000", "usd_per_mtok"),
        ("tiers", "tiers-cost", "hold_time", "5 min", "held_s"),
        ("prices?known=yes", "prices-map", "margin", "90 %", "active_params"),
        ("over-training", "over-training-lifetime", "traffic", "3M", "active_params"),
    ],
)
def test_a_slider_moves_the_figure_the_sentence_and_the_address(
    watched: Watched, name: str, figure: str, key: str, entry: str, field: str
) -> None:
    page = watched.open(name)
    before, said, address = watched.marks(figure)[-1][field], watched.answer(), page.url
    page.locator(f"[data-key={key}] .exact input").fill(entry)
    page.locator(f"[data-key={key}] .exact input").press("Enter")
    moved = "([figure, field, before]) => rackline.drawn.get(figure).rows.marks.at(-1)[field] !== before"
    page.wait_for_function(moved, arg=[figure, field, before])
    assert watched.answer() != said
    assert f"{key}=" in page.url
    page.go_back()
    page.wait_for_function(moved.replace("!==", "==="), arg=[figure, field, before])
    page.wait_for_url(address)


def test_sliders_of_terms_that_are_not_known_rest(watched: Watched) -> None:
    page = watched.open("prices")
    assert page.get_by_label("Margin", exact=True).is_disabled()
    known = watched.marks("prices-map")[0]
    page.get_by_text("As set").click()
    page.wait_for_function("rackline.address().state.known === 'yes'")
    slider = page.get_by_label("Margin", exact=True)
    expect(slider).to_be_enabled(timeout=PATIENCE_MS)
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_function(
        "before => rackline.drawn.get('prices-map').rows.marks[0].active_params !== before", arg=known["active_params"]
    )
    assert "utilisation of 60 %" in watched.answer()
    assert (slider.get_attribute("aria-valuetext") or "").endswith("%")


def test_a_replay_draws_what_was_served_until_then(watched: Watched) -> None:
    page = watched.open("simulate?t=2")
    rows = watched.rows("simulate-served")
    assert {row["run"] for row in rows} == {"this", "policy=prefill-first"}
    drawn = "rackline.drawn.get('simulate-served').view.data('data_0').length"
    assert page.evaluate(drawn) == sum(row["start_s"] <= 2.0 for row in rows)
    waiting = sum(
        row["run"] == "this" and row["phase"] == "waiting" and row["start_s"] <= 2.0 < row["end_s"] for row in rows
    )
    assert f"this: {waiting} waiting" in page.locator(".replay").inner_text()
    slider = page.get_by_label("Time of the replay")
    slider.press("End")
    page.wait_for_function("!('t' in rackline.address().state)")
    assert page.evaluate(drawn) == len(rows)
    played = """async button => {
        button.click();
        await new Promise(requestAnimationFrame);
        const said = button.textContent;
        button.click();
        return said;
    }"""  # at once: on a busy machine a replay may end between two clicks from here
    assert page.get_by_role("button", name="Play").evaluate(played) == "Pause"
    page.wait_for_function("Number(rackline.address().state.t) >= 0")


def test_a_replay_steps_where_motion_is_unwanted(watched: Watched) -> None:
    watched.page.emulate_media(reduced_motion="reduce")
    try:
        page = watched.open("simulate")
        page.get_by_role("button", name="Step").click()
        end = max(row["end_s"] for row in watched.rows("simulate-served"))
        page.wait_for_function("'t' in rackline.address().state")
        assert float(page.evaluate("rackline.address().state.t")) == pytest.approx(end / 20, rel=1e-3)
        assert page.get_by_role("button", name="Pause").count() == 0
    finally:
        watched.page.emulate_media(reduced_motion="no-preference")
