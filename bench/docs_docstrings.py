"""Docstrings as mkdocstrings shows them: doctests and equations as code, not as Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Args|Returns|Raises|Assumes|Sources?|Example|Equation|Yields)\b.*:", re.M)


class Code(griffe.Extension):
    """Fences what is code in a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that is loaded."""
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with fences around doctests, and around the equation below its first sentence."""
    first, *others = text.split("\n\n")
    parts, before_sections = [first], True
    for part in others:
        before_sections = before_sections and not SECTION.match(part)
        if re.search(r"^ *>>> ", part, re.M):
            parts.append(_with_doctest(part))
        elif before_sections and "=" in part and not part.startswith(("```", "|")):
            parts.append(f"```text\n{part}\n```")
        else:
            parts.append(part)
    return "\n\n".join(parts)


def _with_doctest(part: str) -> str:
    lines = part.split("\n")
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith(">>> "))
    indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    return "\n".join([*lines[:start], f"{indent}```pycon", *lines[start:], f"{indent}```"])
