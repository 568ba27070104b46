"""Answers as they are sent: the JSON of `--json`, and what a page shows besides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from io import StringIO
from typing import Any, cast

from rackline.api.answer import Answer, Verbatim, Watch, answer_of, find_verb, noted
from rackline.api.ask import read_questions
from rackline.api.question import Option, command_of, options, python_of, written_defaults
from rackline.api.schema import answer_schemas, question_schema
from rackline.api.verbs import entries
from rackline.errors import shown
from rackline.late import late
from rackline.plain import plain
from rackline.web.asked import EVENTS, KINDS, MEDIA_TYPE, SCRIPT, Limits, offered, offered_names, problem, taken

with late:
    from rackline.display import column, wording
    from rackline.report import exports


COLUMNS = 80  # of what has no form of its own on a page
_BAR = re.compile(r"\s*[━●┃█▏▎▍▌▋▊▉][━●┃█▏▎▍▌▋▊▉ ]*")  # a bar of the terminal, which says what its numbers say
Part = dict[str, Any]


def printed_parts(shown: Iterable[Any]) -> list[Part]:
    """What is printed, in its order.

    Args:
        shown: what `Answer.text` returns.

    Returns:
        Parts by `kind`: a `box` with title and lines, a `table` with title, columns, rows and caption, `words`, or
        `lines` that keep their breaks.
    """
    found: list[Part] = []
    for one in _parts(shown):
        text = one.get("text")
        if text is not None and not text.strip():
            continue
        if found and one["kind"] == found[-1]["kind"] in ("words", "lines"):
            found[-1] = {**one, "text": f"{found[-1]['text']}\n{text}"}
        else:
            found.append(one)
    return found


def _parts(shown: Iterable[Any]) -> Iterator[Part]:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    for one in shown:
        if isinstance(one, column.Sheet):
            yield {"kind": "table", **one.as_text()}
        elif isinstance(one, wording.Box):
            lines = [_BAR.sub(": ", line).strip(": ") for line in one.body.plain.splitlines()]
            yield {"kind": "box", "title": one.title, "lines": [*lines, *([one.subtitle] if one.subtitle else [])]}
        elif isinstance(one, Group):
            yield from _parts(one.renderables)
        elif isinstance(one, Padding):
            yield from _parts([one.renderable])
        elif isinstance(one, wording.Prose | Text | str):
            text = one if isinstance(one, str) else one.plain
            yield {"kind": "words", "text": _BAR.sub(": ", text) if "━" in text else text}
        else:
            yield {"kind": "lines", "text": one.text if isinstance(one, Verbatim) else plain_text([one])}


def plain_text(shown: Iterable[Any]) -> str:
    """What is printed, as text of 80 columns without colours."""
    from rich.console import Console

    console = Console(width=COLUMNS, file=StringIO(), highlight=False, color_system=None)
    with console.capture() as written:
        for part in shown:
            if isinstance(part, Verbatim):
                console.out(part.text, end="")
            else:
                console.print(part)
    return written.get()


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
        "card": plain(found.verb.card(found)),
        "origins": plain(found.verb.origins(found)),
        "text": plain_text(found.text(COLUMNS)),
        "printed": printed_parts(found.text(COLUMNS)),
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


_LABELS = {
    "on": "Cluster",
    "tpot": "Time per output token",
    "ttft": "Time to first token",
    "quality_of": "As good as",
}


def first_options(view: Mapping[str, Any]) -> dict[str, Any]:
    """Help and choices of the fields of a view that asks."""
    if "verb" not in view:
        return {}
    known = options(find_verb(view["verb"]).question)
    return {"options": {name: _described_option(name, known[name]) for name in view["fields"]}}


def _described_option(name: str, one: Option) -> dict[str, Any]:
    choices = ("true", "false") if one.kind == "switch" else one.choices
    return {
        "label": _LABELS.get(name, name.replace("_", " ").capitalize()),
        "help": one.help,
        "positional": one.positional,
        "choices": ["", *choices] if choices else [],
    }


def all_options(verb: str) -> dict[str, Any]:
    """Every option of a question that a form may have, with its heading and how its text is read."""
    return {
        "options": {
            name: {
                **_described_option(name, one),
                "group": one.group,
                "kind": one.kind,
                "list": one.is_tuple and not one.is_quantity,
            }
            for name, one in taken(verb).items()
            if not one.hidden
        }
    }


Schema = dict[str, Any]

_ABOUT = (
    "One endpoint for each question of rackline: options in, the JSON of `--json` out, in SI units. Quantities may be "
    "texts with a unit, such as 30ms, 4k or 141GB. `POST` takes the options as JSON, `GET` as flat texts. Files of "
    "your own are sent along under `uploads` and named in place of a catalogue name. With `Accept: text/event-stream`, "
    "progress is told as it comes (`progress` events), a plan's view by estimates before the best is simulated "
    "(`estimate`), then one `answer` or `problem` event. Closing the connection "
    "stops the work."
)
_BAD_INPUT = ("what", "given", "allowed", "where", "nearest")
_BODY_PROBLEMS = ("bad-json", "too-large", "not-json")
_ALWAYS = ("bad-host", "bad-input", "too-busy", "failed", "worker-lost", "too-long", "too-much-memory")


def description() -> Schema:
    """The whole description."""
    names = offered_names()
    schemas = {name: _moved(one) for name, one in answer_schemas(names).items()}
    answers = {_key(f"{name} answer"): schemas.pop(name) for name in names}
    parts = {_key(name): one for name, one in schemas.items()}
    paths: Schema = {}
    for name in names:
        paths[f"/api/v1/{name}"] = _path(name, view=False)
        paths[f"/api/v1/{name}/view"] = _path(name, view=True)
    paths["/api/v1/explain/script"] = {"get": _script(paths["/api/v1/explain"]["get"])}
    return {
        "openapi": "3.1.0",
        "info": {"title": "rackline", "version": version("rackline"), "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": {**answers, **parts, **_questions(), "problem": _problem()}},
    }


def _questions() -> Schema:
    """Questions as bodies: without what names files to write, with files of the reader's own."""
    found: Schema = {}
    for name in offered_names():
        for view in (False, True):
            one = question_schema(find_verb(name).question)
            known = taken(name)
            properties: Schema = {key: each for key, each in one["properties"].items() if key == "ask" or key in known}
            properties["uploads"] = {
                "type": "object",
                "description": "files of your own: name and text",
                "maxProperties": Limits().uploads,
                "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
                "additionalProperties": {"type": "string"},
            }
            if view:
                kinds = list(find_verb(name).figures)
                properties["figures"] = {
                    "type": "array",
                    "maxItems": len(kinds),
                    "items": {"enum": kinds} if kinds else False,
                    "description": "figures to draw; the first kind by default",
                }
            one["required"] = [key for key in one["required"] if key != "ask"]
            found[_key(f"{name} view question" if view else f"{name} body")] = {**one, "properties": properties}
    return found


