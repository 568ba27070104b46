"""Chunks on Ray: it schedules, retries what dies with a worker or a node, and spills; we only keep it busy."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from rackline.errors import InputError, RacklineError
from rackline.extras import load_optional
from rackline.sweeps.chunk import Done, Job, run_chunk
from rackline.sweeps.space import Chunk
from rackline.sweeps.store import store_of
from rackline.sweeps.workers import Task, Workers

_AHEAD = 2  # chunks that wait for each core
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
                    name = waiting.pop(one)
                    yield self._result(ray, one, name)
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
