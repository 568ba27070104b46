"""What tests store and compare: messages without their folder, files of JSON that are read in a diff."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of plain data with its place; numbers with six digits."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, f"{where}.{key}" if where else str(key))
    elif isinstance(value, float):
        yield where, float(f"{value:.6g}")
    else:
        yield where, value


def some_of(items: Sequence[Any], most: int) -> Sequence[Any]:
    """At most so many of some items, from all over."""
    return items[:: max(len(items) // most, 1)][:most]


def digest(value: Any, length: int = 8) -> str:
    """A few characters that are others where anything in plain data is."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:length]


def write_anew(file: Path, names: Iterable[str], told: Callable[[str], Any], doc: str | None) -> int:
    """Write what comes of all names, or of those behind `write`, into a file of JSON; the exit status."""
    every = list(names)
    wanted = sys.argv[2:] or every
    if sys.argv[1:2] != ["write"] or not set(wanted) <= set(every):
        print(doc)
        return 2
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in wanted:
        start = time.process_time()
        found[name] = told(name)
        print(f"{name}: {len(found[name])} in {time.process_time() - start:.1f} s", flush=True)
    file.write_text(laid_out({name: found[name] for name in every if name in found}) + "\n", encoding="utf-8")
    return 0


def assert_told_as_stored(stored: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """The same things were tried, in the same order, and the same is said of each."""
    found = json.loads(json.dumps(found))
    assert list(found) == list(stored)
    moved = [f"{tried}: {stored[tried]}, now {now}" for tried, now in found.items() if now != stored[tried]]
    assert not moved, "\n".join([*moved[:20], f"{len(moved)} differ; if they should: see the head of this file"])
