"""The notebooks of docs/notebooks as pages of the docs site: stored outputs, nothing is run.

A notebook becomes Markdown, so that search, contents and links are those of every page. Its figures are drawn from
their stored specification, once for each look; the alternative text is the specification's description.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import nbformat

from rackline.display.figure import THEME_NAMES, Figure, ThemeName

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
SPECIFICATION = "application/vnd.vegalite"  # and its version


@functools.cache
def pages() -> dict[str, str]:
    """Path of the page below docs -> Markdown."""
    return {f"notebooks/{path.stem}.md": page(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


@functools.cache
def pictures() -> dict[str, str]:
    """Path of each figure below docs -> SVG."""
    return {
        f"notebooks/{picture_name(path.stem, number, look)}": Figure.from_dict(spec).svg(look)
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
        for number, spec in enumerate(specifications(path), start=1)
        for look in THEME_NAMES
    }


def page(path: Path) -> str:
    """A notebook as Markdown: text, code, what it printed, its figures."""
    parts: list[str] = []
    figures = 0
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        if cell.source.strip():
            parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            if output.output_type == "stream":
                parts.append(f"```text\n{output.text.rstrip()}\n```")
            elif (spec := specification(output)) is not None:
                figures += 1
                parts.append(picture(path.stem, figures, spec))
            elif "text/plain" in output.get("data", {}):
                parts.append(f"```text\n{output.data['text/plain'].rstrip()}\n```")
            else:
                raise ValueError(f"{path.name}: an output of type {output.output_type} that no page can show")
    title, _, rest = "\n\n".join(parts).partition("\n")
    opened = f"[Download the notebook]({path.name}) to run it; its outputs here are those that are stored in it."
    return f"{title}\n\n{opened}\n{rest}\n"


def specification(output: Any) -> dict[str, Any] | None:
    """The Vega-Lite specification of an output, if it is a figure."""
    data = output.get("data", {})
    return next((data[kind] for kind in data if kind.startswith(SPECIFICATION)), None)


def specifications(path: Path) -> Iterator[dict[str, Any]]:
    """Those of all figures of a notebook, in order."""
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            spec = specification(output)
            if spec is not None:
                yield spec


def picture_name(notebook: str, number: int, look: ThemeName) -> str:
    """File of a figure."""
    return f"{notebook}-{number}-{look}.svg"


def picture(notebook: str, number: int, spec: dict[str, Any]) -> str:
    """A figure in both looks, as pages write pictures."""
    text = escape(f"{spec['title']['text']}. {spec['description']}", quote=True)
    light, dark = (picture_name(notebook, number, look) for look in ("light", "dark"))
    return f'<img alt="{text}" src="{light}#only-light"><img alt="{text}" src="{dark}#only-dark">'
