"""A figure as data: marks, axes, colours, and how it is written to a file."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, cast, get_args

from rackline.errors import InputError
from rackline.files import write_bytes
from rackline.late import load_optional

ThemeName = Literal["light", "dark"]
THEME_NAMES: tuple[ThemeName, ...] = get_args(ThemeName)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
STILL_FONT = "'Liberation Sans', Arial, Helvetica, sans-serif"  # of images, as wide as it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one theme.

    Args:
        background: behind everything.
        ink: texts, the best point, limits.
        muted: what is there for comparison only.
        grid: lines of the grid.
        category: colours of series in their order. Each has a contrast of 3 and more to the background, and any two
            of them differ by 0.1 and more in OKLab for full colour vision, protanopia, deuteranopia and tritanopia.
        ramp: low to high of an ordered quantity.
    """

    background: str
    ink: str
    muted: str
    grid: str
    category: tuple[str, ...]
    ramp: tuple[str, ...]

    def config(self) -> dict[str, Any]:
        """The theme as a Vega-Lite config."""
        return {
            "background": self.background,
            "font": FONT,
            "padding": 14,
            "view": {"stroke": None},
            "title": {
                "anchor": "start",
                "color": self.ink,
                "fontSize": 16,
                "fontWeight": 600,
                "frame": "bounds",
                "offset": 14,
                "subtitleColor": self.muted,
                "subtitleFontSize": 12,
                "subtitlePadding": 5,
            },
            "axis": {
                "domainColor": self.muted,
                "gridColor": self.grid,
                "labelColor": self.ink,
                "labelFontSize": 12,
                "labelPadding": 5,
                "tickColor": self.muted,
                "titleColor": self.ink,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titlePadding": 10,
            },
            "header": {"labelColor": self.ink, "labelFontSize": 12, "titleColor": self.ink},
            "legend": {
                "columnPadding": 24,  # fonts of readers may be wider than the one that labels were measured with
                "direction": "horizontal",
                "labelColor": self.ink,
                "labelFontSize": 12,
                "labelLimit": 320,
                "offset": 12,
                "orient": "top",
                "symbolOpacity": 1,
                "symbolSize": 90,
                "symbolStrokeWidth": 2.5,
                "titleColor": self.ink,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titleLimit": 320,
            },
            "range": {
                "category": list(self.category),
                "ordinal": list(self.ramp),
                "ramp": list(self.ramp),
                "heatmap": list(self.ramp),
            },
            "mark": {"color": self.category[0]},
            "line": {"strokeWidth": 2.2, "strokeCap": "round", "strokeJoin": "round"},
            "point": {"filled": True, "size": 46, "opacity": 1},
            "bar": {"stroke": self.background, "strokeWidth": 0.5},
            "text": {"color": self.ink, "fontSize": 12},
            "rule": {"color": self.muted},
            "style": {
                "best": {
                    "color": self.ink,
                    "fill": self.ink,
                    "stroke": self.background,
                    "strokeWidth": 1.5,
                    "shape": "diamond",
                    "size": 190,
                },
                "limit": {"color": self.ink, "stroke": self.ink, "strokeDash": [6, 4], "strokeWidth": 1.4},
                "reference": {"color": self.muted, "stroke": self.muted, "strokeDash": [4, 3]},
                "muted": {"color": self.muted, "fill": self.muted, "opacity": 0.75},
                "muted-text": {"color": self.muted, "fill": self.muted},
                "band": {"color": self.muted, "fill": self.muted, "opacity": 0.16, "stroke": None},
                "halo": {
                    "color": self.background,
                    "fill": self.background,
                    "fontWeight": 600,
                    "stroke": self.background,
                    "strokeJoin": "round",
                    "strokeWidth": 5,
                },
                "hull": {"color": self.muted},
                "note": {"color": self.ink, "fill": self.ink, "fontWeight": 600},
            },
        }


LIGHT = Theme(
    background="#ffffff",
    ink="#1b1f24",
    muted="#68717b",
    grid="#e3e6ea",
    category=("#2940a9", "#e06d03", "#1ba3ac", "#9777ec", "#693100", "#2974ac", "#6e4d6b", "#9c540b"),
    ramp=("#d9e2f7", "#9fb4e6", "#6483cf", "#2940a9", "#16246b"),
)
DARK = Theme(
    background="#15181d",
    ink="#e8eaed",
    muted="#9aa3ad",
    grid="#2c3138",
    category=("#3676dd", "#f9b012", "#03e5f3", "#c68bff", "#cb4645", "#80afb2", "#f97d63", "#8f7696"),
    ramp=("#1d2c52", "#2a4f9e", "#3676dd", "#7ea9ee", "#cfe0fb"),
)


