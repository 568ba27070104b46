"""Find the line of a key in a TOML text, for messages that point at it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]#]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"""^\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the 1-based line where a key of a TOML text stands, or that of its nearest table.

    Args:
        text: The TOML text.
        path: Keys and list indices from the root, such as ``("levels", 1, "latency_s")``.

    Returns:
        The line, or None where not even the enclosing table is written in the text.

    Example:
        >>> line_of("a = 1\\n[[b]]\\nc = 2\\n[[b]]\\nc = 3\\n", ("b", 1, "c"))
        5
    """
    wanted = tuple(path)
    best: tuple[int, int] | None = None  # (length of the matched prefix, line)
    table: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            dotted = tuple(part.strip().strip("\"'") for part in header.group(2).split("."))
            table = _with_index(dotted, counts, is_array=header.group(1) == "[[")
            candidate = table
        elif key := _KEY.match(line):
            candidate = table + tuple(part.strip().strip("\"'") for part in key.group(1).split("."))
        else:
            continue
        if wanted[: len(candidate)] == candidate and (best is None or len(candidate) > best[0]):
            best = (len(candidate), number)
    return None if best is None else best[1]


def _with_index(dotted: tuple[str, ...], counts: dict[str, int], *, is_array: bool) -> tuple[str | int, ...]:
    """Turn a header's name into a path, where arrays of tables carry the index of their newest element."""
    name = ".".join(dotted)
    if is_array:
        counts[name] = counts.get(name, -1) + 1
    path: list[str | int] = []
    for depth, part in enumerate(dotted, start=1):
        path.append(part)
        index = counts.get(".".join(dotted[:depth]))
        if index is not None:
            path.append(index)
    return tuple(path)
