"""The script that follows the how-tos reads all that they show, and says what fails."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scripts import load_script

script = load_script("how_tos")


def test_each_how_to_is_listed_and_was_followed() -> None:
    text = script.TABLE.read_text(encoding="utf-8")
    chosen, followed = text.split("<!-- followed -->")
    for name in script.names():
        assert f"]({name}.md)" in chosen, name
        assert re.search(
            rf"^\| \[{re.escape(script.title(name))}\]\({name}\.md\) \| (\d+:\d\d \| \d+ s|needs a server \| -) \|$",
            followed,
            re.M,
        )


def test_what_a_page_shows_is_run(tmp_path: Path) -> None:
    (tmp_path / "beside.toml").write_text("x = 1\n")
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\ntest -f beside.toml && echo 2 > made\n```\n\n```console\nfalse\n```\n\n"
        "```python\nx = open('made').read()\n```\n\n"
        "```pycon\n>>> def twice(text):\n...     return 2 * int(text)\n>>> assert twice(x) == 4\n\n```\n"
    )
    scripts, session = script.fences(page.read_text())
    assert scripts == ["test -f beside.toml && echo 2 > made\n"]
    assert "def twice" in session
    assert script.follow(page, tmp_path).fault == ""
    page.write_text("```bash\nfalse | true\n```\n")
    assert "exit 1" in script.follow(page, tmp_path).fault


@pytest.mark.nightly
def test_the_page_that_onboards_a_release_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader does: what the page shows, in an empty folder with the files beside the page."""
    monkeypatch.delenv("RACKLINE_CATALOGUE")
    page = script.PAGES / "calibrate.md"
    scripts, _ = script.fences(page.read_text(encoding="utf-8"))
    assert sum("rackline calibrate --" in text for text in scripts) == 2
    assert script.follow(page, Path(sys.executable).parent).fault == ""
