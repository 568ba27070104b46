"""`rackline web`: the page and the HTTP API."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rackline.errors import InputError


def web(
    *,
    host: Annotated[str, Parameter(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="port; 0 for any that is free")] = 8321,
    browser: Annotated[bool, Parameter(help="open the page in the browser")] = True,
    export: Annotated[
        str | None, Parameter(help="write the page to a folder that works without a server, and end")
    ] = None,
) -> None:
    """Serve the page and the HTTP API on this machine, until Ctrl-C; or write the page to a folder."""
    try:
        if export is not None:
            _export(export)
            return
        from rackline.web.serve import serve
    except ModuleNotFoundError as error:
        raise InputError(
            what="rackline web",
            given=f"no {error.name}",
            allowed="with the extra web (pip install 'rackline[web]')",
        ) from None
    from rackline.web.settings import Settings

    serve(Settings(host=host, port=port), browser=browser)


def _export(folder: str) -> None:
    """Write the page, with a bar for its data files."""
    from rackline.cli.screen import counting, screen
    from rackline.web.export import export

    with counting("writing the page", "written") as tell:
        files = export(folder, tell)
    screen().print(f"{len(files)} files written; open {files[-1]}")
