"""`schema`: questions and answers as JSON Schema, made from the same options and results that are used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from rackline.api.answer import SCHEMA_VERSION, Answer, Verbatim, asks, find_verb
from rackline.api.answer_schema import Schemas, answer_type, hints
from rackline.api.option import Option, option
from rackline.api.question import Question, defaults, options, question, written_defaults
from rackline.api.verbs import MODULES
from rackline.api.watch import Watch

DRAFT = "https://json-schema.org/draft/2020-12/schema"


@question
class SchemaQuestion(Question):
    """What do questions and answers look like as JSON?"""

    ask: ClassVar[str] = "schema"

    name: str | None = option("text", "a question, such as plan; all by default", default=None, kw_only=False)
    answers: bool = option("switch", "the schema of answers instead of that of questions", default=False)


def _text(answer: Answer[SchemaQuestion, dict[str, Any]], width: int) -> Iterable[Any]:
    import json

    yield Verbatim(json.dumps(answer.result, indent=2, ensure_ascii=False) + "\n")


def _summary(answer: Answer[SchemaQuestion, dict[str, Any]]) -> str:
    what = "answers" if answer.question.answers else "questions"
    return f"{len(answer.result['oneOf'])} {what}, version {SCHEMA_VERSION}"


def _rows(answer: Answer[SchemaQuestion, dict[str, Any]]) -> Iterable[Any]:
    for name, one in answer.result["$defs"].items():
        for key, value in one.get("properties", {}).items():
            yield {"ask": name, "option": key, "help": value.get("description"), "unit": value.get("unit")}


@asks(SchemaQuestion, text=_text, summary=_summary, rows=_rows)
def schema(question: SchemaQuestion, watch: Watch) -> dict[str, Any]:
    """Questions as JSON Schema: their options with units, defaults, bounds and help; or the JSON of their answers.

    Example:
        >>> import rackline as rl
        >>> rl.schema("fit").result["$defs"]["fit"]["properties"]["context"]["unit"]
        'token'
        >>> rl.schema("fit", answers=True).result["$defs"]["fit"]["properties"]["reason"]["type"]
        'string'
    """
    names = MODULES if question.name is None else (find_verb(question.name).question.ask,)
    return {
        "$schema": DRAFT,
        "title": f"{'answers' if question.answers else 'questions'} of rackline",
        "schema_version": SCHEMA_VERSION,
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in names],
        "$defs": answer_schemas(names)
        if question.answers
        else {name: question_schema(find_verb(name).question) for name in names},
    }


def answer_schemas(names: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema of what `--json` prints and `to_dict` returns, by question, and of its parts, by class."""
    schemas = Schemas()
    found: dict[str, Any] = {}
    for name in names:
        verb = find_verb(name)
        kind = verb.question
        asked = f"{name} question"
        schemas.defs[asked] = question_schema(kind)
        head: dict[str, Any] = {
            "schema_version": {"const": SCHEMA_VERSION},
            "question": {"$ref": f"#/$defs/{asked}"},
        }
        texts = schemas.of(tuple[str, ...])
        beside = {
            "model_origins": schemas.of(hints(Answer)["origins"]),
            "warnings": texts,
            "defaults": texts,
            "media": schemas.of(hints(Answer)["media"]),
            "adapter": schemas.of(hints(Answer)["adapter"]),
        }
        forms = schemas.objects_of(answer_type(verb.data, verb.solve), name)
        for form in forms:
            form["properties"] = head | beside | form["properties"]
            form["required"] = [*head, *form["required"]]
        title = {"title": f"answer of {name}: {(kind.__doc__ or '').partition(chr(10))[0]}"}
        found[name] = title | (forms[0] if len(forms) == 1 else {"anyOf": forms})
    return {**found, **schemas.defs}


def question_schema(kind: type[Question]) -> dict[str, Any]:
    """The JSON Schema of a question."""
    written, usual, known = written_defaults(kind), defaults(kind), options(kind)
    properties: dict[str, Any] = {"ask": {"const": kind.ask}}
    for name, one in known.items():
        properties[name] = _option_schema(one, nullable=name in written and written[name] is None)
        if written.get(name) is not None:
            value = usual[name]
            properties[name]["default"] = list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]
    return {
        "title": (kind.__doc__ or "").partition("\n")[0],
        "type": "object",
        "properties": properties,
        "required": ["ask", *(name for name in known if name not in written)],
        "additionalProperties": False,
    }


def _option_schema(one: Option, *, nullable: bool) -> dict[str, Any]:
    """The JSON Schema of one option: numbers are SI, texts carry their units."""
    if one.kind == "switch":
        return {"type": "boolean", "description": one.help}
    if one.kind == "settings":
        texts = {"type": "array", "items": {"type": "string"}}
        return {"anyOf": [texts, {"type": "object"}, {"type": "string"}], "description": one.help}
    number: dict[str, Any] = {"type": "integer" if one.kind == "whole" else "number"}
    if one.minimum is not None:
        number["minimum"] = one.minimum
    elif one.is_quantity:
        number["minimum" if one.zero else "exclusiveMinimum"] = 0
    most = 1.0 if one.kind == "fraction" and one.maximum is None else one.maximum
    if most is not None:
        number["maximum"] = most
    forms: list[dict[str, Any]] = [number, {"type": "string"}] if one.is_quantity else [{"type": "string"}]
    if one.unit != "-" and not one.is_quantity:
        forms.insert(0, {"type": "number"})
    if one.choices:
        forms = [{"enum": list(one.choices)}]
    if one.several:
        forms.append({"type": "array", "items": {"anyOf": list(forms)}, "minItems": 1})
    if nullable:
        forms.append({"type": "null"})
    found: dict[str, Any] = forms[0] if len(forms) == 1 else {"anyOf": forms}
    found = {**found, "description": one.help}
    return {**found, "unit": one.unit} if one.unit != "-" else found
