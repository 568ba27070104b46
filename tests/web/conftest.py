"""The server that the tests ask."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from web_server import Server, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server as `rackline web` starts it."""
    with running("--workers", "2") as found:
        yield found


@pytest.fixture(scope="session")
def client(server: Server) -> httpx.Client:
    """Asks the usual server."""
    return server.client
