"""What each option changes: a question with each value of each of its options, beside the same question without.

`right_options.toml` has the questions and the values. `right_options.json` holds, for each, what the answer says in
short, how many of its values differ from those without the option, some of them, and a digest of all values and of the
screen; of what is refused the message. After a change that is meant to move answers:

    PYTHONPATH=tests uv run python tests/golden/test_right_options.py write          # all of them
    PYTHONPATH=tests uv run python tests/golden/test_right_options.py write plan-1   # the first of plan
"""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from asking import Asking, asking
from helpers import run_command
from rackline.api.answer import find_verb
from rackline.api.question import Option, flag_of, options
from stored import assert_told_as_stored, digest, leaves, lines_of, some_of, write_anew

HERE = Path(__file__).resolve().parent
STORED = HERE / "right_options.json"
SHOWN = 3  # values that differ
_ASKED = tomllib.loads((HERE / "right_options.toml").read_text(encoding="utf-8"))
BASES: dict[str, str] = {
    f"{name}-{place}": words for name, every in _ASKED["bases"].items() for place, words in enumerate(every, 1)
}
VALUES: dict[str, list[str]] = _ASKED["values"]
OWN: dict[str, dict[str, list[str]]] = _ASKED["own"]
Answered = tuple[int, str, dict[str, Any], list[str]]
"""Status, the answer in short, its values, and the screen, or what is said of why there is none."""


def ways(base: str, name: str, option: Option) -> list[str]:
    """Words that stand behind the flag of an option, one for each way to give it."""
    if name in OWN.get(base, {}):
        return OWN[base][name]
    usual = [""] if option.kind == "switch" else list(option.choices) or [str(2 * (option.minimum or 1))]
    return VALUES.get(name, usual)[: None if base.endswith("-1") else 1]


def merged(words: list[str], more: list[str]) -> list[str]:
    """Words of a command with further options, which take the place of the same ones, and without `~--flag`."""
    flags = {word.removeprefix("~") for word in more if word.startswith(("--", "~--"))}
    kept: list[str] = []
    dropped = False
    for word in words:
        dropped = word in flags or (dropped and not word.startswith("--"))
        kept += [] if dropped else [word]
    return [*kept, *(word for word in more if not word.startswith("~"))]


def answered(words: list[str], here: Asking) -> Answered:
    """What comes of a command."""
    here.answers.clear()
    ran = run_command(words, here.folder)
    assert "Traceback" not in ran.err, words
    if not here.answers:
        return ran.status, "", {}, lines_of(ran.err, here.folder)
    data = json.loads(json.dumps(here.answers[-1].to_dict(), default=str))
    values = dict(leaves({key: one for key, one in data.items() if key not in ("question", "elapsed_s")}))
    return ran.status, repr(here.answers[-1]), values, lines_of(ran.out + ran.err, here.folder)


def in_short(answer: Answered, telling: list[tuple[str, Any]], shown: int) -> list[Any]:
    """What is stored: status, the answer in short, how many values tell something, some of these, and a digest of all
    values and the screen; of what is refused the status and why."""
    status, short, values, screen = answer
    if not values:
        return [status, *[line for line in screen if line][-1:]]
    return [status, short, len(telling), dict(some_of(telling, shown)), digest([list(values.items()), screen])]


def option_names(base: str) -> list[str]:
    """Options of a question that can be given in some way."""
    known = options(find_verb(BASES[base].split()[0]).question)
    given = {name: one for name, one in known.items() if not (one.positional or one.output or one.hidden)}
    return [name for name, one in given.items() if ways(base, name, one)]


@cache
def without(base: str) -> tuple[str, dict[str, Any]]:
    """The answer to a question as it stands: in short, and its values."""
    with asking() as here:
        _, short, values, _ = answered(shlex.split(BASES[base]), here)
    return short, values


def told(base: str, name: str) -> dict[str, Any]:
    """What each value of an option changes in the answer to a question."""
    found: dict[str, Any] = {}
    first = shlex.split(BASES[base])
    option = options(find_verb(first[0]).question)[name]
    flag = flag_of(name, option)
    _, before = without(base)
    with asking() as here:
        for value in ways(base, name, option):
            answer = answered(merged(first, [flag, *shlex.split(value)]), here)
            moved = [(key, one) for key, one in answer[2].items() if before.get(key) != one]
            found[f"{flag} {value}".strip()] = in_short(answer, moved, SHOWN)
    return found


def told_of_all(base: str) -> dict[str, Any]:
    """A question as it stands, and what each of its options changes."""
    return {"": without(base)[0]} | {name: told(base, name) for name in option_names(base)}


@cache
def stored() -> dict[str, dict[str, Any]]:
    """What the file holds, by question and option."""
    return json.loads(STORED.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("base", "name"), [(base, name) for base in BASES for name in option_names(base)])
def test_an_option_changes_what_is_stored(base: str, name: str) -> None:
    assert_told_as_stored(stored()[base][name], told(base, name))


def test_each_option_is_stored_beside_its_question() -> None:
    assert {base: list(every) for base, every in stored().items()} == {
        base: ["", *option_names(base)] for base in BASES
    }
    assert {base: every[""] for base, every in stored().items()} == {base: without(base)[0] for base in BASES}


if __name__ == "__main__":
    sys.exit(write_anew(STORED, BASES, told_of_all, __doc__))
