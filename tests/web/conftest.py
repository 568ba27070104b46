"""What tests share: a server, the exported page, and a browser that only loopback and the disk answer."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from rackline.api.answer import Answer
from rackline.web.app import export
from web_server import PATIENT, Server, running


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the page, a minute of work; the first process that needs it does so for all."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "site"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            export(own / "exported")
            (own / "exported").rename(folder)
    return folder


@pytest.fixture(scope="module")
def desk(browser: Browser, site: Path) -> Iterator[Watched]:
    """One page at 1280 pixels, which tests of the disk's page share."""
    found = Watched(browser, site)
    yield found
    found.context.close()


def spoken(found: Answer[Any, Any]) -> str:
    """The sentence of a view that asks: the numbers that matter, then how far off they may be."""
    parts = (found.verb.summary(found), *found.verb.interval(found).splitlines())
    said = [f"{' '.join(part.split()).removesuffix('.')}." for part in parts if part]
    return " ".join(one[0].upper() + one[1:] for one in said)


SHOWN = """() => {
    const { id, state } = rackline.address();
    return document.querySelector("#view").getAttribute("data-shown") === rackline.hash(id, state);
}"""


PATIENCE_MS = 240_000  # the machine may be busy with other work
expect.set_options(timeout=PATIENCE_MS)


class Watched:
    """A page of a browser, with what went wrong in it."""

    def __init__(self, browser: Browser, site: Path | str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.root = site if isinstance(site, str) else site.as_uri() + "/index.html"
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str) -> Page:
        """Show a view, such as "batch?b=64", and wait until it is drawn."""
        self.page.goto(f"{self.root}#/{address}")
        self.page.wait_for_function(SHOWN)  # not the view before
        self.page.wait_for_selector(".body[data-ready]")
        return self.page

    def rows(self, figure: str) -> list[dict[str, Any]]:
        """The rows that a figure draws."""
        return self.page.evaluate("name => rackline.drawn.get(name).all()", figure)

    def marks(self, figure: str) -> list[dict[str, Any]]:
        """The marks of a figure."""
        return self.page.evaluate("name => rackline.drawn.get(name).rows.marks", figure)

    def answer(self) -> str:
        """The sentence that answers the view's question."""
        return self.page.inner_text("#answer")


@pytest.fixture
def watched(desk: Watched) -> Iterator[Watched]:
    """A page at 1280 pixels; faults and requests beyond the disk fail the test."""
    found = desk
    found.page.goto("about:blank")
    found.faults.clear()
    found.requests.clear()
    yield found
    assert found.faults == []
    assert all(url.startswith(("file://", "data:", "blob:")) for url in found.requests)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server as `rackline web` starts it, but for its patience."""
    with running("--workers", "2", limits=PATIENT) as found:
        yield found


@pytest.fixture(scope="session")
def client(server: Server) -> httpx.Client:
    """Asks the usual server."""
    return server.client
