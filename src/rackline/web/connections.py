"""Connections that begin no request end: who opens hundreds and sends nothing, or headers byte by byte, keeps none."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class _Connection(H11Protocol):
    """A connection whose next request must have begun, headers and all, within a time."""

    begun_s: float = 30.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request, if these bytes are only a part of its headers."""
        super().data_received(data)
        if self._is_waiting:
            self._wait()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop()
        super().connection_lost(exc)

    @property
    def _is_waiting(self) -> bool:
        cycle = getattr(self, "cycle", None)  # none before the first request
        return cycle is None or cycle.response_complete

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.begun_s, self._end)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        self._deadline = None
        if self._is_waiting and not self.transport.is_closing():
            self.transport.close()


def connection(begun_s: float) -> type[H11Protocol]:
    """Connections with their patience.

    Args:
        begun_s: from the connection, or the first byte of a request, to the end of its headers [s].
    """
    return type("Connection", (_Connection,), {"begun_s": begun_s})
