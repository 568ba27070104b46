"""Typed access to the keys of a Hugging Face configuration, with complaints that name file and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from rackline.errors import ConfigError, nearest_names

Table = dict[str, object]

LARGEST_COUNT = 100_000_000
"""No width, vocabulary or layer count of a transformer is larger; beyond it a value is a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfConfig:
    """A JSON object with typed access; every complaint names file and key. A null counts as absent."""

    values: Mapping[str, object]
    where: str
    prefix: str = ""

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
        """A list with one entry a layer, translated by a table; None if absent."""
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

    def section(self, key: str) -> HfConfig:
        """A nested object."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return HfConfig(values=cast("Table", value), where=self.where, prefix=f"{self.prefix}{key}.")
