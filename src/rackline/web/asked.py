"""A request as a question: strict JSON or flat texts, within bounds, and without any path of the server."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any, cast

from fastapi import Response

from rackline.api.answer import Verb, find_verb
from rackline.api.question import Option, Question, options
from rackline.api.verbs import entries
from rackline.errors import InputError, RacklineError, nearest_names, shown
from rackline.files import each_once, parse_toml

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may take, and how many there may be.

    Args:
        body_bytes: largest body, with its files [bytes].
        question_bytes: largest question, without its files [bytes].
        uploads: most files of one request [count].
        bodies_bytes: all bodies that are read at a time [bytes].
        body_s: longest time in which a body comes [s].
        answer_s: longest time of an answer, without the wait for a worker [s].
        grace_s: from a cancellation to the end of a worker that does not obey [s].
        memory_bytes: most memory that a worker may take [bytes].
        begun_s: longest time from a connection to the end of the headers of its request [s].
        kept_bytes: answers that are kept for who asks the same again [bytes].
        quick_wait_s: longest wait for a worker, of a question that takes less than a second [s].
        long_wait_s: the same of one that takes longer [s].
        waiting: most requests that wait for a worker [count].
    """

    body_bytes: int = 16 * 2**20
    question_bytes: int = 256 * 2**10
    uploads: int = 16
    bodies_bytes: int = 64 * 2**20
    body_s: float = 120.0
    answer_s: float = 300.0
    grace_s: float = 2.0
    begun_s: float = 30.0
    memory_bytes: int = 3 * 2**30
    kept_bytes: int = 64 * 2**20
    quick_wait_s: float = 0.6
    long_wait_s: float = 60.0
    waiting: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a server is started.

    Args:
        host: address that it listens on.
        port: 0 for any that is free.
        workers: processes that answer, at least 1 [count].
        names: names under which it may be reached beside its address.
        limits: of one request.
    """

    host: str = LOOPBACK[0]
    port: int = 8321
    workers: int = 2
    names: tuple[str, ...] = ()
    limits: Limits = Limits()

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in LOOPBACK


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
    "too-slow": (408, "The request did not come in time"),
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


def bad_input(what: str, given: Any, allowed: str) -> ProblemError:
    """A value of a request that cannot be taken."""
    return problem_of(InputError(what=what, given=given, allowed=allowed))


def problem_of(error: RacklineError) -> ProblemError:
    """Bad input as a problem."""
    more: dict[str, Any] = {}
    if isinstance(error, InputError):
        more = {"what": error.what, "given": shown(error.given), "allowed": error.allowed}
        more |= {key: value for key, value in (("where", error.where), ("nearest", error.nearest)) if value}
    return problem("bad-input", str(error), **more)


RESERVED = ("uploads", "figures")
"""Keys of a body that are no options of any question."""


@cache
def offered_names() -> tuple[str, ...]:
    """The questions that have an endpoint."""
    return tuple(name for name, one in entries().items() if not one.elsewhere)


def offered(name: str) -> Verb[Any, Any]:
    """How a question of an endpoint is answered.

    Raises:
        ProblemError: there is no such question here.
    """
    known = offered_names()
    if name in entries() and name not in known:
        raise problem("not-found", f"{name} {entries()[name].elsewhere}: ask it there, as rackline {name}", given=name)
    if name not in known:
        near = nearest_names(name, known, 1)
        error = problem("not-found", f"no question {name[:80]!r}", given=name[:80], allowed=", ".join(known))
        error.more.update({"nearest": near[0]} if near else {})
        raise error
    return find_verb(name)


@cache
def taken(name: str) -> Mapping[str, Option]:
    """The options of a question that a request may have: all but those that name files to write."""
    return {key: one for key, one in options(find_verb(name).question).items() if not one.output}


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# an absolute path, one of a home folder, or one that begins with . or .., at the start of a text or of one of its
# parts (KEY=PATH); or one that goes up; or one of Windows
_PATH = re.compile(r"(?:^|[=,;@\s])(?:[/~]|\.{1,2}(?:[\\/]|$)|[A-Za-z]:)|[\\/]\.\.(?:[\\/]|$)|\\|\x00")
_MOST_FIGURES = 16
_DEEPEST = 64  # levels of an uploaded file that are looked through


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for.

    Args:
        form: answer, view or script.
        question: as `Question.to_data` writes it.
        uploads: files that it names.
        figures: kinds that a view has; the first by default.
    """

    form: str
    question: Mapping[str, Any]
    uploads: Mapping[str, str]
    figures: tuple[str, ...] | None

    @property
    def is_long(self) -> bool:
        """Whether the answer may take longer than a second."""
        return entries()[self.question["ask"]].is_long

    def key(self, build: str) -> str:
        """A name that only the same request has, in the same build of the program."""
        parts = [build, self.form, self.question, self.figures, sorted(self.uploads.items())]
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def read_json(body: bytes) -> dict[str, Any]:
    """The object of a body.

    Raises:
        ProblemError: not JSON, a key twice, numbers that are not finite, or no object.
    """
    try:
        data: Any = json.loads(body.decode(), object_pairs_hook=each_once, parse_constant=_not_finite)
    except RecursionError:
        raise problem("bad-json", "nested too deeply") from None
    except ValueError as error:
        raise problem("bad-json", str(error)[:240]) from None
    if not isinstance(data, dict):
        raise problem("bad-json", "the body is no object", allowed="an object with the options of the question")
    return cast("dict[str, Any]", data)


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def asked_by_body(name: str, form: str, data: Mapping[str, Any], limits: Limits) -> Asked:
    """The request of an object: options of the question, `uploads`, and `figures` of a view.

    Raises:
        ProblemError: bad input.
    """
    given = dict(data)
    uploads = _uploads(given.pop("uploads", None), limits)
    figures = _figures(given.pop("figures", None)) if form == "view" else None
    if len(json.dumps(given, ensure_ascii=True)) > limits.question_bytes:
        raise problem("too-large", f"a question, without its files, of at most {limits.question_bytes:,} bytes")
    if given.get("ask", name) != name:
        raise problem("bad-input", f"ask: {name} is asked here", what="ask", given=shown(given["ask"]), allowed=name)
    verb = offered(name)
    return _asked(verb.question, given, form, uploads, figures)


