"""Every option of every command changes something in the answer, or is refused with a reason.

`options.toml` has the questions and the values. The answer is compared with the answer to the same question with
all that the option needs beside it, but without the option itself. The first value of each option is tried in every
run, the others nightly.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from asking import asking
from helpers import run_command
from rackline.api.answer import find_verb
from rackline.api.question import Option, flag_of, options
from rackline.api.verbs import entries

_ASKED = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
BASES: dict[str, str] = {
    f"{verb}-{place}": words for verb, questions in _ASKED["bases"].items() for place, words in enumerate(questions, 1)
}
VALUES: dict[str, list[str]] = _ASKED["values"]
OWN: dict[str, dict[str, list[str]]] = _ASKED["own"]
NOT_COMPARED = ("question", "elapsed_s", "rackline_version")


def verb_options(base: str) -> dict[str, Option]:
    """Return the options of a question that are given by a flag and change what is computed."""
    known = options(find_verb(BASES[base].split()[0]).question)
    return {name: option for name, option in known.items() if not (option.positional or option.output or option.hidden)}


def values_of(base: str, name: str) -> list[str]:
    """Return the words behind the flag of an option that are tried in a question."""
    option = verb_options(base)[name]
    if name in OWN.get(base, {}):
        return OWN[base][name]
    usual = [""] if option.kind == "switch" else list(option.choices) or [str(2 * (option.minimum or 1))]
    return VALUES.get(name, usual)[: None if base.endswith("-1") else 1]


def without(words: list[str], flags: set[str]) -> list[str]:
    """Return a command without some flags and their values."""
    remaining: list[str] = []
    dropping = False
    for word in words:
        dropping = word in flags or (dropping and not word.startswith("--"))
        remaining += [] if dropping else [word]
    return remaining


def with_more(words: list[str], more: list[str]) -> list[str]:
    """Return a command with further options, which replace the same ones, and without those that begin with "~"."""
    flags = {word.removeprefix("~") for word in more if word.startswith(("--", "~--"))}
    return [*without(words, flags), *(word for word in more if not word.startswith("~"))]


@cache
def answer_to(command: tuple[str, ...]) -> tuple[int, Any]:
    """Return the status of a command and the data of its answer, or its message where it is refused."""
    with asking() as here:
        ran = run_command(command, here.folder)
        assert "Traceback" not in ran.err, command
        if not here.answers:
            return ran.status, ran.err
        data = json.loads(json.dumps(here.answers[-1].to_dict(), default=str))
    return ran.status, {key: value for key, value in data.items() if key not in NOT_COMPARED}


CASES = [
    pytest.param(base, name, value, marks=[pytest.mark.nightly] if place else [], id=f"{base} --{name} {value}".strip())
    for base in BASES
    for name in verb_options(base)
    for place, value in enumerate(values_of(base, name))
]


@pytest.mark.parametrize(("base", "name", "value"), CASES)
def test_an_option_changes_the_answer_or_is_refused(base: str, name: str, value: str) -> None:
    flag = flag_of(name, verb_options(base)[name])
    words = shlex.split(BASES[base])
    status, answer = answer_to(tuple(with_more(words, [flag, *shlex.split(value)])))
    if status == 2:
        assert len([line for line in answer.splitlines() if line.strip()]) == 1, answer
        return
    beside = [word for word in shlex.split(value) if word.startswith(("--", "~--"))]
    companions = shlex.split(value)[shlex.split(value).index(beside[0]) :] if beside else []
    assert answer != answer_to(tuple(without(with_more(words, companions), {flag})))[1], "the option has no effect"


# Options that no question of options.toml gives, each with its reason.
UNTRIED: dict[str, str] = {}


def test_every_option_is_tried() -> None:
    tried = {(BASES[base].split()[0], name) for base in BASES for name in verb_options(base) if values_of(base, name)}
    verbs = {words.split()[0] for words in BASES.values()}
    missing = {
        f"{verb} {name}"
        for verb in verbs
        for name, option in options(find_verb(verb).question).items()
        if not (option.positional or option.output or option.hidden) and (verb, name) not in tried
    }
    assert missing == set(UNTRIED)
    assert set(entries()) - verbs == set()
