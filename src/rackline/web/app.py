"""The application: the HTTP API and the pages behind one door."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect

from rackline.web.door import Door
from rackline.web.endpoints import add_endpoints
from rackline.web.problem import ProblemError, problem
from rackline.web.settings import Settings
from rackline.web.views import add_views


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
