"""A scatter plot on log axes for the terminal, drawn with braille dots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAxis:
    """An even axis from 0 or the lowest value: its range and its ticks at 1, 2 and 5 times powers of ten."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> LinearAxis:
        """The range of the values; it begins at 0 unless a value is below."""
        low, high = min(*values, 0.0), max(*values, 0.0)
        return cls(low=low, high=high + 0.03 * (high - low) if high > low else low + 1.0)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round values inside the range, at most `number`."""
        span = (self.high - self.low) / max(most, 1)
        power = 10.0 ** math.floor(math.log10(span))
        step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= span)
        first = math.ceil(self.low / step)
        return [step * index for index in range(first, math.floor(self.high / step) + 1)]


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
    ys = [value for one in series for value in one.y]
    if not xs:
        return Text()
    x_axis = LogAxis.around([*xs, x_line] if x_line else xs)
    y_axis = LogAxis.around(ys)
    rows = max(height, 4)
    labels = {round((1 - y_axis.place(v)) * (rows - 1)): y_text(v) for v in y_axis.ticks(max(rows // 2, 2))}
    gutter = max(len(label) for label in [*labels.values(), ""]) + 1
    columns = max(width - gutter - 2, 10)
    canvas = _Canvas(columns=columns, rows=rows)
    if x_line is not None:
        canvas.vertical(x_axis.place(x_line), "yellow")
    for one in series:
        points = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(one.x, one.y, strict=True)]
        canvas.draw(points, one)
    text = Text(f"{y_title}\n", style="dim")
    for row in range(rows):
        label = labels.get(row, "")
        text.append(f"{label:>{gutter}}", style="dim")
        text.append("┤" if label else "│", style="dim")
        canvas.append_row(text, row)
        text.append("\n")
    axis, names = _x_axis(x_axis, columns, x_text)
    text.append(" " * gutter + "└" + axis + "\n", style="dim")
    text.append(" " * (gutter + 1) + names + "\n", style="dim")
    legend = [(one.mark or ("──" if one.joined else "••"), one.style, one.name) for one in series]
    if x_line is not None and x_line_name:
        legend.append(("┊", "yellow", x_line_name))
    text.append(" " * (gutter + 1))
    text.append(x_title, style="dim")
    used = gutter + 1 + len(x_title)
    for mark, style, name in legend:
        needed = len(mark) + len(name) + 4
        if used + needed > width:
            text.append("\n" + " " * (gutter - 2))
            used = gutter - 2
        text.append(f"   {mark}", style=style)
        text.append(f" {name}", style="dim")
        used += needed
    return text


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


class _Canvas:
    """Cells of braille dots with one style and at most one mark each."""

    def __init__(self, *, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.bits: dict[tuple[int, int], int] = {}
        self.styles: dict[tuple[int, int], str] = {}
        self.marks: dict[tuple[int, int], tuple[str, str]] = {}

    def draw(self, points: list[tuple[float, float]], series: Series) -> None:
        if series.mark:
            for x, y in points:
                cell = (round(x * (self.columns - 1)), round((1 - y) * (self.rows - 1)))
                self.marks[cell] = (series.mark, series.style)
            return
        dots = [(x * (2 * self.columns - 1), (1 - y) * (4 * self.rows - 1)) for x, y in points]
        for x, y in dots:
            self.dot(round(x), round(y), series.style)
        if series.joined:
            for (x0, y0), (x1, y1) in itertools.pairwise(dots):
                steps = max(int(max(abs(x1 - x0), abs(y1 - y0))), 1)
                for step in range(steps + 1):
                    at = step / steps
                    self.dot(round(x0 + (x1 - x0) * at), round(y0 + (y1 - y0) * at), series.style)

    def dot(self, x: int, y: int, style: str) -> None:
        cell = (x // 2, y // 4)
        self.bits[cell] = self.bits.get(cell, 0) | _DOT_BITS[y % 4][x % 2]
        self.styles[cell] = style

    def vertical(self, x: float, style: str) -> None:
        for row in range(self.rows):
            self.marks[round(x * (self.columns - 1)), row] = ("┊", style)

    def append_row(self, text: Text, row: int) -> None:
        for column in range(self.columns):
            cell = (column, row)
            if cell in self.marks and (self.marks[cell][0] != "┊" or cell not in self.bits):
                mark, style = self.marks[cell]
                text.append(mark, style=style)
            elif cell in self.bits:
                text.append(chr(0x2800 + self.bits[cell]), style=self.styles[cell])
            else:
                text.append(" ")
