"""Every number of the shipped catalogue has a source; checked on the files, without the loader."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "src" / "rackline" / "catalog" / "data"
FILES = sorted(DATA.rglob("*.toml"))
RECORDS = {str(path.relative_to(DATA)): tomllib.loads(path.read_text(encoding="utf-8")) for path in FILES}
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


def unsourced(record: dict[str, Any]) -> list[str]:
    """What is wrong with the sources of a record."""
    sources = record.get("sources", [])
    found = [] if sources else ["no [[sources]]"]
    for source in sources:
        what = f"the source of {source['fields']}"
        if source["kind"] not in KINDS:
            found.append(f"{what} is of kind {source['kind']}")
        if not (source.get("url") or source.get("citation")):
            found.append(f"{what} cites nothing")
        if source["kind"] in CHANGING and "url" in source and not source.get("accessed"):
            found.append(f"{what} has a url, but no `accessed` date")
        if not source["fields"]:
            found.append("a source that covers no field")
    fields = [field for source in sources for field in source["fields"]]
    keys = sorted(set(number_keys(record)))
    return found + [
        f"number without a source: {key}" for key in keys if not any(covers(field, key) for field in fields)
    ]


def test_every_number_has_a_source() -> None:
    assert [f"{name}: {fault}" for name, record in RECORDS.items() for fault in unsourced(record)] == []


def test_files_are_named_after_their_records() -> None:
    assert [name for name, record in RECORDS.items() if record["name"] != Path(name).stem] == []


def test_a_record_without_sources_is_found() -> None:
    source = {"fields": ["a"], "kind": "vendor", "url": "https://example.org"}
    assert unsourced({"name": "x", "a": 1}) == ["no [[sources]]", "number without a source: a"]
    assert unsourced({"name": "x", "a": 1, "sources": [{**source, "accessed": "2026-01-01"}]}) == []
    assert unsourced({"name": "x", "a": 1, "b": 2, "sources": [source, {"fields": [], "kind": "rumour"}]}) == [
        "the source of ['a'] has a url, but no `accessed` date",
        "the source of [] is of kind rumour",
        "the source of [] cites nothing",
        "a source that covers no field",
        "number without a source: b",
    ]
