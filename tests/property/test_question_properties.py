"""Any question → address or JSON → the same question, for every kind of question and any of its values."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rackline.api.answer import find_verb
from rackline.api.question import Option, Question, command_of, options, written_defaults
from rackline.api.verbs import entries
from rackline.cli import command as command_line
from rackline.cli.main import run
from rackline.errors import InputError

KINDS: dict[str, type[Question]] = {name: find_verb(name).question for name in entries()}
TEXTS = st.text(min_size=1, max_size=12).filter(lambda text: text.strip() != "")


WORD = "abcdefghijklmnopqrstuvwxyz0123456789"  # of texts that a shell and a file system take for nothing else


def one_value(option: Option, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Values of one option, as a caller may give them."""
    if option.kind == "switch":
        return st.booleans()
    if option.kind == "settings":
        return st.lists(texts, min_size=1, max_size=3)
    if option.choices:
        return st.sampled_from(option.choices)
    if option.kind == "limit":
        times = st.floats(1e-6, 86400.0)
        return times | st.builds("{}s@p{}".format, times, st.integers(1, 99))
    if not option.is_quantity:
        return texts
    low = option.minimum if option.minimum is not None else (0.0 if option.zero else 1e-9)
    high = option.maximum if option.maximum is not None else 1e12
    if option.kind == "fraction":
        high = min(high, 1.0)
    if option.kind == "whole":
        return st.integers(int(low), int(high))
    return st.floats(low, high, exclude_min=low == 0.0 and not option.zero)


@st.composite
def questions(draw: st.DrawFn, kind: type[Question], texts: st.SearchStrategy[str] = TEXTS) -> Question:
    """A question with some of its options given."""
    values: dict[str, Any] = {}
    for name, option in options(kind).items():
        if name in written_defaults(kind) and not draw(st.booleans()):
            continue
        one = one_value(option, texts)
        values[name] = draw(st.lists(one, min_size=1, max_size=3) if option.several else one)
    return kind(**values)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_question_survives_addresses_and_json(name: str, data: st.DataObject) -> None:
    question = data.draw(questions(KINDS[name]))
    assert KINDS[name].from_params(question.to_params()) == question
    assert KINDS[name].from_data(json.loads(json.dumps(question.to_data()))) == question


@pytest.mark.parametrize("name", KINDS)
def test_every_option_has_one_line_of_help_and_a_unit(name: str) -> None:
    for field, option in options(KINDS[name]).items():
        assert option.help, field
        assert "\n" not in option.help, field
        assert (option.unit != "-") == option.is_quantity or option.kind in ("text", "limit"), field


def test_the_same_asked_in_other_words_is_equal() -> None:
    fit = KINDS["fit"]
    assert fit("m", on="c", context="8k") == fit("m", on="c", context=8000.0) == fit("m", on="c")  # type: ignore[call-arg]
    assert fit("m", on="c", set={"a": 2.0}) == fit("m", on="c", set=["a=2.0"])  # type: ignore[call-arg]


def test_unknown_and_missing_names_are_refused() -> None:
    with pytest.raises(InputError, match="nearest: context"):
        KINDS["fit"].from_params({"model": "m", "on": "c", "contxt": "8k"})
    with pytest.raises(InputError, match="on: got 'nothing'"):
        KINDS["fit"].from_data({"model": "m"})
    with pytest.raises(InputError, match="context: got 'eight'"):
        KINDS["fit"].from_params({"model": "m", "on": "c", "context": "eight"})


class AskedError(BaseException):
    """What a command was about to ask."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


def _note(question: Question, solve: object, watch: object) -> None:
    raise AskedError(question)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_command_of_a_question_asks_it(name: str, data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the test above: address, question and command say the same, whatever options are given."""
    question = data.draw(questions(KINDS[name], st.text(alphabet=WORD, min_size=1, max_size=8)))
    monkeypatch.setattr(command_line, "answer_of", _note)
    with pytest.raises(AskedError) as asked:
        run(shlex.split(command_of(question))[1:])
    assert asked.value.question == question
