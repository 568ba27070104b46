"""What all records of the catalogue share: strict types, and a source for every number.

A record mirrors one TOML file. Unknown keys, strings where numbers belong, NaN, infinities and negative
values are rejected, and so is a number that no ``[[sources]]`` entry covers. Units are SI and stand in
the key's name; peak rates are dense (no structured sparsity). Single values may be replaced by dotted key; the
replacement is recorded as an assumption.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from rackline.errors import CatalogError, UnitError, nearest_name
from rackline.units import parse_number_for_key

Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
LayerCount = Annotated[int, Field(ge=1, le=10_000)]  # the deepest published model has about 1,000
CountOrZero = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Text = Annotated[str, Field(min_length=1)]
Date = Annotated[str, Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")]


class Evidence(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    VENDOR = "vendor"
    PAPER = "paper"
    DERIVED = "derived"
    ASSUMED = "assumed"


class Record(BaseModel):
    """Base of all catalogue tables: strict types, no unknown keys, frozen, finite numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)
    object_class: ClassVar[type | None] = None
    """Dataclass of which it is the file (`rackline.catalog.objects`)."""


class Source(Record):
    """Where the numbers of some keys come from.

    Args:
        fields: Dotted keys (``hbm_bytes``, ``levels.scale_up.latency_s``) or prefixes
            (``architecture.*``, ``*``).
        kind: How good the evidence is.
        citation: Citation as text.
        url: Where it can be read.
        accessed: When it was read, as a date.
        note: What a reader must know, such as a disagreement between sources.
    """

    fields: Annotated[tuple[Text, ...], Field(min_length=1)]
    kind: Annotated[Evidence, Field(strict=False)]
    citation: Text | None = None
    url: Text | None = None
    accessed: Date | None = None
    note: Text | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.citation is None and self.url is None:
            raise ValueError("a source needs a citation or a url")
        return self

    @property
    def text(self) -> str:
        """Kind, citation and url in one line."""
        return f"{self.kind}: " + ", ".join(part for part in (self.citation, self.url) if part)

    def covers(self, key: str) -> bool:
        """Say whether this source covers the dotted ``key``."""
        for field in self.fields:
            if field in ("*", key):
                return True
            if field.endswith(".*") and (key.startswith(field[:-1]) or key == field[:-2]):
                return True
        return False


