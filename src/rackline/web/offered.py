"""Which questions the server answers, and which of their options it takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rackline.api.answer import Verb, find_verb
from rackline.api.option import Option
from rackline.api.question import options
from rackline.api.verbs import entries
from rackline.errors import nearest_names
from rackline.web.problem import problem

RESERVED = ("uploads", "figures")
"""Keys of a body that are no options of any question."""


@cache
def offered_names() -> tuple[str, ...]:
    """The questions that have an endpoint."""
    return tuple(name for name, one in entries().items() if not one.elsewhere)


def offered(name: str) -> Verb[Any, Any]:
    """How a question of an endpoint is answered.

    Raises:
        ProblemError: there is no such question here.
    """
    known = offered_names()
    if name in entries() and name not in known:
        raise problem("not-found", f"{name} {entries()[name].elsewhere}: ask it there, as rackline {name}", given=name)
    if name not in known:
        near = nearest_names(name, known, 1)
        error = problem("not-found", f"no question {name[:80]!r}", given=name[:80], allowed=", ".join(known))
        error.more.update({"nearest": near[0]} if near else {})
        raise error
    return find_verb(name)


@cache
def taken(name: str) -> Mapping[str, Option]:
    """The options of a question that a request may have: all but those that name files to write."""
    return {key: one for key, one in options(find_verb(name).question).items() if not one.output}
