"""The docs site builds without a warning, fetches nothing, and is accessible on a phone and on a desk.

Warnings of mkdocs are errors here: links and anchors inside of the site, pages that the navigation misses, formulas
that are not LaTeX, names of code that do not exist.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, TimeoutError

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ("index.html", "book/roofline.html", "reference/commands/fit.html", "glossary.html")
FETCHED = re.compile(r"<(?:script|link|img|source|iframe)\b[^>]*?\b(?:src|href|srcset)=\"((?:https?:)?//[^\"]+)\"")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]  # --quiet hides warnings
    part = {"RACKLINE_DOCS_PAGE": "batch"}  # the rest of the page has its own tests
    environment = {**os.environ, **part, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    with load_script("site_look").served(built) as found:
        yield found


def test_no_page_fetches_anything_from_elsewhere(built: Path) -> None:
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > 60
    away = {page.name: FETCHED.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: found for name, found in away.items() if found} == {}
    styles = "".join(path.read_text(encoding="utf-8") for path in built.rglob("*.css"))
    assert not re.findall(r"url\(\"?https?:", styles)


def test_numbers_stand_without_their_expressions(built: Path) -> None:
    text = (built / "index.html").read_text(encoding="utf-8")
    assert "<!--=" not in text
    assert re.search(r"median error of the time per output token is \d+ to \d+", text)


def test_the_front_page_has_a_figure_that_moves(address: str, browser: Browser) -> None:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(address + "index.html")
    live = page.frame_locator("iframe.live")
    live.locator("[data-figure=step] svg").first.wait_for()
    before = live.locator("#answer").inner_text()
    live.get_by_label("Batch size", exact=True).press("ArrowRight")
    page.wait_for_function(
        "said => document.querySelector('iframe.live').contentDocument.querySelector('#answer').textContent !== said",
        arg=before,
    )
    assert live.locator(".top").is_hidden()
    assert page.locator("article a[href^='tutorials/']").count() == 6
    page.close()


def test_commands_are_never_cut(address: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    for name in ("index.html", "start.html"):
        page.goto(address + name)
        wide = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).length"
        assert page.locator(".language-bash code").count() >= 3
        assert page.eval_on_selector_all(".language-bash code, .language-bash pre", wide) == 0
    page.close()


def test_formulas_are_drawn_without_scripts(built: Path) -> None:
    pages = [page for page in (built / "book").glob("*.html") if page.name != "index.html"]
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<math" in text, page.name
        assert "$<code>" not in text, page.name


def test_notebooks_are_pages_with_their_stored_outputs(built: Path) -> None:
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    index = (built / "notebooks" / "index.html").read_text(encoding="utf-8")
    for path in notebooks:
        assert f'href="{path.stem}.html"' in index
        text = (built / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert f'href="{path.name}"' in text, "the notebook can be downloaded"
        assert (built / "notebooks" / path.name).read_bytes() == path.read_bytes()
        figures = re.findall(r'<img alt="([^"]{40,})" src="([\w-]+\.svg)#only-(light|dark)"', text)
        assert [look for _, _, look in figures] == ["light", "dark"] * (len(figures) // 2)
        assert figures
        for _, file, _ in figures:
            assert (built / "notebooks" / file).read_text(encoding="utf-8").startswith("<svg")
        printed = [
            output["text"]
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
            for output in cell.get("outputs", [])
            if output["output_type"] == "stream"
        ]
        assert printed
        shown = html.unescape(re.sub(r"<[^>]+>", "", text))
        for lines in printed:
            assert "".join(lines).strip() in shown


@pytest.mark.parametrize("in_turn", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_pages_are_accessible(address: str, browser: Browser, in_turn: bool) -> None:
    """Axe finds nothing, no page is wider than the screen, and none asks elsewhere.

    The four pages have one width and one look each, so that all four pairs are seen. At night each page has all.
    """
    assert len(SAMPLE) == 4
    assert list(load_script("site_look").faults(browser, address, SAMPLE, in_turn=in_turn)) == []


def test_what_is_wrong_is_found(tmp_path: Path, browser: Browser) -> None:
    script = load_script("site_look")
    (tmp_path / "page.html").write_text(
        '<html lang="en"><title>t</title><body data-md-color-scheme="default"><main><h1>a</h1>'
        '<img src="x.png"><p style="width: 700px">b</p></main></body></html>'
    )
    with script.served(tmp_path) as address:
        found = "\n".join(script.faults(browser, address, ["page.html"]))
    assert "pixels wide" in found
    assert "image-alt" in found
    assert "page.html at 1280, dark: has another look" in found


@pytest.mark.parametrize(("asked", "found"), [("all-reduce", "all-reduce"), ("How accurate is it?", "accuracy.html")])
def test_the_search_finds(address: str, browser: Browser, asked: str, found: str) -> None:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    first, said = "", ""
    page.goto(address + "index.html", wait_until="networkidle")
    typed = page.locator("input.md-search__input")
    typed.click()
    # words typed before the theme's worker has the index are never looked for, so they are typed again, key by key
    for _ in range(30):
        typed.fill("")
        typed.press_sequentially(asked)
        with contextlib.suppress(TimeoutError):
            first = page.locator(".md-search-result__link").first.get_attribute("href", timeout=5000) or ""
            said = page.locator(".md-search-result").inner_text().lower()
        if found in said + first:
            break
    assert found in said + first
    page.close()


def test_the_accuracy_page_is_two_screens(address: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.goto(address + "accuracy.html")
    assert page.locator("article").bounding_box()["height"] <= 2 * 1100
    assert page.locator("article picture, article img").count() >= 1
    page.close()
