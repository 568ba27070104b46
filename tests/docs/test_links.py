"""The script that asks for external links finds them all, and tells what is broken from what only refuses programs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scripts import load_script

ANSWERS = {"/well": 200, "/gone": 404, "/shy": 403}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(405 if self.path == "/get-only" else ANSWERS.get(self.path, 404))
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/get-only" else ANSWERS.get(self.path, 404))
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_addresses_are_found_without_what_stands_around_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "See [a](https://a.org/x_(y)) and https://b.org/z#part.\n"
        "`http://localhost:8000` and https://example.com/ are examples; (https://c.org/), *https://d.org*.\n"
    )
    script = load_script("links")
    assert script.addresses([page]) == {
        "https://a.org/x_(y)": [f"{page}:1"],
        "https://b.org/z": [f"{page}:1"],
        "https://c.org/": [f"{page}:2"],
        "https://d.org": [f"{page}:2"],
    }
    assert len(script.addresses(script.pages())) > 20


def test_what_becomes_of_an_address(address: str) -> None:
    script = load_script("links")
    with httpx2.Client(timeout=1200) as client:
        found = {path: script.ask(address + path, client) for path in (*ANSWERS, "/get-only")}
        assert script.ask("http://127.0.0.1:1/", client).startswith("broken (")
    assert found == {"/well": "well", "/gone": "broken (404)", "/shy": "refused (403)", "/get-only": "well"}


ROOT = Path(__file__).resolve().parents[2]
FILE = re.compile(r"`((?:[a-z_]+/)+\w+\.(?:py|c|toml))`")
OF_OTHERS = {"distributed/activation_checkpoint.py"}  # of torchtitan


def test_files_that_the_docs_name_are_there() -> None:
    pages = [*load_script("shown").pages(), ROOT / "CONTRIBUTING.md"]
    history = ("mutants.md", "findings.md")  # and decisions: they tell of files as they were
    today = [page for page in pages if page.name not in history and page.parent.name != "decisions"]
    named = {(page.name, name) for page in today for name in FILE.findall(page.read_text())}
    places = [ROOT, ROOT / "src", ROOT / "src" / "rackline", ROOT / "tests", ROOT / "docs"]
    gone = sorted(f"{page}: {name}" for page, name in named if not any((place / name).exists() for place in places))
    assert [one for one in gone if one.partition(": ")[2] not in OF_OTHERS] == []
    assert len(named) > 100
