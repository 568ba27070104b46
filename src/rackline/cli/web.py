"""`rackline web`: the page and the HTTP API."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from rackline.api.verbs import Entry
from rackline.late import late, load_optional
from rackline.units import parse_whole

with late:
    from rackline import processes
    from rackline.cli import screen
    from rackline.web import app, asked as web_settings

_MOST_WORKERS = 64
ENTRY = Entry(
    group="Learn",
    place=2,
    line="The page with its figures, and the HTTP API, on this machine.",
    name="web",
    function="web",
    module="cli.web",
    examples="""
    rackline web
    rackline web --port 8080 --no-browser
""",
)


def web(
    *,
    port: Annotated[str, Parameter(help="port to listen on; 0 takes any that is free")] = "8321",
    browser: Annotated[bool, Parameter(help="open the page in the browser")] = True,
    workers: Annotated[
        str | None, Parameter(help="processes that answer; one for each core, and at least 2, by default")
    ] = None,
    host: Annotated[
        str, Parameter(help="address to listen on; any but the default lets others ask this machine")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        Parameter(help="name under which others reach it, such as that of a proxy; may be repeated", negative=()),
    ] = None,
    export: Annotated[
        str | None, Parameter(help="write the page to a folder that works without a server, and end")
    ] = None,
) -> None:
    """Serve the page and the HTTP API on this machine, until Ctrl-C; or write the page to a folder."""
    if export is not None:
        _export(export)
        return
    for package in ("fastapi", "uvicorn"):
        load_optional(package, what="rackline web")  # before a socket is open
    num = max(processes.usable_cores(), 2)
    settings = web_settings.Settings(
        host=host,
        port=int(parse_whole(port, name="--port", minimum=0, maximum=65535, zero_allowed=True)),
        workers=num if workers is None else int(parse_whole(workers, name="--workers", maximum=_MOST_WORKERS)),
        names=tuple(name or ()),
    )
    if not settings.is_local:
        print(
            f"warning: anyone who reaches {host} can ask this server: it has no log-in and no encryption; put a proxy "
            "with both in front of it",
            file=sys.stderr,
        )
    app.serve(settings, browser=browser)


def _export(folder: str) -> None:
    """Write the page, with a bar for its data files."""
    load_optional("jinja2", what="rackline web --export")  # before a folder is made
    with screen.Bars().counting("writing the page", "written") as tell:
        files = app.export(folder, tell)
    screen.screen().print(f"{len(files)} files written; open {files[-1]}")
