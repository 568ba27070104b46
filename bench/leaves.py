"""Walks two values of plain data side by side, for the scripts and tests that compare answers."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from itertools import zip_longest
from typing import Any


class _Absent:
    """The value of a key or of a row that only one side has."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


def leaf_pairs(before: Any, after: Any, place: str = "", skip: Container[str] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place of each leaf and its value on both sides, in the order of the first side.

    A leaf is all that is no dictionary and no list on both sides. A key or row of one side only has the value ABSENT
    on the other side. Keys in `skip` are left out.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            if key not in skip:
                left, right = before.get(key, ABSENT), after.get(key, ABSENT)
                yield from leaf_pairs(left, right, f"{place}.{key}".lstrip("."), skip)
    elif isinstance(before, list) and isinstance(after, list):
        for index, (left, right) in enumerate(zip_longest(before, after, fillvalue=ABSENT)):
            yield from leaf_pairs(left, right, f"{place}[{index}]", skip)
    else:
        yield place, before, after


def is_number(value: Any) -> bool:
    """Return whether a value is a number and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def close(before: float, after: float, rel: float) -> bool:
    """Return whether two numbers are equal within a relative tolerance; NaN equals NaN."""
    both_nan = math.isnan(before) and math.isnan(after)
    return both_nan or math.isclose(before, after, rel_tol=rel, abs_tol=1e-300)


def same(before: Any, after: Any, rel: float) -> bool:
    """Return whether two leaves are of one type and equal; floats may differ by a relative tolerance."""
    if type(before) is type(after) is float:
        return close(before, after, rel)
    return type(before) is type(after) and before == after


def differences(before: Any, after: Any, rel: float) -> Iterator[str]:
    """Yield a line for each leaf that differs, floats by more than a relative tolerance."""
    for place, left, right in leaf_pairs(before, after):
        if not same(left, right, rel):
            yield f"{place}: {str(left)[:150]} → {str(right)[:150]}"