def theme(name: ThemeName) -> Theme:
    """The theme of a name."""
    return DARK if name == "dark" else LIGHT


ENDINGS = (".svg", ".png", ".pdf", ".html", ".json")
SCHEMA = "https://vega.github.io/schema/vega-lite/v{}.json"
VEGA_LITE, NOTEBOOK_VEGA_LITE = 6, 5  # a specification here means the same in both; notebooks still know 5 best
NOTEBOOK_TYPE = f"application/vnd.vegalite.v{NOTEBOOK_VEGA_LITE}+json"
PNG_SCALE = 2.0

_COORDINATES = re.compile(r' (?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"]*"')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")

PlotTheme = ThemeName | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure.

    Args:
        title: what it shows, in a line.
        description: alternative text: what the figure shows, in a sentence or two.
        spec: Vega-Lite without title, size and look: data, layers, encodings.
        subtitle: under what assumptions.
        width, height: of the area between the axes [pixels]; views side by side have their own.
    """

    title: str
    description: str
    spec: Mapping[str, Any]
    subtitle: str = ""
    width: int = 640
    height: int = 360

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that are drawn, in SI units."""
        return self.spec["data"]["values"]

    @classmethod
    def from_dict(cls, specification: Mapping[str, Any]) -> Figure:
        """The figure of a specification that `to_dict` gave, to be drawn in either look.

        Args:
            specification: of any look and version.
        """
        title = specification["title"]
        apart = ("$schema", "title", "description", "width", "height", "config")
        sizes = {name: specification[name] for name in ("width", "height") if name in specification}
        return cls(
            title=title["text"],
            subtitle=" ".join(title["subtitle"]),
            description=specification["description"],
            spec={name: part for name, part in specification.items() if name not in apart},
            **sizes,
        )

    def to_dict(self, look: ThemeName = "light", *, vega_lite: int = VEGA_LITE) -> dict[str, Any]:
        """The whole specification with its look.

        Args:
            look: "light" or "dark".
            vega_lite: major version that the specification names.
        """
        return {
            "$schema": SCHEMA.format(vega_lite),
            "title": {"text": self.title, "subtitle": wrap(self.subtitle, int((self.width + 90) / 5.9))},
            "description": self.description,
            **self._size(),
            **self.spec,
            "config": theme(look).config(),
        }

    def _size(self) -> dict[str, int]:
        several = any(key in self.spec for key in ("vconcat", "hconcat", "concat", "facet", "repeat"))
        return {} if several else {"width": self.width, "height": self.height}

    def json(self, look: ThemeName = "light") -> str:
        """The specification as text."""
        return json.dumps(self.to_dict(look), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"

    def svg(self, look: ThemeName = "light") -> str:
        """The figure as SVG.

        Raises:
            InputError: without the extra `plot`.
        """
        text: str = _drawing().vegalite_to_svg(self._still(look))
        text = text.replace(FONT, STILL_FONT)  # a wider one would be cut off at the edge of the image
        head, bracket, rest = _COORDINATES.sub(_rounded, text).partition(">")
        words = f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
        return f'{head} role="img"{bracket}{words}{rest}\n'

    def png(self, look: ThemeName = "light", *, scale: float = PNG_SCALE) -> bytes:
        """The figure as PNG.

        Args:
            scale: pixels of the image for each of the figure.

        Raises:
            InputError: without the extra `plot`.
        """
        return _drawing().vegalite_to_png(self._still(look), scale=scale)

    def pdf(self, look: ThemeName = "light") -> bytes:
        """The figure as PDF.

        Raises:
            InputError: without the extra `plot`.
        """
        return _drawing().vegalite_to_pdf(self._still(look))

    def html(self, look: PlotTheme = "auto") -> str:
        """A page that holds everything it needs: it works from a disk, without network, and can be hovered over.

        Args:
            look: "light", "dark", or "auto" for what the reader's system prefers.

        Raises:
            InputError: without the extra `plot`.
        """
        spec = self.to_dict()
        del spec["config"], spec["title"]
        if "width" in spec:
            spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
        data = {"spec": spec, "configs": {name: theme(name).config() for name in THEME_NAMES}, "look": look}
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        return _PAGE.format(
            title=escape(self.title),
            subtitle=(f"<p>{escape(self.subtitle)}</p>" if self.subtitle else ""),
            description=escape(self.description),
            light=theme("light"),
            dark=theme("dark"),
            look="light dark" if look == "auto" else look,
            data=text,
            libraries=_drawing().javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        )

    def save(self, path: str | Path, look: PlotTheme = "auto", *, what: str = "--plot") -> None:
        """Write the figure in the format that the ending names; a file that is there stays whole until then.

        Args:
            path: a file ending in .svg, .png, .pdf, .html or .json.
            look: "light", "dark", or "auto": the reader's preference in a page, else light.
            what: the option that asked for it, for messages.

        Raises:
            InputError: see `check_plot_path`; the file cannot be written.
        """
        file = check_plot_path(str(path), what=what)
        still: ThemeName = "dark" if look == "dark" else "light"
        writers: dict[str, Callable[[], str | bytes]] = {
            ".svg": lambda: self.svg(still),
            ".png": lambda: self.png(still),
            ".pdf": lambda: self.pdf(still),
            ".html": lambda: self.html(look),
            ".json": lambda: self.json(still),
        }
        content = writers[file.suffix.lower()]()
        write_bytes(file, content.encode() if isinstance(content, str) else content, what=what)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """What a notebook shows: the figure as data, and as SVG (extra `plot`) where only images are drawn."""
        with contextlib.suppress(InputError):  # without the extra
            return {**self._as_data(), "image/svg+xml": self.svg()}
        return self._as_data()

    def _as_data(self) -> dict[str, Any]:
        return {
            NOTEBOOK_TYPE: self.to_dict(vega_lite=NOTEBOOK_VEGA_LITE),
            "text/plain": f"{self.title}: {self.description}",
        }

    def _still(self, look: ThemeName) -> dict[str, Any]:
        """The specification of an image: no marks that only answer a pointer, its description stands once."""
        spec = _seen(self.to_dict(look))
        return {**spec, "config": {**spec["config"], "aria": False}}


def check_plot_path(path: str, *, what: str = "--plot") -> Path:
    """The file of a figure, before the work begins.

    Args:
        what: the option, for the message.

    Raises:
        InputError: an ending that is not a format, a folder that does not exist, or nothing to draw with.
    """
    file = Path(path)
    ending = file.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(
            what=what,
            given=path,
            allowed=f"a file ending in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}",
            nearest=f"{file.stem or 'plot'}.svg",
        )
    if file.is_dir() or not file.parent.is_dir():
        raise InputError(what=what, given=path, allowed="a file in a folder that exists")
    if ending != ".json":
        _drawing(path, what)
    return file


def _seen(view: dict[str, Any]) -> dict[str, Any]:
    """A view without its layers of invisible marks."""
    found = dict(view)
    for key in ("layer", "hconcat", "vconcat", "concat"):
        if key in view:
            found[key] = [_seen(one) for one in view[key] if not _is_invisible(one.get("mark"))]
    return found


def _is_invisible(mark: object) -> bool:
    return isinstance(mark, dict) and cast("dict[str, object]", mark).get("opacity") == 0


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a pixel."""
    return _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), attribute[0])


def _drawing(given: str = "a figure", what: str = "--plot") -> Any:
    """vl-convert, loaded when somebody wants a file."""
    nearest = str(Path(given).with_suffix(".json")) if given != "a figure" else None
    return load_optional("vl_convert", what=f"{what} {given}", instead="a .json", nearest=nearest)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{look}">
<title>{title}</title>
<style>
:root {{ color-scheme: {look} }}
body {{ font-family: system-ui, sans-serif; margin: 1.5rem auto; max-width: 62rem; padding: 0 1rem;
  background: {light.background}; color: {light.ink} }}
body.dark {{ background: {dark.background}; color: {dark.ink} }}
h1 {{ font-size: 1.25rem; margin: 0 0 .25rem }}
p {{ margin: 0 0 1rem; font-size: .9rem }}
#figure {{ width: 100%; overflow-x: auto }}
</style>
</head>
<body>
<h1>{title}</h1>
{subtitle}
<div id="figure" role="img" aria-label="{description}"></div>
<script type="application/json" id="data">{data}</script>
<script>{libraries}</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
const prefers = window.matchMedia("(prefers-color-scheme: dark)");
const draw = () => {{
  const look = data.look === "auto" ? (prefers.matches ? "dark" : "light") : data.look;
  document.body.className = look;
  const actions = {{export: true, source: false, compiled: false, editor: false}};
  vegaEmbed("#figure", data.spec, {{config: data.configs[look], actions, renderer: "svg"}});
}};
prefers.addEventListener("change", draw);
draw();
</script>
</body>
</html>
"""
