"""JSON Schema of questions and of answers, made from the classes that hold them."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    ForwardRef,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

import numpy as np
from pydantic import BaseModel

from rackline.api.answer import SCHEMA_VERSION, Answer, Verbatim, Watch, asks, find_verb
from rackline.api.question import Option, Question, defaults, option, options, question, written_defaults
from rackline.api.verbs import Entry, entries
from rackline.plain import json_keys

Schema = dict[str, Any]

# plain() writes numbers that are not finite as null
_NUMBER: Schema = {"type": ["number", "null"]}
_NUMBERS: Schema = {"anyOf": [_NUMBER, {"type": "array"}]}  # an array, of one or more dimensions, or a scalar
_SIMPLE: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: _NUMBER,
    str: {"type": "string"},
    NoneType: {"type": "null"},
    np.ndarray: _NUMBERS,
}
_ARGS = re.compile(r"^\s{4,}((?:\w+, )*\w+): (.+)$")


class Schemas:
    """Schemas of types, each class once under its name in `defs`."""

    def __init__(self) -> None:
        self.defs: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def of(self, kind: Any, where: str = "") -> Schema:
        """The schema of a type.

        Args:
            kind: a type or annotation, resolved.
            where: which it is, for errors.

        Raises:
            TypeError: a type of which nothing is known, such as Any.
        """
        origin, arguments = get_origin(kind), get_args(kind)
        if kind is None:
            return _SIMPLE[NoneType]
        if isinstance(kind, TypeVar):
            return self.of(kind.__bound__ or Union[kind.__constraints__], where)  # noqa: UP007
        if kind in _SIMPLE or origin in _SIMPLE:
            return _SIMPLE[kind if kind in _SIMPLE else origin]
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, UnionType):
            return _any_of([self.of(one, where) for one in arguments])
        if origin in (NotRequired, Annotated):
            return self.of(arguments[0], where)
        if inspect.isclass(kind) and issubclass(kind, Enum):
            return {"enum": [one.value for one in kind]}
        if inspect.isclass(origin or kind):
            return self._of_class(origin or kind, arguments, where)
        raise TypeError(f"{where}: {kind} has no schema")

    def _of_class(self, kind: type[Any], arguments: tuple[Any, ...], where: str) -> Schema:
        if is_dataclass(kind) or is_typeddict(kind) or issubclass(kind, BaseModel):
            return self._named(kind)
        if issubclass(kind, Mapping) and arguments:
            values = {} if arguments[1] is Any else self.of(arguments[1], where)
            return {"type": "object", "additionalProperties": values}
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            items = [self.of(one, where) for one in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if issubclass(kind, Collection) and arguments:
            return {"type": "array", "items": self.of(arguments[0], where)}
        raise TypeError(f"{where}: {kind} has no schema")

    def _named(self, kind: type) -> Schema:
        if kind not in self._names:
            name = kind.__name__ if kind.__name__ not in self.defs else f"{kind.__module__}.{kind.__name__}"
            self._names[kind] = name
            self.defs[name] = {}  # of a type that contains itself
            self.defs[name].update(self.object_of(kind))
        return {"$ref": f"#/$defs/{self._names[kind]}"}

    def objects_of(self, kind: Any, where: str) -> list[Schema]:
        """The schemas of the classes that an object may be of, each in a copy that may be added to."""
        parts = (self._resolved(self.of(one, where)) for one in _options(kind))
        return [{**_object(), **part, "required": list(part.get("required", ()))} for part in parts]

    def object_of(self, kind: Any) -> Schema:
        """The schema of a class that is written as an object, in place."""
        if is_typeddict(kind):
            return self._typed_dict(kind)
        if issubclass(kind, BaseModel):
            return self._record(kind)
        found: Schema = _object()
        said = described(kind)
        for key, path in json_keys(kind):
            place = found
            *inside, name = key.split(".")
            for one in inside:
                place = place["properties"].setdefault(one, _object())
                _require(found, inside[0])
            kinds = follow_type(kind, path)
            if name == "*":
                self._spread(place, kinds, f"{kind.__name__}.{path}")
                continue
            place["properties"].pop(name, None)
            place["properties"][name] = {**self.of(kinds, f"{kind.__name__}.{path}"), **said.get(path, {})}
            _require(place, name)
        return found

    def _spread(self, into: Schema, kind: Any, where: str) -> None:
        """Add the keys of an object to those of the one that holds it; of one that may be missing, none is required."""
        options = [one for one in _options(kind) if one is not NoneType]
        parts = [self._resolved(self.of(one, where)) for one in options]
        always: set[str] = set(parts[0]["required"]).intersection(*(part["required"] for part in parts))
        certain = len(parts) == 1 and NoneType not in _options(kind)
        properties: dict[str, Schema] = into["properties"]
        for part in parts:
            for name, schema in part["properties"].items():
                properties[name] = schema if certain or name not in properties else _any_of([properties[name], schema])
        if NoneType not in _options(kind):
            for name in sorted(always):
                _require(into, name)

    def _resolved(self, schema: Schema) -> Schema:
        return self.defs[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema

    def _typed_dict(self, kind: Any) -> Schema:
        found: Schema = _object()
        for name, one in hints(kind).items():
            found["properties"][name] = self.of(one, f"{kind.__name__}.{name}")
            if get_origin(one) is not NotRequired:
                _require(found, name)
        return found

    def _record(self, kind: type[BaseModel]) -> Schema:
        """A record of the catalogue; what is None is left out, and one may allow parameters of its own."""
        found: Schema = {**_object(), "additionalProperties": kind.model_config.get("extra") == "allow"}
        for name, one in kind.model_fields.items():
            key = one.serialization_alias or one.alias or name
            given = [each for each in _options(one.annotation) if each is not NoneType]
            found["properties"][key] = _any_of([self.of(each, f"{kind.__name__}.{name}") for each in given])
            if NoneType not in _options(one.annotation):
                _require(found, key)
        return found


def follow_type(kind: Any, path: str) -> Any:
    """The type of what lies at a path, as `plain.follow` walks it; with None where one of the steps may be None."""
    kinds: list[Any] = [kind]
    missing = False
    for step in path.split("."):
        missing = missing or NoneType in kinds
        found: list[Any] = []
        for one in kinds:
            if one is not NoneType:
                taken, may_miss = _step(one, step)
                missing = missing or may_miss
                found.extend(_options(taken))
        kinds = list(dict.fromkeys(found))
    if missing and NoneType not in kinds:
        kinds.append(NoneType)
    return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007


def _step(kind: Any, step: str) -> tuple[Any, bool]:
    """The type after one step, and whether there may be nothing."""
    if step.isdigit():
        arguments = get_args(kind)
        return (arguments[0], True) if arguments[-1] is Ellipsis else (arguments[int(step)], False)
    owner = get_origin(kind) or kind
    name = step.removesuffix("()")
    known = inspect.getattr_static(owner, name, None)
    if isinstance(known, property):
        return returned(known.fget), False
    if step.endswith("()") or inspect.isfunction(known):
        return returned(known), False
    annotations = hints(owner)
    if name not in annotations:
        raise TypeError(f"{owner.__name__}.{name} has no type")
    found = annotations[name]
    return (get_args(found)[0] if get_origin(found) is ClassVar else found), False


@cache
def returned(function: Any) -> Any:
    """The type that a function returns."""
    home = inspect.unwrap(function)
    return _evaluated(home.__annotations__["return"], home.__module__)


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The annotations of a class and of those it derives from."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__ if not is_typeddict(kind) else (kind,)):
        if base.__module__.startswith("rackline"):
            found |= {name: _evaluated(one, base.__module__) for name, one in inspect.get_annotations(base).items()}
    return found


def _evaluated(written: Any, module: str) -> Any:
    if isinstance(written, ForwardRef):  # of a typed dictionary, which may have inherited it
        return _evaluated(written.__forward_arg__, getattr(written.__forward_module__, "__name__", None) or module)
    return eval(written, _names_in(module)) if isinstance(written, str) else written


@cache
def _names_in(module: str) -> dict[str, Any]:
    """The names of a module, with those that it has for types alone."""
    known = dict(vars(sys.modules[module]))
    for block in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(block.body, []), module, "exec"), known)
    return known


@cache
def described(kind: type) -> dict[str, Schema]:
    """What the docstrings of a class and of its bases say of its fields, with the unit that they give in brackets."""
    found: dict[str, Schema] = {}
    for line in "\n".join(one.__doc__ or "" for one in reversed(kind.__mro__)).splitlines():
        if match := _ARGS.match(line):
            for name in match[1].split(", "):
                found[name] = {"description": match[2]}
                if unit := re.search(r"\[([^]]+)\]", match[2]):
                    found[name]["unit"] = unit[1]
    return found


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _object() -> Schema:
    return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def _require(schema: Schema, name: str) -> None:
    if name not in schema["required"]:
        schema["required"].append(name)


def _any_of(schemas: Iterable[Schema]) -> Schema:
    different: list[Schema] = []
    for schema in schemas:
        for one in schema["anyOf"] if set(schema) == {"anyOf"} else [schema]:
            if one not in different:
                different.append(one)
    return different[0] if len(different) == 1 else {"anyOf": different}


DRAFT = "https://json-schema.org/draft/2020-12/schema"


@question
class SchemaQuestion(Question):
    """What do questions and answers look like as JSON?"""

    name: str | None = option("text", "a question, such as plan; all by default", default=None, kw_only=False)
    answers: bool = option("switch", "the schema of answers instead of that of questions", default=False)


def _summary(answer: Answer[SchemaQuestion, dict[str, Any]]) -> str:
    what = "answers" if answer.question.answers else "questions"
    return f"{len(answer.result['oneOf'])} {what}, version {SCHEMA_VERSION}"


@asks(
    SchemaQuestion,
    text=lambda answer, width: [Verbatim(json.dumps(answer.result, indent=2, ensure_ascii=False) + "\n")],
    summary=_summary,
    rows=lambda answer: (
        {"ask": name, "option": key, "help": value.get("description"), "unit": value.get("unit")}
        for name, one in answer.result["$defs"].items()
        for key, value in one.get("properties", {}).items()
    ),
    entry=Entry(
        group="Programs",
        place=1,
        line="JSON Schema of questions and of answers.",
        request={"name": "fit"},
        examples="""
    rackline schema
    rackline schema plan
    rackline schema plan --answers
