"""Drawings for the terminal: bars, bands, the timeline of a pipeline, and plots on log axes with braille dots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

_DOT_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a braille cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one kind.

    Args:
        x, y: positions, all above 0.
        name: for the legend.
        style: rich style.
        joined: draw lines between consecutive points.
        mark: a character put on each point in place of dots.
    """

    x: Sequence[float]
    y: Sequence[float]
    name: str
    style: str = "cyan"
    joined: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAxis:
    """A log axis: its range and its ticks at 1, 2 and 5 times powers of ten."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> LogAxis:
        """The range of the values with a margin of 3 % of its logarithm, at least 10 %."""
        low, high = min(values), max(values)
        margin = max((math.log(high) - math.log(low)) * 0.03, 0.1)
        return cls(low=low * math.exp(-margin), high=high * math.exp(margin))

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def ticks(self, most: int) -> list[float]:
        """Round values inside the range, at most `number`."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
            found = [step * 10.0**e for e in range(first, last + 1) for step in steps]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= most:
                return found
        return found[:: math.ceil(len(found) / most)]


def log_plot(
    series: Sequence[Series],
    *,
    width: int,
    height: int,
    x_title: str,
    y_title: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    x_line: float | None = None,
    x_line_name: str = "",
) -> Text:
    """Draw the series.

    Args:
        width, height: size in character cells, axes and legend included in the width only.
        x_title, y_title: what the axes show, with units.
        x_text, y_text: how a tick is written.
        x_line: position of a vertical line, such as a limit; None for no line.
        x_line_name: what the line says.

    Returns:
        The plot as styled text of several lines; an empty text without points.
    """
    xs = [value for one in series for value in one.x]
    if not xs:
        return Text()
    x_axis = LogAxis.around([*xs, x_line] if x_line else xs)
    y_axis = LogAxis.around([value for one in series for value in one.y])
    rows = max(height, 4)
    labels = {round((1 - y_axis.place(v)) * (rows - 1)): y_text(v) for v in y_axis.ticks(max(rows // 2, 2))}
    gutter = max(len(label) for label in [*labels.values(), ""]) + 1
    columns = max(width - gutter - 2, 10)
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    if x_line is not None:
        at = round(x_axis.place(x_line) * (columns - 1))
        cells = {(at, row): ("┊", "yellow") for row in range(rows)}
    placed = [([(x_axis.place(x), y_axis.place(y)) for x, y in zip(one.x, one.y, strict=True)], one) for one in series]
    cells |= _dots([(points, one) for points, one in placed if not one.mark], columns, rows)
    cells |= {
        (round(x * (columns - 1)), round((1 - y) * (rows - 1))): (one.mark, one.style)
        for points, one in placed
        for x, y in points
        if one.mark
    }
    text = Text(f"{y_title}\n", style="dim")
    for row in range(rows):
        label = labels.get(row, "")
        text.append(f"{label:>{gutter}}{'┤' if label else '│'}", style="dim")
        text.append_tokens(cells.get((column, row), (" ", None)) for column in range(columns)).append("\n")
    axis, names = _x_axis(x_axis, columns, x_text)
    text.append(f"{'':{gutter}}└{axis}\n{'':{gutter + 1}}{names}\n{'':{gutter + 1}}{x_title}", style="dim")
    legend = [(one.mark or ("──" if one.joined else "••"), one.style, one.name) for one in series]
    if x_line is not None and x_line_name:
        legend.append(("┊", "yellow", x_line_name))
    used = gutter + 1 + len(x_title)
    for mark, style, name in legend:
        needed = len(mark) + len(name) + 4
        if used + needed > width:
            text.append("\n" + " " * (gutter - 2))
            used = gutter - 2
        text.append(f"   {mark}", style=style).append(f" {name}", style="dim")
        used += needed
    return text


def _dots(
    placed: Sequence[tuple[Sequence[tuple[float, float]], Series]], columns: int, rows: int
) -> dict[tuple[int, int], tuple[str, str]]:
    """Braille characters and their styles by cell: a dot a point, and dots between those that are joined."""
    bits: dict[tuple[int, int], int] = {}
    styles: dict[tuple[int, int], str] = {}
    for points, series in placed:
        dots = [(x * (2 * columns - 1), (1 - y) * (4 * rows - 1)) for x, y in points]
        lines = itertools.pairwise(dots) if series.joined else ()
        for place in (*dots, *(dot for ends in lines for dot in _between(*ends))):
            x, y = map(round, place)
            cell = (x // 2, y // 4)
            bits[cell] = bits.get(cell, 0) | _DOT_BITS[y % 4][x % 2]
            styles[cell] = series.style
    return {cell: (chr(0x2800 + held), styles[cell]) for cell, held in bits.items()}


def _x_axis(axis: LogAxis, columns: int, write: Callable[[float], str]) -> tuple[str, str]:
    line, names = ["─"] * columns, [" "] * (columns + 8)
    free_from = 0
    for value in axis.ticks(max(columns // 9, 2)):
        at = round(axis.place(value) * (columns - 1))
        label = write(value)
        start = max(0, min(at - len(label) // 2, columns - len(label)))
        if start < free_from:
            continue
        line[at] = "┬"
        names[start : start + len(label)] = list(label)
        free_from = start + len(label) + 1
    return "".join(line), "".join(names).rstrip()


def _between(start: tuple[float, float], end: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Places on the line between two dots, at most one dot apart."""
    x, y = end[0] - start[0], end[1] - start[1]
    steps = max(int(max(abs(x), abs(y))), 1)
    return ((start[0] + x * step / steps, start[1] + y * step / steps) for step in range(steps + 1))


_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(fraction: float, width: int = 12) -> str:
    """A bar of block characters; anything above 0 shows at least an eighth of a cell.

    Args:
        fraction: share of the full width, 0 to 1; values outside are cut.
        width: cells of a full bar.

    >>> bar(0.5, 4)
    '██  '
    """
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    if fraction > 0:
        eighths = max(eighths, 1)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def band_bar(
    low: float, mid: float | None, high: float, limit: float | None = None, width: int = 24, *, end: float = 0.0
) -> Text:
    """A band as a bar from 0, with the predicted value and the limit marked.

    Args:
        low, high: ends of the band.
        mid: predicted value between them; None for a part of a whole, which has no value inside.
        limit: of the value, in the same unit; None without one.
        width: characters of the whole bar.
        end: what its last character stands for at least, so that bars of several rows compare.

    Returns:
        Its first character stands for 0, its last for the largest of the numbers; ━ is the band, ● the prediction,
        ┃ the limit. What lies beyond the limit is red.

    >>> band_bar(8.0, 10.0, 14.0, 12.0, 15).plain
    '        ━━●━┃━━'
    """
    end = max(end, high, limit or 0.0, mid or 0.0)

    def place(value: float) -> int:
        return min(max(round(value / end * (width - 1)), 0), width - 1) if end > 0 else 0

    text = Text()
    at_mid, at_limit = None if mid is None else place(mid), place(limit) if limit is not None else None
    if mid is not None and limit is not None and place(mid) == at_limit:  # both are seen, in their order
        at_mid = max(place(mid) - 1, 0) if mid <= limit else place(mid) + 1
    for cell in range(width):
        inside = min(place(low), place(high) if at_mid is None else at_mid) <= cell <= place(high)
        beyond = at_limit is not None and cell > at_limit
        if cell == at_limit:
            text.append("┃", style="bold")
        elif cell == at_mid:
            text.append("●", style="bold red" if beyond else "bold green")
        else:
            text.append("━" if inside else " ", style="red" if beyond else "green")
    return text
