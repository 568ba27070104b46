"""The pages of the server."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates

_HERE = Path(__file__).parent


def add_views(app: FastAPI) -> None:
    """Add the pages and the files that they load."""
    templates = Jinja2Templates(directory=_HERE / "templates")

    @app.get("/", include_in_schema=False)
    def index(request: Request) -> Response:
        return templates.TemplateResponse(request, "index.html")

    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
