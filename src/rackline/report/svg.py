"""Write a figure (plotly's form, see `figures`) as SVG, as a page of HTML that holds it, or as PNG."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rackline.errors import InputError
from rackline.report.figures import Figure
from rackline.report.terminal_plot import LinearAxis, LogAxis

WIDTH, HEIGHT = 860, 540
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 84, 64
ENDINGS = (".html", ".svg", ".png")
_INK, _GRID = "#222222", "#dddddd"
_LEGEND_ROW = 20
_DASHES = {"dash": "6 4", "dot": "2 3", "dashdot": "8 3 2 3"}  # plotly's names


def check_plot_path(path: str) -> Path:
    """The file of a figure.

    Raises:
        InputError: an ending that is not a format, a folder that does not exist, PNG without its extra.
    """
    file = Path(path)
    if file.suffix.lower() not in ENDINGS:
        raise InputError(
            what="--plot",
            given=path,
            allowed="a file ending in .html, .svg or .png",
            nearest=f"{file.stem or 'plot'}.svg",
        )
    if not file.parent.is_dir():
        raise InputError(what="--plot", given=path, allowed="a file in a folder that exists")
    if file.suffix.lower() == ".png":
        _png_writer(path)
    return file


def write_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the ending names.

    Raises:
        InputError: see `check_plot_path`.
        OSError: the file cannot be written.
    """
    check_plot_path(str(path))
    svg = figure_svg(figure)
    if path.suffix.lower() == ".svg":
        path.write_text(svg, encoding="utf-8")
    elif path.suffix.lower() == ".html":
        path.write_text(figure_html(figure, svg), encoding="utf-8")
    else:
        _png_writer(str(path)).svg2png(bytestring=svg.encode(), write_to=str(path), scale=2)


def _png_writer(path: str) -> Any:
    try:
        return importlib.import_module("cairosvg")
    except (ImportError, OSError):
        raise InputError(
            what="--plot",
            given=path,
            allowed=".html or .svg; .png needs CairoSVG (pip install cairosvg)",
            nearest=str(Path(path).with_suffix(".svg")),
        ) from None


