"""Every option of every command changes something in the answer to some question, or is refused.

`options.toml` has the questions and the values. The answer is compared with the answer to the same question with
all that the option needs beside it, but without the option itself. What a question refuses, it refuses in one line.
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


def effect(base: str, flag: str, value: str) -> str:
    """Return what a value of an option does to a question: "changes", "nothing", or the message of a refusal."""
    words, given = shlex.split(BASES[base]), shlex.split(value)
    status, answer = answer_to(tuple(with_more(words, [flag, *given])))
    if status == 2:
        assert len([line for line in answer.splitlines() if line.strip()]) == 1, answer
        return answer.strip()
    beside = next((place for place, word in enumerate(given) if word.startswith(("--", "~--"))), len(given))
    usual = answer_to(tuple(without(with_more(words, given[beside:]), {flag})))
    return "nothing" if usual == (status, answer) else "changes"


# Tried in tests/unit/test_hub.py (network), test_hf.py (kinds), test_towers.py (sound) and tests/e2e (--full).
ELSEWHERE = {"offline", "assume", "audio", "full"}
# These say where or whether points are computed, replace the argument, read a file of another form, or ask the reader.
NOT_IN_THE_ANSWER = {
    ("sweep", "dry_run"), ("sweep", "ray"), ("sweep", "core_price"), ("sweep", "workers"), ("infer-prices", "all"),
    ("lecture", "measured"), ("lecture", "guess"), ("validate", "import_format"), ("validate", "stored"),
    ("audit", "map"),
}  # fmt: skip
VERBS = {words.split()[0]: [base for base in BASES if BASES[base].split()[0] == words.split()[0]]
         for words in BASES.values()}  # fmt: skip
IN_EVERY_RUN = ("explain", "fit", "encode", "simulate")  # the others, whose answers are plans or take long, nightly
CASES = [
    pytest.param(verb, name, marks=[] if verb in IN_EVERY_RUN else [pytest.mark.nightly])
    for verb, bases in VERBS.items()
    for name in verb_options(bases[0])
    if name not in ELSEWHERE and (verb, name) not in NOT_IN_THE_ANSWER
]


@pytest.mark.parametrize(("verb", "name"), CASES)
def test_an_option_changes_some_answer_or_is_refused(verb: str, name: str) -> None:
    outcomes: dict[str, str] = {}
    for base in VERBS[verb]:
        flag = flag_of(name, verb_options(base)[name])
        for value in values_of(base, name):
            outcomes[f"{base} {flag} {value}"] = effect(base, flag, value)
            if outcomes[f"{base} {flag} {value}"] == "changes":
                return
    assert outcomes, "no value of this option is listed in options.toml"
    silent = [command for command, outcome in outcomes.items() if outcome == "nothing"]
    assert not silent, "the option is taken and has no effect"


def test_every_command_is_asked() -> None:
    assert set(entries()) - set(VERBS) == NOT_ASKED


# Commands whose options only say what to read or show, or which need a running server.
NOT_ASKED = {"ask", "sweep-show", "schema", "calibrate", "diagnose", "observe", "measure", "lab", "new"}
