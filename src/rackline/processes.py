"""Worker processes, and interruptions that wait."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

# one thread each: the processes share the cores
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")

Task = TypeVar("Task")
Result = TypeVar("Result")


def mapped(
    make: Callable[..., Callable[[Task], Result]],
    shared: Sequence[Any],
    tasks: Sequence[Task],
    processes: int,
    done: Callable[[str, int, int], None] | None = None,
) -> Generator[tuple[Task, Result]]:
    """(task, result) of each task as it ends; each process prepares what its tasks share once.

    Args:
        make: a module's function: (*shared) → function of one task.
        shared: arguments of `make`.
        processes: at most; 1 runs everything in this one [count].
        done: called with (task, finished, all) after each.

    Raises:
        RuntimeError: a process was killed. Errors of `make` and of tasks come as they are.
    """
    if processes <= 1 or len(tasks) < 2:
        work = make(*shared)
        yield from _counted(((task, work(task)) for task in tasks), len(tasks), done)
        return
    from multiprocessing import get_context  # every command loads this module, few start processes

    context = get_context("spawn")  # a fork copies locked threads
    waiting, ended = context.Queue(), context.Queue()
    for index in range(len(tasks)):
        waiting.put(index)
    workers = [
        context.Process(target=_work, args=(make, shared, tasks, waiting, ended), daemon=True)
        for _ in range(min(processes, len(tasks)))
    ]
    for worker in workers:
        worker.start()

    def awaited() -> Generator[tuple[Task, Result]]:
        for _ in tasks:
            index, result = _next(ended, workers)
            if isinstance(result, BaseException):
                raise result
            yield tasks[index], result

    try:
        yield from _counted(awaited(), len(tasks), done)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _counted(
    ends: Generator[tuple[Task, Result]], total: int, done: Callable[[str, int, int], None] | None
) -> Generator[tuple[Task, Result]]:
    for finished, (task, result) in enumerate(ends, 1):
        if done is not None:
            done(str(task), finished, total)
        yield task, result


def _work(
    make: Callable[..., Callable[[Any], Any]], shared: Sequence[Any], tasks: Sequence[Any], waiting: Any, ended: Any
) -> None:
    index = -1
    try:
        work = make(*shared)
        while True:
            index = waiting.get()
            ended.put((index, work(tasks[index])))
    except BaseException as error:  # it is raised again where the results are awaited
        ended.put((index, error))


def _next(ended: Any, workers: Sequence[Any]) -> tuple[int, Any]:
    from queue import Empty

    while True:
        try:
            return ended.get(timeout=1.0)
        except Empty:
            killed = [worker.exitcode for worker in workers if worker.exitcode]
            if killed:
                raise RuntimeError(f"a process ended with status {killed[0]}") from None


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


@dataclass(slots=True)
class Held:
    """Whether an interruption came while it was held.

    Args:
        pressed: whether it did.
    """

    pressed: bool = False


@contextlib.contextmanager
def held() -> Generator[Held]:
    """Hold one interruption until the block has ended; a second one ends it at once.

    Outside of the main thread, or where a program handles interruptions itself, nothing changes.

    Yields:
        What says afterwards whether there was one.

    Raises:
        KeyboardInterrupt: the second interruption.
    """
    hold = Held()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield hold
        return

    def press(*_: Any) -> None:
        if hold.pressed:
            raise KeyboardInterrupt
        hold.pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield hold
    finally:
        signal.signal(signal.SIGINT, before)
