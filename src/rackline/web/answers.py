"""Answers by content: who asks the same at the same time shares one, who asks again gets the kept one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from rackline.web.worker import Estimate, News, Progress, Tell
from rackline.web.workers import Workers


class Job:
    """An answer that is being found: who is told how far it is, and what they were told last."""

    def __init__(self) -> None:
        self.task: asyncio.Task[bytes] | None = None
        self.listeners: list[Tell] = []
        self.told: dict[type[News], News] = {}

    def tell(self, message: News) -> None:
        """Tell all who wait."""
        self.told[type(message)] = message
        for listener in self.listeners:
            listener(message)

    def tell_all(self, tell: Tell) -> None:
        """Tell one who comes later what the others know."""
        for kind in (Estimate, Progress):
            if kind in self.told:
                tell(self.told[kind])


class Answers:
    """Finds answers, and keeps the last ones.

    Args:
        workers: find them.
        kept_bytes: of the answers that are kept [bytes].
    """

    def __init__(self, workers: Workers, kept_bytes: int) -> None:
        self._workers = workers
        self._most_bytes = kept_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._jobs: dict[str, Job] = {}

    async def get(self, key: str, form: str, asked: Mapping[str, Any], *, is_long: bool, tell: Tell) -> bytes:
        """The answer to a request, as JSON. It is dropped when nobody waits for it any more.

        Args:
            key: a name that only equal requests share.
            form: as in `Task`.
            asked: the further fields of the task.
            is_long: whether it may take longer than a second.
            tell: is told how far it is.

        Raises:
            ProblemError: there is none.
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = Job()
            job.task = asyncio.ensure_future(self._find(key, job, form, asked, is_long=is_long))
        else:
            job.tell_all(tell)
        job.listeners.append(tell)
        task = job.task
        if task is None:
            raise RuntimeError("a job without a task")
        try:
            return await asyncio.shield(task)
        finally:
            job.listeners.remove(tell)
            if not job.listeners and not task.done():
                task.cancel()
                self._forget(key, job)

    async def _find(self, key: str, job: Job, form: str, asked: Mapping[str, Any], *, is_long: bool) -> bytes:
        try:
            body = await self._workers.ask(form, asked, is_long=is_long, tell=job.tell)
            self._keep(key, body)
            return body
        finally:
            self._forget(key, job)

    def _forget(self, key: str, job: Job) -> None:
        if self._jobs.get(key) is job:
            del self._jobs[key]

    def _keep(self, key: str, body: bytes) -> None:
        """Keep an answer, and let the oldest go; one that takes a quarter of the room alone is not kept."""
        if len(body) > self._most_bytes / 4:
            return
        self._kept[key] = body
        self._kept_bytes += len(body)
        while self._kept_bytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest)
