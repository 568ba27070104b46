"""The decision card of a plan says what the library says, where one looks; no text of a figure is cut or covered."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from conftest import Watched
from rackline.api.answer import answer
from rackline.api.plan import PlanQuestion
from rackline.serving.fleet import HOURS_PER_MONTH
from rackline.units import format_seconds
from rackline.web.data import first_fields, views

# Texts of figures that are cut by their frame, lie over each other, or are written as a program writes them.
FAULTS = r"""() => {
    const found = [];
    const seen = (one) => one.textContent.trim() && one.getAttribute("opacity") !== "0";
    for (const drawing of document.querySelectorAll(".drawing")) {
        const frame = drawing.getBoundingClientRect();
        const texts = [...drawing.querySelectorAll("svg text")].filter(seen);
        const boxes = texts.map((one) => ({ text: one.textContent, box: one.getBoundingClientRect() }));
        const name = drawing.closest("[data-figure]").dataset.figure;
        boxes.forEach(({ text, box }, index) => {
            if (/e\+\d|\d ?us\b|NaN|undefined|Infinity/.test(text)) found.push(`${name}: ${text}`);
            const sides = [frame.left - box.left, box.right - frame.right];
            const cut = [...sides, frame.top - box.top, box.bottom - frame.bottom];
            if (!drawing.classList.contains("across") && Math.max(...cut) > 1) found.push(`${name}: ${text} is cut`);
            for (const other of boxes.slice(index + 1)) {
                const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
                const high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
                const halo = text === other.text;
                if (wide > 2 && high > 4 && !halo) found.push(`${name}: ${text} over ${other.text}`);
            }
        });
    }
    // marks outside their frame; what is clipped by a group of its own is not seen there
    for (const drawing of document.querySelectorAll(".drawing:not(.across)")) {
        const frame = drawing.getBoundingClientRect();
        const name = drawing.closest("[data-figure]").dataset.figure;
        for (const mark of drawing.querySelectorAll("svg [class*=mark-]:not(.mark-group):not(.mark-text) > *")) {
            const box = mark.getBoundingClientRect();
            if (!box.width && !box.height || mark.closest("[clip-path]")) continue;
            const sides = [frame.left - box.left, box.right - frame.right, frame.top - box.top];
            const over = Math.max(...sides, box.bottom - frame.bottom);
            if (over > 2) found.push(`${name}: a mark ${Math.round(over)} pixels outside`);
        }
    }
    return found;
}"""


@pytest.mark.parametrize(("width", "look"), [(390, "light"), (390, "dark"), (768, "light"), (1280, "light")])
def test_no_text_of_a_figure_is_cut_covered_or_written_with_an_exponent(
    browser: Browser, site: Path, width: int, look: str
) -> None:
    still: Any = {"reduced_motion": "reduce", "color_scheme": look}
    watched = Watched(browser, site, viewport={"width": width, "height": 844}, **still)
    found: dict[str, list[str]] = {}
    for name in views():
        page = watched.open(name)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found |= {name: faults} if (faults := page.evaluate(FAULTS)) else {}
    watched.context.close()
    assert found == {}


def test_texts_that_are_cut_or_cover_each_other_are_found(watched: Watched) -> None:
    """What the test above looks for, put there by hand."""
    page = watched.open("plan")
    assert page.evaluate(FAULTS) == []
    page.evaluate("""() => {
        const [first, second] = document.querySelectorAll("[data-figure=plan-front] svg text");
        const place = first.getBoundingClientRect();
        second.textContent = "2e+03 ms";
        const now = second.getBoundingClientRect();
        second.setAttribute("transform", "");
        first.setAttribute("transform", "translate(-500, 0)");
        const mark = document.querySelector("[data-figure=plan-front] svg .mark-symbol:not([clip-path] *) > path");
        mark.setAttribute("transform", "translate(0, -900)");
    }""")
    said = "; ".join(page.evaluate(FAULTS))
    assert "plan-front: 2e+03 ms" in said
    assert "is cut" in said
    assert "pixels outside" in said


@cache
def _best() -> Any:
    fields = first_fields(views()["plan"])
    return answer(PlanQuestion.from_params(fields)).result


def test_a_plan_is_a_card_of_numbers_with_bands_limits_and_chances(watched: Watched) -> None:
    found = _best()
    best, cluster = found.plan.best, found.plan.system.cluster
    page = watched.open("plan")
    numbers = page.locator(".card .large")
    expect(numbers).to_have_count(5)
    said = {one.locator("dt").inner_text(): one.inner_text().replace("\xa0", " ") for one in numbers.all()}
    assert list(said) == ["Cost", "Speed, p99", "First token, p99", "Chips", "A month"]
    assert f"${best.usd_per_mtok_output_all_in:.3f}" in said["Cost"]
    assert f"{1.0 / best.latency_s('tpot_s', 99):.3g} tokens/s" in said["Speed, p99"]
    assert format_seconds(best.latency_s("ttft_s", 99)) in said["First token, p99"]
    assert str(best.billed_chips) in said["Chips"]
    month = cluster.usd_per_chip_hour * best.billed_chips * HOURS_PER_MONTH
    assert f"${month / 1e3:.3g}k" in said["A month"]
    for one, name in zip(found.risk.limits, ("Speed, p99", "First token, p99"), strict=True):
        assert f"{100 * one.chance:.0f} % of such servers keep {format_seconds(one.limit_s)}" in said[name]
    other = "one engine for both" if best.serving == "disaggregated" else "separate pools"
    expect(page.locator(".card .alternative")).to_contain_text(other)


def test_bands_and_limits_are_drawn_where_their_numbers_lie(watched: Watched) -> None:
    limits = {one.metric: one for one in _best().risk.limits}
    page = watched.open("plan")
    first = page.locator(".card .large").nth(2)
    at = {
        name: float(first.locator(f".{name}").evaluate("one => parseFloat(one.style.left)"))
        for name in ("kept", "broken", "dot", "limit")
    }
    ttft = limits["ttft_s"]
    scale = at["limit"] / ttft.limit_s
    assert at["kept"] == pytest.approx(scale * ttft.low_s, rel=1e-4)
    assert at["dot"] == pytest.approx(scale * ttft.predicted_s, rel=1e-4)
    assert at["broken"] == pytest.approx(at["limit"])  # what lies beyond the limit has a colour of its own
    width = first.locator(".broken").evaluate("one => one.getBoundingClientRect().width")
    whole = first.locator(".track").evaluate("one => one.getBoundingClientRect().width")
    assert width / whole == pytest.approx(scale * (ttft.high_s - ttft.limit_s) / 100.0, abs=0.02)


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
@pytest.mark.parametrize("look", ["light", "dark"])
def test_the_decision_is_seen_without_scrolling(
    browser: Browser, site: Path, width: int, height: int, look: Any
) -> None:
    watched = Watched(browser, site, viewport={"width": width, "height": height}, color_scheme=look)
    page = watched.open("plan")
    card = page.locator(".card").bounding_box()
    front = page.locator("[data-figure=plan-front] .drawing").bounding_box()
    assert card is not None
    assert front is not None
    assert card["y"] + card["height"] <= height
    assert front["y"] + front["height"] <= height
    assert not watched.faults
    watched.context.close()


def test_a_plan_that_does_not_serve_has_no_card(watched: Watched) -> None:
    question = PlanQuestion.from_params({"model": "deepseek-v3", "on": "dgx-h100", "chips": "1"})
    found = answer(question)
    assert found.verb.card(found) == {}
    watched.open("tiers")
    expect(watched.page.locator(".card")).to_have_count(0)