def asked_by_params(name: str, form: str, params: Sequence[tuple[str, str]]) -> Asked:
    """The request of the query of an address.

    Raises:
        ProblemError: bad input.
    """
    verb = offered(name)
    texts = dict(params)
    if len(texts) < len(params):
        twice = next(key for key, _ in params if sum(key == other for other, _ in params) > 1)
        raise problem(
            "bad-input", f"{twice[:80]}: stands twice", what=twice[:80], given="twice", allowed="once; ; between values"
        )
    try:
        question = verb.question.from_params(texts)
    except RacklineError as error:
        raise problem_of(error) from None
    return _asked(verb.question, question.to_data(), form, {}, None)


def _asked(
    kind: type[Question],
    given: Mapping[str, Any],
    form: str,
    uploads: Mapping[str, str],
    figures: tuple[str, ...] | None,
) -> Asked:
    refused = [key for key in given if key in options(kind) and key not in taken(kind.ask)]
    if refused:
        raise bad_input(refused[0], given[refused[0]], "nothing: the server writes no files")
    for key, text in _texts(given):
        check_text(text, key)
    try:
        question = kind.from_data(given)
        data = question.to_data()
    except RacklineError as error:
        raise problem_of(error) from None
    except RecursionError:
        raise problem("bad-json", "nested too deeply") from None
    return Asked(form=form, question=data, uploads=uploads, figures=figures)


def check_text(text: str, what: str) -> None:
    """Refuse a text that names a path of the server.

    Args:
        text: a value, or a part of one.
        what: it belongs to.

    Raises:
        ProblemError: it does.
    """
    if _PATH.search(text):
        raise bad_input(what, text, "no path: a name of the catalogue, or of a file in `uploads`")


def _texts(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """All texts of plain data, keys as well, with the outermost key of each.

    Raises:
        ProblemError: it is nested too deeply.
    """
    if depth > _DEEPEST:
        raise problem("bad-input", f"{key}: nested too deeply", what=key, allowed=f"{_DEEPEST} levels")
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, one in cast("Mapping[str, Any]", value).items():
            if depth:
                yield key, str(name)
            yield from _texts(one, key or str(name), depth + 1)
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _texts(one, key, depth + 1)


def _figures(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    kinds = cast("list[Any]", given) if isinstance(given, list) else None
    if kinds is None or len(kinds) > _MOST_FIGURES or not all(isinstance(one, str) for one in kinds):
        allowed = "a list of kinds"
        raise problem("bad-input", f"figures: {allowed}", what="figures", allowed=allowed)
    return tuple(dict.fromkeys(cast("list[str]", kinds)))


def _uploads(given: Any, limits: Limits) -> dict[str, str]:
    """The files of a request.

    Raises:
        ProblemError: too many, a name with a folder, a file that is no text, or one that names paths itself.
    """
    if given is None:
        return {}
    allowed = f'at most {limits.uploads} files such as {{"my-chip.toml": "its text"}}; letters, digits, . _ - in names'
    files = cast("dict[str, Any]", given) if isinstance(given, dict) else None
    if files is None or len(files) > limits.uploads:
        raise problem("bad-input", f"uploads: {allowed}", what="uploads", allowed=allowed)
    for name, text in files.items():
        if not _NAME.fullmatch(name) or not isinstance(text, str):
            raise bad_input("uploads", name, allowed)
        for inside in _paths_inside(name, text):
            check_text(inside, f"uploads {name}")
    return files


def _paths_inside(name: str, text: str) -> Iterator[str]:
    """Texts of an uploaded file that stand where a file may be named; what cannot be read is refused later."""
    try:
        data: Any = json.loads(text) if PurePath(name).suffix == ".json" else parse_toml(text)
    except (ValueError, RecursionError):
        return
    for _, one in _texts(data, name):
        if one[:1] in "/~\\" or one.startswith("..") or "/../" in one:
            yield one
