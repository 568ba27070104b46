"""Look at every page of the built docs site: `uv run python bench/site_look.py [--shots FOLDER] [PAGE...]`.

`uv run mkdocs build --strict` comes first. In chromium, at 390 and 1280 pixels, light and dark: what axe finds, pages
that are wider than the screen, errors of scripts, requests to elsewhere. Rules
that do not look at colours are those of the light page. CI looks at a few (tests/docs/test_site.py).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright

SITE = Path(__file__).resolve().parents[1] / "build" / "site"
WIDTHS = (390, 1280)
HEIGHT = 900
LOOKS: dict[Literal["light", "dark"], str] = {"light": "default", "dark": "slate"}
LIMIT_MS = 120_000
OPTIONS = {"preload": False, "resultTypes": ["violations"]}  # of axe: what passes need not be described
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}  # what the other look may break


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on loopback."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def faults(
    browser: Browser, address: str, pages: Sequence[str], shots: Path | None = None, *, in_turn: bool = False
) -> Iterator[str]:
    """What is wrong with pages of a site, each at both widths in both looks.

    Args:
        shots: folder for a picture of the first screen of each.
        in_turn: each page at one width in one look, another for the next page.
    """
    axe = Axe()
    views = list(product(LOOKS, WIDTHS))
    for look, scheme in LOOKS.items():
        context = browser.new_context(color_scheme=look, reduced_motion="reduce")  # the theme keeps the look of a visit
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        said: list[str] = []
        page.on("request", lambda request, said=said: said.append(request.url))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        for (number, name), width in product(enumerate(pages), WIDTHS):
            if in_turn and views[number % len(views)] != (look, width):
                continue
            where = f"{name} at {width}, {look}"
            page.set_viewport_size({"width": width, "height": HEIGHT})
            page.goto(address + name)
            if shots is not None:
                page.screenshot(path=shots / f"{name.removesuffix('.html').replace('/', '-')}-{width}-{look}.png")
            if page.locator("body").get_attribute("data-md-color-scheme") != scheme:
                yield f"{where}: has another look"
            if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                yield f"{where}: {wide} pixels wide"
            found = axe.run(page, options=OPTIONS if in_turn or look == "light" else OPTIONS | COLOURS)
            if found.violations_count:
                yield f"{where}: {found.generate_report()}"
        yield from (f"{look}: {one}" for one in said if not one.startswith((address, "data:", "blob:")))
        context.close()


def main() -> int:
    """Look at all pages, or at those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", help="such as book/roofline.html; all by default")
    parser.add_argument("--site", type=Path, default=SITE, help="the folder that mkdocs built")
    parser.add_argument("--shots", type=Path, help="folder for pictures of the first screens")
    parser.add_argument("--in-turn", action="store_true", help="each page at one width in one look only")
    given = parser.parse_args()
    site: Path = given.site
    pages = given.pages or sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    if given.shots:
        given.shots.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    number = 0
    with sync_playwright() as play, served(site) as address:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for fault in faults(browser, address, pages, given.shots, in_turn=given.in_turn):
            number += 1
            print(fault, flush=True)
        browser.close()
    print(f"{len(pages)} pages, {number} faults")
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main())
