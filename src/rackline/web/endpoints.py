"""`/api/v1`: one endpoint for each question, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response

from rackline.sweeps.chunk import build_hash
from rackline.web.answers import Answers
from rackline.web.asked import Asked, asked_by_body, asked_by_params, read_json
from rackline.web.offered import offered
from rackline.web.problem import EVENTS, JSON, SCRIPT, ProblemError, problem
from rackline.web.responses import EventResponse, Find, ReaderGoneError, found_or_gone
from rackline.web.settings import Limits, Settings
from rackline.web.worker import Tell
from rackline.web.workers import Workers

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
            async for part in request.stream():
                size += len(part)
                self._bodies_bytes += len(part)
                if size > limits.body_bytes:
                    raise problem("too-large", f"more than {limits.body_bytes:,} bytes", allowed=limits.body_bytes)
                if self._bodies_bytes > limits.bodies_bytes:
                    raise problem("too-busy", "too many large requests at a time", {"Retry-After": "1"}, retry=True)
                parts.append(part)
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
