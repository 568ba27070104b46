"""Results that take long to work out, kept in the user's cache folder: safe to delete, never trusted when damaged.

A file is its content and the SHA-256 of it at the end. Its name holds a hash of all that it depends on, so that it is
never out of date; what has not been used for longest goes when there is too much.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from rackline.files import own_folder, replacing

MOST_BYTES, MOST_FILES = 16 * 2**20, 1000
"""Of all files together [bytes], [count]."""
_DIGEST = hashlib.sha256().digest_size


def kept_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The folder: RACKLINE_CACHE, else rackline/results in XDG_CACHE_HOME or ~/.cache.

    Args:
        environment: variables; those of the process by default.

    >>> kept_folder({"XDG_CACHE_HOME": "/data"}).as_posix()
    '/data/rackline/results'
    """
    return own_folder("RACKLINE_CACHE", ("XDG_CACHE_HOME", "~/.cache"), "results", environment)


def name_of(kind: str, *parts: object) -> str:
    """Name of the file of a result.

    Args:
        kind: what it is, in a word.
        parts: all that it depends on, the code among it.
    """
    found = hashlib.sha256("\0".join(map(repr, parts)).encode())
    return f"{kind}-{found.hexdigest()[:32]}"


def load(name: str) -> bytes | None:
    """Content of a file; None where there is none that is whole."""
    path = kept_folder() / name
    try:
        data = path.read_bytes()
        content = data[:-_DIGEST]
        if hashlib.sha256(content).digest() != data[-_DIGEST:]:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return content
    except OSError:
        return None


def keep(name: str, content: bytes) -> Path | None:
    """Write a file, whole or not at all; None where the folder cannot be written."""
    folder = kept_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content + hashlib.sha256(content).digest())
    except OSError:
        return None
    _drop_oldest(folder, name)
    return folder / name


def _drop_oldest(folder: Path, newest: str) -> None:
    """Remove what has not been used for longest, until the rest fits; others may do the same at the same time."""
    found: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
    held, count = sum(size for _, size, _ in found), len(found)
    for _, size, path in sorted(found):
        if held <= MOST_BYTES and count <= MOST_FILES:
            return
        if path.name != newest:
            with contextlib.suppress(OSError):
                path.unlink()
                held, count = held - size, count - 1
