"""docs/speed.md shows the stored measurements of all commands."""

from __future__ import annotations

import json

from scripts import load_script

speed = load_script("speed")


def test_the_page_shows_what_was_measured() -> None:
    stored = json.loads(speed.STORED.read_text(encoding="utf-8"))
    page = speed.PAGE.read_text(encoding="utf-8")
    assert speed.filled(page, stored) == page
    assert page.count(speed.MARK) == 1
    assert set(stored["now"]) == set(speed.COMMANDS)
