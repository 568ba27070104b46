"""Versions of stacks: their order, and how far apart two of them are."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.\-]?(post|rc|dev|a|b)(\d*))?")
_PARTS = 4
_BEFORE = {"rc": -1000, "b": -2000, "a": -3000, "dev": -4000, "post": 0}


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a version: numbers by value, a release candidate before its release.

    >>> sorted(["1.3.0rc20", "1.3.0", "1.3.0rc3", "0.24.0"], key=version_key)
    ['0.24.0', '1.3.0rc3', '1.3.0rc20', '1.3.0']
    """
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    key = [(1, int(part), "") if part.isdigit() else (2 if part == "post" else -1, 0, part) for part in parts]
    return (*key, (0, 0, ""))


def release_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, of equal length for all; () for text that begins with no number.

    >>> release_numbers("1.3.0rc15"), release_numbers("0.5.6.post2"), release_numbers("nightly")
    ((1, 3, 0, 0, -985), (0, 5, 6, 0, 2), ())
    """
    found = _RELEASE.match(version.strip().lower())
    if found is None:
        return ()
    numbers = [int(part) for part in found.group(1).split(".")][:_PARTS]
    after = _BEFORE[found.group(2)] + int(found.group(3) or 0) if found.group(2) else 0
    return (*numbers, *[0] * (_PARTS - len(numbers)), after)


def release(version: str) -> str:
    """The release that a version leads to or mends, its first three numbers; other text as it is.

    >>> release("1.2.0rc6.post3"), release("0.5.8.post1"), release("nightly-dev-20260216")
    ('1.2.0', '0.5.8', 'nightly-dev-20260216')
    """
    numbers = release_numbers(version)
    return ".".join(str(number) for number in numbers[:3]) if numbers else version


def apart(version: str, oldest: str, newest: str) -> tuple[int, ...]:
    """How far a version is from a range of versions: the later of it and the nearer end less the earlier, number by
    number, so that tuples compare as distances; all 0 inside.

    >>> apart("0.5.8", "0.5.6.post2", "0.5.10"), apart("1.2.0", "1.3.0rc10", "1.3.0rc20")
    ((0, 0, 0, 0, 0), (0, 1, 0, 0, -990))
    """
    given, low, high = (release_numbers(text) for text in (version, oldest, newest))
    if given < low:
        return tuple(later - earlier for later, earlier in zip(low, given, strict=True))
    return tuple(later - earlier for later, earlier in zip(max(given, high), high, strict=True))
