"""Compare a stored output with a fresh one: words equal, numbers within `TOLERANCE`."""

from __future__ import annotations

import math
import re

TOLERANCE = 0.02  # of a number: machines add up in different orders, and a choice between equals may turn
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_BARS = re.compile("[█▏▎▍▌▋▊▉─]+")


def mask(text: str) -> str:
    """A text without its numbers, the length of its bars and its spaces."""
    return " ".join(NUMBER.sub("#", _BARS.sub(" ", text)).split())


def numbers(text: str) -> list[float]:
    """Its numbers."""
    return [float(one.replace(",", "")) for one in NUMBER.findall(text)]


def differences(stored: str, found: str) -> list[str]:
    """Where two texts differ by more than the last digits of their numbers."""
    if mask(stored) != mask(found):
        return [f"stored:\n{stored}\nfound:\n{found}"]
    return [
        f"stored {before}, found {after} in: {stored if len(stored) < 200 else '...'}"
        for before, after in zip(numbers(stored), numbers(found), strict=True)
        if not math.isclose(before, after, rel_tol=TOLERANCE)
    ]
