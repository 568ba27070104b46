"""Connections without a common pool: each request takes a free one or opens one, however many there are.

The client's own pool looks at every connection whenever a request begins or ends, which stops all streams for
milliseconds when there are hundreds of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2


class Connections(httpx2.AsyncBaseTransport):
    """One transport with one connection for each request in flight, kept for the next request."""

    def __init__(self) -> None:
        self._context = httpx2.create_ssl_context()
        self._free: list[httpx2.AsyncHTTPTransport] = []
        self._all: list[httpx2.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request on a free connection."""
        if self._free:
            one = self._free.pop()
        else:
            one = httpx2.AsyncHTTPTransport(verify=self._context, limits=httpx2.Limits(max_connections=1))
            self._all.append(one)
        try:
            found = await one.handle_async_request(request)
        except BaseException:
            self._free.append(one)
            raise
        stream = found.stream
        if isinstance(stream, httpx2.AsyncByteStream):
            found.stream = _Returned(stream, one, self._free)
        return found

    async def aclose(self) -> None:
        """Close every connection."""
        for one in self._all:
            await one.aclose()
        self._all.clear()
        self._free.clear()


class _Returned(httpx2.AsyncByteStream):
    """The body of a response, whose connection is free again once it is closed."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, one: httpx2.AsyncHTTPTransport, free: list[httpx2.AsyncHTTPTransport]
    ) -> None:
        self._stream, self._one, self._free = stream, one, free
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces of the body as they come."""
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        """End the response."""
        try:
            await self._stream.aclose()
        finally:
            if not self._closed:
                self._closed = True
                self._free.append(self._one)
