"""Objects that are their own records: a dataclass whose fields are the keys of its file.

The annotations of the fields say what a file may hold (`Annotated[float, Field(ge=0.0)]`), their defaults what it may
leave out. Files are read as strictly as all others: through a record of the same fields, made once. So a new number of
an object is a field here and a value in its file, nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import create_model

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


def written_as(kind: Any, read: Callable[[Any], Any], default: Any, *, needed: bool = False) -> Any:
    """A field that files write as a type of their own.

    Args:
        kind: type in a file.
        read: its value → that of the field.
        default: of the field, where a file leaves it out.
        needed: whether every file states it.
    """
    return field(default_factory=lambda: default, metadata={"kind": kind, "read": read, "stated": needed})


def varying(condition: type[Record]) -> Any:
    """A field of tables that each say under which condition other keys have other values; later ones win.

    Args:
        condition: keys that say when a table holds.
    """
    return field(default=(), metadata={"condition": condition}, repr=False, compare=False)


@functools.cache
def schema_of(kind: type[CatalogueObject]) -> type[SourcedRecord]:
    """The record of an object's file."""
    hints = get_type_hints(kind, include_extras=True)
    own = [
        one for one in fields(kind) if one.name not in SourcedRecord.model_fields and one.metadata.get("in_files", True)
    ]
    plain: dict[str, Any] = {
        one.name: (one.metadata.get("kind", hints[one.name]), _default(one))
        for one in own
        if "condition" not in one.metadata
    }
    for one in own:
        if "condition" in one.metadata:
            changes: dict[str, Any] = {name: (of | None, None) for name, (of, _) in plain.items()}
            table = create_model(f"{kind.__name__}Defaults", __base__=one.metadata["condition"], **changes)
            plain |= {one.name: (tuple[table, ...], ())}
    made: Any = create_model(kind.__name__, __base__=SourcedRecord, __doc__=kind.__doc__, **plain)
    return cast("type[SourcedRecord]", made)


def _default(one: Field[Any]) -> Any:
    if one.metadata.get("stated"):
        return ...
    if one.default_factory is not MISSING:
        return ... if "kind" not in one.metadata else ()
    return ... if one.default is MISSING else one.default


def from_record(kind: type[Object], record: SourcedRecord) -> Object:
    """The object of a validated record."""
    values = {one.name: getattr(record, one.name) for one in fields(kind) if one.metadata.get("in_files", True)}
    for one in fields(kind):
        if "read" in one.metadata:
            values[one.name] = one.metadata["read"](values[one.name])
    return kind(**values)


def read_object(kind: Kind, of: type[Object], name: str, overrides: Mapping[str, object] | None = None) -> Object:
    """Read one object; arguments and errors as in `rackline.catalog.chip_record`."""
    return from_record(of, record_of(kind, schema_of(of), name, overrides))


def changed_keys(table: Record, condition: type[Record]) -> dict[str, Any]:
    """What a table of a `varying` field changes."""
    keys = table.model_fields_set - set(condition.model_fields)
    return {key: getattr(table, key) for key in keys if getattr(table, key) is not None}
