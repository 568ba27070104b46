"""The page itself: one HTML file, the scripts that it loads, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rackline.web.data import views
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
