"""The worker processes of a server: who is free, who waits, who has to be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rackline.processes import bare_main, single_threads
from rackline.web.asked import Limits, Settings, problem
from rackline.web.worker import Estimate, News, Progress, Reply, Task, Tell, run

_FIRST_WAIT_S = 90.0  # longest wait while no worker has started yet
_RECYCLED = 0.5  # share of the memory limit above which a worker is replaced
_MOST_FAILURES = 5  # processes that end one after another before any was ready
_QUICK_S, _LONG_S = 0.05, 2.0  # that a question takes, until some have been answered
_NEW_SHARE = 0.2  # of the last answer in what is usual
_FORKED = sys.platform == "linux"


def _context() -> Any:
    """Processes are copies of one that has loaded the program; where there is no such thing, each loads it itself."""
    if not _FORKED:
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["rackline.web.warm"])
    return found


class Process:
    """One worker process and what it works on.

    Args:
        folder: of its own.
        limits: of a request.
        changed: is called when it became ready or ended.
    """

    def __init__(self, folder: Path, limits: Limits, changed: Callable[[Process], None]) -> None:
        self.folder = folder
        self.is_ready = False
        self.is_lost = False
        self.resident_bytes = 0.0
        self._limits = limits
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[Reply] | None = None
        self._number = -1
        self._tell: Tell | None = None
        self._sending = threading.Lock()
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = _context().Process(
            target=run, args=(theirs, str(folder), limits.memory_bytes), daemon=True, name="rackline web worker"
        )
        self._theirs: Connection | None = theirs

    @property
    def pid(self) -> int | None:
        """Its number in the system."""
        return self._process.pid

    def start(self) -> None:
        """Start it; blocks for a moment."""
        self.folder.mkdir(parents=True)  # a config.json is called like its folder: alike in all workers
        with bare_main(), single_threads():
            self._process.start()
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None
        threading.Thread(target=self._listen, daemon=True).start()

    async def ask(self, task: Task, tell: Tell) -> Reply:
        """Give it a task and wait for its reply.

        Raises:
            ProblemError: the process ended.
        """
        self._reply, self._number, self._tell = self._loop.create_future(), task.number, tell
        if self.is_lost:
            self._reply.set_exception(_lost())
        else:
            await asyncio.to_thread(self._send, task)
        reply = await asyncio.shield(self._reply)
        self.resident_bytes = reply.resident_bytes
        return reply

    async def settle(self, number: int) -> None:
        """Make it drop a task: it is asked to, and ended if it does not."""
        self._tell = None
        reply = self._reply
        if reply is None or reply.done() or self.is_lost:
            return
        self._send(number)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self._limits.grace_s):
                await asyncio.shield(reply)
                return
        self.end()

    def end(self) -> None:
        """End it at once."""
        self.is_lost = True
        with contextlib.suppress(ValueError, AttributeError, OSError):
            self._process.kill()

    def _send(self, message: Task | int) -> None:
        with self._sending, contextlib.suppress(OSError, ValueError):  # one that is gone is noticed by who listens
            self._pipe.send(message)

    def _listen(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError, TypeError):  # it ended, or was ended while a message was read
                break
            if not self._post(self._receive, message):
                return
        self.end()
        self._process.join()
        self._pipe.close()
        self._post(self._end)

    def _post(self, call: Callable[..., None], *given: Any) -> bool:
        """Call in the loop of the server, unless it has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *given)
            return True
        return False

    def _receive(self, message: News | Reply | None) -> None:
        if message is None:
            self.is_ready = True
            self._changed(self)
        elif isinstance(message, Progress | Estimate):
            if self._tell is not None and message.number == self._number:
                self._tell(message)
        elif self._reply is not None and not self._reply.done() and message.number == self._number:
            self._reply.set_result(message)

    def _end(self) -> None:
        self.is_lost = True
        shutil.rmtree(self.folder.parent, ignore_errors=True)
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(_lost())
            self._reply.exception()  # whether or not anybody still waits
        self._changed(self)


def _lost() -> Exception:
    return problem("worker-lost", "it was killed, or ran out of memory; ask again", {"Retry-After": "1"}, retry=True)


class Lane:
    """Requests of a kind: how many run, and those that wait, first come first served.

    Args:
        most: of them that may run at a time [count].
        wait_s: longest wait for a worker [s].
        usual_s: how long one takes, until some have been answered [s].
    """

    def __init__(self, most: int, wait_s: float, usual_s: float) -> None:
        self.most = most
        self.wait_s = wait_s
        self.usual_s = usual_s
        self.running = 0
        self.waiting: deque[asyncio.Future[Process]] = deque()

    @property
    def expected_s(self) -> float:
        """How long a further request would wait, if all take as long as usual [s]."""
        return max(len(self.waiting) + self.running - self.most + 1, 0) / self.most * self.usual_s

    def took(self, seconds: float) -> None:
        """Note the time in which a question was answered."""
        self.usual_s += _NEW_SHARE * (seconds - self.usual_s)


