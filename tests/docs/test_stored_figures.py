"""Stored pictures of the docs are those that their commands draw today; CI draws the cheap ones.

`uv run python bench/figures.py --check` compares all of them.
"""

from __future__ import annotations

import json
import re

import pytest

from scripts import load_script

script = load_script("figures")
KNOWN = {picture.name: picture for picture in script.PICTURES}
CHEAP = ("roofline", "memory", "fit", "compare", "tutorial-planner", "tutorial-architect")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
def test_a_stored_picture_is_the_one_of_today(name: str) -> None:
    stored = script.file_of(KNOWN[name], "light").read_text(encoding="utf-8")
    assert not script.moved(stored, script.made(KNOWN[name]).svg("light")), f"run bench/figures.py {name}"


def test_the_head_to_head_page_is_made_of_the_stored_rows() -> None:
    both = load_script("head_to_head")
    stored = json.loads(both.STORED.read_text(encoding="utf-8"))
    shown = both.PAGE.read_text(encoding="utf-8").split(both.BEGIN)[1].split(both.END)[0].strip()
    assert shown == both.markdown(stored), "run bench/head_to_head.py"
    assert stored["version"] in shown
    assert "AISimulate is ahead" in shown
    ids = [row["id"] for row in stored["rows"]]
    assert len(ids) == len(set(ids)) >= 200


def test_a_picture_that_moved_is_noticed() -> None:
    stored = script.file_of(KNOWN["fit"], "light").read_text(encoding="utf-8")
    assert script.moved(stored, stored) == ""
    far = re.sub(r"translate\((\d+)", lambda found: f"translate({int(found[1]) * 2 + 3}", stored)
    assert "numbers moved" in script.moved(stored, far)
    assert "other marks or words" in script.moved(stored, stored.replace("memory", "memories"))
