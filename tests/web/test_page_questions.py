"""Every question has a form with all its options; rows open to their origins; answers are saved as the command gives
them; the catalogue and the lab are those of the library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from conftest import Watched
from rackline import catalog
from rackline.api.answer import answer, find_verb
from rackline.api.question import options
from rackline.plain import plain
from rackline.report import exports
from rackline.report.explain_figures import row_origins
from rackline.web.asked import offered_names, taken
from rackline.web.data import CATALOGUE, experiments, first_fields, views
from rackline.web.forms import all_options
from web_server import Server

ASKING = {name: view for name, view in views().items() if "verb" in view}
PRESETS = [(name, one["name"]) for name, view in ASKING.items() for one in view.get("presets", []) if "live" not in one]


@pytest.fixture(scope="module")
def live(browser: Browser, server: Server) -> Iterator[Watched]:
    """A page of the usual server."""
    found = Watched(browser, server.address)
    yield found
    assert found.faults == []
    found.context.close()


@pytest.mark.parametrize("name", sorted({view["verb"] for view in ASKING.values()}))
def test_forms_have_every_option_of_their_question(name: str) -> None:
    shown = all_options(name)["options"]
    assert set(shown) == {key for key, one in taken(name).items() if not one.hidden}
    known = options(find_verb(name).question)
    assert {key: one["help"] for key, one in shown.items()} == {key: known[key].help for key in shown}


def test_what_a_reader_sees_first_can_be_answered() -> None:
    for view in ASKING.values():
        question = find_verb(view["verb"]).question
        for one in view.get("presets", [{}]):
            question.from_params(first_fields(view) | one.get("fields", {}))
        assert view["verb"] in offered_names()


VALUES = "([options, texts]) => texts.map(([key, text]) => rackline.asked.valueOf(options[key], text))"


@pytest.mark.parametrize("name", ["plan", "simulate", "compare"])
def test_texts_of_a_form_are_values_as_in_an_address(watched: Watched, name: str) -> None:
    known, shown = options(find_verb(name).question), all_options(name)["options"]
    given = {
        "switch": True,
        "list": ("a;b", "c\\d", "e"),
        "text": "a;b",
    }
    values = {
        key: given["switch" if one["kind"] == "switch" else "list" if one["list"] else "text"]
        for key, one in shown.items()
        if not known[key].is_quantity
    }
    texts = [(key, known[key].write(value)) for key, value in values.items()]
    watched.open("batch")
    read = watched.page.evaluate(VALUES, [shown, texts])
    assert read == [list(value) if isinstance(value, tuple) else value for value in values.values()]
    assert read == [known[key].parse(text) for key, text in texts]


def test_any_option_in_an_address_is_asked(live: Watched) -> None:
    page = live.open("fit?model=llama-3.1-8b&context=8k&concurrency=4&memory_fraction=0.8&any_layout=true")
    asked = {"model": "llama-3.1-8b", "on": "dgx-h100", "context": "8k", "concurrency": "4", "memory_fraction": "0.8"}
    question = find_verb("fit").question
    extra = {"any_layout": "true"} if "any_layout" in options(question) else {}
    expect(page.locator("#ignored")).to_be_visible(visible=not extra)
    found = answer(question.from_params(asked | extra))
    assert found.verb.summary(found).split(";")[0].rstrip(".") in live.answer()
    assert page.locator(".folded").get_attribute("open") is not None
    page.get_by_label("For example", exact=True).select_option("Llama 70B on one H100 box")
    page.wait_for_function("location.hash.includes('fit') && !location.hash.includes('memory_fraction')")
    expect(page.locator("#answer")).to_contain_text("llama-3.1-70b")


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_an_example_is_stored_with_its_answer(watched: Watched, name: str, preset: str) -> None:
    page = watched.open(f"{name}?preset={preset.replace(' ', '+')}")
    expect(page.locator("#ignored")).to_be_hidden()
    expect(page.get_by_label("For example", exact=True)).to_have_value(preset)
    assert page.locator(".printed table").count() >= 1
    assert page.locator(".printed pre").count() == 0  # all of it has columns or is prose


def test_rows_of_explain_open_to_formula_inputs_and_sources(watched: Watched) -> None:
    page = watched.open("explain")
    question = find_verb("explain").question.from_params(first_fields(ASKING["explain"]))
    rows = row_origins(answer(question).result.explanation)
    table = page.locator("table.origins")
    expect(table.locator("tbody tr:not([hidden])")).to_have_count(len(rows))
    one = rows[0]
    table.get_by_role("button", name=f"{one['name']}: formula, inputs, sources").click()
    opened = table.locator("tr:not([hidden]) .more").first.inner_text()
    assert one["formula"] in opened
    assert one["timed_by"] in opened
    for number in one["numbers"].values():
        for line in number["lines"]:
            assert line.partition(" us")[0] in opened
    table.get_by_role("button", name=f"{rows[1]['name'].replace('_', ' ')}, HBM ").click()
    said = table.locator("tr:not([hidden]) .more").nth(1).inner_text()
    assert "hbm_bytes_per_s of h100-sxm, vendor: " in said
    assert "of the peak of 3.35 TB/s" in said
    assert "compute:" not in said


@pytest.mark.parametrize(("name", "kind"), [("fit", "JSON"), ("fit", "CSV"), ("tiers", "JSON")])
def test_an_answer_is_saved_as_the_command_gives_it(watched: Watched, tmp_path: Path, name: str, kind: str) -> None:
    page = watched.open(name)
    found = answer(find_verb(name).question.from_params(first_fields(ASKING[name])))
    with page.expect_download() as download:
        page.locator(".saves").get_by_role("button", name=kind, exact=True).click()
    download.value.save_as(tmp_path / "saved")
    text = (tmp_path / "saved").read_text(encoding="utf-8")
    if kind == "JSON":
        assert json.loads(text) == json.loads(json.dumps(found.to_dict()))
    else:
        written = exports.csv_text(plain(exports.columns_of(found.verb.rows(found))))
        assert text.splitlines() == written.splitlines()


def test_traffic_is_played_over_time(watched: Watched) -> None:
    page = watched.open("traffic?t=3600")
    note = page.locator(".replay .note")
    expect(note).to_contain_text("At 1 h: requests/s ")
    expect(note).to_contain_text("; replicas hpa ")
    expect(note).to_contain_text("; waiting hpa ")
    paths = "[data-figure=traffic-over-time] .mark-line path"
    before = page.locator(paths).evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    page.locator(".replay input[type=range]").evaluate(
        "one => { one.value = one.max; one.dispatchEvent(new Event('input')); }"
    )
    page.wait_for_function(
        "([paths, width]) => document.querySelector(paths).getBoundingClientRect().width > 2 * width",
        arg=[paths, before[0]],
    )


@pytest.mark.parametrize("kind", CATALOGUE)
def test_the_catalogue_holds_every_object_with_its_sources(watched: Watched, kind: str) -> None:
    page = watched.open(f"catalogue?k={kind}")
    names = page.locator(".printed tbody th").all_inner_texts()
    assert sorted(names) == sorted(catalog.names(kind))
    page.get_by_role("button", name=names[0], exact=True).click()
    page.wait_for_function("location.hash.includes('n=')")
    expect(page.locator(".printed")).to_contain_text("source")
    assert page.locator(".printed a[href^=http]").count() >= (kind != "memory")


def test_the_lab_shows_what_was_measured(watched: Watched) -> None:
    for name, one in experiments()["experiments"].items():
        page = watched.open(f"lab?n={name}")
        rows = page.get_by_role("region", name="Readings").locator("tbody tr")
        assert [row[0] for row in one["rows"]] == rows.locator("th").all_inner_texts()
        expect(page.locator(f"[data-figure=lab-{name}] svg")).to_have_count(1)
