"""What a server allows: its address, its workers and the limits of one request."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may take.

    Args:
        body_bytes: largest body, with its files [bytes].
        answer_s: longest time of an answer, without the wait for a worker [s].
    """

    body_bytes: int = 8 * 2**20
    answer_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a server is started.

    Args:
        host: address that it listens on.
        port: 0 for any that is free.
        workers: processes that answer; the usable cores by default [count].
        names: names under which it may be reached beside its address.
        limits: of one request.
    """

    host: str = LOOPBACK[0]
    port: int = 8321
    workers: int | None = None
    names: tuple[str, ...] = ()
    limits: Limits = Limits()

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in LOOPBACK
