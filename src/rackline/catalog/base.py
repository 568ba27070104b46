"""What all records of the catalogue share: strict types, and a source for every number.

A record mirrors one TOML file. Unknown keys, strings where numbers belong, NaN, infinities and negative
values are rejected, and so is a number that no ``[[sources]]`` entry covers. Units are SI and stand in
the key's name; peak rates are dense (no structured sparsity). Single values may be replaced by dotted key; the
replacement is recorded as an assumption.

An object may be its own record: a dataclass whose fields are the keys of its file. The annotations of the fields say
what a file may hold (`Annotated[float, Field(ge=0.0)]`), their defaults what it may leave out; a field that is a
dataclass itself is a table of the file. Files are read as strictly as all others: through a record of the same fields,
made once. So a new number of an object is a field there and a value in its file.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
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


def refuse(problems: Iterable[tuple[object, str]]) -> None:
    """Refuse a table for the first of (whether something is not consistent, what it is in words) that holds."""
    for found, words in problems:
        if found:
            raise ValueError(words)


class Record(BaseModel):
    """Base of all catalogue tables: strict types, no unknown keys, frozen, finite numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)
    object_class: ClassVar[type | None] = None
    """Dataclass of which it is the file (`schema_of`)."""


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
        return any(
            one in ("*", key) or (one.endswith(".*") and (key.startswith(one[:-1]) or key == one[:-2]))
            for one in self.fields
        )


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
            _collect(value, f"{prefix}.{_called(value, index)}", found)
    else:
        found.append((prefix, data))


