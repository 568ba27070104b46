"""The application: the HTTP API and the pages behind one door that says which hosts may ask; started and stopped."""

from __future__ import annotations

import asyncio
import ipaddress
import shutil
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rackline.errors import InputError, RacklineError, require
from rackline.files import write_text
from rackline.web.asked import LOOPBACK, SCRIPT, ProblemError, Settings, problem
from rackline.web.data import data_names, data_script, scenarios, views
from rackline.web.endpoints import PREFIX, add_endpoints


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


STATIC = Path(__file__).parent / "static"
TEMPLATES = Path(__file__).parent / "templates"
VENDORED = ("vendor/vega.min.js", "vendor/vega-lite.min.js", "vendor/vega-interpreter.js")
SCRIPTS = (
    "frame.js",
    "text.js",
    "controls.js",
    "figure.js",
    "pass.js",
    "parts.js",
    "batch.js",
    "context.js",
    "rack.js",
    "pipeline.js",
    "guide.js",
    "lecture.js",
    "accuracy.js",
    "catalogue.js",
    "lab.js",
    "grids.js",
    "replay.js",
    "card.js",
    "asked.js",
)


def page(mode: Literal["server", "static"]) -> str:
    """The page as HTML.

    Args:
        mode: "server" where questions can be asked, "static" where the page is alone.
    """
    from jinja2 import Environment, FileSystemLoader, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True
    )
    known = [{"id": name, **view} for name, view in views().items()]
    return environment.get_template("index.html").render(
        mode=mode,
        static="static",
        views=known,
        scripts=(*VENDORED, *SCRIPTS),
        first=f"scenario-{scenarios()[0].name}",
    )


def add_views(app: FastAPI) -> None:
    """Add the pages and the files that they load."""

    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return HTMLResponse(page("server"))

    @app.get("/data/{name}.js", include_in_schema=False)
    def data(name: str, request: Request) -> Response:
        try:
            text = data_script(name)
        except RacklineError:
            return problem("not-found", f"GET {request.url.path}").response()
        return Response(text, media_type=SCRIPT)

    app.mount("/static", StaticFiles(directory=STATIC), name="static")


_LOOKS = ("page.css", "theme.js", "icon.svg")
_LICENCES = "vendor/LICENSES.txt"


def export(
    folder: str | Path,
    progress: Callable[[str, int, int], None] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[Path, ...]:
    """Write the static page.

    Args:
        folder: that holds it; made if it is not there. Files of the page in it are replaced, others stay.
        progress: is told what is written, how many files are and how many will be.
        names: of the data files; all by default.

    Returns:
        The files that were written.

    Raises:
        InputError: the folder is a file or cannot be written.
    """
    root = Path(folder)
    require(not root.exists() or root.is_dir(), what="--export", given=str(folder), allowed="a folder")
    names = data_names() if names is None else names
    copied = (*VENDORED, *SCRIPTS, *_LOOKS, _LICENCES)
    written: list[Path] = []
    try:
        for name in copied:
            target = root / "static" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(STATIC / name, target)
            written.append(target)
        (root / "data").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(what="--export", given=str(folder), allowed=f"a folder that can be written: {error}") from None
    for place, name in enumerate(names):
        if progress is not None:
            progress(name, place, len(names))
        target = root / "data" / f"{name}.js"
        write_text(target, data_script(name), what="--export")
        written.append(target)
    index = root / "index.html"
    write_text(index, page("static"), what="--export")
    return (*written, index)


# nothing from elsewhere, nothing inline
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Door:
    """Refuses requests for other hosts, questions from other sites, and sets the headers of every response.

    A page elsewhere may point a name of its own to this machine (DNS rebinding) and then read what it likes: its
    requests carry that name in `Host`, which is refused. An address in numbers cannot be such a name.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._names = {*LOOPBACK, settings.host.lower(), *(name.lower() for name in settings.names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")
        if not self._is_ours(host):
            refused = problem("bad-host", "Host names no address of this server", given=host[:240])
            await refused.response()(scope, receive, with_headers)
        elif (scope["method"] not in ("GET", "HEAD") or scope["path"].startswith(PREFIX)) and (
            (origin is not None and urlsplit(origin).netloc != host) or site in ("cross-site", "same-site")
        ):
            refused = problem("other-site", "only pages of this server may ask", given=(origin or site or "")[:240])
            await refused.response()(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application of a server.

    Args:
        settings: of the server; those of `rackline web` by default.
    """
    settings = settings or Settings()
    app = FastAPI(title="rackline", openapi_url=None, docs_url=None, redoc_url=None)
    add_endpoints(app, settings)
    add_views(app)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=4)
    app.add_middleware(Door, settings=settings)

    @app.exception_handler(ProblemError)
    async def say(request: Request, error: ProblemError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def say_status(request: Request, error: HTTPException) -> Response:
        kind = "method-not-allowed" if error.status_code == 405 else "not-found"
        return problem(kind, f"{request.method} {request.url.path}", dict(error.headers or {})).response()

    @app.exception_handler(ClientDisconnect)
    async def say_nothing(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)

    return app


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
        http=connection(settings.limits.begun_s),
        log_level="warning",
        lifespan="on",
        server_header=False,
        timeout_keep_alive=_KEPT_ALIVE_S,
        timeout_graceful_shutdown=_FINISHED_WITHIN_S,
    )
    with listening:
        server = _Server(config, _address(settings.host, listening.getsockname()[1]), browser=browser)
        server.run(sockets=[listening])
    if server.interrupted:  # uvicorn raises it again too late at times
        raise KeyboardInterrupt


class _Server(uvicorn.Server):
    """Says where it is as soon as it listens."""

    def __init__(self, config: uvicorn.Config, address: str, *, browser: bool) -> None:
        super().__init__(config)
        self._address = address
        self._browser = browser
        self.interrupted = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.interrupted |= sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"rackline web: {self._address} (Ctrl-C stops it)", file=sys.stderr, flush=True)
        if self._browser:
            threading.Thread(target=webbrowser.open, args=(self._address,), daemon=True).start()


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
