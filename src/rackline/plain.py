"""Results as plain data for JSON.

A dataclass is written as its public fields. A class whose JSON differs says so in `json_keys`, a tuple of texts:
`name` is a field or property, `key=path` another key for what lies at a path (`model=model.name`; `()` calls a
method, a number takes one of several), `part.key=path` puts it into an object of its own, and `*path` spreads what
lies there into the object itself. Numbers that are not finite become null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

# records of the catalogue, and arrays and scalars of NumPy, know their plain forms
_OWN_FORMS: dict[str, dict[str, Any]] = {
    "model_dump": {"mode": "json", "by_alias": True, "exclude_none": True},
    "tolist": {},
}


def plain(value: Any) -> Any:
    """Plain data: dictionaries, lists, texts, numbers, booleans and None.

    Args:
        value: a dataclass, mapping, sequence, array or scalar.

    Raises:
        TypeError: something that has no plain form.

    Example:
        >>> from rackline.parallel import Layout
        >>> plain({"layout": Layout(tp=8), "seconds": float("inf")})["layout"]["tp"]
        8
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if is_dataclass(value):
        return object_of(value)
    for name, arguments in _OWN_FORMS.items():
        own = getattr(value, name, None)
        if own is not None:
            return plain(own(**arguments))
    if isinstance(value, Set):
        return sorted(plain(item) for item in cast("Set[Any]", value))
    if isinstance(value, Iterable):
        return [plain(item) for item in cast("Iterable[Any]", value)]
    raise TypeError(f"{type(value).__name__} has no plain form")


def object_of(value: Any) -> dict[str, Any]:
    """The plain form of a dataclass."""
    data: dict[str, Any] = {}
    for key, path in json_keys(value.__class__):
        found = plain(follow(value, path))
        *places, name = key.split(".")
        inside = data
        for place in places:
            inside = inside.setdefault(place, {})
        if name != "*":
            inside[name] = found
        elif found is not None:
            inside.update(cast("dict[str, Any]", found))
    return data


@cache
def json_keys(kind: type) -> tuple[tuple[str, str], ...]:
    """Keys of a dataclass in JSON, each with the path to its value; the key * spreads the value."""
    declared: tuple[str, ...] | None = getattr(kind, "json_keys", None)
    if declared is None:
        return tuple((field.name, field.name) for field in fields(kind) if not field.name.startswith("_"))
    return tuple(_declared(declared))


def follow(value: Any, path: str) -> Any:
    """What lies at a path of attributes; None where one of them is None."""
    for step in path.split("."):
        if value is None:
            return None
        if step.isdigit():
            value = value[int(step)] if int(step) < len(value) else None
            continue
        name = step.removesuffix("()")
        value = getattr(value, name)
        if name != step:
            value = value()
    return value


def at_key(value: Any, key: str) -> Any:
    """What JSON has under a key, with dots for parts of parts; None where a part is None.

    Args:
        value: a dataclass.
        key: a key of it, or the name of one of its properties that JSON leaves out.
    """
    for name in key.split("."):
        if value is None:
            return None
        value = follow(value, (dict(json_keys(type(value))) if is_dataclass(value) else {}).get(name, name))
    return value


def _declared(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        key, equals, path = text.partition("=")
        if text.startswith("*") and not equals:
            yield "*", text[1:]
        else:
            yield key, path if equals else key