def _path(name: str, *, view: bool) -> Schema:
    verb = find_verb(name)
    title = (verb.question.__doc__ or "").partition("\n")[0]
    about = f"{title} With its summary, text, columns and figures, and how it is asked elsewhere." if view else title
    answer = {"$ref": f"#/components/schemas/{_key(f'{name} answer')}"}
    content: Schema = {
        "application/json": {"schema": _view(answer) if view else answer},
        EVENTS: {"schema": {"type": "string"}},
    }
    found = {
        "200": {
            "description": "the answer",
            "headers": {"ETag": {"description": "of the request and this build", "schema": {"type": "string"}}},
            "content": content,
        }
    }
    suffix = "_view" if view else ""
    example = verb.entry.request
    body = {"$ref": f"#/components/schemas/{_key(f'{name} view question' if view else f'{name} body')}"}
    usual = written_defaults(verb.question)
    parameters = [
        {
            "name": key,
            "in": "query",
            "required": key not in usual,
            "description": one.help,
            "schema": {"type": "string"},
            **({"example": params[key]} if key in (params := _params(name, example)) else {}),
        }
        for key, one in taken(name).items()
    ]
    return {
        "post": {
            "operationId": f"{name.replace('-', '_')}{suffix}",
            "summary": about,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": body, "example": example}},
            },
            "responses": found | _refusals((*_BODY_PROBLEMS, *_ALWAYS)),
        },
        "get": {
            "operationId": f"{name.replace('-', '_')}{suffix}_by_address",
            "summary": about,
            "parameters": parameters,
            "responses": {**found, "304": {"description": "as the reader has it"}, **_refusals(_ALWAYS)},
        },
    }