def _called(element: Any, index: int) -> str:
    """What an element of a list is called in keys: by its name, else its place."""
    name: Any = element.get("name") if isinstance(element, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
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
        named = [one for source in self.sources for one in source.fields if "*" not in one]
        data = self.model_dump(exclude_unset=True, by_alias=True) if named else {}
        known = {key for key, _ in leaf_keys(data)}
        for one in named:
            if not any(k == one or k.startswith(f"{one}.") for k in known):
                raise ValueError(f"a source names the key {one}, which the file does not have")
        return self


_FIXED = frozenset({"name", "aliases", "full_name", "sources"})


def settable_keys(record: SourcedRecord) -> list[str]:
    """Return the dotted keys of a record that an override may set, whether or not the file sets them.

    Elements of a list of tables are called by their name (``levels.scale_up.latency_s``) or index.
    """
    return list(_keys(type(record), record.model_dump(exclude_unset=True, by_alias=True)))


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


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _leaf_types(annotation: Any) -> Iterator[Any]:
    """Yield the plain types inside optionals, unions, annotations and tuples."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        yield from _leaf_types(get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _leaf_types(inner)
    else:
        yield annotation


def inner_models(field: FieldInfo | None) -> list[type[BaseModel]]:
    """Return the tables that a field may hold, directly or as elements of a list."""
    found: list[Any] = []
    for kind in _leaf_types(field.annotation) if field else ():
        origin, inside = get_origin(kind), get_args(kind)
        elements = inside[:1] if origin is tuple else inside[1:] if origin is dict else (kind,)
        found += [inner for element in elements for inner in _leaf_types(element)]
    return [inner for inner in found if isinstance(inner, type) and issubclass(inner, BaseModel)]


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
        elif any(get_origin(kind) is dict for kind in _leaf_types(info.annotation)):
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
    """Among several possible tables, keep the one whose ``kind`` the data names, or that has all of its tables."""
    if len(tables) == 1:
        return tables
    if not all("kind" in table.model_fields for table in tables):
        return [table for table in tables if set(data) <= set(_fields(table))][:1] or tables[:1]
    return [table for table in tables if table.model_fields["kind"].default == data.get("kind")]


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
                what=error.what, given=error.given, allowed=error.allowed, where="override", nearest=error.nearest
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
        if info is not None and any(get_origin(kind) is dict for kind in _leaf_types(info.annotation)):
            here, info = table.get(part, {}), None  # a table of tables by name
            continue
        info = _fields(_fitting(tables, table)[0]).get(part)
        tables, here = inner_models(info), table.get(part, {})
    return info


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueObject:
    """What every object with a file has.

    Args:
        name: Catalogue name.
        full_name: Display name.
        aliases: Other spellings of the name.
        sources: Where the numbers come from.
    """

    name: Name
    full_name: Text = field(default="", compare=False)
    aliases: tuple[Text, ...] = field(default=(), compare=False)
    sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with other values by dotted key, such as ``{"scheduler.max_num_seqs": 256}``.

        Raises:
            TypeError: A key that the object does not have.
        """
        return _with_values(self, values)


def _with_values(value: Any, changes: Mapping[str, Any]) -> Any:
    """Replace values by dotted key in a dataclass and in the dataclasses that it holds."""
    own = {key: new for key, new in changes.items() if "." not in key}
    inner: dict[str, dict[str, Any]] = {}
    for key, new in changes.items():
        name, _, rest = key.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = new
    own |= {name: _with_values(getattr(value, name), parts) for name, parts in inner.items()}
    return dataclasses.replace(value, **own)


Object = TypeVar("Object", bound=CatalogueObject)


def stated(default: Any) -> Any:
    """A field that every file states; the default is that of an object that a program makes."""
    return field(default=default, metadata={"stated": True})


def not_in_files(default: Any) -> Any:
    """A field that no file has."""
    return field(default=default, metadata={"in_files": False})


def written_as(
    kind: Any, read: Callable[[Any], Any], default: Any, *, needed: bool = False, absent: Any = (), **more: Any
) -> Any:
    """A field that files write as a type of their own.

    Args:
        kind: type in a file.
        read: its value → that of the field.
        default: of the field, where a file leaves it out.
        needed: whether every file states it.
        absent: value of the record where a file leaves it out.
        more: of `dataclasses.field`.
    """
    said = {"kind": kind, "read": read, "stated": needed, "absent": absent}
    return field(default_factory=lambda: default, metadata=said, **more)


def named() -> Any:
    """A field for another object, which every file states by name; who reads the file finds the object."""
    return field(metadata={"kind": Text, "stated": True})


def varying(condition: type[Record]) -> Any:
    """A field of tables that each say under which condition other keys have other values; later ones win.

    A table may hold a part of the keys of an inner table: the others stay as they are.

    Args:
        condition: keys that say when a table holds.
    """
    return field(default=(), metadata={"condition": condition}, repr=False, compare=False)


def schema_of(kind: type[CatalogueObject]) -> type[SourcedRecord]:
    """The record of an object's file.

    A class with a method `problem` says by it, as a text, what is inconsistent in a file.
    """
    return cast("type[SourcedRecord]", _table(kind, SourcedRecord))


@functools.cache
def _table(kind: type, base: type[Record]) -> type[Record]:
    """The record of a dataclass."""
    own = _fields_in_files(kind, base)
    types_of_keys = _types_of_keys(kind, base)
    plain: dict[str, Any] = {
        one.name: (types_of_keys[one.name], _default(one)) for one in own if one.name in types_of_keys
    }
    for one in own:
        if "condition" in one.metadata:
            table = _partial(f"{kind.__name__}Defaults", one.metadata["condition"], types_of_keys)
            plain |= {one.name: (tuple[table, ...], ())}
    made: Any = create_model(
        f"{kind.__name__}Record",
        __base__=base,
        __doc__=kind.__doc__,
        __module__=kind.__module__,
        __validators__=_rules(kind),
        **plain,
    )
    made.object_class = kind
    return made


def _fields_in_files(kind: type, base: type[Record]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that its files have, besides those of the base."""
    return [one for one in fields(kind) if one.name not in base.model_fields and one.metadata.get("in_files", True)]


def _types_of_keys(kind: type, base: type[Record]) -> dict[str, Any]:
    """Return the keys of a dataclass's files with their types, except for tables of varying values."""
    hints = get_type_hints(kind, include_extras=True)
    own = [one for one in _fields_in_files(kind, base) if "condition" not in one.metadata]
    return {one.name: _in_files(one.metadata.get("kind", hints[one.name])) for one in own}


def _partial(name: str, base: type[Record], types_of_keys: Mapping[str, Any]) -> type[Record]:
    """Make a table that may leave out any of its keys, also those of inner tables."""

    def may_lack_keys(of: Any) -> Any:
        if not isinstance(of, type) or not issubclass(of, Record) or of.object_class is None:
            return cast("Any", of)
        return _partial(f"{of.object_class.__name__}Changes", Record, _types_of_keys(of.object_class, Record))

    optional: dict[str, Any] = {key: (may_lack_keys(of) | None, None) for key, of in types_of_keys.items()}
    return create_model(name, __base__=base, **optional)


def _in_files(hint: Any) -> Any:
    """The type of a field as files write it: a record in place of a dataclass."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is None:
        return _table(hint, Record) if dataclasses.is_dataclass(hint) else hint
    if origin is Annotated:
        return Annotated[_in_files(inside[0]), *hint.__metadata__]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_in_files, inside))]  # noqa: UP007
    return tuple.__class_getitem__(tuple(map(_in_files, inside))) if origin is tuple else hint


def _rules(kind: Any) -> dict[str, Any]:
    """Validators of a record: `problem` of its class, which reads fields alone and so works on the record as well."""
    if not hasattr(kind, "problem"):
        return {}

    def consistent(record: Any) -> Any:
        problem = kind.problem(record)
        if problem:
            raise ValueError(problem)
        return record

    return {"consistent": model_validator(mode="after")(consistent)}


def _default(one: dataclasses.Field[Any]) -> Any:
    if one.metadata.get("stated"):
        return ...
    if one.default_factory is not MISSING:
        return one.metadata["absent"] if "kind" in one.metadata else one.default_factory()
    return ... if one.default is MISSING else one.default


def from_record(kind: type[Object], record: SourcedRecord, **given: Any) -> Object:
    """The object of a validated record.

    Args:
        given: values of fields that take the place of the record's, such as the object that it names.
    """
    return cast("Object", _object(kind, record, given))


def _object(kind: Any, record: Record, given: Mapping[str, Any]) -> Any:
    values = {
        one.name: one.metadata.get("read", _read)(getattr(record, one.name))
        for one in fields(kind)
        if one.metadata.get("in_files", True) and one.name not in given
    }
    return kind(**values, **given)


def _read(value: Any) -> Any:
    """The objects of the tables of a file."""
    if isinstance(value, Record) and value.object_class is not None:
        return _object(value.object_class, value, {})
    return tuple(map(_read, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else value


def changed_keys(table: Record, condition: type[Record] = Record) -> dict[str, Any]:
    """Return what a table of a `varying` field changes, by dotted key; see `CatalogueObject.with_values`."""
    changes: dict[str, Any] = {}
    for key in table.model_fields_set - set(condition.model_fields):
        value = getattr(table, key)
        if isinstance(value, Record) and value.object_class is None:  # an inner table that may lack keys
            changes |= {f"{key}.{inner}": changed for inner, changed in changed_keys(value).items()}
        elif value is not None:
            changes[key] = _read(value)
    return changes
