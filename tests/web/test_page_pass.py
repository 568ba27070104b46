"""Batch and Context: what the figures show is what the library computes, and each control moves it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from conftest import Watched
from rackline.api.answer import answer
from rackline.api.explain import ExplainQuestion
from rackline.cli.main import run
from rackline.parallel.memory import fitting_sequences
from rackline.validation.published import published
from rackline.web.data import scenarios

NAMES = [one.name for one in scenarios()]


def _explained(name: str, batch: int, context: int, **more: str) -> Any:
    (one,) = (one for one in scenarios() if one.name == name)
    texts = {**one.params, "batch": str(batch), "context": str(context), **more}
    return answer(ExplainQuestion.from_params(texts)).result


@pytest.mark.parametrize("name", NAMES)
def test_the_step_of_a_batch_is_that_of_explain(watched: Watched, name: str) -> None:
    watched.open(f"batch?s={name}&b=200&c=3000")
    (mark,) = watched.marks("step")
    found = _explained(name, 200, 3000)
    assert mark["seconds"] == pytest.approx(found.explanation.time.seconds, rel=1e-12)
    drawn = {row["batch_size"]: row["seconds"] for row in watched.rows("step") if row["series"] == "the step"}
    for size in (1, 32, 14_263):
        near = min(drawn, key=lambda one: abs(one - size))
        wanted = _explained(name, int(near), 3000).explanation.time.seconds
        assert drawn[near] == pytest.approx(wanted, rel=1e-12)
    alone = {row["series"]: row["seconds"] for row in watched.rows("step") if row["batch_size"] == near}
    parts = _explained(name, int(near), 3000).explanation.time.by_resource
    assert alone["HBM"] == pytest.approx(parts["hbm"], rel=1e-9)
    assert alone["compute"] == pytest.approx(parts["compute"], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_what_fits_is_what_the_library_says(watched: Watched, name: str) -> None:
    watched.open(f"context?s={name}&b=16")
    found = _explained(name, 16, 1000)
    deployment, layout = found.explanation.deployment, found.explanation.deployment.layout
    rows = watched.rows("context-fits")
    contexts = np.array([row["context_len"] for row in rows])
    each = fitting_sequences(
        deployment.model, layout, deployment.precision, deployment.cluster.chip, found.server, contexts
    )
    fits = each * layout.attention_dp * layout.pp
    assert [row["sequences"] for row in rows] == fits[fits > 0].tolist()


def test_measured_steps_stand_beside_the_curve(watched: Watched) -> None:
    watched.open("batch?s=llama-2-70b")
    drawn = watched.page.evaluate("rackline.drawn.get('step').rows.measured")
    cases = {case["id"]: case for case in map(json.loads, published().read_text("utf-8").splitlines())}
    assert len(drawn) == 2
    for row in drawn:
        case = cases[row["id"]]
        assert (case["model"], case["chip"], case["num_chips"]) == ("meta-llama/Llama-2-70b-hf", "h100-sxm", 2)
        assert row["context_len"] == case["input_len"] + case["output_len"] / 2
        assert row["seconds"] == case["measured"]["token_s"]
        wanted = _explained("llama-2-70b", row["batch_size"], int(row["context_len"])).explanation.time.seconds
        assert row["predicted"] == pytest.approx(wanted, rel=1e-12)


def test_the_blackboard_is_that_of_explain(watched: Watched) -> None:
    watched.open("batch?s=llama-70b&b=64&c=8192&on=blackboard")
    found = _explained("llama-70b", 64, 8192, calibration="unit", policy="blackboard")
    assert watched.marks("step")[0]["seconds"] == pytest.approx(found.explanation.time.seconds, rel=1e-12)


def test_rows_of_the_reason_are_those_of_explain(watched: Watched) -> None:
    page = watched.open("batch?s=deepseek-v3&b=512&c=4096")
    shown = page.eval_on_selector_all("section table tbody tr th", "cells => cells.map(cell => cell.innerText)")
    rows = _explained("deepseek-v3", 512, 4096).explanation.time.rows
    assert shown == [row.name.replace("_", " ") for row in rows if row.used and row.seconds > 0.0]


@pytest.mark.parametrize(
    ("key", "figure", "field", "value"),
    [("b", "step", "batch_size", "64"), ("c", "step", "seconds", "32k"), ("p", "cost", "usd_per_mtok", "9")],
)
def test_each_slider_moves_its_figure_and_the_address(
    watched: Watched, key: str, figure: str, field: str, value: str
) -> None:
    page = watched.open("batch")
    before = watched.marks(figure)[0][field]
    box = page.locator(f"[data-key={key}] .exact input")
    box.fill(value)
    box.press("Enter")
    page.wait_for_function("key => location.hash.includes(`${key}=`)", arg=key)
    page.wait_for_function(
        "([figure, field, before]) => rackline.drawn.get(figure).rows.marks[0][field] !== before",
        arg=[figure, field, before],
    )
    page.go_back()
    page.wait_for_function(
        "([figure, field, before]) => rackline.drawn.get(figure).rows.marks[0][field] === before",
        arg=[figure, field, before],
    )
    assert "=" not in page.url.partition("#")[2]


def test_a_slider_is_moved_by_keys_and_read_aloud(watched: Watched) -> None:
    page = watched.open("batch?b=100")
    slider = page.get_by_label("Batch size", exact=True)
    slider.focus()
    for _ in range(3):
        slider.press("ArrowRight")
    spoken = slider.get_attribute("aria-valuetext") or ""
    assert spoken.endswith("sequences")
    assert int(spoken.split()[0].replace(",", "")) > 100
    page.wait_for_function("rackline.drawn.get('step').rows.marks[0].batch_size > 100")


def test_an_entry_that_is_no_number_is_marked_and_changes_nothing(watched: Watched) -> None:
    page = watched.open("batch?b=100")
    box = page.locator("[data-key=b] .exact input")
    box.fill("many")
    box.press("Enter")
    assert box.get_attribute("aria-invalid") == "true"
    assert watched.marks("step")[0]["batch_size"] == 100


@pytest.mark.parametrize("address", ["batch?s=gpt-oss&b=77&c=5000", "batch?on=blackboard", "context?s=frontier&b=3"])
def test_the_command_that_a_view_names_gives_the_same(
    watched: Watched, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = watched.open(address)
    command = page.locator(".code code").first.inner_text()
    assert run([*shlex.split(command)[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    figure = "step" if address.startswith("batch") else "context-step"
    assert watched.marks(figure)[0]["seconds"] == pytest.approx(found["seconds"], rel=1e-12)


def test_python_that_a_view_names_runs(watched: Watched) -> None:
    page = watched.open("batch?s=llama-8b&b=5")
    scope: dict[str, Any] = {}
    source = page.locator(".code code").last.inner_text().replace("\n\nrl.", "\n\nfound = rl.")
    exec(source, scope)
    assert watched.marks("step")[0]["seconds"] == scope["found"].result.explanation.time.seconds


def test_a_second_deployment_is_drawn_beside_the_first(watched: Watched) -> None:
    watched.open("context?s=deepseek-v3&v=deepseek-sparse")
    assert {row["series"] for row in watched.rows("context-fits")} == {
        one.title for one in scenarios() if one.name in ("deepseek-v3", "deepseek-sparse")
    }


def test_a_slider_is_redrawn_within_a_frame(watched: Watched) -> None:
    """A move of the slider, all scripts of it, takes less of the processor than it takes to make its figure anew.

    They took 5 and 12 ms of the 16 of a frame; a busy machine makes both slower.
    """
    page = watched.open("batch")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def script_s() -> float:
        return next(
            one["value"] for one in session.send("Performance.getMetrics")["metrics"] if one["name"] == "ScriptDuration"
        )

    moves, anew = list[float](), list[float]()
    for place in range(40, 440, 12):
        before = script_s()
        page.evaluate(
            """async place => {
              const slider = document.querySelector('[data-key=b] input[type=range]');
              slider.value = place;
              slider.dispatchEvent(new Event('input', {bubbles: true}));
              await new Promise(requestAnimationFrame);
              await new Promise(requestAnimationFrame);
            }""",
            place,
        )
        between = script_s()
        page.evaluate(
            "new Promise(done => requestAnimationFrame(() => { rackline.drawn.get('step').embed(); done(); }))"
        )
        moves.append(between - before)
        anew.append(script_s() - between)
    assert median(moves) < median(anew)


def test_figures_are_saved_as_data(watched: Watched, tmp_path: Path) -> None:
    page = watched.open("batch")
    for kind in ("CSV", "JSON", "SVG", "PNG"):
        with page.expect_download() as download:
            page.locator("[data-figure=step] .tools button", has_text=kind).click()
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        assert file.stat().st_size > 1000
        assert file.suffix == f".{kind.lower()}"
    import vl_convert

    spec = (tmp_path / "step.json").read_text("utf-8")
    assert "<svg" in vl_convert.vegalite_to_svg(spec)
    assert (tmp_path / "step.csv").read_text("utf-8").startswith("series,batch_size,seconds\n")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_shifts_while_the_page_loads(browser: Browser, site: Path) -> None:
    watched = Watched(browser, site)
    watched.page.add_init_script(
        "window.shifts=0;new PerformanceObserver(list=>list.getEntries().forEach(one=>"
        "{if(!one.hadRecentInput)window.shifts+=one.value})).observe({type:'layout-shift',buffered:true})"
    )
    page = watched.open("batch")
    page.wait_for_selector(".claim")
    assert page.evaluate("window.shifts") < 0.01
    watched.context.close()


def test_the_page_is_small(site: Path) -> None:
    import gzip

    first = ["index.html", *(str(one.relative_to(site)) for one in sorted((site / "static").rglob("*.js")))]
    first += ["static/page.css", "data/site.js", "data/scenario-deepseek-v3.js", "data/ledger.js"]
    size = sum(len(gzip.compress((site / name).read_bytes(), 9)) for name in first)
    assert size <= 450_000
