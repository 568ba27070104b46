"""What a command prints, as a page shows it: sentences, and tables of the columns that an answer declares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Any

from rackline.api.answer import Verbatim
from rackline.late import late

with late:
    from rackline.report import column, wording

COLUMNS = 80  # of what has no form of its own on a page
_BAR = re.compile(r"\s*[━●┃█▏▎▍▌▋▊▉][━●┃█▏▎▍▌▋▊▉ ]*")  # a bar of the terminal, which says what its numbers say
Part = dict[str, Any]


def printed_parts(shown: Iterable[Any]) -> list[Part]:
    """What is printed, in its order.

    Args:
        shown: what `Answer.text` returns.

    Returns:
        Parts by `kind`: a `box` with title and lines, a `table` with title, columns, rows and caption, `words`, or
        `lines` that keep their breaks.
    """
    found: list[Part] = []
    for one in _parts(shown):
        text = one.get("text")
        if text is not None and not text.strip():
            continue
        if found and one["kind"] == found[-1]["kind"] in ("words", "lines"):
            found[-1] = {**one, "text": f"{found[-1]['text']}\n{text}"}
        else:
            found.append(one)
    return found


def _parts(shown: Iterable[Any]) -> Iterator[Part]:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    for one in shown:
        if isinstance(one, column.Sheet):
            yield {"kind": "table", **one.as_text()}
        elif isinstance(one, wording.Box):
            lines = [_BAR.sub(": ", line).strip(": ") for line in one.body.plain.splitlines()]
            yield {"kind": "box", "title": one.title, "lines": [*lines, *([one.subtitle] if one.subtitle else [])]}
        elif isinstance(one, Group):
            yield from _parts(one.renderables)
        elif isinstance(one, Padding):
            yield from _parts([one.renderable])
        elif isinstance(one, wording.Prose | Text | str):
            text = one if isinstance(one, str) else one.plain
            yield {"kind": "words", "text": _BAR.sub(": ", text) if "━" in text else text}
        else:
            yield {"kind": "lines", "text": one.text if isinstance(one, Verbatim) else plain_text([one])}


def plain_text(shown: Iterable[Any]) -> str:
    """What is printed, as text of 80 columns without colours."""
    from rich.console import Console

    console = Console(width=COLUMNS, file=StringIO(), highlight=False, color_system=None)
    with console.capture() as written:
        for part in shown:
            if isinstance(part, Verbatim):
                console.out(part.text, end="")
            else:
                console.print(part)
    return written.get()
