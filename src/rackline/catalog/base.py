"""What all records of the catalogue share: strict types, and a source for every number.

A record mirrors one TOML file. Unknown keys, strings where numbers belong, NaN, infinities and negative
values are rejected, and so is a number that no ``[[sources]]`` entry covers. Units are SI and stand in
the key's name; peak rates are dense (no structured sparsity).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
