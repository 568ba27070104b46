"""The page of a live server: it shows what the command answers, estimates first; a lost worker is said."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from conftest import Watched, spoken
from rackline.api.answer import answer, find_verb
from rackline.cli.main import run
from rackline.web.data import first_fields, views
from web_server import Server, wait_for

# On a busy machine both answers may come at once: what is shown is noted when it is set, not when one looks.
NOTE_ANSWERS = """() => {
    window.answers = [];
    const shown = rackline.answer;
    rackline.answer = (text) => {
        const note = document.querySelector(".estimate");
        if (note && text) answers.push({ text, marked: !note.hidden });
        shown(text);
    };
}"""
NOTE_STATUS = """() => {
    window.said = [];
    const place = document.querySelector("#view");
    const note = (records) => records.forEach((one) => one.addedNodes.forEach((node) => said.push(node.textContent)));
    new MutationObserver(note).observe(place, { childList: true, subtree: true });
}"""
SMALL = "model=llama-3.1-8b&chips=2&input=1k&output=200&tpot=20ms&ttft=1s"


@pytest.fixture(scope="module")
def live(browser: Browser, server: Server) -> Iterator[Watched]:
    """A page of the usual server."""
    found = Watched(browser, server.address)
    yield found
    refused = "Failed to load resource: the server responded with a status of 422"  # the browser's note may come late
    assert [one for one in found.faults if not one.startswith(refused)] == []
    assert all(url.startswith((server.address, "data:", "blob:")) for url in found.requests)
    found.context.close()


def test_a_plan_is_shown_by_estimates_first_then_as_the_command_answers(
    live: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    page = live.page
    page.goto(live.root)
    page.wait_for_selector("#view[data-shown]")
    page.evaluate(NOTE_ANSWERS)
    page.goto(f"{live.root}#/plan?{SMALL}")
    wait_for(lambda: len(page.evaluate("answers")) >= 2)  # the view before may be ready still
    page.wait_for_selector(".body[data-ready]:not([data-estimated])")
    estimate, final = page.evaluate("answers")
    assert estimate["text"].startswith("Estimated: ")
    assert estimate["marked"]
    assert not final["marked"]
    assert not page.locator(".estimate").is_visible()
    command = page.locator(".code code").nth(-2).inner_text()
    assert run([*shlex.split(command)[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    drawn = {row["tokens_per_s_per_user"] for row in live.rows("plan-front")}
    assert {one["tokens_per_s_per_user"] for one in found["pareto"]} <= drawn
    best = found["best"]
    assert f"TPOT {1e3 * best['tpot_s']:.3g}"[:8] in live.answer()
    seconds = {row["operation"]: row["seconds"] for row in live.rows("plan-step")}
    assert seconds
    assert max(seconds.values()) < best["tpot_s"]
    page.locator("summary", has_text="Launch command").click()
    launched = page.locator("details[open] .code code").inner_text()
    assert "Llama-3.1-8B" in launched
    measured = page.get_by_role("region", name="Published measurements of this model").locator("tbody tr")
    measured.nth(2).wait_for()  # they are fetched once the answer is there
    assert all("trtllm" in row or "sglang" in row for row in measured.all_inner_texts())
    page.locator("summary", has_text="Kubernetes manifest").click()
    assert "apiVersion" in page.locator("details[open] .code code").last.inner_text()


def test_a_worker_that_is_killed_in_mid_plan_is_said_and_asked_again(live: Watched, server: Server) -> None:
    page = live.page
    page.goto(live.root)
    page.wait_for_selector("#view[data-shown]")
    page.evaluate(NOTE_STATUS)
    asked = f"plan?{SMALL.replace('1k', '1001')}"
    wait_for(lambda: len(server.workers()) == 2)
    assert server.client.post("/api/v1/chips", json={"name": "h200"}).is_success  # one is free, at least
    workers = server.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)  # so that it is not over when they are killed
    with page.expect_response("**/api/v1/plan/view"):  # begins when the server says that there is work on it
        page.goto(f"{live.root}#/{asked}")
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    page.wait_for_selector('#view[data-shown*="input=1001"] .body[data-ready]:not([data-estimated])')
    assert any("was lost; asked again" in one for one in page.evaluate("said"))
    assert "M output tokens" in live.answer()


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("tiers", "prompt", "9k"), ("charge", "margin", "0.3"), ("over-training", "traffic", "7M")],
)
def test_a_view_answers_what_was_never_stored(live: Watched, name: str, field: str, value: str) -> None:
    live.open(f"{name}?{field}={value}")
    view = views()[name]
    fields = first_fields(view) | {field: value}
    found = answer(find_verb(view["verb"]).question.from_params(fields))
    assert live.answer() == spoken(found)


def test_any_deployment_is_written_out_and_its_address_holds_it(live: Watched) -> None:
    page = live.open("batch?s=own&m=qwen3-32b&k=dgx-h200&l=tp=4&b=96&c=5000")
    asked = {"model": "qwen3-32b", "on": "dgx-h200", "layout": "tp=4", "batch": "96", "context": "5000"}
    found = answer(find_verb("explain").question.from_params(asked)).result
    assert live.marks("step")[0]["seconds"] == pytest.approx(found.explanation.time.seconds, rel=1e-12)
    layout = page.get_by_label("Layout", exact=True)
    layout.fill("tp=8")
    layout.press("Enter")
    page.wait_for_function(
        "before => rackline.drawn.get('step').rows.marks[0].seconds < before", arg=0.95 * found.explanation.time.seconds
    )
    assert "l=tp=8" in page.url
    assert page.locator(".code code").nth(-2).inner_text().startswith("rackline explain qwen3-32b --on dgx-h200")
    page.get_by_label("Model", exact=True).fill("qwen3-33b")
    page.get_by_label("Model", exact=True).press("Enter")
    page.wait_for_selector(".body[data-refused]")
    assert "nearest: " in live.answer()
    page.go_back()
    page.wait_for_selector(".body:not([data-refused])")
    assert "A step with 96 sequences" in live.answer()