class Workers:
    """Processes that answer, each one task at a time.

    Questions that take long never have the last worker, so that others are answered meanwhile (where there is one
    worker alone, it takes what comes).

    Args:
        settings: of the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._limits = settings.limits
        self._num = settings.workers
        limits = settings.limits
        self._quick = Lane(most=settings.workers, wait_s=limits.quick_wait_s, usual_s=_QUICK_S)
        self._long = Lane(most=max(settings.workers - 1, 1), wait_s=limits.long_wait_s, usual_s=_LONG_S)
        self._all: list[Process] = []
        self._idle: list[Process] = []
        self._numbers = itertools.count()
        self._folder = Path()
        self._has_started = False
        self._is_over = False
        self._failures = 0
        self._starting: set[asyncio.Task[None]] = set()
        self._start_one = asyncio.Lock()

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that are running."""
        return tuple(self._all)

    async def start(self) -> None:
        """Start the processes; they get ready by themselves."""
        self._folder = Path(tempfile.mkdtemp(prefix="rackline-web-"))
        for _ in range(self._num):
            self._spawn()

    async def stop(self) -> None:
        """End all processes and remove what they wrote."""
        self._is_over = True
        for one in self._starting:
            one.cancel()
        for process in self._all:
            process.end()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def ask(self, form: str, asked: Mapping[str, Any], *, is_long: bool, tell: Tell) -> bytes:
        """The answer to a task, as JSON.

        Args:
            form: as in `Task`.
            asked: the further fields of the task.
            is_long: whether it may take longer than a second.
            tell: is told how far it is.

        Raises:
            ProblemError: there is none, or no worker in time.
        """
        lane = self._long if is_long else self._quick
        task = Task(number=next(self._numbers), form=form, **asked)
        process = await self._take(lane, task.number, tell)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.answer_s):
                reply = await process.ask(task, tell)
            lane.took(time.monotonic() - begun)
        except TimeoutError:
            process.end()
            raise problem("too-long", f"more than {self._limits.answer_s:g} s; ask for less") from None
        finally:
            # the caller may be gone; the process is given back when it has dropped the task
            back = asyncio.ensure_future(self._give_back(lane, process, task.number))
            self._keep(back)
        if reply.problem is not None:
            raise reply.problem
        return reply.body

    async def _take(self, lane: Lane, number: int, tell: Tell) -> Process:
        """A free process."""
        if self._failures >= _MOST_FAILURES:
            raise problem("failed", "worker processes do not start: the log of the server says why")
        if len(lane.waiting) >= self._limits.waiting or lane.expected_s > lane.wait_s:
            raise _too_busy(lane)  # at once: it would wait in vain
        place: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        lane.waiting.append(place)
        self._dispatch()
        if not place.done():
            tell(Progress(number=number, what="waiting for a worker"))
        try:
            wait_s = lane.wait_s if self._has_started else max(lane.wait_s, _FIRST_WAIT_S)
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(place)
        except (TimeoutError, asyncio.CancelledError) as error:
            if place.done() and not place.cancelled():
                self._keep(asyncio.ensure_future(self._give_back(lane, place.result(), number)))
            else:
                place.cancel()
                with contextlib.suppress(ValueError):
                    lane.waiting.remove(place)
            if isinstance(error, TimeoutError):
                raise _too_busy(lane) from None
            raise

    def _dispatch(self) -> None:
        """Give free processes to who waits, quick questions first."""
        for lane in (self._quick, self._long):
            while lane.waiting and self._idle and lane.running < lane.most:
                place = lane.waiting.popleft()
                if not place.done():
                    lane.running += 1
                    place.set_result(self._idle.pop())

    async def _give_back(self, lane: Lane, process: Process, number: int) -> None:
        try:
            await process.settle(number)
            if process.resident_bytes > _RECYCLED * self._limits.memory_bytes:
                process.end()
        finally:
            lane.running -= 1
            if not process.is_lost:
                self._idle.append(process)
            self._dispatch()

    def _spawn(self) -> None:
        self._keep(asyncio.ensure_future(self._start()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self) -> None:
        async with self._start_one:
            if self._failures:
                await asyncio.sleep(0.1 * 2**self._failures)
            if self._is_over:
                return
            process = Process(self._folder / str(next(self._numbers)) / "uploads", self._limits, self._change)
            self._all.append(process)
            try:
                await asyncio.to_thread(process.start)
            except OSError:
                process.is_lost = True
                self._change(process)

    def _change(self, process: Process) -> None:
        """A process became ready, or ended."""
        if not process.is_lost:
            self._failures, self._has_started = 0, True
            self._idle.append(process)
            self._dispatch()
            return
        self._all.remove(process)
        if process in self._idle:
            self._idle.remove(process)
        if not process.is_ready:
            self._failures += 1
        if not self._is_over and self._failures < _MOST_FAILURES:
            self._spawn()


def _too_busy(lane: Lane) -> Exception:
    wait_s = max(lane.expected_s, 1.0)
    return problem(
        "too-busy",
        f"{len(lane.waiting)} wait for a worker, about {wait_s:.0f} s; ask again",
        {"Retry-After": str(round(wait_s))},
        retry=True,
    )
