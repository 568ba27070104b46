"""A question with many options is made of groups, each of one subject: no class has more than 20 of its own."""

from __future__ import annotations

import pytest

from rackline.api.answer import find_verb
from rackline.api.groups import OnCluster
from rackline.api.question import Number, Question, option, options, question
from rackline.api.verbs import entries

MOST_OPTIONS = 20


def own_options(kind: type[Question]) -> list[str]:
    """Return the options that a class declares or replaces itself, not those that it inherits."""
    inherited = [one.__dataclass_fields__ for one in kind.__mro__[1:] if issubclass(one, Question)]
    return [
        name for name in options(kind) if not any(one.get(name) is kind.__dataclass_fields__[name] for one in inherited)
    ]


def classes_of(kind: type[Question]) -> list[type[Question]]:
    """Return the class of a question and the groups that it is made of."""
    return [one for one in kind.__mro__ if issubclass(one, Question)]


@pytest.mark.parametrize("name", entries())
def test_no_class_has_more_options_than_a_reader_surveys(name: str) -> None:
    kind = find_verb(name).question
    sizes = {one.__name__: len(own_options(one)) for one in classes_of(kind)}
    assert set(options(kind)) <= {option for one in classes_of(kind) for option in own_options(one)}
    too_many = {one: size for one, size in sizes.items() if size > MOST_OPTIONS}
    assert not too_many, f"split by subject into groups (docs/how-to/add-a-question.md): {too_many}"


@question
class _PlannedExample(OnCluster):
    """A question that has two options of its own, one of which replaces a value that its group leaves absent."""

    depth: Number = option("count", "depth", default="1")
    price: Number = option("count", "price", default="2")


def test_an_option_that_replaces_an_inherited_one_is_counted_as_own() -> None:
    assert own_options(_PlannedExample) == ["price", "depth"]
    assert own_options(OnCluster) == ["model", "on", "precision", "set"]
