"""The page says what it did not use, dims what no longer answers, and saves figures that say what they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from conftest import Watched
from web_server import Server

PLAN = "model=llama-3.1-8b&chips=1&input=1k&output=100&tpot=50ms&ttft=2s"


@pytest.fixture(scope="module")
def live(browser: Browser, server: Server) -> Iterator[Watched]:
    """A page of the usual server."""
    found = Watched(browser, server.address)
    yield found
    found.context.close()


def _ignored(page: Watched) -> Locator:
    return page.page.locator("#ignored")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("batch?b=64&requests=7", "requests=7 (known here: s, b, c, p, on)"),
        ("batch?b=0.2", "b=0.2 (allowed: 1 to 16.4k)"),
        ("batch?s=nothing", "s=nothing (allowed: "),
        ("pipeline?pp=5", "pp=5 (allowed: 2, 4, 8"),
        ("tiers?model=qwen3-32b", "model=qwen3-32b (known here: "),
        ("batch?rackline=0.0.1", "it was written by rackline 0.0.1; this is "),
    ],
)
def test_parts_of_an_address_that_are_not_used_are_named(watched: Watched, address: str, said: str) -> None:
    watched.open(address)
    expect(_ignored(watched)).to_contain_text(f"Not used of this address: {said}")


def test_an_unknown_view_is_said_and_a_known_address_says_nothing(watched: Watched) -> None:
    watched.page.goto(f"{watched.root}#/batches")
    expect(_ignored(watched)).to_contain_text("no view is called “batches” (batch, context, ")
    watched.open("batch?b=64&c=8192&on=blackboard")
    expect(_ignored(watched)).to_be_hidden()


def test_a_link_that_is_copied_holds_all_values_and_the_version(watched: Watched) -> None:
    watched.open("pipeline?m=4")
    link = watched.page.evaluate("rackline.lasting()")
    assert link.endswith(f"#/pipeline?m=4&x=1f1b&pp=4&rackline={version('rackline')}")
    answer = watched.answer()
    watched.open(link.partition("#/")[2])
    expect(_ignored(watched)).to_be_hidden()
    assert watched.answer() == answer


def test_the_deployment_goes_along_from_batch_to_context(watched: Watched) -> None:
    page = watched.open("batch?s=llama-70b&b=96&c=2048&p=3")
    page.locator("nav a", has_text="Context").click()
    page.wait_for_function("location.hash.startsWith('#/context')")
    assert watched.page.evaluate("rackline.address().state") == {"s": "llama-70b", "b": "96", "c": "2048"}


def test_a_saved_figure_says_its_question_version_and_date(watched: Watched, tmp_path: Path) -> None:
    page = watched.open("batch?b=64")
    saved = {}
    for kind in ("SVG", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).first.click()
        download.value.save_as(tmp_path / kind)
        saved[kind] = (tmp_path / kind).read_text(encoding="utf-8")
    day = page.evaluate("new Date().toISOString().slice(0, 10)")
    for words in (
        "Time of a decode step",
        "How many users should share a pass?",
        f"rackline {version('rackline')}, {day}",
    ):
        assert words in saved["SVG"], words
    made = json.loads(saved["JSON"])
    assert made["title"]["text"] == "Time of a decode step"
    assert made["usermeta"]["question"] == "How many users should share a pass?"
    assert made["usermeta"]["origin"].endswith(f"{day}, batch?b=64")


def test_a_refused_value_marks_its_field_and_dims_the_answer_before(live: Watched) -> None:
    page = live.open(f"plan?{PLAN}")
    page.get_by_label("Model", exact=True).fill("llama-3.1-9b")
    page.get_by_role("button", name="Ask").click()
    box = page.get_by_label("Model", exact=True)
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#answer")).to_contain_text("Refused. model: got llama-3.1-9b")
    reason = page.locator(".control[data-key=model] .problem")
    expect(reason).to_contain_text("nearest: ")
    expect(reason).to_be_in_viewport()
    expect(page.locator(".body")).to_have_attribute("data-stale", "")
    expect(page.locator(".figures").first).to_have_css("opacity", "0.3")
    box.fill("llama-3.1-8b")
    page.get_by_role("button", name="Ask").click()
    expect(box).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator(".body")).not_to_have_attribute("data-stale", "")
    live.faults.clear()  # the browser's own note of the refusal


# What follows the estimate is held back, however fast the plan is, until the page gives up.
UP_TO_THE_ESTIMATE = """() => {
    const real = window.fetch;
    window.fetch = async (address, options) => {
        const response = await real(address, options);
        if (!String(address).endsWith("plan/view")) return response;
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        const body = new ReadableStream({
            async pull(sink) {
                let end;
                while ((end = rest.indexOf("\\n\\n")) < 0) {
                    const { done, value } = await reader.read();
                    if (done) return sink.close();
                    rest += value;
                }
                const event = rest.slice(0, end + 2);
                rest = rest.slice(end + 2);
                sink.enqueue(event);
                const { signal } = options;
                const stopped = (_, fail) => signal.addEventListener("abort", () => fail(signal.reason));
                if (event.includes("event: estimate")) await new Promise(stopped);
            },
        }).pipeThrough(new TextEncoderStream());
        return new Response(body, { status: response.status, headers: response.headers });
    };
}"""


def test_a_plan_that_was_stopped_says_that_it_is_estimated(live: Watched) -> None:
    page = live.open("batch")
    page.evaluate(UP_TO_THE_ESTIMATE)
    page.goto(f"{live.root}#/plan?input=1777&chips=16")
    page.wait_for_selector(".body[data-estimated]")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".estimate")).to_contain_text("Stopped before the best was simulated")
    page.goto("about:blank")  # forgets it


def test_measured_points_outside_the_band_are_called_so(watched: Watched) -> None:
    watched.open("batch?s=llama-2-70b")
    time = "rackline.pass.timing(rackline.data.get('scenario-llama-2-70b'), 'measured').facts.band"
    band = watched.page.evaluate(time)
    note = watched.page.locator("[data-figure=step] .note").inner_text()
    rows = watched.page.evaluate("rackline.drawn.get('step').rows.measured")
    outside = [
        one for one in rows if not band["low"] * one["predicted"] <= one["seconds"] <= band["high"] * one["predicted"]
    ]
    assert rows
    assert note.count("outside the band") == len(outside)


def test_what_answers_another_question_is_not_called_the_same(watched: Watched) -> None:
    page = watched.open("pipeline")
    titles = page.locator("section .code h3").all_inner_texts()
    assert titles == [
        "Command line: a real model, whose first and last stages do more",
        "Python: the stages of this figure",
    ]
    code: dict[str, object] = {}
    body, _, last = page.locator("section .code code").nth(1).inner_text().rpartition("\n")
    exec(body, code)
    share = eval(last, code)
    assert f"waits {100 * share:.3g} % of a training step" in watched.answer()
