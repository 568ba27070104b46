"""Runs commands and says what is wrong with how they end: an exception, a long line, a strange status, too long."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))  # hf_configs

from fuzz_cases import case_file
from fuzz_commands import command_line
from fuzz_configs import description
from fuzz_questions import question_file
from fuzz_traces import trace

from rackline.cli.main import run

KINDS: dict[str, Callable[[Random, Path], list[str]]] = {
    "traces": trace,
    "cases": case_file,
    "commands": command_line,
    "configs": description,
    "questions": question_file,
}
SECONDS = 60  # of the processor
_LONGEST, _MOST_LINES = 2100, 25


class TooLongError(BaseException):
    """A command did not end in time."""


def problem(words: list[str]) -> str | None:
    """What is wrong with how a command ends; None when it answers, or refuses in one line."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            _within(SECONDS),
        ):
            warnings.simplefilter("error")
            status = run(words)
    except TooLongError:
        return f"more than {SECONDS} s"
    except (Exception, SystemExit):
        return traceback.format_exc(limit=-6)
    err.flush()
    said = err.buffer.getvalue().decode("utf-8").splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    errors = [line for line in said if line.startswith("error: ")]
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if status == 2 and words[0] != "ask" and len(errors) != 1:
        return f"exit status 2 with {len(errors)} error lines: {said}"
    if len(said) > _MOST_LINES or any(len(line) > _LONGEST for line in said):
        return f"{len(said)} lines on standard error, the longest of {max(map(len, said))} characters"
    return None


@contextlib.contextmanager
def _within(seconds: int) -> Generator[None]:
    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz(kind: str, count: int, seed: int, folder: Path, slow_s: float = 5.0) -> list[tuple[list[str], str]]:
    """Commands of one kind that end badly, with what is wrong; slow ones are named on standard error."""
    found: list[tuple[list[str], str]] = []
    for number in range(count):
        rng = Random(f"{kind} {seed} {number}")
        here = folder / f"{kind}-{seed}-{number}"
        here.mkdir()
        words = KINDS[kind](rng, here)
        start = time.process_time()
        wrong = problem(words)
        if wrong is not None:
            found.append((words, wrong))
        elif time.process_time() - start > slow_s:
            print(f"slow, {time.process_time() - start:.1f} s: {words}"[:300], file=sys.stderr)
        if wrong is None:
            for file in here.iterdir():
                file.unlink()
            here.rmdir()
    return found
