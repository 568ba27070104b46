"""The page as a folder of files that works from a disk and on any host, without a server of ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from rackline.errors import InputError
from rackline.files import write_text
from rackline.web.data import data_names, data_script
from rackline.web.page import SCRIPTS, STATIC, VENDORED, page

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
