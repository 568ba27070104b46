"""Answers as they are sent: the JSON of `--json`, and what a page shows besides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from rackline.api.answer import Answer, Verbatim, answer_of, find_verb, noted
from rackline.api.ask import read_questions
from rackline.api.question import command_of, options, python_of
from rackline.api.verbs import entries
from rackline.api.watch import Watch
from rackline.errors import shown
from rackline.late import late
from rackline.plain import plain
from rackline.web.offered import offered, offered_names, taken
from rackline.web.problem import problem

with late:
    from rackline.report import exports
    from rackline.web import openapi, scenario

TEXT_COLUMNS = 80


def question_body(question: Mapping[str, Any], watch: Watch, *, view: bool, figures: Sequence[str] | None) -> bytes:
    """Ask, and write the answer.

    Args:
        question: as `Question.to_data` writes it.
        watch: is told how far it is.
        view: with all that a page shows.
        figures: kinds that are drawn in a view; the first by default.

    Raises:
        RacklineError: bad input, or a kind of figure that the answer does not have.
    """
    verb = find_verb(str(question["ask"]))
    if verb.question.ask == "ask":
        _check_questions(str(question["file"]))
    found = answer_of(verb.question.from_data(question), verb.solve, watch)
    return as_json(view_of(found, figures) if view else found.to_dict())


def script_body(question: Mapping[str, Any], watch: Watch) -> bytes:
    """What `explain` is asked, at any batch and context, as the script that the page computes with.

    Args:
        question, watch: as above.

    Raises:
        RacklineError: as `rackline explain`; a part of it cannot be written as a script.
    """
    verb = find_verb(str(question["ask"]))
    return scenario.asked_script(answer_of(verb.question.from_data(question), verb.solve, watch)).encode()


def estimate_body(question: Mapping[str, Any], result: Any, watch: Watch, figures: Sequence[str] | None) -> bytes:
    """An answer by estimates as a page shows it.

    Args:
        question, figures: as above.
        result: by estimates.
        watch: has noted what was read.
    """
    asked = find_verb(str(question["ask"])).question.from_data(question)
    return as_json(view_of(noted(asked, result, watch, 0.0), figures))


def _check_questions(file: str) -> None:
    """Refuse a file with questions, or options, that have no endpoint.

    Raises:
        ProblemError: it has such.
    """
    for number, one in enumerate(read_questions(file), start=1):
        name = str(one.get("ask", ""))
        if name in entries() and name not in offered_names():
            offered(name)
        for key in one:
            if name in offered_names() and key in options(find_verb(name).question) and key not in taken(name):
                detail = f"question {number}: {key}: the server writes no files"
                raise problem("bad-input", detail, what=key, given=shown(one[key]), allowed="nothing")


def openapi_body() -> bytes:
    """The description of all endpoints."""
    return as_json(openapi.description())


def as_json(data: Any) -> bytes:
    """Plain data as it is sent."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def view_of(found: Answer[Any, Any], figures: Sequence[str] | None) -> dict[str, Any]:
    """The answer: its summary, how far off it may be, its text, rows and figures, and how it is asked elsewhere.

    Args:
        found: the answer.
        figures: kinds that are drawn; the first by default.
    """
    kinds = list(found.verb.figures)[:1] if figures is None else figures
    columns = plain(exports.columns_of(found.verb.rows(found)))
    return {
        "answer": found.to_dict(),
        "summary": found.verb.summary(found),
        "interval": found.verb.interval(found),
        "text": _text(found),
        "columns": columns,
        "csv": exports.csv_text(columns),
        "figures": {kind: _figure(found, kind) for kind in kinds},
        "documents": dict(found.verb.documents(found)),
        "command": command_of(found.question),
        "python": python_of(found.question),
    }


def _figure(found: Answer[Any, Any], kind: str) -> dict[str, Any]:
    """Vega-Lite without its look, which the page sets."""
    spec = found.plot(kind).to_dict()
    del spec["config"]
    return spec


def _text(found: Answer[Any, Any]) -> str:
    from rich.console import Console

    console = Console(width=TEXT_COLUMNS, file=StringIO(), highlight=False, color_system=None)
    with console.capture() as written:
        for part in found.text(TEXT_COLUMNS):
            if isinstance(part, Verbatim):
                console.out(part.text, end="")
            else:
                console.print(part)
    return written.get()
