"""The page: one HTML file, its scripts and data in order, from the server or as a folder of files without one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from rackline.errors import InputError, RacklineError
from rackline.files import write_text
from rackline.web.data import data_names, data_script, views
from rackline.web.problem import SCRIPT, problem
from rackline.web.scenario import scenarios

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
    "grids.js",
    "replay.js",
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


def export(folder: str | Path, progress: Callable[[str, int, int], None] | None = None) -> tuple[Path, ...]:
    """Write the static page.

    Args:
        folder: that holds it; made if it is not there. Files of the page in it are replaced, others stay.
        progress: is told what is written, how many files are and how many will be.

    Returns:
        The files that were written.

    Raises:
        InputError: the folder is a file or cannot be written.
    """
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise InputError(what="--export", given=str(folder), allowed="a folder")
    names = data_names()
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