def leaf_keys(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every leaf; elements of a list of tables are called by their name.

    Example:
        >>> list(leaf_keys({"a": 1, "levels": [{"name": "scale_up", "size": 8}]}))
        [('a', 1), ('levels.scale_up.name', 'scale_up'), ('levels.scale_up.size', 8)]
    """
    found: list[tuple[str, Any]] = []
    _collect(data, prefix, found)
    return iter(found)


def _collect(data: Any, prefix: str, found: list[tuple[str, Any]]) -> None:
    # one list instead of nested generators: reading the whole catalogue is a third faster
    if isinstance(data, dict):
        for key, value in data.items():  # pyright: ignore[reportUnknownVariableType]
            _collect(value, f"{prefix}.{key}" if prefix else str(key), found)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(data, (list, tuple)):
        for index, value in enumerate(data):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            _collect(value, f"{prefix}.{_element_name(value, index)}", found)
    else:
        found.append((prefix, data))


def _element_name(value: Any, index: int) -> str:
    name: Any = value.get("name") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return name if isinstance(name, str) else str(index)


class SourcedRecord(Record):
    """A whole catalogue file: a named object and the sources of its numbers."""

    name: Name
    aliases: tuple[Text, ...] = ()
    full_name: Text
    sources: tuple[Source, ...]

    def numbers(self) -> dict[str, float]:
        """Return every number that the file sets, by dotted key (defaults are not listed)."""
        data = self.model_dump(exclude_unset=True, by_alias=True, exclude={"sources"})
        return {
            key: value
            for key, value in leaf_keys(data)
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }

    def source_of(self, key: str) -> Source | None:
        """Return the source of a dotted key: the last one that covers it, or None."""
        return next((source for source in reversed(self.sources) if source.covers(key)), None)

    def need_sources(self, keys: Iterable[str]) -> None:
        """Refuse a record in which no source covers one of these dotted keys."""
        for key in keys:
            if self.source_of(key) is None:
                raise ValueError(f"no [[sources]] entry covers {key}")

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> Self:
        if not any("*" in source.fields for source in self.sources):
            first, *more = [key for key in self.numbers() if self.source_of(key) is None] or [""]
            if first:
                others = f" (nor {', '.join(more[:6])})" if more else ""
                raise ValueError(f"no [[sources]] entry covers the number {first}{others}")
        named = any("*" not in field for source in self.sources for field in source.fields)
        known = (
            {key for key, _ in leaf_keys(self.model_dump(exclude_unset=True, by_alias=True))} if named else set[str]()
        )
        for source in self.sources:
            for field in source.fields:
                if "*" not in field and not any(k == field or k.startswith(f"{field}.") for k in known):
                    raise ValueError(f"a source names the key {field}, which the file does not have")
        return self


_FIXED = frozenset({"name", "aliases", "full_name", "sources"})


def settable_keys(record: SourcedRecord) -> list[str]:
    """Return the dotted keys of a record that an override may set, whether or not the file sets them.

    Elements of a list of tables are called by their name (``levels.scale_up.latency_s``) or index.
    """
    return list(_keys(type(record), _as_data(record)))


def keys_of_table(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys that the schema allows in the table at a path."""
    return [key for table in tables_at(model, path) for key in _fields(table)]


def tables_at(model: type[BaseModel], path: Sequence[str | int]) -> list[type[BaseModel]]:
    """Return the tables that the schema allows at a path; indices of lists are passed over."""
    tables: list[type[BaseModel]] = [model]
    for part in path:
        if isinstance(part, str):
            tables = [inner for table in tables for inner in inner_models(_fields(table).get(part))]
    return tables


def apply_overrides(
    model: type[SourcedRecord], data: dict[str, Any], overrides: Mapping[str, object]
) -> dict[str, Any]:
    """Return a copy of the data with values replaced and one source of kind "assumed" added.

    Args:
        model: The record's class.
        data: Validated data of the file, lists as tuples.
        overrides: Dotted keys and values; a text for a number may carry a unit ("20TB/s").

    Raises:
        CatalogError: A key that the record does not have, or a text that is not a number.
    """
    allowed = list(_keys(model, data))
    result = data
    for key, value in overrides.items():
        if key not in allowed:
            raise CatalogError(
                what="override",
                given=key,
                allowed=f"a key of {data.get('name', 'the record')}",
                nearest=nearest_name(key, allowed),
            )
        result = cast("dict[str, Any]", _replaced(result, key.split("."), _value(model, data, key, value)))
    source = {"fields": tuple(overrides), "kind": "assumed", "citation": "set by the user (--set)"}
    return result | {"sources": (*result.get("sources", ()), source)}


def _as_data(record: BaseModel) -> dict[str, Any]:
    return record.model_dump(exclude_unset=True, by_alias=True)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _leaf_types(annotation: Any) -> Iterator[Any]:
    """Yield the plain types inside optionals, unions, annotations and tuples."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _leaf_types(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for inner in typing.get_args(annotation):
            yield from _leaf_types(inner)
    else:
        yield annotation


def inner_models(field: FieldInfo | None) -> list[type[BaseModel]]:
    """Return the tables that a field may hold, directly or as elements of a list."""
    found: list[type[BaseModel]] = []
    for kind in _leaf_types(field.annotation) if field else ():
        origin, inside = typing.get_origin(kind), typing.get_args(kind)
        elements = inside[:1] if origin is tuple else inside[1:] if origin is dict else (kind,)
        for element in elements:
            for inner in _leaf_types(element):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    found.append(inner)
    return found


def _keys(model: type[BaseModel], data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    if model.model_config.get("extra") == "allow":
        yield from (f"{prefix}{name}" for name in data if name not in model.model_fields)
    for name, info in _fields(model).items():
        if not prefix and name in _FIXED:
            continue
        key = f"{prefix}{name}"
        value = data.get(name)
        tables = inner_models(info)
        if not tables:
            yield key
        elif any(typing.get_origin(kind) is dict for kind in _leaf_types(info.annotation)):
            for called, element in cast("Mapping[str, Mapping[str, Any]]", value or {}).items():
                yield from _keys(tables[0], element, f"{key}.{called}.")
        elif isinstance(value, Mapping):
            inner_data = cast("Mapping[str, Any]", value)
            for table in _fitting(tables, inner_data):
                yield from _keys(table, inner_data, f"{key}.")
        elif isinstance(value, tuple):
            for index, element in enumerate(cast("tuple[Mapping[str, Any], ...]", value)):
                yield from _keys(tables[0], element, f"{key}.{_called(element, index)}.")


def _fitting(tables: list[type[BaseModel]], data: Mapping[str, Any]) -> list[type[BaseModel]]:
    """Of several possible tables, keep the one whose ``kind`` the data names, or that has all of its tables."""
    if len(tables) == 1:
        return tables
    if not all("kind" in table.model_fields for table in tables):
        return [table for table in tables if set(data) <= set(_fields(table))][:1] or tables[:1]
    return [table for table in tables if table.model_fields["kind"].default == data.get("kind")]


def _called(element: Mapping[str, Any], index: int) -> str:
    name = element.get("name")
    return name if isinstance(name, str) else str(index)


def _replaced(data: Any, path: list[str], value: object) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(data, tuple):
        return tuple(
            _replaced(element, rest, value) if _called(element, index) == head else element
            for index, element in enumerate(cast("tuple[Mapping[str, Any], ...]", data))
        )
    table = cast("Mapping[str, Any]", data)
    return {**table, head: _replaced(table.get(head, {}), rest, value)}


def _value(model: type[SourcedRecord], data: Mapping[str, Any], key: str, value: object) -> object:
    """Turn a text given for a number into that number, and 8.0 given for a count into 8."""
    info = _field_at(model, data, key)
    kinds = set(_leaf_types(info.annotation)) if info else set[Any]()
    if isinstance(value, list):
        return tuple(cast("list[object]", value))
    if isinstance(value, str) and bool in kinds and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and kinds & {int, float}:
        try:
            value = parse_number_for_key(value, name=key)
        except UnitError as error:
            raise CatalogError(
                what=error.what,
                given=error.given,
                allowed=error.allowed,
                where="override",
                nearest=error.nearest,
            ) from None
    if isinstance(value, float) and int in kinds and value.is_integer():
        return int(value)
    return value


def _field_at(model: type[BaseModel], data: Mapping[str, Any], key: str) -> FieldInfo | None:
    tables: list[type[BaseModel]] = [model]
    here: Any = data
    info: FieldInfo | None = None
    for part in key.split("."):
        if isinstance(here, tuple):
            elements = cast("tuple[Mapping[str, Any], ...]", here)
            here = next(element for index, element in enumerate(elements) if _called(element, index) == part)
            continue
        table = cast("Mapping[str, Any]", here)
        if info is not None and any(typing.get_origin(kind) is dict for kind in _leaf_types(info.annotation)):
            here, info = table.get(part, {}), None  # a table of tables by name
            continue
        info = _fields(_fitting(tables, table)[0]).get(part)
        tables, here = inner_models(info), table.get(part, {})
    return info
