"""Processes beside this one: how they start, how many there is room for."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Generator
from typing import Any

# one thread each: the processes share the cores
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


@contextlib.contextmanager
def bare_main() -> Generator[None]:
    """Start processes that do not run the caller's script again: what they do needs nothing of it."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextlib.contextmanager
def single_threads() -> Generator[None]:
    """Start processes that use one thread each for their arithmetic."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def usable_cores() -> int:
    """Cores that this process may use [count]."""
    counted: Callable[..., Any] | None = getattr(os, "sched_getaffinity", None)
    return len(counted(0)) if counted is not None else os.cpu_count() or 1
