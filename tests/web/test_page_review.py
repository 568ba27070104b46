"""What a review of the page found does not come back: marks on a phone, colours that say what they are said to say,
the same on the server and on the disk, no answer beyond belief, cause and effect in one sight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from conftest import Watched
from rackline.units import parse_count
from web_server import Server

STILL: dict[str, Any] = {"reduced_motion": "reduce"}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, **STILL}


@pytest.fixture(scope="module")
def phone(browser: Browser, site: Path) -> Iterator[Watched]:
    found = Watched(browser, site, **PHONE)
    yield found
    assert found.faults == []
    found.context.close()


def test_train_shows_its_marks_on_a_phone(phone: Watched) -> None:
    page = phone.open("train")
    for drawing in page.locator(".figures .drawing").all():
        widths = drawing.locator("svg [class*=mark-] path, svg [class*=mark-] line").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().width)"
        )
        assert sum(width > 2 for width in widths) >= 3
        assert max(widths) > 60


CONTRAST = """() => {
    const parts = (colour) => (colour.match(/[\\d.]+/g) || [255, 255, 255, 0]).map(Number);
    const ground = parts(getComputedStyle(document.documentElement).backgroundColor);
    const rows = rackline.drawn.get("matrix").all();
    const cells = [...document.querySelectorAll("[data-figure=matrix] .mark-rect path[aria-roledescription], "
        + "[data-figure=matrix] .mark-rect path")].filter((one) => one.getAttribute("d"));
    const far = (cell) => {
        const style = getComputedStyle(cell);
        if (style.fill === "none" || Number(style.fillOpacity) === 0) return 0;
        const fill = parts(style.fill);
        return Math.hypot(fill[0] - ground[0], fill[1] - ground[1], fill[2] - ground[2]) * Number(style.fillOpacity);
    };
    return rows.map((row, index) => ({ crosses: row.sent_bytes > 0, far: cells[index] ? far(cells[index]) : 0 }));
}"""


@pytest.mark.parametrize("look", ["light", "dark"])
def test_coloured_pairs_are_those_on_slow_links(browser: Browser, site: Path, look: Any) -> None:
    watched = Watched(browser, site, color_scheme=look, **STILL)
    watched.open("rack?k=dgx-h100&d=8")
    assert "pairs of different domains, which are coloured" in watched.page.inner_text("[data-figure=matrix] .note")
    cells = watched.page.evaluate(CONTRAST)
    slow = [one["far"] for one in cells if one["crosses"]]
    fast = [one["far"] for one in cells if not one["crosses"]]
    assert min(slow) > max(fast) + 20
    watched.context.close()


def test_tiers_of_a_server_are_those_of_the_disk(browser: Browser, server: Server, watched: Watched) -> None:
    live = Watched(browser, server.address, **STILL)
    live.open("tiers")
    watched.open("tiers")
    lines = [{row["series"] for row in one.rows("tiers-cost") if "series" in row} for one in (live, watched)]
    assert lines[0]
    assert lines[0] == lines[1]
    headings = [set(one.page.locator("main h2").all_inner_texts()) for one in (live, watched)]
    assert headings[1] - headings[0] <= {"Why: row by row"}  # which the server has as the answer in full
    assert "The answer in full" in headings[0]
    live.context.close()


def test_nothing_that_keeps_the_limits_is_drawn_below_the_best(watched: Watched) -> None:
    watched.open("plan")
    rows = watched.rows("plan-front")
    best = watched.page.evaluate("""() => rackline.drawn.get("plan-front").options.spec.layer
        .map((one) => one.data && one.data.values && one.mark && one.mark.style === "best" ? one.data.values[0] : null)
        .find((one) => one)""")
    (cost,) = (name for name in rows[0] if name.startswith("usd_per_mtok"))
    kept = [row[cost] for row in rows if row["keeps_limits"]]
    assert kept
    assert min(kept) >= best[cost] * (1 - 1e-4)  # the rate of an answer has five digits


def test_prices_do_not_lead_with_an_interval_beyond_belief(watched: Watched) -> None:
    watched.open("prices")
    said = re.search(r"([\d.,]+[kMBT]?) to ([\d.,]+[kMBT]?) active parameters", watched.answer())
    assert said
    low, high = (parse_count(one) for one in said.groups())
    assert high / low < 100.0


def _in_sight(page: Page) -> float:
    """Height of the first figure that is seen [pixels]."""
    return page.evaluate("""() => {
        const box = document.querySelector(".figures .figure").getBoundingClientRect();
        return Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
    }""")


@pytest.mark.parametrize("name", ["batch", "context", "rack", "pipeline", "tiers", "prices", "over-training"])
def test_a_slider_and_what_it_moves_are_seen_at_once_on_a_phone(phone: Watched, name: str) -> None:
    page = phone.open(name)
    sliders = page.locator(".controls input[type=range]:not([disabled])").all()
    for slider in sliders:
        slider.evaluate("one => one.scrollIntoView({ block: 'end' })")
        assert _in_sight(page) >= 150
