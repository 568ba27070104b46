"""Objects that are their own records: what a file may say follows from the fields alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import Field

from rackline.catalog.base import (
    CatalogueObject,
    NonNegative,
    Record,
    changed_keys,
    from_record,
    not_in_files,
    schema_of,
    stated,
    varying,
    written_as,
)
from rackline.catalog.load import record_from_mapping
from rackline.errors import CatalogError
from rackline.serving.stack import Stack


class When(Record):
    """A condition."""

    day: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing(CatalogueObject):
    """A thing.

    Args:
        size: Of it [m].
        share: In use [1].
        parts: Sizes by number.
        mood: Of the program.
        days: What differs.
    """

    size: NonNegative = stated(1.0)
    share: Annotated[float, Field(le=1.0)] = 0.5
    parts: dict[int, float] = written_as(tuple[float, ...], lambda sizes: dict(enumerate(sizes)), {})
    mood: str = not_in_files("calm")
    days: tuple[When, ...] = varying(When)


FILE = {
    "name": "thing", "full_name": "Thing", "size": 2.0,
    "sources": [{"fields": ["*"], "kind": "assumed", "citation": "made up"}],
}  # fmt: skip


def read(**changes: object) -> Thing:
    return from_record(Thing, record_from_mapping(schema_of(Thing), {**FILE, **changes}, where="a file"))


def test_a_file_gives_the_fields() -> None:
    found = read(parts=[3.0, 4.0])
    assert (found.size, found.share, found.parts, found.mood, found.full_name) == (
        2.0, 0.5, {0: 3.0, 1: 4.0}, "calm", "Thing",
    )  # fmt: skip
    assert found == Thing(name="thing", size=2.0, parts={0: 3.0, 1: 4.0})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": 1.0}, "sizes: got 'sizes', allowed: only the keys of the schema; nearest: size"),
        ({"mood": "wild"}, "only the keys of the schema"),
        ({"share": 1.5}, "share: got 1.5, allowed: less than or equal to 1"),
        ({"share": "1"}, "a valid number"),
        ({"size": float("nan")}, "finite"),
        ({"days": [{"shar": 1.0}]}, "nearest: share"),
        ({"days": [{"share": 2.0}]}, "days.0.share"),
    ],
)
def test_everything_else_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(CatalogError) as caught:
        read(**changes)
    assert words in str(caught.value)


def test_what_every_file_states_is_required() -> None:
    with pytest.raises(CatalogError, match="size: got 'nothing', allowed: the key is required"):
        record_from_mapping(schema_of(Thing), {k: v for k, v in FILE.items() if k != "size"}, where="a file")


def test_any_number_may_vary() -> None:
    found = read(days=[{"day": 3, "share": 0.25}, {"size": 7.0}])
    assert [changed_keys(table, When) for table in found.days] == [{"share": 0.25}, {"size": 7.0}]
    assert [table.day for table in found.days] == [3, None]


def test_every_number_of_a_stack_may_differ_by_version() -> None:
    (table,) = schema_of(Stack).model_fields["defaults"].annotation.__args__[:1]  # type: ignore[union-attr]
    own = set(schema_of(Stack).model_fields) - {"name", "full_name", "aliases", "sources", "defaults"}
    assert own <= set(table.model_fields)
    assert len(own) > 30
