"""`/api/v1`: one endpoint for each question, and what is said of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

from rackline.catalog.index import build_hash
from rackline.web.asked import (
    EVENTS,
    JSON,
    SCRIPT,
    Asked,
    Limits,
    ProblemError,
    Settings,
    asked_by_body,
    asked_by_params,
    offered,
    problem,
    read_json,
)
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
            for kind in (Estimate, Progress):  # one who comes later is told what the others know
                if kind in job.told:
                    tell(job.told[kind])
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


_ALIVE_EVERY_S = 5.0

Find = Callable[[Tell], Awaitable[bytes]]
"""Finds an answer and tells how far it is."""


class ReaderGoneError(Exception):
    """Who asked has closed the connection."""


async def until_gone(request: Request) -> None:
    """Wait until the reader closes the connection; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def found_or_gone(request: Request, find: Find) -> bytes:
    """The answer.

    Raises:
        ProblemError: there is none.
        ReaderGoneError: nobody waits for it any more, and the work has been stopped.
    """
    finding = asyncio.ensure_future(find(lambda news: None))
    leaving = asyncio.ensure_future(until_gone(request))
    try:
        await asyncio.wait((finding, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not finding.done():
            raise ReaderGoneError
        return finding.result()
    finally:
        await _stop(finding, leaving)


class EventResponse(Response):
    """Server-sent events: `progress` as often as there is any, an `estimate` where there is one, then one `answer` or
    `problem`.

    Args:
        find: finds the answer.
        headers: of the response.
    """

    media_type = EVENTS

    def __init__(self, find: Find, headers: dict[str, str]) -> None:
        super().__init__(headers={**headers, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._find = find

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application.

        A problem that comes before any progress is an ordinary response with its status.
        """
        news: asyncio.Queue[News | None] = asyncio.Queue()
        finding = asyncio.ensure_future(self._find(news.put_nowait))
        finding.add_done_callback(lambda _: news.put_nowait(None))
        leaving = asyncio.ensure_future(until_gone(Request(scope, receive)))
        begun = False

        async def write(text: str, *, more: bool = True) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        try:
            while True:
                one = await _next(news, leaving)
                if leaving.done():
                    return
                if isinstance(one, Progress):
                    await write(
                        _event("progress", json.dumps({"what": one.what, "done": one.done, "total": one.total}))
                    )
                elif isinstance(one, Estimate):
                    await write(_event("estimate", one.body.decode()))
                elif not finding.done():
                    await write(": alive\n\n")
                else:
                    break
            try:
                text = _event("answer", finding.result().decode())
            except ProblemError as error:
                if not begun:
                    await error.response()(scope, receive, send)
                    return
                text = _event("problem", json.dumps(error.to_dict(), ensure_ascii=False))
            await write(text, more=False)
        finally:
            await _stop(finding, leaving)


async def _next(news: asyncio.Queue[News | None], leaving: asyncio.Task[None]) -> News | None:
    """What is to be told next; None after a while without news, and at the end."""
    getting = asyncio.ensure_future(news.get())
    try:
        await asyncio.wait((getting, leaving), timeout=_ALIVE_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


def _event(kind: str, data: str) -> str:
    """One event; JSON of ours has no line breaks."""
    return f"event: {kind}\ndata: {data}\n\n"


PREFIX = "/api/v1"
_JSON = re.compile(r"application/json\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?$", re.IGNORECASE)
_GONE = 499  # what servers log for a client that closed the connection; nobody reads it


class Endpoints:
    """Answers requests with what workers find.

    Args:
        settings: of the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._limits = settings.limits
        self._bodies_bytes = 0
        self.workers = Workers(settings)
        self._answers = Answers(self.workers, settings.limits.kept_bytes)

    async def post(self, name: str, form: str, request: Request) -> Response:
        """Answer a question in a body."""
        offered(name)
        body = await self._body(request, self._limits)
        try:
            asked = asked_by_body(name, form, read_json(body), self._limits)
        except ProblemError:
            self._bodies_bytes -= len(body)
            raise
        return await self._answer(asked, request, len(body))

    async def get(self, name: str, form: str, request: Request) -> Response:
        """Answer a question in an address."""
        return await self._answer(asked_by_params(name, form, request.query_params.multi_items()), request)

    async def openapi(self, request: Request) -> Response:
        """Describe all endpoints."""
        key = f"openapi-{build_hash()}"
        return await self._respond(request, key, self._find(key, "openapi", {"question": {}}, is_long=False))

    async def _answer(self, asked: Asked, request: Request, body_bytes: int = 0) -> Response:
        key = asked.key(build_hash())
        fields = {"question": asked.question, "uploads": asked.uploads, "figures": asked.figures}
        find = self._find(key, asked.form, fields, is_long=asked.is_long, body_bytes=body_bytes)
        return await self._respond(request, key, find, SCRIPT if asked.form == "script" else JSON)

    def _find(self, key: str, form: str, fields: dict[str, Any], *, is_long: bool, body_bytes: int = 0) -> Find:
        async def find(tell: Tell) -> bytes:
            try:
                return await self._answers.get(key, form, fields, is_long=is_long, tell=tell)
            finally:
                self._bodies_bytes -= body_bytes

        return find

    async def _respond(self, request: Request, key: str, find: Find, media_type: str = JSON) -> Response:
        headers = {"ETag": f'W/"{key}"', "Cache-Control": "private, no-cache"}
        if media_type == JSON and EVENTS in request.headers.get("accept", ""):
            return EventResponse(find, headers)
        if request.method == "GET" and key in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        try:
            body = await found_or_gone(request, find)
        except ReaderGoneError:
            return Response(status_code=_GONE)
        return Response(body, media_type=media_type, headers=headers)

    async def _body(self, request: Request, limits: Limits) -> bytes:
        """The body of a request, within the limits; it counts as read until its answer is found.

        Raises:
            ProblemError: it is no JSON or too large, or too much is being read.
        """
        if not _JSON.match(request.headers.get("content-type", "")):
            given = request.headers.get("content-type", "nothing")[:240]
            raise problem("not-json", f"Content-Type: got {given}", given=given, allowed="application/json")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.body_s):
                async for part in request.stream():
                    size += len(part)
                    self._bodies_bytes += len(part)
                    if size > limits.body_bytes:
                        raise problem("too-large", f"more than {limits.body_bytes:,} bytes", allowed=limits.body_bytes)
                    if self._bodies_bytes > limits.bodies_bytes:
                        raise problem("too-busy", "too many large requests at a time", {"Retry-After": "1"}, retry=True)
                    parts.append(part)
        except TimeoutError:
            self._bodies_bytes -= size
            raise problem("too-slow", f"no whole body within {limits.body_s:g} s", allowed=limits.body_s) from None
        except BaseException:
            self._bodies_bytes -= size
            raise
        return b"".join(parts)


def add_endpoints(app: FastAPI, settings: Settings) -> None:
    """Add the endpoints; their workers run as long as the application.

    Args:
        app: the application.
        settings: of the server.
    """
    endpoints = Endpoints(settings)
    app.state.workers = endpoints.workers

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        await endpoints.workers.start()
        try:
            yield
        finally:
            await endpoints.workers.stop()

    app.router.lifespan_context = lifespan

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok"}

    @app.get(f"{PREFIX}/openapi.json")
    async def openapi(request: Request) -> Response:
        return await endpoints.openapi(request)

    @app.get(f"{PREFIX}/explain/script")
    async def script(request: Request) -> Response:
        return await endpoints.get("explain", "script", request)

    @app.get(f"{PREFIX}/{{name}}")
    async def ask_by_address(name: str, request: Request) -> Response:
        return await endpoints.get(name, "answer", request)

    @app.post(f"{PREFIX}/{{name}}")
    async def ask(name: str, request: Request) -> Response:
        return await endpoints.post(name, "answer", request)

    @app.get(f"{PREFIX}/{{name}}/view")
    async def view_by_address(name: str, request: Request) -> Response:
        return await endpoints.get(name, "view", request)

    @app.post(f"{PREFIX}/{{name}}/view")
    async def view(name: str, request: Request) -> Response:
        return await endpoints.post(name, "view", request)
