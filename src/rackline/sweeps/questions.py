"""Questions that are no arithmetic of a compiled table: each combination is asked once, its numbers are columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, assert_never, cast

from rackline.api.answer import answer_of, find_verb
from rackline.api.question import Option, options
from rackline.api.schema import answer_schemas
from rackline.api.verbs import entries
from rackline.errors import InputError, RacklineError, nearest_name
from rackline.sweeps.file import SweepFile

_DEEPEST = 2  # keys inside of keys that are columns by default
_NO_NUMBERS = ("deployment.", "precision.", "nearest.", "model_origins.", "warnings.")
_NOT_RESULTS = ("schema_version", "elapsed_s")
_INDEX = re.compile(r"\.\d+(?=\.|$)")
_TYPES = ("number", "integer", "string", "boolean")


def results_of(file: SweepFile) -> dict[str, str]:
    """Columns of results of a question: name → "number", "integer", "string" or "boolean".

    Raises:
        InputError: a column that its answers do not have.
    """
    known = leaves(file.ask)
    if file.output.results:
        for name in file.output.results:
            if _INDEX.sub(".0", name) not in known:
                raise InputError(
                    what="output results",
                    given=name,
                    allowed=f"a number of the JSON of {file.ask}, such as {', '.join(list(known)[:5])}; see "
                    f"`rackline schema {file.ask} --answers`",
                    nearest=nearest_name(name, known),
                )
        return {name: known[_INDEX.sub(".0", name)] for name in file.output.results}
    place = entries()[file.ask].sweep_results
    deepest = 0 if place else _DEEPEST - 1
    return {
        name: kind
        for name, kind in known.items()
        if name.startswith(place)
        and not name.startswith(_NO_NUMBERS)
        and name.removeprefix(place).count(".") <= deepest
        and ".0" not in name.removeprefix(place)
        and kind != "string"
    }


@cache
def leaves(ask: str) -> dict[str, str]:
    """Numbers, texts and switches of the JSON of an answer, by dotted key, with their JSON type."""
    schemas = answer_schemas((ask,))
    found: dict[str, str] = {}
    for name, kind in _leaves(schemas[ask], schemas, "", ()):
        if not name.startswith("question.") and name not in _NOT_RESULTS:
            found.setdefault(name, kind)
    return found


def _leaves(
    schema: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str, above: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        if name not in above:
            yield from _leaves(schemas[name], schemas, prefix, (*above, name))
        return
    for one in schema.get("anyOf", ()):
        yield from _leaves(one, schemas, prefix, above)
    if isinstance(schema.get("items"), Mapping):  # of a list, which may be asked for by a number
        yield from _leaves(schema["items"], schemas, f"{prefix}.0", above)
    kinds = schema.get("type")
    listed = [kinds] if isinstance(kinds, str) else list(kinds or ())
    kind = next((one for one in _TYPES if one in listed), None)
    if kind is not None and prefix:
        yield prefix, kind
    for key, part in schema.get("properties", {}).items():
        yield from _leaves(part, schemas, f"{prefix}.{key}" if prefix else key, above)


def ask_once(file: SweepFile, values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The columns of one combination, and why there are none where it failed.

    Args:
        values: of the quantities that have several, by name.

    Returns:
        Column → number, text, switch or None; the reason, empty without one.
    """
    verb = find_verb(file.ask)
    known = options(verb.question)
    columns = results_of(file)
    asked: dict[str, Any] = {**file.fixed}
    settings: dict[str, Any] = {**file.settings}
    for axis in file.axes:
        if axis.name not in values:
            continue
        match axis.place:
            case "option":
                asked[axis.name] = _option_value(values[axis.name], known[axis.name])
            case "set":
                settings[axis.name] = values[axis.name]
            case "input":
                pass
            case _:
                assert_never(axis.place)
    try:
        if settings:
            if "set" not in known:
                raise InputError(what="set", given=next(iter(settings)), allowed=f"no settings: {file.ask} has none")
            asked["set"] = [f"{key}={_written(value)}" for key, value in settings.items()]
        answer = answer_of(verb.question.from_data(asked), cast("Callable[..., Any]", verb.solve))
        data = answer.to_dict()
    except RacklineError as error:
        return dict.fromkeys(columns), str(error)
    found = {name: _typed(follow(data, name), kind) for name, kind in columns.items()}
    why = data.get("reason")
    refused = data.get("fits") is False or data.get("feasible") is False
    return found, str(why or "no result") if (refused or all(value is None for value in found.values())) else ""


def _option_value(value: Any, option: Option) -> Any:
    """A value of a list that may itself be a list, which is kept as JSON."""
    if option.several and isinstance(value, str) and value.startswith("["):
        return json.loads(value)
    return value


def _written(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def follow(data: Mapping[str, Any], path: str) -> Any:
    """What lies at a dotted key; None where it leads nowhere."""
    found: Any = data
    for key in path.split("."):
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Any]", found).get(key)
        elif isinstance(found, list) and key.isdigit():
            found = cast("list[Any]", found)[int(key)] if int(key) < len(cast("list[Any]", found)) else None
        else:
            return None
    return found


def _typed(value: Any, kind: str) -> Any:
    match kind:
        case "string":
            return value if isinstance(value, str) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case _:
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