""",
    ),
)
def schema(question: SchemaQuestion, watch: Watch) -> dict[str, Any]:
    """Questions as JSON Schema: their options with units, defaults, bounds and help; or the JSON of their answers.

    Example:
        >>> import rackline as rl
        >>> rl.schema("fit").result["$defs"]["fit"]["properties"]["context"]["unit"]
        'token'
        >>> rl.schema("fit", answers=True).result["$defs"]["fit"]["properties"]["reason"]["type"]
        'string'
    """
    names = tuple(entries()) if question.name is None else (find_verb(question.name).question.ask,)
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
        if verb.simulates:
            head["compiled_loop"] = {**_SIMPLE[bool], **described(Answer)["compiled_loop"]}
        texts = schemas.of(tuple[str, ...])
        beside = {
            "model_origins": schemas.of(hints(Answer)["origins"]),
            "warnings": texts,
            "defaults": texts,
            "media": schemas.of(hints(Answer)["media"]),
            "adapter": schemas.of(hints(Answer)["adapter"]),
        }
        shown = returned(verb.data)  # generic where the result itself is shown
        forms = schemas.objects_of(returned(verb.solve) if isinstance(shown, TypeVar) else shown, name)
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
    if one.is_tuple and not one.several:
        texts = {"type": "array", "items": {"type": "string"}}
        return {"anyOf": [texts, {"type": "object"}, {"type": "string"}], "description": one.help}
    number: dict[str, Any] = {"type": {"whole": "integer"}.get(one.kind, "number")}
    if one.minimum is not None:
        number["minimum"] = one.minimum
    elif one.is_quantity:
        number["minimum" if one.zero else "exclusiveMinimum"] = 0
    most = {"fraction": 1.0}.get(one.kind) if one.maximum is None else one.maximum
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
