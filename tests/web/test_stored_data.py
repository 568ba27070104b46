"""Data of the page and the description of the API are the stored ones: words by a digest, numbers by sums of logs.

After a change that is meant to move them:

    PYTHONPATH=tests uv run python tests/web/test_stored_data.py write
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rackline.api.answer import Watch
from rackline.web import data, forms
from scripts import load_script
from stored import laid_out

STORED = Path(__file__).with_name("stored_data.json")
NUMBER = re.compile(r"(?<![\w.@-])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w)")
CHUNK = 100  # numbers of a sum, in which a half percent of one of them is seen
TOLERANCE = 1e-5
VERBS = ("explain", "plan", "simulate", "infer-prices")
VOLATILE = ("version", "date", "printed")  # what is printed says how long it took
SLOW = ("plan", "charge", "traffic")  # views whose answers take seconds; stored answers ask much the same


def in_short(text: str) -> dict[str, Any]:
    """A digest of a text without its numbers, how many these are, and the sums of their logs."""
    numbers, words = [abs(float(one)) for one in NUMBER.findall(text)], NUMBER.sub("N", text)
    logs = [math.log10(one) if one > 1e-12 else 0.0 for one in numbers]
    digest = hashlib.sha256(words.encode()).hexdigest()[:12]
    sums = [round(math.fsum(logs[at : at + CHUNK]), 4) for at in range(0, len(logs), CHUNK)]
    return {"words": digest, "characters": len(words), "numbers": len(numbers), "logs": sums}


def script(name: str) -> dict[str, Any]:
    """A data file of the page, by the keys of its object where it is plain data."""
    text = data.data_script(name)
    inside = re.fullmatch(r'rackline\.give\("[\w-]+",(\{.*\})\);\n', text, re.DOTALL)
    try:
        found = json.loads(inside[1]) if inside else None
    except ValueError:  # functions stand in it
        found = None
    if found is None:
        return {"": in_short(text)}
    return {key: in_short(json.dumps(value)) for key, value in found.items() if key not in VOLATILE}


def described() -> dict[str, Any]:
    """The description of the API, by path and by schema."""
    whole = forms.description()
    paths = {f"{name} {how}": one for name, path in whole["paths"].items() for how, one in path.items()}
    parts = {f"{kind} {name}": one for kind, named in whole["components"].items() for name, one in named.items()}
    return {name: in_short(json.dumps(one)) for name, one in {**paths, **parts}.items()}


def answered() -> dict[str, Any]:
    """What a page gets that asks."""
    question = {"ask": "explain", "model": "gpt-oss-120b", "on": "dgx-b200", "batch": "8", "context": "2k"}
    body = json.loads(forms.question_body(question, Watch(), view=True, figures=None))
    return {key: in_short(json.dumps(value)) for key, value in body.items() if key not in VOLATILE}


def of(name: str) -> dict[str, Any]:
    """What is stored under a name."""
    if name == "openapi":
        return described()
    if name == "asked":
        return answered()
    return script(name)


def _names() -> list[str]:
    views = {view for view, one in data.views().items() if "verb" in one and view not in SLOW}
    answers = {f"answer-{view}-0" for view in views}
    made = [name for name in data.data_names() if not name.startswith(("answer-", "json-")) or name in answers]
    return [*made, *(f"options-{verb}" for verb in VERBS), "openapi", "asked"]


NAMES = _names()


@pytest.mark.parametrize("name", NAMES)
def test_data_of_the_page_are_the_stored_ones(name: str) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))[name]
    moved = list(load_script("golden_answers").differences(stored, of(name), rel=TOLERANCE, least=1e-3, apart=set()))
    assert not moved, "\n".join([*moved[:20], f"{len(moved)} differ; if they should: see the head of this file"])


def test_each_stored_part_is_asked_for() -> None:
    assert list(json.loads(STORED.read_text(encoding="utf-8"))) == NAMES


def test_a_number_that_moves_by_a_percent_is_noticed() -> None:
    text = json.dumps([1.5 + one / 7 for one in range(300)])
    moved = text.replace(json.dumps(1.5 + 250 / 7), json.dumps(1.01 * (1.5 + 250 / 7)))
    before, after = in_short(text), in_short(moved)
    assert before["words"] == after["words"]
    assert [abs(one - other) > TOLERANCE * one for one, other in zip(before["logs"], after["logs"], strict=True)] == [
        False,
        False,
        True,
    ]


def main() -> int:
    """Write the data of today."""
    if sys.argv[1:] != ["write"]:
        print(__doc__)
        return 2
    STORED.write_text(laid_out({name: of(name) for name in NAMES}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
