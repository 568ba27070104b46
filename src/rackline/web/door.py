"""The door of the server: which hosts and sites may ask, and what browsers may do with what it sends."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rackline.web.problem import problem
from rackline.web.settings import LOOPBACK, Settings

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
    """Refuses requests for other hosts and from other sites, and sets the headers of every response.

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
        elif scope["method"] not in ("GET", "HEAD") and (
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
