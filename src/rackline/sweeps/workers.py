"""Where the chunks run: this process, processes of this machine, or Ray; the scheduling is theirs."""

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

from rackline.errors import InputError, RacklineError
from rackline.late import load_optional
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
    """Runs chunks of one sweep, one after another in this process.

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
        store = store_of(self.store)
        for name, chunk in tasks:
            yield run_chunk(self.job, chunk, store, name)


class Pool(Workers):
    """Processes of this machine. A worker that is killed costs its chunk's time: the chunk runs again."""

    __slots__ = ()

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """See `Workers`."""
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
                pool.shutdown(wait=True, cancel_futures=True)  # after the chunk that each worker is at

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


_RETRIES = 20  # times that Ray runs a chunk again after its worker or node has died
_LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray(Workers):
    """Tasks of Ray Core, on one machine or on a cluster; the workers need the same version of rackline.

    Args:
        address: of the cluster, "auto" for the one this machine is of, or "local" for one on this machine alone.
    """

    address: str

    def run(self, tasks: Iterable[Task]) -> Generator[Done]:
        """As `Workers`.

        Raises:
            InputError: Ray is not installed, or there is no cluster at the address.
        """
        ray = library()
        begun = not ray.is_initialized()
        if begun:
            self._begin(ray)
        try:
            yield from self._run(ray, tasks)
        finally:
            if begun:
                ray.shutdown()

    def _begin(self, ray: Any) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cores = {"num_cpus": self.num} if self.num and self.address == _LOCAL else {}
        try:
            ray.init(
                address=self.address,
                log_to_driver=False,
                include_dashboard=False if self.address == _LOCAL else None,
                logging_level="error",
                **cores,
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            why = " ".join(str(error).split())[:200]
            allowed = f"the address of a cluster, such as auto or ray://HOST:10001, or local ({why})"
            raise InputError(what="ray", given=self.address, allowed=allowed) from None

    def _run(self, ray: Any, tasks: Iterable[Task]) -> Generator[Done]:
        job = ray.put(self.job)
        remote = ray.remote(_chunk).options(max_retries=_RETRIES, num_cpus=1)
        left = iter(tasks)
        waiting: dict[Any, str] = {}
        most = max(1, int(self.num or ray.cluster_resources().get("CPU", 1))) * (1 + _AHEAD)
        try:
            while True:
                while len(waiting) < most:
                    task = next(left, None)
                    if task is None:
                        break
                    waiting[remote.remote(job, self.store, *task)] = task[0]
                if not waiting:
                    return
                done, _ = ray.wait(list(waiting), num_returns=1)
                for one in done:
                    yield self._result(ray, one, waiting.pop(one))
        finally:
            for one in waiting:
                ray.cancel(one, force=False)

    def _result(self, ray: Any, one: Any, name: str) -> Done:
        try:
            return ray.get(one)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None  # what the chunk itself has raised
        except ray.exceptions.RayError as error:
            why = " ".join(str(error).split())[:200]
            raise RacklineError(f"shard {name}: Ray has lost it {_RETRIES} times: {why}") from None


def _chunk(job: Job, store: str, name: str, chunk: Chunk) -> Done:
    """One chunk, in a worker of Ray."""
    return run_chunk(job, chunk, store_of(store), name)


def library() -> Any:
    """Ray, loaded as its workers need it.

    Raises:
        InputError: with how to get it.
    """
    # workers have this version of rackline already; under `uv run` Ray would build an environment for each of them
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    return load_optional("ray", what="--ray")
