"""A process that answers questions, one at a time: its messages, and the little of the machine that it may touch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from rackline.api.answer import Computed, Counted, Served, Watch
from rackline.errors import HubError, InputError, RacklineError
from rackline.files import case_folder
from rackline.web.asked import ProblemError, problem, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is asked.

    Args:
        number: of the task, which each message about it carries.
        form: answer (the JSON of `--json`), view (with rows, figures and texts), script (of the page) or openapi.
        question: with its name under "ask".
        uploads: files that it names: name and text.
        figures: kinds that a view has; the first by default.
    """

    number: int
    form: str
    question: Mapping[str, Any]
    uploads: Mapping[str, str] = field(default_factory=dict[str, str])
    figures: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an answer is.

    Args:
        number: of the task.
        what: is done.
        done, total: parts [count]; None for work of unknown length.
    """

    number: int
    what: str
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The answer by estimates, ahead of one that is simulated.

    Args:
        number: of the task.
        body: its JSON.
    """

    number: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The end of a task.

    Args:
        number: of the task.
        body: the JSON of the answer; empty where there is none.
        problem: why there is none.
        cancelled: whether it was asked to stop.
        resident_bytes: memory of the worker [bytes].
    """

    number: int
    body: bytes = b""
    problem: ProblemError | None = None
    cancelled: bool = False
    resident_bytes: float = 0.0


News = Progress | Estimate
Tell = Callable[[News], None]
"""Takes how far an answer is, and what it is by estimates."""


_SYSTEM = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system", "/usr/share/zoneinfo", "/dev/null",
           "/dev/urandom", "/etc/localtime")  # fmt: skip
_LISTED = ("os.listdir", "os.scandir")
_CHANGED = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown",
            "os.truncate", "os.utime")  # fmt: skip
_NEVER = (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Sandbox:
    """Locks the process that it is closed in.

    Args:
        folder: the only one that may be written to, and whose files questions may name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        paths = sysconfig.get_paths()
        program = [str(Path(__file__).resolve().parents[1]), str(case_folder()), sys.prefix, sys.base_prefix]
        program += [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        program += [one for one in sys.path if one]
        self._read = (self._folder, *(os.path.realpath(one) for one in program), *_SYSTEM)

    def close(self) -> None:
        """Lock the process, for as long as it lives."""
        sys.dont_write_bytecode = True
        sys.addaudithook(self.check)

    def check(self, event: str, given: tuple[Any, ...]) -> None:
        """Refuse what the process may not do.

        Args:
            event: of Python's audit.
            given: its arguments.

        Raises:
            InputError: a file is read that came neither with the question nor with the program.
            PermissionError: anything else that is locked.
        """
        if event == "open":
            path, mode, flags = given
            if isinstance(path, int):
                return
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
            if writes:
                self._check_written(path, event)
            elif not self._is_in(path, self._read):
                raise InputError(
                    what="file",
                    given=os.fsdecode(path),
                    allowed="a name of the catalogue, or a file that comes with the question (`uploads`)",
                )
        elif event in _LISTED:
            if given[0] is not None and not isinstance(given[0], int) and not self._is_in(given[0], self._read):
                raise PermissionError(13, "folders of the server are not listed", os.fsdecode(given[0]))
        elif event in _CHANGED:
            self._check_written(given[0], event)
        elif event in _NEVER:
            raise PermissionError(13, f"{event} is locked while questions are answered")

    def _check_written(self, path: Any, event: str) -> None:
        if not isinstance(path, int) and not self._is_in(path, (self._folder, "/dev/null")):
            raise PermissionError(13, f"{event} is locked outside of the folder of the question", os.fsdecode(path))

    @staticmethod
    def _is_in(path: Any, roots: tuple[str, ...]) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return any(real == root or real.startswith(f"{root}{os.sep}") for root in roots)


_TOLD_EVERY_S = 0.1


class CancelledError(KeyboardInterrupt):
    """The task is no longer wanted; as an interruption, it passes what handles errors."""


def run(pipe: Connection, folder: str, memory_bytes: int) -> None:
    """Answer what comes through a pipe until it is closed; the target of a process.

    Args:
        pipe: of tasks (and numbers of tasks to cancel) and messages.
        folder: of the worker alone; emptied after each task.
        memory_bytes: most memory that it may take [bytes].
    """
    Worker(pipe, Path(folder)).run(memory_bytes)


class Worker:
    """Answers one task after the other.

    Args:
        pipe: of tasks and messages.
        folder: of the worker alone.
    """

    def __init__(self, pipe: Connection, folder: Path) -> None:
        self._pipe = pipe
        self._folder = folder
        self._tasks: SimpleQueue[Task] = SimpleQueue()
        self._current: int | None = None  # task that may be interrupted
        self._unwanted: int | None = None
        self._sending = False
        self._statm: int | None = None

    def run(self, memory_bytes: int) -> None:
        """As the function `run`."""
        signal.signal(signal.SIGINT, self._interrupt)
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=str(self._folder), HOME=str(self._folder))
        os.chdir(self._folder)
        _bound_memory(memory_bytes)
        with contextlib.suppress(OSError):
            self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        threading.Thread(target=self._listen, daemon=True).start()
        Sandbox(self._folder).close()
        self._pipe.send(None)  # ready
        while True:
            task = self._tasks.get()
            try:
                reply = self._answer(task)
            except CancelledError:
                reply = Reply(number=task.number, cancelled=True)
            self._pipe.send(reply)

    def _listen(self) -> None:
        """Take tasks and cancellations as they come; without a server there is nothing left to do."""
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(0)
            if isinstance(message, Task):
                self._tasks.put(message)
                continue
            self._unwanted = message
            if self._current == message:
                if sys.platform == "win32":
                    signal.raise_signal(signal.SIGINT)
                else:
                    os.kill(os.getpid(), signal.SIGINT)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._current is not None and self._current == self._unwanted and not self._sending:
            self._current = None
            raise CancelledError

    def _tell(self, message: News) -> None:
        """Send a whole message; an interruption waits until it is sent."""
        self._sending = True
        self._pipe.send(message)
        self._sending = False
        if self._unwanted == message.number:
            raise CancelledError

    def _answer(self, task: Task) -> Reply:
        """The reply to a task.

        Raises:
            CancelledError: it is no longer wanted.
        """
        body, refused = b"", None
        self._empty()
        try:
            self._current = task.number
            if self._unwanted == task.number:
                raise CancelledError
            for name, text in task.uploads.items():
                (self._folder / name).write_text(text, encoding="utf-8")
            body = _body(task, WireWatch(self._tell, task.number))
        except Exception as error:
            self._current = None
            refused = _problem(error)
        finally:
            self._current = None
        self._empty()
        return Reply(number=task.number, body=body, problem=refused, resident_bytes=self._resident_bytes())

    def _resident_bytes(self) -> float:
        """Memory that this process has [bytes]; 0 where the system does not say."""
        if self._statm is None:
            return 0.0
        return float(int(os.pread(self._statm, 256, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    def _empty(self) -> None:
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _problem(error: Exception) -> ProblemError:
    """What went wrong, in the words of the API; what was not foreseen is told to the one who runs the server."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, HubError):
        return problem_of(
            InputError(
                what=error.what,
                given=error.given,
                allowed="a model of the catalogue, or its config.json among `uploads`: this server asks no other "
                "machine",
                where=error.where,
                nearest=error.nearest,
            )
        )
    if isinstance(error, RacklineError):
        return problem_of(error)
    if isinstance(error, MemoryError):
        return problem("too-much-memory", "ask for less: fewer requests, a coarser grid")
    if isinstance(error, RecursionError):
        return problem("bad-input", "values are nested too deeply", allowed="a few hundred levels")
    import traceback

    traceback.print_exception(error, file=sys.stderr)
    return problem("failed", f"{type(error).__name__}, an error of rackline: the log of the server has it")


def _body(task: Task, watch: WireWatch) -> bytes:
    from rackline.web.forms import as_json, description, estimate_body, question_body

    if task.form == "openapi":
        return as_json(description())
    if task.form == "script":
        from rackline.web.data import script_body

        return script_body(task.question, watch)
    is_view = task.form == "view"
    if is_view:
        watch.written = lambda result: estimate_body(task.question, result, watch, task.figures)
    return question_body(task.question, watch, view=is_view, figures=task.figures)


class WireWatch(Watch):
    """Sends progress to the server, at most ten times a second.

    Args:
        tell: sends a message.
        number: of the task.

    Attributes:
        written: writes a result by estimates; None where nobody looks at it.
    """

    def __init__(self, tell: Callable[[News], None], number: int) -> None:
        super().__init__()
        self.written: Callable[[Any], bytes] | None = None
        self._send = tell
        self._number = number
        self._told_s = -1.0

    def estimated(self, result: Any) -> None:
        """Send the result, and say what follows."""
        if self.written is not None:
            self._send(Estimate(number=self._number, body=self.written(result)))
            self._send(Progress(number=self._number, what="simulating the best"))

    def moving(self, what: str) -> AbstractContextManager[None]:
        """Say what begins."""
        self._tell(what, None, None)
        return nullcontext()

    def counting(self, first: str, then: str) -> AbstractContextManager[Counted]:
        """Say what begins, then each part."""
        self._tell(first, None, None)
        return nullcontext(lambda what, finished, total: self._tell(f"{then} {what}", finished, total))

    def serving(self, what: str) -> AbstractContextManager[Served | None]:
        """Say how many requests are served."""
        tell: Callable[[int, int, float], None] = lambda done, total, now_s: self._tell(what, done, total)  # noqa: E731
        return nullcontext(tell)

    def computing(self, what: str) -> AbstractContextManager[Computed]:
        """Say how many points are computed."""
        return nullcontext(lambda done, total, failed: self._tell(what, done, total))

    def _tell(self, what: str, done: int | None, total: int | None) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            self._send(Progress(number=self._number, what=what, done=done, total=total))


def _bound_memory(memory_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has such limits
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
