"""Responses that end when their reader is gone: one answer, or server-sent events until there is one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from rackline.web.problem import EVENTS, ProblemError
from rackline.web.worker import Estimate, News, Progress, Tell

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
    finding = asyncio.ensure_future(find(_nobody))
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


def _nobody(message: News) -> None:
    pass
