"""The guided lecture in the page: every step shows the ledger's number, read from its figure, after a guess."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from test_page_decision import FAULTS

from conftest import Watched
from rackline.ledger.guide import Step, chapters

WITHIN = 1e-3  # crossings lie on straight lines between points

# All steps in one page, by changes of its address: the number that the figure's marks say, the sentence, what is cut.
WALK = """async ([addresses, faults, covered]) => {
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const found = [];
    for (const address of addresses) {
        const [id, query] = address.split("?");
        const { n, k, g } = Object.fromEntries(new URLSearchParams(query));
        location.hash = rackline.hash(id, { n, k, g });
        while (document.querySelector("#view").getAttribute("data-shown") !== location.hash) await frame();
        for (let count = 0; count < 3; count++) await frame(); // figures are put in a frame later
        const chapter = rackline.data.get("guide").chapters.find((one) => one.id === n);
        const step = chapter.steps.find((one) => one.id === k);
        found.push({
            number: rackline.guide.number(step, chapter.drawings[step.figure]),
            told: document.querySelector(".told").textContent,
            marks: (rackline.drawn.get(`guide-${n}-${step.figure}`).rows.marks || []).length,
            wide: document.documentElement.scrollWidth - innerWidth,
            faults: [...eval(faults)(), ...eval(covered)()],
        });
    }
    return found;
}"""
# Parts of the page that lie over each other or leave its sides.
COVERED = """() => {
    const parts = [".guess h2", ".ask", ".guess .control", ".told", ".turn", ".figure", ".dots"];
    const boxes = parts
        .map((name) => [name, document.querySelector(`.bench ${name}`)])
        .filter(([, one]) => one && one.getClientRects().length)
        .map(([name, one]) => [name, one.getBoundingClientRect()]);
    return boxes.flatMap(([name, box], index) => [
        ...(box.left < 0 || box.right > innerWidth ? [`${name} leaves the page`] : []),
        ...boxes
            .slice(index + 1)
            .filter(([, other]) => Math.min(box.right, other.right) - Math.max(box.left, other.left) > 1)
            .filter(([, other]) => Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 1)
            .map(([other]) => `${name} over ${other}`),
    ]);
}"""


def _wrong(step: Step) -> float:
    if step.choices:
        return ((step.right or 0) + 1) % len(step.choices)
    return step.low or 0.01


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_a_guess_is_answered_with_the_number_of_the_ledger(
    browser: Browser, site: Path, width: int, height: int
) -> None:
    """Every step at a narrow and a wide page; nothing is cut or covered."""
    still: Any = {"reduced_motion": "reduce"}
    watched = Watched(browser, site, viewport={"width": width, "height": height}, **still)
    page = watched.open("guide")
    steps = [(chapter.id, step) for chapter in chapters() for step in chapter.steps]
    addresses = [f"guide?n={chapter}&k={step.id}&g={_wrong(step)}" for chapter, step in steps]
    walked = page.evaluate(WALK, [addresses, FAULTS, COVERED])
    for (chapter, step), found in zip(steps, walked, strict=True):
        name = f"{chapter}: {step.id}"
        assert found["faults"] == [], name
        assert found["wide"] <= 0, name
        assert found["number"] == pytest.approx(step.value, rel=WITHIN), name
        assert found["marks"] >= len(step.marks), name
        told = found["told"]
        assert told.startswith("You said "), name
        if not step.choices:
            assert " too low. " in told, name
        said = re.search(r"([\d.,]+) ?(µs|ms|s|min|h|%|kB|MB|GB|TB|B|T|M)?(?![a-z])", told.split(". ", 1)[1])
        assert said, told
        scale = {"µs": 1e-6, "ms": 1e-3, "min": 60, "h": 3600, "%": 1e-2, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
        of = {"B": 1.0 if step.kind == "bytes" else 1e9, "T": 1e12, "M": 1e6, **scale}.get(said[2], 1.0)
        assert float(said[1].rstrip(".,").replace(",", "")) * of == pytest.approx(step.value, rel=6e-3), name
    assert watched.faults == []
    watched.context.close()


@pytest.mark.parametrize("look", ["light", "dark"])
def test_bars_choices_and_slots_are_accessible(browser: Browser, site: Path, look: Any) -> None:
    """One step of each form that the first view of the guide does not have."""
    from axe_playwright_python.sync_playwright import Axe

    still: Any = {"reduced_motion": "reduce"}
    watched = Watched(browser, site, viewport={"width": 390, "height": 844}, color_scheme=look, **still)
    for address in ("guide?n=racks&k=network&g=8", "guide?n=batch&k=crowd&g=1", "guide?n=pipeline&k=bubble"):
        page = watched.open(address)
        only = {"runOnly": ["color-contrast", "link-in-text-block"]} if look == "dark" else {}
        found = Axe().run(page, options={"preload": False, "resultTypes": ["violations"], **only})
        assert found.violations_count == 0, (address, found.generate_report())
    assert watched.faults == []
    watched.context.close()


def test_the_figure_waits_for_the_guess(watched: Watched) -> None:
    page = watched.open("guide?n=batch&k=knee")
    assert watched.rows("guide-batch-step") == []
    guess = page.get_by_label("Your guess", exact=True)
    guess.focus()
    page.keyboard.press("ArrowRight")
    assert list(watched.marks("guide-batch-step")[0]) == ["x"]
    page.get_by_role("button", name="Show").click()
    page.wait_for_selector(".body[data-ready]")
    assert {row["series"] for row in watched.rows("guide-batch-step")} == {"the step", "arithmetic", "memory"}
    assert "k=knee&g=" in page.url
    page.go_back()
    page.wait_for_function("() => !rackline.drawn.get('guide-batch-step').all().length")


def test_of_bars_all_but_the_one_that_is_asked_for_are_there(watched: Watched) -> None:
    watched.open("guide?n=racks&k=network")
    assert [row["series"] for row in watched.rows("guide-racks-network")] == ["8 H100", "8 H800", "GB300 rack"]
    watched.open("guide?n=racks&k=network&g=8")
    assert len(watched.rows("guide-racks-network")) == 4


def test_the_line_is_dragged_in_the_figure_too(watched: Watched) -> None:
    page = watched.open("guide?n=batch&k=knee")
    box = page.locator("[data-figure=guide-batch-step] .drawing").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 100)
    page.mouse.up()
    (line,) = watched.marks("guide-batch-step")
    assert 300 < line["x"] < 3000
    assert page.get_by_label("Your guess, exact", exact=True).input_value() == f"{round(line['x']):,}"


def test_choices_are_made_with_the_keyboard(watched: Watched) -> None:
    page = watched.open("guide?n=batch&k=crowd")
    page.get_by_label("as long as for one").focus()
    page.keyboard.press("Space")
    expect(page.locator(".told")).to_contain_text("Right. It takes 1 times as long.")
    page.get_by_role("button", name="Next →").click()
    assert page.url.endswith("guide?n=batch&k=knee")
    expect(page.locator(".guess h2")).to_be_focused()
    page.get_by_role("button", name="Step 7: Where no batch helps").click()
    assert page.url.endswith("guide?n=batch&k=crossover")


def test_a_claim_of_another_view_opens_at_its_own_step(watched: Watched) -> None:
    page = watched.open("pipeline")
    claim = page.locator("#claim-C61")
    claim.locator("summary").click()
    claim.get_by_role("link").click()
    expect(page.locator(".guess h2")).to_have_text("One batch in flight")


def test_unknown_steps_are_named(watched: Watched) -> None:
    page = watched.open("guide?n=batch&k=kneee")
    expect(page.locator("#ignored")).to_contain_text("k=kneee (allowed: floor, crowd, knee")
