"""Where commands write: tables or JSON on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rackline.errors import InputError, harmless
from rackline.files import unwritable
from rackline.plain import plain

_NARROWEST, _USUAL_WIDTH = 20, 80  # COLUMNS=0 or a broken terminal: columns
_PROGRESS_AFTER_S = 0.7  # what is done sooner needs no progress bar


class FailedCheckError(Exception):
    """The command has printed its answer, which is that a check failed; its argument is the exit status."""


class Screen(Console):
    """A console on standard output that writes out what a terminal would obey in texts of others.

    It lets a closed pipe reach `run`, which ends the command quietly.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Segments whose control characters are those of styles alone."""
        for one in super().render(renderable, options):
            yield one if one.control or one.text.isprintable() else Segment(harmless(one.text), one.style)

    def on_broken_pipe(self) -> NoReturn:
        """Pass the error on."""
        raise


def screen(*, stderr: bool = False) -> Screen:
    """The console of this command; its width is that of the terminal, or COLUMNS.

    Args:
        stderr: whether it is on standard error.
    """
    console = Screen(highlight=False, soft_wrap=False, stderr=stderr)
    if console.width >= _NARROWEST:
        return console
    return Screen(highlight=False, soft_wrap=False, width=_USUAL_WIDTH, stderr=stderr)


def print_json(data: Mapping[str, Any]) -> None:
    """Write one JSON object in SI units; a number that is not finite becomes null."""
    sys.stdout.write(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_then_write(
    show: Callable[[], None],
    files: Sequence[tuple[str, Path, Callable[[], None]]],
    spoken: Callable[[InputError], InputError] = lambda error: error,
) -> None:
    """Print an answer, then write every file beside it; what fails is raised when all has been tried.

    Args:
        show: prints the answer.
        files: option, file and what writes it.
        spoken: puts a writer's error into the words of the command line.

    Raises:
        OSError: standard output cannot be written, and each file could.
        InputError: the last file that could not be written; those before it are on standard error.
    """
    unshown: OSError | None = None
    try:
        show()
        sys.stdout.flush()
    except OSError as error:
        unshown = error
    refused: list[InputError] = []
    for option, path, write in files:
        try:
            write()
        except InputError as error:
            refused.append(spoken(error))
        except OSError as error:
            refused.append(unwritable(path, error, what=option))
    for one in refused[:-1]:
        print(f"error: {one}", file=sys.stderr)
    if unshown is not None and refused:
        drop_output()
    if refused:
        raise refused[-1]
    if unshown is not None:
        raise unshown


def drop_output() -> None:
    """Standard output cannot be written: keep the interpreter from writing the rest of its buffer at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def asked(what: str) -> bool:
    """Whether the reader agrees to what is about to be done; False where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(what, file=sys.stderr)
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class Bars:
    """Progress on standard error, if that is a terminal."""

    @contextmanager
    def moving(self, what: str) -> Generator[None]:
        """A moving bar and the time passed, of work that takes long."""
        with contextlib.ExitStack() as shown:
            timer = threading.Timer(_PROGRESS_AFTER_S, lambda: shown.enter_context(_bar(what, "elapsed")))
            timer.daemon = True
            if sys.stderr.isatty():
                timer.start()
            try:
                yield
            finally:
                timer.cancel()
                if timer.ident is not None:
                    timer.join()

    @contextmanager
    def counting(self, first: str, then: str) -> Generator[Callable[[str, int, int], None]]:
        """A bar that counts finished parts.

        Args:
            first: shown until a part is finished.
            then: shown before the name of the part that was finished last.

        Yields:
            What to call with (part, finished, all).
        """
        with _bar(first, "count", "elapsed") as update:
            yield lambda what, finished, total: update(description=f"{then} {what}", completed=finished, total=total)

    @contextmanager
    def serving(self, what: str) -> Generator[Callable[[int, int, float], None] | None]:
        """A bar with the requests that are done and the time left.

        Yields:
            What to call with (done, all, simulated seconds); None when nobody would see it.
        """
        with _bar(what, "count", "remaining") as update:
            yield (lambda done, total, now_s: update(completed=done, total=total)) if sys.stderr.isatty() else None

    @contextmanager
    def computing(self, what: str) -> Generator[Callable[[int, int, int], None]]:
        """A bar with points that are done, their rate and the time left.

        Yields:
            What to call with (done, all, failed).
        """
        start = time.monotonic()
        with _bar(what, "rate", "remaining") as update:

            def tell(done: int, total: int, failed: int) -> None:
                rate = done / max(time.monotonic() - start, 1e-9)
                words = f"{done:,} of {total:,} points, {rate:,.0f}/s" + (f", {failed:,} failed" if failed else "")
                update(completed=done, total=total, rate=words)

            yield tell


def _ignore(**_: Any) -> None: ...


@contextmanager
def _bar(what: str, *columns: str) -> Generator[Callable[..., None]]:
    """A bar on standard error, if that is a terminal; yields what updates it."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich import progress

    known = {
        "count": progress.MofNCompleteColumn,
        "rate": partial(progress.TextColumn, "{task.fields[rate]}"),
        "elapsed": progress.TimeElapsedColumn,
        "remaining": progress.TimeRemainingColumn,
    }
    parts = (progress.TextColumn("{task.description}"), progress.BarColumn(), *(known[name]() for name in columns))
    with progress.Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(what, total=None, rate=""))
