"""What a server allows: its address, its workers and the limits of one request."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may take, and how many there may be.

    Args:
        body_bytes: largest body, with its files [bytes].
        question_bytes: largest question, without its files [bytes].
        uploads: most files of one request [count].
        bodies_bytes: all bodies that are read at a time [bytes].
        answer_s: longest time of an answer, without the wait for a worker [s].
        grace_s: from a cancellation to the end of a worker that does not obey [s].
        memory_bytes: most memory that a worker may take [bytes].
        kept_bytes: answers that are kept for who asks the same again [bytes].
        quick_wait_s: longest wait for a worker, of a question that takes less than a second [s].
        long_wait_s: the same of one that takes longer [s].
        waiting: most requests that wait for a worker [count].
    """

    body_bytes: int = 16 * 2**20
    question_bytes: int = 256 * 2**10
    uploads: int = 16
    bodies_bytes: int = 64 * 2**20
    answer_s: float = 300.0
    grace_s: float = 2.0
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
