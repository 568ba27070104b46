"""Start the server."""

from __future__ import annotations

import uvicorn

from rackline.web.app import create_app
from rackline.web.settings import Settings


def serve(settings: Settings, *, browser: bool) -> None:
    """Serve until interrupted.

    Args:
        settings: of the server.
        browser: whether to open the page.
    """
    uvicorn.run(create_app(settings), host=settings.host, port=settings.port, log_level="warning")
