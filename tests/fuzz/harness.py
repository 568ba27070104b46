"""Runs commands and says what is wrong with how they end or with what they answer.

Wrong are an exception, a long line, a strange status, too long a time, control characters on the screen, and of an
answer numbers that are none, infinite or negative, and costs of nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))  # hf_configs

from fuzz_bodies import body
from fuzz_cases import case_file
from fuzz_commands import command_line
from fuzz_configs import description
from fuzz_loads import load
from fuzz_manifests import manifest
from fuzz_questions import question_file
from fuzz_results import result
from fuzz_traces import trace
from starlette.testclient import TestClient

from rackline.cli import command
from rackline.cli.main import run
from rackline.web.app import create_app
from rackline.web.asked import Limits, Settings

KINDS: dict[str, Callable[[Random, Path], list[str]]] = {
    "traces": trace,
    "cases": case_file,
    "commands": command_line,
    "configs": description,
    "questions": question_file,
    "loads": load,
    "results": result,
    "manifests": manifest,
    "bodies": body,
}
SECONDS = 20  # of the processor
_LONGEST, _MOST_LINES = 2100, 25


class TooLongError(BaseException):
    """A command did not end in time."""


def problem(words: list[str]) -> str | None:
    """What is wrong with how a command or a request ends; None when it answers rightly, or refuses in one line."""
    return ending(words)[1]


def ending(words: list[str]) -> tuple[bool, str | None]:
    """Whether a command or a request is answered, and what is wrong with how it ends."""
    if words[0] == "POST":
        return _of_request(words[1], Path(words[2]))
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    answers: list[Any] = []
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            _within(SECONDS),
            _kept(answers),
        ):
            warnings.simplefilter("error")
            status = run(words)
    except TooLongError:
        return False, f"more than {SECONDS} s"
    except (Exception, SystemExit):
        return False, traceback.format_exc(limit=-6)
    said, shown = _text(err).splitlines(), _text(out)
    errors = [line for line in said if line.startswith("error: ")]
    if status not in (0, 1, 2):
        return False, f"exit status {status}"
    if status == 2 and words[0] != "ask" and len(errors) != 1:
        return False, f"exit status 2 with {len(errors)} error lines: {said}"
    if len(said) > _MOST_LINES or any(len(line) > _LONGEST for line in said):
        return False, f"{len(said)} lines on standard error, the longest of {max(map(len, said))} characters"
    if found := _CONTROL.search(shown + "\n".join(said)):
        return False, f"a control character on the screen: {found[0]!r}"
    if status != 2 and not _names_it(words) and (found := _NO_NUMBER.search(shown)):
        return False, f"no number on the screen: {shown[max(found.start() - 80, 0) : found.end() + 20]!r}"
    for answer in answers:
        for place, value in wrong_numbers(answer.to_dict()):
            return False, f"{place} is {value}"
    return status != 2, None


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8")  # pyright: ignore[reportAttributeAccessIssue]


def _names_it(words: list[str]) -> bool:
    """Whether an answer prints texts with these letters: of help, of the lecture, or of cases listed by name."""
    if words[0] in ("schema", "lecture"):
        return True
    file = Path(words[1]) if len(words) > 1 else Path()
    is_read = words[0] in ("validate", "audit") and file.is_file()
    return is_read and bool(re.search(rb"nan|inf", file.read_bytes(), re.IGNORECASE))


@contextlib.contextmanager
def _kept(answers: list[Any]) -> Generator[None]:
    """Keep what commands answer."""
    before = command.answer_of

    def answer_of(*given: Any) -> Any:
        answers.append(before(*given))
        return answers[-1]

    command.answer_of = answer_of
    try:
        yield
    finally:
        command.answer_of = before


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_NUMBER = re.compile(r"(?<!got )(?<![\w.\-\"'])[-+]?(nan|inf)(?![\w.\-\"'])|\$-|-\$")
_ECHOED = ("question", "records", "given", "settings")
_MAY_BE_FREE = (  # what is in HBM already, and a cache that is computed again
    "usd_per_mtok_once",
    "usd_per_mtok_retrieve",
    "usd_per_mtok_hold",
    "usd_per_mtok_hour_hold",
    "usd_per_mtok_hour_storage",
)
_MAY_BE_NEGATIVE = ("kv_room_bytes", "free_bytes")  # what is missing where a model does not fit


def wrong_numbers(data: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of an answer that cannot be: not finite, times and bytes below 0, dollars that are not above it."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in _ECHOED:
                yield from wrong_numbers(value, f"{place}.{key}")
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from wrong_numbers(value, f"{place}.{number}")
    elif isinstance(data, float | int) and not isinstance(data, bool):
        name = next((part for part in reversed(place.split(".")) if not part.isdigit()), "")
        is_money, is_amount = "usd" in name, name.endswith(("_s", "_bytes", "_per_s", "_tokens", "_flop"))
        is_below = data < 0 and (is_money or is_amount) and name not in _MAY_BE_NEGATIVE
        if not math.isfinite(data) or is_below or (is_money and not data and name not in _MAY_BE_FREE):
            yield place, data


def _of_request(path: str, file: Path) -> tuple[bool, str | None]:
    """Whether a request is answered, and what is wrong with the response."""
    response = _client().post(path, content=file.read_bytes(), headers={"Content-Type": "application/json"})
    if response.status_code >= 500 and "too-much-memory" not in response.text:
        return False, f"status {response.status_code}: {response.text[:2000]}"
    try:
        data = json.loads(response.text, parse_constant=_no_number)
    except ValueError as error:
        return False, f"status {response.status_code}, no JSON ({error}): {response.text[:200]}"
    if response.status_code != 200 and ("detail" not in data or len(data["detail"]) > _LONGEST):
        return False, f"status {response.status_code} without a short reason: {response.text[:300]}"
    for place, value in wrong_numbers(data if response.status_code == 200 else {}):
        return False, f"{place} is {value}"
    return response.status_code == 200, None


def _no_number(text: str) -> float:
    raise ValueError(text)


@cache
def _client() -> TestClient:
    """A client of an application in this process; `close` stops its worker."""
    limits = Limits(answer_s=300.0, quick_wait_s=600.0, long_wait_s=600.0)  # the machine may be busy
    return _open.enter_context(TestClient(create_app(Settings(workers=1, limits=limits)), base_url="http://127.0.0.1"))


def close() -> None:
    """Stop what requests have started."""
    _open.close()
    _client.cache_clear()


_open = contextlib.ExitStack()


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


@dataclass
class Tally:
    """How inputs of one kind ended.

    Args:
        inputs: that were tried.
        answered: of these; the others were refused.
        bad: commands that end badly, with what is wrong.
        slowest_s: the longest time of this process for one [s].
    """

    inputs: int = 0
    answered: int = 0
    bad: list[tuple[list[str], str]] = field(default_factory=list[tuple[list[str], str]])
    slowest_s: float = 0.0


def fuzz(kind: str, count: int, seed: int, folder: Path) -> Tally:
    """Try commands or requests of one kind; files of those that end badly are kept."""
    found = Tally()
    for number in range(count):
        rng = Random(f"{kind} {seed} {number}")
        here = folder / f"{kind}-{seed}-{number}"
        here.mkdir()
        words = KINDS[kind](rng, here)
        start = time.process_time()
        answered, wrong = ending(words)
        found.inputs += 1
        found.answered += answered
        found.slowest_s = max(found.slowest_s, time.process_time() - start)
        if wrong is not None:
            found.bad.append((words, wrong))
        else:
            shutil.rmtree(here)
    return found