def figure_html(figure: Figure, svg: str) -> str:
    """A page that needs nothing else: the SVG, and the figure's data for other programs."""
    title = escape(str(figure["layout"]["title"]["text"]))
    data = json.dumps(figure, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body{font-family:system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
        "svg{width:100%;height:auto}</style></head>\n<body>\n"
        f"{svg}\n"
        f'<script type="application/json" id="figure">{data}</script>\n</body>\n</html>\n'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Two axes on the page."""

    x: LogAxis | LinearAxis
    y: LogAxis | LinearAxis

    def at(self, x: float, y: float) -> tuple[float, float]:
        left = LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT)
        top = TOP + (1 - self.y.place(y)) * (HEIGHT - TOP - BOTTOM)
        return round(left, 1), round(top, 1)


def figure_svg(figure: Figure) -> str:
    """The figure as SVG text: traces on log or linear axes, vertical lines, a legend; texts on hover."""
    traces: list[dict[str, Any]] = [trace for trace in figure["data"] if trace["x"]]
    layout = figure["layout"]
    lines: list[dict[str, Any]] = layout.get("shapes", [])
    xs = [float(value) for trace in traces for value in trace["x"]] + [float(line["x0"]) for line in lines]
    ys = [float(value) for trace in traces for value in trace["y"]]
    frame = _Frame(x=_axis(layout["xaxis"], xs or [1.0]), y=_axis(layout["yaxis"], ys or [1.0]))
    legend, rows = _legend(traces)
    down = (rows - 1) * _LEGEND_ROW  # a long legend pushes the axes down
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + down}" role="img" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13" fill="{_INK}">',
        f"<title>{escape(layout['title']['text'])}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT + down}" fill="white"/>',
        f'<text x="{LEFT}" y="28" font-size="17" font-weight="600">{escape(layout["title"]["text"])}</text>',
        *legend,
        f'<g transform="translate(0 {down})">',
        *_grid(frame),
        *_titles(layout),
        *(part for line in lines for part in _vertical(frame, line)),
        *(part for trace in traces for part in _trace(frame, trace)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts)


def _axis(axis: dict[str, Any], values: list[float]) -> LogAxis | LinearAxis:
    return LinearAxis.around(values) if axis.get("type") == "linear" else LogAxis.around(values)


def _grid(frame: _Frame) -> list[str]:
    parts: list[str] = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in frame.x.ticks(9):
        x, _ = frame.at(value, frame.y.low)
        parts.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{_tick(value)}</text>')
    for value in frame.y.ticks(9):
        _, y = frame.at(frame.x.low, value)
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{_tick(value)}</text>')
    parts.append(
        f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" stroke="{_INK}"/>'
    )
    return parts


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 and math.isclose(value, round(value)) else f"{value:g}"


def _titles(layout: dict[str, Any]) -> list[str]:
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    below = escape(layout["xaxis"]["title"]["text"])
    return [
        f'<text x="{middle_x}" y="{HEIGHT - 18}" text-anchor="middle">{below}</text>',
        f'<text transform="translate(20 {middle_y}) rotate(-90)" text-anchor="middle">'
        f"{escape(layout['yaxis']['title']['text'])}</text>",
    ]


def _vertical(frame: _Frame, line: dict[str, Any]) -> list[str]:
    x, _ = frame.at(float(line["x0"]), frame.y.low)
    color = line["line"]["color"]
    on_the_right = x < WIDTH * 0.7
    return [
        f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{HEIGHT - BOTTOM}" stroke="{color}" stroke-width="1.5" '
        'stroke-dasharray="6 4"/>',
        f'<text x="{x + (6 if on_the_right else -6)}" y="{TOP + 16}" fill="{color}" '
        f'text-anchor="{"start" if on_the_right else "end"}">{escape(line["label"]["text"])}</text>',
    ]


def _trace(frame: _Frame, trace: dict[str, Any]) -> list[str]:
    points = [frame.at(float(x), float(y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
    color = trace["marker"]["color"]
    if "lines" in trace["mode"]:
        path = " ".join(f"{x},{y}" for x, y in points)
        return [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"{_dashes(trace)}/>']
    texts = trace.get("text") or [""] * len(points)
    return [
        _mark(x, y, trace["marker"], f"<title>{escape(text)}</title>" if text else "")
        for (x, y), text in zip(points, texts, strict=True)
    ]


def _mark(x: float, y: float, marker: dict[str, Any], inside: str) -> str:
    color, size = marker["color"], float(marker["size"])
    if marker["symbol"] == "diamond":
        half = size * 0.7
        path = f"M{x} {y - half}L{x + half} {y}L{x} {y + half}L{x - half} {y}Z"
        return f'<path d="{path}" fill="{color}" stroke="white" stroke-width="1.5">{inside}</path>'
    return f'<circle cx="{x}" cy="{y}" r="{size / 2}" fill="{color}">{inside}</circle>'


def _dashes(trace: dict[str, Any]) -> str:
    pattern = _DASHES.get(trace.get("line", {}).get("dash", "solid"))
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def _legend(traces: list[dict[str, Any]]) -> tuple[list[str], int]:
    """The legend's elements, and in how many rows they are."""
    parts: list[str] = []
    x, y, rows = float(LEFT), 56, 1
    for trace in traces:
        width = 48 + 7.2 * len(trace["name"])
        if x > LEFT and x + width > WIDTH:
            x, y, rows = float(LEFT), y + _LEGEND_ROW, rows + 1
        color = trace["marker"]["color"]
        if "lines" in trace["mode"]:
            style = f'stroke="{color}" stroke-width="2"{_dashes(trace)}'
            parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 18}" y2="{y}" {style}/>')
        else:
            parts.append(_mark(x + 9, y, trace["marker"], ""))
        parts.append(f'<text x="{x + 26}" y="{y + 4}">{escape(trace["name"])}</text>')
        x += width
    return parts, rows
