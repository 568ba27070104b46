"""The server that is observed: its address and key, what it serves, connections to it, and how long to wait."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

from rackline.errors import InputError, nearest_names

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}
_ASKED_S = 10.0  # for the list of models
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An OpenAI-compatible server.

    Args:
        base_url: address up to and with /v1.
        served_name: the model, as the server names it.
        endpoint: completions or chat.
        key: sent as a bearer token; empty for none. It is in no text or file of an answer.
    """

    base_url: str
    served_name: str
    endpoint: Endpoint
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.base_url + PATHS[self.endpoint]

    @property
    def headers(self) -> dict[str, str]:
        """Of each request."""
        found = {"Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
        return {**found, "Authorization": f"Bearer {self.key}"} if self.key else found

    def hidden(self, text: str, longest: int = 200) -> str:
        """One line of a text of the server, without the key.

        Args:
            longest: of the line [characters].
        """
        plain = " ".join(text.split())
        if self.key:
            plain = plain.replace(self.key, "***")
        return plain if len(plain) <= longest else f"{plain[: longest - 3]}..."


def base_url_of(url: str) -> str:
    """The address of an API, ending in /v1 where no path is given.

    Raises:
        InputError: no address of HTTP, or one with a name, password, query or fragment in it.

    >>> base_url_of("http://localhost:8000"), base_url_of("https://api.example.com/llm/v1/")
    ('http://localhost:8000/v1', 'https://api.example.com/llm/v1')
    """
    from urllib.parse import urlsplit

    allowed = "an address such as http://localhost:8000 or https://HOST/v1"
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InputError(what="url", given=url, allowed=allowed) from None
    if "@" in parts.netloc:  # what is before it is not repeated
        raise InputError(what="url", given="a name or password in it", allowed="a key by `key_env` alone")
    if parts.scheme not in ("http", "https") or not host:
        near = f"http://{url}" if not parts.scheme or not host else None
        raise InputError(what="url", given=url, allowed=allowed, nearest=near)
    if parts.query or parts.fragment:
        raise InputError(what="url", given="a query or fragment in it", allowed=allowed)
    path = parts.path.rstrip("/")
    for ending in PATHS.values():
        path = path.removesuffix(ending)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def key_from(name: str | None) -> str:
    """The key in an environment variable; empty without a name.

    Raises:
        InputError: the variable is not set, or cannot be a key.
    """
    if name is None:
        return ""
    key = os.environ.get(name, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(what="key_env", given=name, allowed="an environment variable that holds the key")
    return key


def target(url: str, *, endpoint: Endpoint, served_name: str | None = None, key_env: str | None = None) -> Target:
    """Ask a server what it serves.

    Args:
        url: its address.
        served_name: the model; by default the only one that it lists.
        key_env: environment variable that holds the key.

    Raises:
        InputError: it does not answer, refuses the key, lists no model or several.
    """
    import httpx2

    base, key = base_url_of(url), key_from(key_env)
    found = Target(base_url=base, served_name=served_name or "", endpoint=endpoint, key=key)
    try:
        response = httpx2.get(f"{base}/models", headers=found.headers | {"Accept": "*/*"}, timeout=_ASKED_S)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        reason = found.hidden(str(error)) or type(error).__name__
        raise InputError(what="url", given=base, allowed=f"a server that answers ({reason})") from None
    if response.status_code in (401, 403):
        how = "`key_env` NAME of a variable with a valid key"
        raise InputError(what="url", given=f"{base} answers {response.status_code}", allowed=how)
    names = _listed(response) if response.is_success else []
    if served_name is not None:
        if names and served_name not in names:
            near = nearest_names(served_name, names, 1)
            allowed = ", ".join(names[:_MOST_SHOWN])
            raise InputError(what="served_name", given=served_name, allowed=allowed, nearest=near[0] if near else None)
        return found
    if len(names) != 1:
        shown = ", ".join(names[:_MOST_SHOWN]) + ("" if len(names) <= _MOST_SHOWN else ", ...")
        given = f"{len(names)} models at {base}" if names else f"no list of models at {base}"
        raise InputError(what="served_name", given=given, allowed=shown or "the name of the model at the server")
    return Target(base_url=base, served_name=names[0], endpoint=endpoint, key=key)


def _listed(response: Any) -> list[str]:
    try:
        rows = response.json()["data"]
        return [str(row["id"]) for row in rows]
    except (ValueError, KeyError, TypeError):
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a run and of its requests.

    Args:
        max_s: of the run; what is not sent by then is not, what is in flight is cut [s].
        timeout_s: of one request, from sending it to the end of its stream [s].
        stall_s: of a pause within a stream, and before it [s].
        connect_s: of opening a connection [s].
        retries: retries of a request after HTTP status 429 or 503 [count].
        longest_wait_s: longest Retry-After that is waited for [s].
        line_bytes: longest line of a stream; more is garbage [bytes].
    """

    max_s: float = 600.0
    timeout_s: float = 120.0
    stall_s: float = 60.0
    connect_s: float = 10.0
    retries: int = 3
    longest_wait_s: float = 60.0
    line_bytes: int = 2**20


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
