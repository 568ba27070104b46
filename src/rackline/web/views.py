"""The pages of the server: the page, its scripts and its data files."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from rackline.errors import RacklineError
from rackline.web.data import data_script
from rackline.web.messages import SCRIPT
from rackline.web.page import STATIC, page
from rackline.web.problem import problem


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
