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
    inner_models,
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
class Lid:
    """A lid.

    Args:
        width: Of it [m].
        colours: That it has.
    """

    width: NonNegative = stated(1.0)
    colours: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing(CatalogueObject):
    """A thing.

    Args:
        size: Of it [m].
        share: In use [1].
        lid: On top.
        parts: Sizes by number.
        mood: Of the program.
        days: What differs.
    """

    size: NonNegative = stated(1.0)
    share: Annotated[float, Field(le=1.0)] = 0.5
    lid: Lid = Lid()
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


def test_a_part_of_an_inner_table_may_vary() -> None:
    found = read(lid={"width": 2.0}, days=[{"lid": {"colours": ["red"]}}, {"share": 0.25, "lid": {"width": 3.0}}])
    first, second = (changed_keys(table, When) for table in found.days)
    assert (first, second) == ({"lid.colours": ("red",)}, {"share": 0.25, "lid.width": 3.0})
    later = found.with_values(first).with_values(second)
    assert (later.share, later.lid) == (0.25, Lid(width=3.0, colours=("red",)))
    assert found.lid == Lid(width=2.0)
    with pytest.raises(CatalogError, match=r"days\.0\.lid\.width: got -1\.0"):
        read(days=[{"lid": {"width": -1.0}}])
    with pytest.raises(CatalogError, match=r"lid\.width: .*the key is required"):
        read(lid={"colours": ["red"]})


def test_an_object_has_no_other_keys() -> None:
    for key in ("sizes", "lid.widths"):
        with pytest.raises(TypeError, match="unexpected keyword"):
            read().with_values({key: 1.0})


def test_every_number_of_a_stack_may_differ_by_version() -> None:
    (table,) = schema_of(Stack).model_fields["defaults"].annotation.__args__[:1]  # type: ignore[union-attr]
    record = schema_of(Stack)
    own = set(record.model_fields) - {"name", "full_name", "aliases", "sources", "defaults"}
    assert own <= set(table.model_fields)
    numbers = 0
    for key in own:
        for inner in inner_models(record.model_fields[key]):
            (partial,) = inner_models(table.model_fields[key])
            assert set(partial.model_fields) == set(inner.model_fields), key
            assert not any(info.is_required() for info in partial.model_fields.values()), key
            numbers += len(inner.model_fields)
    assert numbers > 30
