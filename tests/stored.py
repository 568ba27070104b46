"""What tests store and compare: messages without their folder, files of JSON that are read in a diff."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE_WIDTH = 200  # of the files


def lines_of(text: str, folder: Path) -> list[str]:
    """Lines of a screen, without the folder and without spaces at their ends."""
    return [line.rstrip() for line in text.replace(f"{folder}/", "").splitlines()]


def laid_out(value: Any, indent: int = 0) -> str:
    """JSON in which what fits stands on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + indent <= PAGE_WIDTH or not isinstance(value, dict | list):
        return short
    inside = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {laid_out(one, indent + 1)}" for key, one in value.items()]
        return "{\n" + ",\n".join(inside + part for part in parts) + f"\n{' ' * indent}}}"
    return "[\n" + ",\n".join(inside + laid_out(one, indent + 1) for one in value) + f"\n{' ' * indent}]"


def assert_told_as_stored(stored: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """The same things were tried, in the same order, and the same is said of each."""
    found = json.loads(json.dumps(found))
    assert list(found) == list(stored)
    moved = [f"{tried}: {stored[tried]}, now {now}" for tried, now in found.items() if now != stored[tried]]
    assert not moved, "\n".join([*moved[:20], f"{len(moved)} differ; if they should: see the head of this file"])
