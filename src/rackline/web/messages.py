"""What the server and its workers send each other, and how progress is told on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rackline.web.problem import ProblemError

EVENTS = "text/event-stream"
"""Media type of an answer with progress ahead of it."""

JSON, SCRIPT = "application/json", "text/javascript; charset=utf-8"
"""Media types of an answer, and of a script of the page."""


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
