"""One streamed answer: server-sent events read as they come, each with its time, and what became of the request."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import httpx2

from rackline.errors import InputError, nearest_name
from rackline.validation.observed import ObservedRequest, Outcome

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}
_ASKED_S = 10.0  # for the list of models, and for each pause within it
_LIST_BYTES = 4 * 2**20  # of it: the longest public one, of a gateway with hundreds of models, has under one MB
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
        """Headers of each request."""
        found = {"Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
        return {**found, "Authorization": f"Bearer {self.key}"} if self.key else found

    def hidden(self, text: str, longest: int = 200) -> str:
        """One line of a text of the server, without the key and without what a terminal would obey.

        Args:
            longest: of the line [characters].
        """
        plain = _readable(" ".join(text.split()))
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
    allowed = "an address such as http://localhost:8000 or https://HOST/v1"
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InputError(what="url", given=url, allowed=allowed) from None
    if "@" in parts.netloc:  # what is before it is not repeated
        raise InputError(what="url", given="a name or password in it", allowed="a key by `key_env` alone")
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(
            what="url", given=url, allowed=allowed, nearest=None if parts.scheme and host else f"http://{url}"
        )
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
    base, key = base_url_of(url), key_from(key_env)
    found = Target(base_url=base, served_name=served_name or "", endpoint=endpoint, key=key)
    try:
        status, text = _models(f"{base}/models", found.headers | {"Accept": "*/*"})
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        reason = found.hidden(str(error)) or type(error).__name__
        raise InputError(what="url", given=base, allowed=f"a server that answers ({reason})") from None
    if status in (401, 403):
        raise InputError(
            what="url", given=f"{base} answers {status}", allowed="`key_env` NAME of a variable with a valid key"
        )
    names = _listed(text) if 200 <= status < 300 else []
    if served_name is not None:
        if names and served_name not in names:
            raise InputError(
                what="served_name",
                given=served_name,
                allowed=", ".join(names[:_MOST_SHOWN]),
                nearest=nearest_name(served_name, names),
            )
        return found
    if len(names) != 1:
        shown = ", ".join(names[:_MOST_SHOWN]) + ("" if len(names) <= _MOST_SHOWN else ", ...")
        given = f"{len(names)} models at {base}" if names else f"no list of models at {base}"
        raise InputError(what="served_name", given=given, allowed=shown or "the name of the model at the server")
    return Target(base_url=base, served_name=names[0], endpoint=endpoint, key=key)


def _models(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """(HTTP status, body) of a list of models, of a bounded length, within a bounded time."""
    until, text = time.monotonic() + _ASKED_S, bytearray()
    with httpx2.stream("GET", url, headers=headers, timeout=_ASKED_S) as found:
        for part in found.iter_bytes():
            text += part
            if len(text) > _LIST_BYTES:
                raise httpx2.ReadError(f"a list of models of more than {_LIST_BYTES:,} bytes")
            if time.monotonic() > until:
                raise httpx2.ReadTimeout(f"a list of models that takes longer than {_ASKED_S:g} s")
        return found.status_code, bytes(text)


def _listed(text: bytes) -> list[str]:
    """Names in a list of models that can be printed and sent; none where it is no list."""
    try:
        names = [str(row["id"]) for row in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [name for name in names if name == _readable(name)]


def _readable(text: str) -> str:
    """A text without control characters: a question mark stands in place of each."""
    return "".join(one if one.isprintable() else "?" for one in text)


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


_AGAIN = (429, 503)
_PAUSE_S = 1.0  # before a request is sent again where the server does not say; doubled each time
_ERROR_BYTES = 4096  # of a refusal that are read


@dataclass(slots=True, kw_only=True)
class Stream:
    """A request in flight; what it has gathered is its record at any moment.

    Args:
        target, bounds: of the run.
        input_len, output_len: what is asked for [tokens].
        arrival_s: when it is due, from the start of the run [s].
        start: of the run, by the clock of `time.perf_counter` [s].
        saw: is told of each piece of an answer.
        class_name: of its class.
    """

    target: Target
    bounds: Bounds
    input_len: int
    output_len: int
    arrival_s: float
    start: float
    saw: Callable[[], None]
    after: int = -1
    blocks: tuple[int, ...] = ()
    class_name: str = ""
    outcome: Outcome = "not_sent"
    first_sent_s: float | None = None
    sent_s: float | None = None
    end_s: float | None = None
    token_s: list[float] = field(default_factory=list[float])
    usage: dict[str, int] = field(default_factory=dict[str, int])
    status: int | None = None
    error: str = ""
    retries: int = 0
    malformed: int = 0
    finish_reason: str = ""
    done: bool = False

    def record(self) -> ObservedRequest:
        """What is known of it."""
        return ObservedRequest(
            arrival_s=self.arrival_s,
            outcome=self.outcome,
            input_len=self.input_len,
            output_len=self.output_len,
            sent_s=self.sent_s,
            token_s=tuple(self.token_s),
            end_s=self.end_s,
            prompt_tokens=self.usage.get("prompt_tokens"),
            output_tokens=self.usage.get("completion_tokens"),
            cached_tokens=self.usage.get("cached_tokens"),
            status=self.status,
            error=self.error,
            retries=self.retries,
            waited_s=(self.sent_s or 0.0) - (self.first_sent_s or 0.0),
            malformed=self.malformed,
            after=self.after,
            blocks=self.blocks,
            class_name=self.class_name,
        )

    async def run(self, client: httpx2.AsyncClient, body: bytes) -> None:
        """Send it, read its stream to the end, send it again after 429 and 503."""
        try:
            while True:
                again_s = await self._once(client, body)
                if again_s is None:
                    return
                self.retries += 1
                await asyncio.sleep(again_s)
        except asyncio.CancelledError:
            self.outcome = "not_sent" if self.sent_s is None else "unfinished"
            raise
        finally:
            if self.sent_s is not None:
                self.end_s = time.perf_counter() - self.start

    async def _once(self, client: httpx2.AsyncClient, body: bytes) -> float | None:
        """Try once; return how long to wait before the next attempt [s], or None."""
        self.sent_s = time.perf_counter() - self.start
        if self.first_sent_s is None:
            self.first_sent_s = self.sent_s
        self.outcome, self.status, self.error = "unfinished", None, ""
        try:
            async with asyncio.timeout(self.bounds.timeout_s):
                async with client.stream("POST", self.target.url, content=body, headers=self.target.headers) as found:
                    self.status = found.status_code
                    if found.status_code != 200:
                        return await self._refused(found)
                    await self._read(found)
        except TimeoutError:
            self._ends("timeout", f"longer than {self.bounds.timeout_s:g} s")
        except httpx2.TimeoutException as error:
            if isinstance(error, httpx2.ConnectTimeout):
                self._ends("connection", f"no connection within {self.bounds.connect_s:g} s")
            else:
                self._ends("stalled", f"no byte for {self.bounds.stall_s:g} s")
        except httpx2.ConnectError as error:
            self._ends("connection", str(error))
        except httpx2.DecodingError as error:
            self._ends("garbage", str(error))
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            broken = isinstance(error, httpx2.ProtocolError) and self.status is None and "disconnect" not in str(error)
            self._ends("garbage" if broken else "cut", str(error) or type(error).__name__)
        return None

    def _ends(self, outcome: Outcome, error: str = "") -> None:
        self.outcome = outcome
        self.error = self.target.hidden(error)

    async def _refused(self, found: httpx2.Response) -> float | None:
        """A response other than 200."""
        text = bytearray()
        async for part in found.aiter_bytes():
            text += part
            if len(text) >= _ERROR_BYTES:
                break
        code = found.status_code
        outcome: Outcome = "rate_limited" if code == 429 else "server_error" if code >= 500 else "refused"
        self._ends(outcome, _message(bytes(text[:_ERROR_BYTES]).decode("utf-8", "replace")))
        if code not in _AGAIN or self.retries >= self.bounds.retries:
            return None
        said = _retry_after(found.headers.get("retry-after", ""))
        wait_s = _PAUSE_S * 2**self.retries if said is None else said
        if wait_s > self.bounds.longest_wait_s:
            self.error = self.target.hidden(f"to be sent again in {wait_s:.0f} s; {self.error}")
            return None
        return wait_s

    async def _read(self, found: httpx2.Response) -> None:
        """Read events until the stream ends."""
        rest = b""
        clock, start = time.perf_counter, self.start
        async for part in found.aiter_raw():
            now = clock() - start
            lines = (rest + part).split(b"\n") if rest else part.split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), now)
                elif line.strip() and line[:1] not in b":eir":  # comments, event, id, retry
                    self.malformed += 1
            if len(rest) > self.bounds.line_bytes:
                self._ends("garbage", f"a line of more than {self.bounds.line_bytes:,} bytes")
                return
        if rest.startswith(b"data:"):
            self._event(rest[5:].strip(), clock() - start)
        if self.outcome == "server_error":
            return
        if self.done or self.finish_reason:
            self.outcome = "finished" if self.token_s or self.usage.get("completion_tokens") == 0 else "garbage"
        elif not self.token_s and not self.usage:
            self._ends("garbage", "200, but no event of an answer")
        else:
            self._ends("cut", "the stream ended without its end")

    def _event(self, data: bytes, now: float) -> None:
        """Read an event: a piece of the answer, the usage, an error, or the end."""
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event: Any = json.loads(data)
            if not isinstance(event, dict):
                raise ValueError
        except (ValueError, RecursionError):
            self.malformed += 1
            return
        content = cast("dict[str, Any]", event)
        if content.get("error"):
            self._ends("server_error", _message(data.decode("utf-8", "replace")))
            return
        usage = content.get("usage")
        if isinstance(usage, dict):
            self._count(cast("dict[str, Any]", usage))
        choices = content.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        choice: Any = cast("list[Any]", choices)[0]
        if not isinstance(choice, dict):
            self.malformed += 1
            return
        first = cast("dict[str, Any]", choice)
        if has_text(first):
            self.token_s.append(now)
            self.saw()
        if first.get("finish_reason"):
            self.finish_reason = str(first["finish_reason"])

    def _count(self, usage: dict[str, Any]) -> None:
        details = usage.get("prompt_tokens_details")
        cached = cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, dict) else None
        # a server that stops at `max_tokens` gives no more; a prompt and what is cached of it fit a context
        most = {
            "prompt_tokens": _LONGEST_PROMPT,
            "completion_tokens": self.output_len,
            "cached_tokens": _LONGEST_PROMPT,
        }
        for name, value in ({key: usage.get(key) for key in most} | {"cached_tokens": cached}).items():
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most[name]:
                self.usage[name] = value
            elif value is not None:
                self.malformed += 1


_LONGEST_PROMPT = 100_000_000  # ten times the longest context of a public model: Llama 4 Scout, 10M


def has_text(choice: dict[str, Any]) -> bool:
    """Whether a choice of an event carries a piece of the answer, spoken, thought or for a tool."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    parts = cast("dict[str, Any]", delta)
    return any(parts.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _message(text: str) -> str:
    """What an error says: the message of OpenAI's form, else the text."""
    try:
        data: dict[str, Any] = json.loads(text)
        found: Any = data.get("error", data)
        return str(cast("dict[str, Any]", found).get("message", found) if isinstance(found, dict) else found)
    except (ValueError, AttributeError, RecursionError):
        return text


def _retry_after(text: str) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None without one.

    Source: RFC 9110, section 10.2.3.
    """
    try:
        return max(float(text), 0.0)
    except ValueError:
        pass
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        return max((parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
