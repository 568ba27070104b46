"""One streamed answer: server-sent events read as they come, each with its time, and what became of the request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2

from rackline.lab.observation.target import Bounds, Target
from rackline.validation.observed import ObservedRequest, Outcome

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
        """One attempt; how long to wait before the next one [s], or None."""
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
        """One event: a piece of the answer, the usage, an error, or the end."""
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
        for name, value in (*((key, usage.get(key)) for key in _COUNTED), ("cached_tokens", cached)):
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                self.usage[name] = value


_COUNTED = ("prompt_tokens", "completion_tokens")


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
