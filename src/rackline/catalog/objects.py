"""Objects that are their own records: a dataclass whose fields are the keys of its file.

The annotations of the fields say what a file may hold (`Annotated[float, Field(ge=0.0)]`), their defaults what it may
leave out; a field that is a dataclass itself is a table of the file. Files are read as strictly as all others: through
a record of the same fields, made once. So a new number of an object is a field here and a value in its file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import create_model, model_validator

from rackline.catalog.base import Name, Record, Source, SourcedRecord, Text
from rackline.catalog.index import Kind
from rackline.catalog.load import record_of


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
    hints = get_type_hints(kind, include_extras=True)
    own = [one for one in fields(kind) if one.name not in base.model_fields and one.metadata.get("in_files", True)]
    plain: dict[str, Any] = {
        one.name: (_in_files(one.metadata.get("kind", hints[one.name])), _default(one))
        for one in own
        if "condition" not in one.metadata
    }
    for one in own:
        if "condition" in one.metadata:
            changes: dict[str, Any] = {name: (of | None, None) for name, (of, _) in plain.items()}
            table = create_model(f"{kind.__name__}Defaults", __base__=one.metadata["condition"], **changes)
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


def _in_files(hint: Any) -> Any:
    """The type of a field as files write it: a record in place of a dataclass."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is None:
        return _table(hint, Record) if is_dataclass(hint) else hint
    if origin is Annotated:
        return Annotated[_in_files(inside[0]), *hint.__metadata__]
    if origin in (Union, UnionType):
        return Union[tuple(map(_in_files, inside))]  # noqa: UP007
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


def _default(one: Field[Any]) -> Any:
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


def read_object(kind: Kind, of: type[Object], name: str, overrides: Mapping[str, object] | None = None) -> Object:
    """Read one object; arguments and errors as in `rackline.catalog.load.record_of`."""
    return from_record(of, record_of(kind, schema_of(of), name, overrides))


def changed_keys(table: Record, condition: type[Record]) -> dict[str, Any]:
    """What a table of a `varying` field changes."""
    keys = table.model_fields_set - set(condition.model_fields)
    return {key: getattr(table, key) for key in keys if getattr(table, key) is not None}
