"""Typed access to the keys of a Hugging Face configuration, with errors that name file and key."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from rackline.errors import ConfigError, nearest_names

Table = dict[str, object]

LARGEST_COUNT = 100_000_000
"""No width, vocabulary or layer count of a transformer is larger; beyond it a value is a typing error."""


class ReadKeys(Mapping[str, object]):
    """A JSON object that remembers which of its keys were asked for, so that none is passed over in silence."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self._read.add(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def was_read(self, key: str) -> bool:
        """Whether the object has a key and somebody asked for it."""
        return key in self._read and self._values.get(key) is not None

    def unread(self) -> list[str]:
        """Keys with a value that says something and that nobody asked for."""
        return [key for key, value in self._values.items() if key not in self._read and value not in (None, False, [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class HfConfig:
    """A JSON object with typed access; every complaint names file and key. A null counts as absent.

    Args:
        values: of the object.
        where: file, for messages.
        prefix: of its keys in messages.
        dropped: what a family leaves out or takes as something simpler, in words, for all parts of the file.
    """

    values: Mapping[str, object]
    where: str
    prefix: str = ""
    dropped: list[str] = field(default_factory=list[str], compare=False)

    def fail(self, key: str, allowed: str, nearest: str | None = None) -> ConfigError:
        """Return the error for a key, with its value as given."""
        given = self.values.get(key)
        if given is None:
            near = nearest_names(key, [k for k in self.values if k != key], 1)
            nearest = nearest or (near[0] if near else None)
            given = "null" if key in self.values else "no such key"
        elif isinstance(given, (list, dict)):
            given = f"a JSON {'array' if isinstance(given, list) else 'object'}"
        return ConfigError(what=f"{self.prefix}{key}", given=given, allowed=allowed, where=self.where, nearest=nearest)

    def optional(self, key: str, minimum: int = 1) -> int | None:
        """A whole number, or None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= LARGEST_COUNT:
            raise self.fail(key, f"a whole number from {minimum} to {LARGEST_COUNT}")
        return value

    def count(self, key: str, *, default: int | None = None, minimum: int = 1) -> int:
        """A whole number; absent is an error unless a default is given."""
        value = self.optional(key, minimum)
        if value is None:
            value = default
        if value is None:
            raise self.fail(key, f"a whole number from {minimum} to {LARGEST_COUNT}")
        return value

    def leave(self, *keys: str) -> None:
        """Note keys that the family knows and does not need."""
        for key in keys:
            self.values.get(key)

    def drop(self, how: str, *keys: str) -> None:
        """Note keys that the file has and the family leaves out, and how: every answer says so."""
        if given := [key for key in keys if self.values.get(key) not in (None, False, [])]:
            self.dropped.append(f"{how} ({', '.join(given)})")

    def same_as(self, key: str, other: str) -> None:
        """Refuse a second name of a number that contradicts the first."""
        if self.optional(key) not in (None, self.optional(other)):
            raise self.fail(key, f"{other} {self.values.get(other)}, of which it is a second name")

    def flag(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def choice(self, key: str, table: Mapping[str, str], *, default: str | None = None) -> str:
        """A text out of a table, translated by it."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in table:
            near = nearest_names(value, table, 1) if isinstance(value, str) else []
            raise self.fail(key, "one of " + ", ".join(sorted(table)), near[0] if near else None)
        return table[value]

    def items(self, key: str, table: Mapping[object, str], length: int) -> list[str] | None:
        """A list with one entry per layer, translated by a table; None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        allowed = f"a list of {length} entries, each one of {', '.join(map(str, table))}"
        if not isinstance(value, list):
            raise self.fail(key, allowed)
        entries = cast("list[object]", value)
        if len(entries) != length or not all(isinstance(e, (str, int)) and e in table for e in entries):
            raise self.fail(key, allowed)
        return [table[entry] for entry in entries]

    def number(self, key: str) -> float:
        """A positive number, whole or not."""
        value = self.values.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= LARGEST_COUNT:
            raise self.fail(key, f"a number from above 0 to {LARGEST_COUNT}")
        return float(value)

    def element(self, key: str, index: int) -> HfConfig:
        """An object inside a list."""
        value = self.values.get(key)
        entry = cast("list[object]", value)[index] if isinstance(value, list) else None
        if not isinstance(entry, dict):
            raise self.fail(key, "a list of objects")
        return replace(self, values=cast("Table", entry), prefix=f"{self.prefix}{key}.{index}.")

    def with_defaults(self, defaults: Table) -> HfConfig:
        """The same configuration with values for keys that are absent or null; what is read of it stays known."""
        given = {key: self.values[key] for key in defaults if self.values.get(key) is not None}
        filled: Mapping[str, object] = ChainMap({**defaults, **given}, cast("Table", self.values))
        return replace(self, values=filled)

    def section(self, key: str) -> HfConfig:
        """A nested object."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return replace(self, values=cast("Table", value), prefix=f"{self.prefix}{key}.")
