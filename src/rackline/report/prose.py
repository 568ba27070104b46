"""Sentences with quantities: lines end between words, never between a number and its unit."""

from __future__ import annotations

import re

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_GLUE = "\ue000"  # one column wide and no space, so that no line ends there
_UNIT = r"%|×|[mµn]?s|min|h|d|[kMGTPE]?i?B(?:/s)?|[kMG]?W|[kMGTPE]?FLOP(?:/s)?"
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNIT})(?!\w))")


class Prose:
    """Text that keeps a number and its unit on one line.

    It is no `Text`, because a console joins those that it prints into one of its own.

    Args:
        text: with or without styles.
        style: of all of it.
    """

    def __init__(self, text: str | Text, style: str = "") -> None:
        self.text = Text(text, style=style) if isinstance(text, str) else text

    @property
    def plain(self) -> str:
        """Without styles."""
        return self.text.plain

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glued = self.text.copy()
        glued.plain = _BEFORE_UNIT.sub(_GLUE, glued.plain)
        lines = glued.wrap(console, options.max_width)
        for line in lines:
            line.plain = line.plain.replace(_GLUE, " ").rstrip()
        yield Text("\n").join(lines)
