"""Every number of the shipped catalogue has a source; checked on the files, without the loader."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[2] / "src" / "rackline" / "catalog" / "data"
FILES = sorted(DATA.rglob("*.toml"))
IDS = [str(path.relative_to(DATA)) for path in FILES]
KINDS = {"measured", "vendor", "paper", "derived", "assumed"}
CHANGING = {"measured", "vendor"}  # pages that may say something else tomorrow; a paper stays as it is


def number_keys(value: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of the numbers in a record; a table in a list is called by its name or its place."""
    if isinstance(value, dict):
        for name, item in value.items():
            if key or name != "sources":
                yield from number_keys(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            called = item.get("name", index) if isinstance(item, dict) else index
            yield from number_keys(item, f"{key}.{called}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key


def covers(field: str, key: str) -> bool:
    """Whether a `fields` entry covers a key: itself, its table, or a prefix that ends in `*`."""
    if field.endswith("*"):
        return key.startswith(field[:-1])
    return key == field or key.startswith(f"{field}.")


def test_rule_itself() -> None:
    record = {
        "a": 1,
        "t": {"b": 2.0, "ok": True},
        "l": [{"name": "up", "c": 3}, {"c": 4}],
        "sources": [{"n": 1}],
    }
    assert list(number_keys(record)) == ["a", "t.b", "l.up.c", "l.1.c"]
    assert covers("t.*", "t.b")
    assert covers("t", "t.b")
    assert not covers("a", "ab")


def test_catalogue_is_found() -> None:
    folders = {path.parent.name for path in FILES}
    assert {"chips", "clusters", "models", "calibrations"} <= folders
    assert len([path for path in FILES if path.parent.name == "chips"]) >= 12
    assert len([path for path in FILES if path.parent.name == "models"]) >= 15


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_every_number_has_a_source(path: Path) -> None:
    record = tomllib.loads(path.read_text(encoding="utf-8"))
    sources = record.get("sources", [])
    assert sources, "no [[sources]]"
    for source in sources:
        assert source["kind"] in KINDS
        assert source.get("url") or source.get("citation"), f"a source of {source['fields']} cites nothing"
        if source["kind"] in CHANGING and "url" in source:
            assert source.get("accessed"), f"the source of {source['fields']} has a url, but no `accessed` date"
        assert source["fields"], "a source that covers no field"
    fields = [field for source in sources for field in source["fields"]]
    keys = sorted(set(number_keys(record)))
    missing = [key for key in keys if not any(covers(field, key) for field in fields)]
    assert not missing, f"numbers without a source: {missing}"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_file_is_named_after_its_record(path: Path) -> None:
    assert tomllib.loads(path.read_text(encoding="utf-8"))["name"] == path.stem
