"""The views that look up grids: what they show is what the library computes, controls move it, nothing is at fault."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from conftest import PATIENCE_MS, Watched, spoken
from rackline.api.answer import Answer, answer, find_verb
from rackline.api.question import command_of
from rackline.cli import command as command_line
from rackline.cli.main import run
from rackline.hardware import cluster
from rackline.ledger.table import ledger
from rackline.parallel.exchange import ExpertRouting, dispatch_traffic
from rackline.training.schedules import equal_stages, schedule
from rackline.validation import validate
from rackline.validation.cases import published
from rackline.web.data import first_fields, views
from rackline.web.grids import racks

ASKING = {name: view for name, view in views().items() if "verb" in view}
FITS = "width => innerWidth === width && document.documentElement.scrollWidth <= width"


def _value(watched: Watched) -> float:
    """What the Python of a view evaluates to."""
    *lines, last = watched.page.locator(".code code").last.inner_text().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    return eval(last, names)


def test_domains_of_several_chips_have_switches_and_cables() -> None:
    cases = {one["size"]: one for one in racks()["clusters"]["gb200-nvl72"]["cases"]}
    assert (cases[1]["switches"], cases[1]["cables"]) == (0, 0)
    assert {one["cables"] for size, one in cases.items() if size > 1} == {64 * 18}
    assert cases[64]["switches"] == 64 * 18 / 72  # all ports of switches of 72 are in use


def test_a_view_asks_neither_empty_fields_nor_those_that_are_switched_off() -> None:
    view = {"fields": {"model": "a", "chips": "", "slo": "1s"}, "optional": {"fields": ["slo"]}}
    assert first_fields(view) == {"model": "a"}


@pytest.mark.parametrize(("name", "pp", "micro_batches"), [("1f1b", 4, 8), ("gpipe", 8, 32), ("zb-h1", 2, 16)])
def test_a_pipeline_waits_as_its_schedule_does(watched: Watched, name: str, pp: int, micro_batches: int) -> None:
    watched.open(f"pipeline?x={name}&pp={pp}&m={micro_batches}")
    one = schedule(name)
    timeline = one.run(pp, micro_batches, equal_stages(one, pp, 1.0, 1.0, 1.0))
    assert watched.marks("bubble")[0]["bubble_share"] == pytest.approx(timeline.bubble_fraction)
    assert watched.marks("in-flight")[0]["in_flight"] == one.in_flight(pp, micro_batches, 1)
    assert _value(watched) == watched.marks("bubble")[0]["bubble_share"]
    drawn = watched.rows("slots")
    assert [(row["stage"], row["start"], row["x2"]) for row in drawn] == [
        (event.device, event.start, event.end) for event in timeline.events
    ]


def test_bubbles_of_timed_passes_stand_beside_the_curve(watched: Watched) -> None:
    watched.open("pipeline?x=1f1b&pp=8&m=32")
    drawn = watched.page.evaluate("rackline.drawn.get('bubble').rows.measured")
    assert {row["micro_batches"] for row in drawn} == {24, 32}
    ideal = watched.marks("bubble")[0]["bubble_share"]
    near = [row["bubble_share"] for row in drawn if row["micro_batches"] == 32]
    assert near == [0.1985, 0.1898]  # Qi et al. 2023, table 5
    assert all(1.0 < share / ideal < 1.15 for share in near)
    assert "Qi et al. 2023" in watched.page.inner_text("[data-figure=bubble] .note")


def test_controls_of_the_pipeline_move_it(watched: Watched) -> None:
    page = watched.open("pipeline")
    page.get_by_label("Schedule", exact=True).select_option("zb-h2")
    page.wait_for_function("location.hash.includes('x=zb-h2')")
    page.locator("[data-key=m] label", has_text="32").click()
    page.wait_for_function("rackline.drawn.get('bubble').rows.marks[0].micro_batches === 32")
    page.reload()
    page.wait_for_selector(".body[data-ready]")
    assert watched.marks("bubble")[0]["micro_batches"] == 32
    assert page.get_by_label("Schedule", exact=True).input_value() == "zb-h2"


@pytest.mark.parametrize("size", [1, 8, 64])
def test_an_exchange_takes_as_long_as_its_traffic(watched: Watched, size: int) -> None:
    watched.open(f"rack?k=dgx-h100&d={size}&t=1024")
    machine = cluster("dgx-h100")
    assert machine.scale_out is not None
    routing = ExpertRouting(num_ranks=64, num_experts=256, experts_per_token=8, ranks_per_domain=size)
    traffic = dispatch_traffic(routing, 1024.0, 7168.0)
    wanted = traffic.seconds(machine.scale_up.bytes_per_s_each_way, machine.scale_out.bytes_per_s_each_way)
    assert watched.marks("exchange")[0]["seconds"] == pytest.approx(wanted)
    assert _value(watched) == pytest.approx(wanted)
    crossing = sum(row["sent_bytes"] > 0 for row in watched.rows("matrix"))
    assert crossing == 32 * (32 - min(size, 32))


def test_the_size_of_a_domain_is_a_slider_between_sizes_that_there_are(watched: Watched) -> None:
    page = watched.open("rack?k=dgx-h100")
    slider = page.get_by_label("Size of a domain", exact=True)
    slider.press("ArrowRight")
    page.wait_for_function("rackline.drawn.get('exchange').rows.marks[0].domain_size === 16")
    assert "d=16" in page.url
    exact = page.get_by_label("Size of a domain, exact", exact=True)
    exact.fill("12")
    exact.press("Enter")
    assert exact.get_attribute("aria-invalid") == "true"
    assert watched.marks("exchange")[0]["domain_size"] == 16
    (measured,) = page.evaluate("rackline.drawn.get('exchange').rows.measured")
    (alone,) = (row for row in watched.rows("exchange") if row["domain_size"] == 1 and row["style"] == 0)
    assert 0.65 < alone["seconds"] / measured["seconds"] < 1.0  # of DeepEP's kernels, which send over the cards alone


def test_every_claim_stands_in_the_ledger_with_its_verdict(watched: Watched) -> None:
    page = watched.open("lecture?n=all")
    shown = page.eval_on_selector_all(
        ".claim", "cards => cards.map(card => [card.id.slice(6), card.querySelector('.badge').innerText.slice(2)])"
    )
    assert dict(shown) == {one.claim.id: one.verdict for one in ledger()}


def test_the_walk_leads_through_chapters_and_to_views(watched: Watched) -> None:
    page = watched.open("lecture")
    page.get_by_role("button", name="Next chapter →").click()
    page.wait_for_function("location.hash.includes('n=2')")
    page.locator("#claim-C43 summary").click()
    page.locator("#claim-C43").get_by_role("link", name="See it move").click()
    page.wait_for_function("location.hash.startsWith('#/rack')")
    page.wait_for_selector("[data-figure=exchange] svg")
    assert watched.marks("exchange")[0]["domain_size"] == 64
    page.go_back()
    page.wait_for_selector("#claim-C43")


def test_every_link_of_a_claim_leads_to_a_state_of_a_view() -> None:
    from rackline.web.data import site

    found = site()
    claims = {one.claim.id for one in ledger()}
    for claim, link in found["links"].items():
        assert claim in claims
        assert link.removeprefix("#/").partition("?")[0] in found["views"]
    for view in found["views"].values():
        assert set(view["claims"]) <= claims


def test_bands_are_those_that_ship(watched: Watched) -> None:
    from rackline.bands.bands import shipped_bands

    page = watched.open("accuracy?metric=ttft_s&by=cases")
    wanted = [band for (metric, _), band in shipped_bands().items() if metric == "ttft_s"]
    drawn = watched.rows("bands")
    assert {(row["group"], row["start"], row["x2"]) for row in drawn} == {
        (band.of.text(), band.low, band.high) for band in wanted
    }
    assert drawn[0]["cases"] == max(band.num_cases for band in wanted)
    page.get_by_label("Stack", exact=True).select_option("vllm")
    page.wait_for_function("rackline.drawn.get('bands').all().every(row => row.group.startsWith('vllm'))")


def test_every_published_case_stands_beside_its_prediction(watched: Watched) -> None:
    scores = [score for score in validate([published()]).scores if score.metric == "tpot_s"]
    page = watched.open("accuracy?metric=tpot_s")
    drawn = {row["id"]: (row["measured"], row["predicted"]) for row in watched.rows("parity-seconds")}
    assert drawn == {score.case_id: pytest.approx((score.measured, score.predicted)) for score in scores}
    assert page.locator("[data-figure=parity-count]").is_hidden()
    worst = page.get_by_role("region", name="Published cases, worst first").locator("tbody tr")
    furthest = max(scores, key=lambda score: score.log_ratio)
    assert furthest.groups["chip"] in worst.first.inner_text()
    page.get_by_label("Version", exact=True).select_option("vllm 0.18.0")
    page.wait_for_function("rackline.drawn.get('parity-seconds').all().length === 1")
    expect(worst).to_have_count(1, timeout=PATIENCE_MS)


def _same(found: Answer[Any, Any], asked: Any) -> Answer[Any, Any]:
    assert command_of(asked) == command_of(found.question)
    return found


@pytest.mark.parametrize("name", ASKING)
def test_a_stored_answer_is_that_of_the_command(
    watched: Watched, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is read and printed as ever; what it asks is not computed a third time, but must be the same."""
    view = ASKING[name]
    page = watched.open(name)
    question = find_verb(view["verb"]).question.from_params(first_fields(view))
    found = answer(question)
    monkeypatch.setattr(command_line, "answer_of", lambda asked, solve, watch: _same(found, asked))
    assert watched.answer() == spoken(found)
    expect(page.locator(".drawing svg")).to_have_count(len(view["figures"]), timeout=PATIENCE_MS)
    command = page.locator(".code code").nth(-2).inner_text()
    assert run([*shlex.split(command)[1:], "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")


def test_another_stored_answer_is_chosen_by_its_field(watched: Watched) -> None:
    page = watched.open("charge")
    before = watched.rows("charge-price")
    page.locator("[data-key=margin] select").select_option("0")
    page.wait_for_function("location.hash.includes('margin=0')")
    page.wait_for_selector(".body[data-ready]")
    page.wait_for_function("document.querySelector('.code code').textContent.includes('--margin 0')")
    assert watched.rows("charge-price") != before


@pytest.mark.parametrize("look", ["light", "dark"])
def test_all_views_fit_and_are_accessible(browser: Browser, site: Path, look: Any) -> None:
    """All rules at 390 pixels, in the dark those of colours; what a width may change, but for contrast, at 1280."""
    from axe_playwright_python.sync_playwright import Axe

    still: Any = {"reduced_motion": "reduce"}  # colours change within 0.12 s otherwise, and axe may look meanwhile
    watched = Watched(browser, site, viewport={"width": 390, "height": 844}, color_scheme=look, **still)
    axe = Axe()
    for name in views():
        page = watched.open(name)
        for width in (390, 1280, 2560):
            page.set_viewport_size({"width": width, "height": 844})
            page.wait_for_function(FITS, arg=width)  # figures follow the width a frame later
            if width == 390 or (width == 1280 and look == "light"):
                rules = {} if width == 390 else {"rules": {"color-contrast": {"enabled": False}}}
                if look == "dark":
                    rules = {"runOnly": ["color-contrast", "link-in-text-block"]}
                found = axe.run(page, options={"preload": False, "resultTypes": ["violations"], **rules})
                assert found.violations_count == 0, (name, width, found.generate_report())
    assert watched.faults == []
    watched.context.close()
