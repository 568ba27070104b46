"""How long an observation waits, and how often it asks again."""

from __future__ import annotations

from dataclasses import dataclass


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
