"""Start a server, say where it is, and stop it."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from typing import Any

import uvicorn

from rackline.errors import InputError
from rackline.web.app import create_app
from rackline.web.settings import Settings

_BACKLOG = 1024
_KEPT_ALIVE_S = 30
_FINISHED_WITHIN_S = 2


def serve(settings: Settings, *, browser: bool) -> None:
    """Serve until interrupted.

    Args:
        settings: of the server.
        browser: whether to open the page in the browser.

    Raises:
        InputError: the address cannot be listened on.
        KeyboardInterrupt: Ctrl-C, when all is stopped.
    """
    listening = _listen(settings)
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        lifespan="on",
        server_header=False,
        timeout_keep_alive=_KEPT_ALIVE_S,
        timeout_graceful_shutdown=_FINISHED_WITHIN_S,
    )
    with listening:
        _Server(config, _address(settings.host, listening.getsockname()[1]), browser=browser).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Says where it is as soon as it listens."""

    def __init__(self, config: uvicorn.Config, address: str, *, browser: bool) -> None:
        super().__init__(config)
        self._address = address
        self._browser = browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"rackline web: {self._address} (Ctrl-C stops it)", file=sys.stderr, flush=True)
        if self._browser:
            threading.Thread(target=_open, args=(self._address,), daemon=True).start()


def _open(address: str) -> Any:
    return webbrowser.open(address)


def _address(host: str, port: int) -> str:
    name = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::", "::1") else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def _listen(settings: Settings) -> socket.socket:
    """A socket on the address.

    Raises:
        InputError: another program has it, it is none of this machine's, or it is not allowed.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a name"
        raise InputError(
            what="--host", given=settings.host, allowed=f"an address of this machine ({reason})", nearest="127.0.0.1"
        ) from None
    found = socket.socket(family, kind, protocol)  # asyncio sends at once (TCP_NODELAY) where it knows that it is TCP
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(place)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise InputError(
            what="--host, --port",
            given=f"{settings.host}:{settings.port}",
            allowed=f"an address that is free ({error.strerror})",
            nearest="--port 0 takes any that is free",
        ) from None
    return found
