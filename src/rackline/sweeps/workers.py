"""Who runs the chunks: this process, processes of this machine, or Ray; the scheduling is theirs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from rackline.errors import RacklineError
from rackline.processes import bare_main, single_threads
from rackline.sweeps.chunk import Done, Job, run_chunk
from rackline.sweeps.space import Chunk
from rackline.sweeps.store import store_of

_AHEAD = 2  # chunks that wait for each worker, so that none waits for us
_MOST_BREAKS = 5  # times that workers die one after another without a chunk done
_PARENT_EVERY_S = 1.0

Task = tuple[str, Chunk]
"""A shard that is not there yet, and its chunk."""


class WorkersLostError(RacklineError):
    """Workers that die again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Runs chunks of one sweep.

    Args:
        job: the sweep.
        store: address of its shards.
        num: processes, or tasks of Ray that run at a time [count].
    """

    job: Job
    store: str
    num: int

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """Run chunks and yield each that is done, in any order; a caller that stops ends what runs.

        Raises:
            OSError and errors of the store's library: a shard could not be written.
            WorkersLostError: workers that die again and again.
        """
        raise NotImplementedError


class Here(Workers):
    """One after another in this process."""

    __slots__ = ()

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """As `Workers`."""
        store = store_of(self.store)
        for name, chunk in tasks:
            yield run_chunk(self.job, chunk, store, name)


class Pool(Workers):
    """Processes of this machine. A worker that is killed costs its chunk's time: the chunk runs again."""

    __slots__ = ()

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """As `Workers`."""
        left = iter(tasks)
        again: list[Task] = []
        breaks = 0
        while True:
            running: dict[Future[Done], Task] = {}
            pool = self._pool()
            try:
                while True:
                    self._fill(pool, running, again, left)
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for one in done:
                        found = one.result()
                        del running[one]
                        breaks = 0
                        yield found
            except BrokenProcessPool:
                breaks += 1
                again += [task for future, task in running.items() if not _finished(future)]
                for future in running:
                    if _finished(future):
                        yield future.result()
                if breaks >= _MOST_BREAKS:
                    raise WorkersLostError(
                        f"workers were killed {breaks} times without a chunk done; less memory is needed with smaller "
                        "`rows_per_shard` or fewer workers"
                    ) from None
            finally:
                _close(pool)

    def _fill(
        self, pool: ProcessPoolExecutor, running: dict[Future[Done], Task], again: list[Task], left: Iterator[Task]
    ) -> None:
        with bare_main(), single_threads():
            while len(running) < self.num * (1 + _AHEAD):
                task = again.pop() if again else next(left, None)
                if task is None:
                    return
                try:
                    future = pool.submit(_run, task)
                except BaseException:
                    again.append(task)
                    raise
                running[future] = task

    def _pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.num,
            mp_context=get_context("spawn"),
            initializer=_start,
            initargs=(self.job, self.store, os.getpid()),
        )


def _finished(future: Future[Done]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _close(pool: ProcessPoolExecutor) -> None:
    """End the workers after the chunk that each is at."""
    pool.shutdown(wait=True, cancel_futures=True)


_worker: dict[str, Any] = {}
"""What a worker process keeps between its chunks."""


def _start(job: Job, store: str, parent: int) -> None:
    """Begin a worker: an interruption is for the driver, and a driver that is gone ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker.update(job=job, store=store_of(store))
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_EVERY_S)
    os._exit(1)


def _run(task: Task) -> Done:
    name, chunk = task
    return run_chunk(_worker["job"], chunk, _worker["store"], name)
