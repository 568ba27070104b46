"""The docs site builds without a warning, fetches nothing, and is accessible on a phone and on a desk.

Warnings of mkdocs are errors here: links and anchors inside of the site, pages that the navigation misses, formulas
that are not LaTeX, names of code that do not exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ("index.html", "book/roofline.html", "reference/commands/fit.html", "glossary.html")
WIDTHS = (390, 1280)
LOOKS: dict[Literal["light", "dark"], str] = {"light": "default", "dark": "slate"}
FETCHED = re.compile(r"<(?:script|link|img|source|iframe)\b[^>]*?\b(?:src|href|srcset)=\"((?:https?:)?//[^\"]+)\"")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]  # --quiet hides warnings
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


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
    assert "median error of the time per output token is 5." in text


def test_formulas_are_drawn_without_scripts(built: Path) -> None:
    pages = [page for page in (built / "book").glob("*.html") if page.name != "index.html"]
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<math" in text, page.name
        assert "$<code>" not in text, page.name


def test_pages_are_accessible_and_searchable(address: str, browser: Browser) -> None:
    """Axe at two widths in both looks, no page wider than the screen, no request to elsewhere, a search that finds."""
    from axe_playwright_python.sync_playwright import Axe

    requests: list[str] = []
    faults: list[str] = []
    for look, scheme in LOOKS.items():
        context = browser.new_context(color_scheme=look, reduced_motion="reduce")  # the theme keeps the look of a visit
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        for name, width in product(SAMPLE, WIDTHS):
            page.set_viewport_size({"width": width, "height": 844})
            page.goto(address + name)
            assert page.locator("body").get_attribute("data-md-color-scheme") == scheme
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            found = Axe().run(page, options={"preload": False})
            assert found.violations_count == 0, (name, width, look, found.generate_report())
        context.close()
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(address + "index.html")
    page.locator("input.md-search__input").fill("all-reduce")
    page.wait_for_selector(".md-search-result__link")
    assert "all-reduce" in page.locator(".md-search-result").inner_text().lower()
    page.close()
    assert faults == []
    assert {url for url in requests if not url.startswith((address, "data:", "blob:"))} == set()