def _script(explained: Schema) -> Schema:
    """What is explained at any batch and context."""
    answer = {**explained["responses"]["200"], "content": {SCRIPT.partition(";")[0]: {"schema": {"type": "string"}}}}
    return {
        **explained,
        "operationId": "explain_script",
        "summary": "A decode step of any batch and context: the functions that the page computes it with, as a script "
        "that hands itself to the page.",
        "parameters": [one for one in explained["parameters"] if one["name"] != "prefill"],
        "responses": {**explained["responses"], "200": answer},
    }


def _params(name: str, example: Mapping[str, Any]) -> Mapping[str, str]:
    if "uploads" in example:
        return {}
    return find_verb(name).question.from_data(example).to_params()


def _view(answer: Schema) -> Schema:
    text = {"type": "string"}
    properties = {
        "answer": answer,
        "summary": text,
        "interval": {**text, "description": "how far off the numbers may be; empty where nothing is known"},
        "card": {
            "type": "object",
            "description": "numbers of a decision, with bands and limits; empty where none is made",
        },
        "origins": {
            "type": "array",
            "items": {"type": "object"},
            "description": "rows whose numbers open to what they are made of; only of explain",
        },
        "text": {**text, "description": "what the command prints, 80 columns wide"},
        "printed": {
            "type": "array",
            "items": {"type": "object"},
            "description": "the same in parts: boxes, sentences, and tables of the declared columns",
        },
        "columns": {"type": "object", "additionalProperties": {"type": "array"}},
        "csv": text,
        "figures": {
            "type": "object",
            "additionalProperties": {"type": "object"},
            "description": "Vega-Lite by kind, without `config`",
        },
        "documents": {
            "type": "object",
            "additionalProperties": text,
            "description": "to be copied, such as launch commands and manifests, by title",
        },
        "command": text,
        "python": text,
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _refusals(kinds: tuple[str, ...]) -> Schema:
    found: Schema = {}
    for kind in kinds:
        status, title = KINDS[kind]
        one = found.setdefault(
            str(status),
            {"description": "", "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/problem"}}}},
        )
        one["description"] = f"{one['description']}; {title}".removeprefix("; ")
    return found


def _problem() -> Schema:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "RFC 9457: what was given, what is allowed, where, and the nearest",
        "properties": {
            "type": {"enum": [f"/problems/{kind}" for kind in KINDS]},
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            **{key: {"type": ["string", "number"]} for key in _BAD_INPUT},
            "retry": {"type": "boolean", "description": "whether asking the same again may help"},
        },
        "required": ["type", "title", "status", "detail"],
    }


def _key(name: str) -> str:
    """A name as components have them."""
    return name.replace(" ", "_")


def _moved(value: Any) -> Any:
    """A schema whose references lead to the components."""
    if isinstance(value, dict):
        found = {key: _moved(one) for key, one in cast("Schema", value).items()}
        if isinstance(found.get("$ref"), str):
            name = found["$ref"].removeprefix("#/$defs/")
            found["$ref"] = f"#/components/schemas/{_key(name)}"
        return found
    if isinstance(value, list):
        return [_moved(one) for one in cast("list[Any]", value)]
    return value
