"""Errors as problem JSON (RFC 9457), with what was given, what is allowed and where; media types of answers."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Response

from rackline.errors import InputError, RacklineError, shown

MEDIA_TYPE = "application/problem+json"

EVENTS = "text/event-stream"
"""Media type of an answer with progress ahead of it."""

JSON, SCRIPT = "application/json", "text/javascript; charset=utf-8"
"""Media types of an answer, and of a script of the page."""

# kind of problem: status and title
KINDS: dict[str, tuple[int, str]] = {
    "bad-json": (400, "The body is not a JSON object"),
    "bad-host": (400, "The Host header names another server"),
    "other-site": (403, "The request comes from another site"),
    "not-found": (404, "There is no such page or question"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "too-large": (413, "The request is too large"),
    "not-json": (415, "The body must be application/json"),
    "bad-input": (422, "The question cannot be answered as it is"),
    "too-busy": (429, "All workers are busy"),
    "failed": (500, "The server failed"),
    "worker-lost": (503, "The process that worked on the answer ended"),
    "too-long": (503, "The answer took longer than a request may take"),
    "too-much-memory": (503, "The answer needed more memory than a request may take"),
}


class ProblemError(Exception):
    """Why a request has no answer.

    Args:
        kind: one of `KINDS`.
        detail: one line.
        more: further members, such as what was given and what is allowed.
        headers: of the response.
    """

    def __init__(self, kind: str, detail: str, more: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.more = more
        self.headers = headers

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the arguments, so that problems cross process borders."""
        return (type(self), (self.kind, self.detail, self.more, self.headers))

    @property
    def status(self) -> int:
        """The HTTP status."""
        return KINDS[self.kind][0]

    def to_dict(self) -> dict[str, Any]:
        """The members of the problem."""
        status, title = KINDS[self.kind]
        return {"type": f"/problems/{self.kind}", "title": title, "status": status, "detail": self.detail, **self.more}

    def response(self) -> Response:
        """The response that says so."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
        return Response(text, status_code=self.status, media_type=MEDIA_TYPE, headers=self.headers)


def problem(kind: str, detail: str, headers: dict[str, str] | None = None, **more: Any) -> ProblemError:
    """A problem of a kind.

    Args:
        kind: one of `KINDS`.
        detail: one line.
        headers: of the response.
        more: further members.
    """
    return ProblemError(kind, detail, more, headers or {})


def problem_of(error: RacklineError) -> ProblemError:
    """Bad input as a problem."""
    more: dict[str, Any] = {}
    if isinstance(error, InputError):
        more = {"what": error.what, "given": shown(error.given), "allowed": error.allowed}
        more |= {key: value for key, value in (("where", error.where), ("nearest", error.nearest)) if value}
    return problem("bad-input", str(error), **more)
