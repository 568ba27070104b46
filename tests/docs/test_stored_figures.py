"""Stored pictures of the docs have the titles, axes, names and layers of today; their numbers may differ."""

from __future__ import annotations

import json
import re

import pytest

from scripts import load_script

script = load_script("figures")
PICTURES = {picture.name: picture for picture in script.PICTURES}
CHEAP = ("memory", "fit", "compare", "tutorial-architect")
NIGHTLY = sorted(name for name, picture in PICTURES.items() if name not in CHEAP and not picture.measured)


@pytest.mark.parametrize("name", [*CHEAP, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)])
def test_a_stored_picture_has_the_structure_of_today(name: str) -> None:
    stored = script.structure(script.file_of(PICTURES[name], "light").read_text(encoding="utf-8"))
    assert stored == script.structure(script.made(PICTURES[name]).svg("light")), "run bench/refresh_docs.py"


def test_the_structure_of_a_drawing() -> None:
    svg = script.file_of(PICTURES["fit"], "light").read_text(encoding="utf-8")
    found = script.structure(svg)
    assert "memory of the fullest chip" in found["words"]
    assert {"weights", "KV cache of the requests"} <= set(found["words"])
    assert any(re.fullmatch(r"mark-rect × \d\d", layer) for layer in found["layers"])
    moved = re.sub(r"translate\((\d+)", lambda old: f"translate({int(old[1]) * 2 + 3}", svg)
    assert script.structure(moved) == found
    assert script.structure(svg.replace(">weights<", ">masses<")) != found
    one_mark_less = re.sub(r'(layer_0_marks"[^>]*>)<path [^>]*/>', r"\1", svg)
    assert script.structure(one_mark_less) != found


def test_the_head_to_head_page_is_made_of_the_stored_rows() -> None:
    both = load_script("head_to_head")
    stored = json.loads(both.STORED.read_text(encoding="utf-8"))
    shown = both.PAGE.read_text(encoding="utf-8").split(both.BEGIN)[1].split(both.END)[0].strip()
    assert shown == both.markdown(stored), "run bench/refresh_docs.py"
    assert stored["version"] in shown
    ids = [row["id"] for row in stored["rows"]]
    assert len(ids) == len(set(ids)) >= 200
