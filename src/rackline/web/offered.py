"""Which questions the server answers, and which of their options it takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rackline.api.answer import Verb, find_verb
from rackline.api.option import Option
from rackline.api.question import options
from rackline.api.verbs import MODULES
from rackline.errors import nearest_names
from rackline.web.problem import problem

RESERVED = ("uploads", "figures")
"""Keys of a body that are no options of any question."""

ELSEWHERE = {
    "new": "writes a file",
    "sweep": "writes a folder of results",
    "sweep-show": "reads a folder of results",
    "lab": "measures the machine that it runs on",
    "measure": "measures the machine that it runs on",
    "observe": "asks another server",
}
"""Questions without an endpoint, and why: what they touch is no business of a reader's request."""

OFFERED = tuple(name for name in MODULES if name not in ELSEWHERE)
"""The questions that have an endpoint."""

LONG = ("plan", "train", "simulate", "price", "compare", "rl", "validate", "calibrate", "ask")
"""Those that may take longer than a second: they never take the last worker from the others."""


def offered(name: str) -> Verb[Any, Any]:
    """How a question of an endpoint is answered.

    Raises:
        ProblemError: there is no such question here.
    """
    if name in ELSEWHERE:
        raise problem("not-found", f"{name} {ELSEWHERE[name]}: ask it there, as rackline {name}", given=name)
    if name not in OFFERED:
        near = nearest_names(name, OFFERED, 1)
        error = problem("not-found", f"no question {name[:80]!r}", given=name[:80], allowed=", ".join(OFFERED))
        error.more.update({"nearest": near[0]} if near else {})
        raise error
    return find_verb(name)


@cache
def taken(name: str) -> Mapping[str, Option]:
    """The options of a question that a request may have: all but those that name files to write."""
    return {key: one for key, one in options(find_verb(name).question).items() if not one.output}
