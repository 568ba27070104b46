"""Tables (CSV) of measurements: which kind a file is."""

from __future__ import annotations

from collections.abc import Iterable


def has_columns(text: str, columns: Iterable[str]) -> bool:
    """Whether the head of a CSV file names all of some columns."""
    return set(text.partition("\n")[0].strip().split(",")) >= set(columns)
