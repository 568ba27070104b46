"""What an answer shows, declared once: columns, and tables that the screen, data frames and CSV are written from.

A `Column` has the key of the value in JSON, a title, a unit, what reads it from a row, a priority and a note. A
`Sheet` is a list of columns and the rows that they read. It prints itself as wide as the terminal is: where that is
too narrow, titles break into lines, then columns of the lowest priority go. Numbers have three
digits and their own unit, and their decimal points stand below each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rackline.display.terminal import bar
from rackline.display.wording import Prose, Unit
from rackline.plain import at_key, follow
from rackline.units import (
    BYTE_STEPS,
    COUNT_STEPS,
    FLOP_RATE_STEPS,
    FLOP_STEPS,
    JOULE_STEPS,
    RATE_STEPS,
    SECOND_STEPS,
    WATT_STEPS,
    Steps,
    format_steps,
    format_usd,
)

R = TypeVar("R")

SECTION = object()
"""Stands in place of a row: a rule between the rows before and after it."""
_STEPS: Mapping[str, tuple[Steps, str]] = {
    "s": (SECOND_STEPS, " "),
    "B": (BYTE_STEPS, " "),
    "B/s": (RATE_STEPS, " "),
    "FLOP": (FLOP_STEPS, " "),
    "FLOP/s": (FLOP_RATE_STEPS, " "),
    "W": (WATT_STEPS, " "),
    "J": (JOULE_STEPS, " "),
    "count": (COUNT_STEPS, ""),
}
"""Units with steps (ms, GB, k), and what stands between number and unit."""
_WRITTEN: Mapping[str, Callable[[float], str]] = {
    "USD": format_usd,
    "1": lambda value: format_steps(value, ((1.0, ""),)),
    "whole": lambda value: f"{value:,.0f}",
    "ratio": lambda value: f"{value:.2f}",
    "error": lambda value: f"{100.0 * value:+,.1f} %",
}
_ONE_STEP = {
    f"s in {unit.name}": unit for unit in (Unit("s", 1.0), Unit("ms", 1e-3), Unit("us", 1e-6), Unit("ns", 1e-9))
}
TEXTS = ("text", "words", "figures")
"""Cells that are texts: a label on one line, words that may break, figures that are written already."""
_NUMBER = re.compile(r"([^\d,.]*)(\d[\d,]*)(\.\d+)?(\D[^\d]*|)")
_NOTHING = "-"
_TENTH = 0.0995  # share below which a column of shares has a decimal
_GAP = 2  # columns of the terminal between two of a table
_LEAST_WORDS = 20  # columns below which words are not squeezed


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """What one column shows of a row.

    Args:
        key: of the value in JSON, with dots for parts of parts; what the column is called in a frame and in CSV.
        title: above the column; empty for none.
        unit: of the value: "s", "B", "B/s", "FLOP", "FLOP/s", "W", "J", "USD", "share" (of one), "count" (with k, M,
            B), "whole", "ratio" (two decimals), "error" (a share with its sign), "1" (three digits); "s in ms" and the
            like where the title of the table names the unit of all columns; "text" is a label, "words" may break
            into lines, "figures" are written already.
        getter: what reads the value: a function, or a path of attributes, in which a number takes one of several; by
            default what lies at the key, of a tuple what stands at the column's place.
        priority: 0 is always shown; of the others those of the largest go first where the screen is narrow.
        note: what it means, where the title does not say it.
        style: of its cells.
    """

    key: str
    title: str = ""
    unit: str = "text"
    getter: Callable[[R], Any] | str | None = None
    priority: int = 0
    note: str = ""
    style: str = ""

    @property
    def is_number(self) -> bool:
        """Whether it stands to the right, decimal point below decimal point."""
        return self.unit not in ("text", "words")

    def value(self, row: R, place: int) -> Any:
        """What it shows of a row: a number in the unit, a text, or None.

        Args:
            place: of the column among all, for rows that are tuples.
        """
        if self.getter is not None:
            return follow(row, self.getter) if isinstance(self.getter, str) else self.getter(row)
        if isinstance(row, tuple):
            cells = cast("tuple[Any, ...]", row)
            return cells[place] if place < len(cells) else ""
        if isinstance(row, Mapping):  # written for this table, so that keys with dots are keys
            return cast("Mapping[str, Any]", row).get(self.key, "")
        return at_key(row, self.key)

    def text(self, value: Any) -> str:
        """One value as it is printed."""
        return _written(self.unit, [value])[0].plain

    def cells(self, values: Sequence[Any]) -> list[Text]:
        """The values as they are printed, numbers aligned."""
        texts = _written(self.unit, values)
        if not self.is_number:
            return texts
        lined = aligned([one.plain for one in texts])
        return [Text(line, style=text.style) for line, text in zip(lined, texts, strict=True)]


@dataclass(frozen=True, slots=True)
class Sheet(Generic[R]):
    """A table of an answer: columns, and the rows that they read.

    Args:
        name: by which a program asks for it.
        columns: what is shown of each row.
        rows: objects, mappings or tuples; `SECTION` draws a rule.
        title: above the table.
        caption: below it.
        style: of a row.
    """

    name: str
    columns: Sequence[Column[R]]
    rows: Sequence[R]
    title: str = ""
    caption: str = ""
    style: Callable[[R], str] | None = None

    def data(self) -> dict[str, list[Any]]:
        """Values by key, in the units of the columns: what frames and CSV are made of."""
        return {
            column.key: [one.plain if isinstance(one, Text) else one for one in values]
            for column, values in zip(self.columns, self._values(), strict=True)
            if column.key
        }

    def as_text(self) -> dict[str, Any]:
        """Titles and cells as texts, for who draws the table elsewhere; columns of bars alone stay out."""
        shown = [
            (one, cells)
            for one, cells in zip(self.columns, self._cells(), strict=True)
            if one.title or one.key or len(self.columns) == 1
        ]
        lines = iter(zip(*(cells for _, cells in shown), strict=True))
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "columns": [{"title": one.title, "number": one.is_number, "note": one.note} for one, _ in shown],
            "rows": [[] if row is SECTION else [_bare(cell.plain) for cell in next(lines)] for row in self.rows],
        }

    def _values(self) -> list[list[Any]]:
        """What each column shows of each row."""
        rows = [row for row in self.rows if row is not SECTION]
        return [[column.value(row, place) for row in rows] for place, column in enumerate(self.columns)]

    def _cells(self) -> list[list[Text]]:
        """The cells as they are printed."""
        return [column.cells(values) for column, values in zip(self.columns, self._values(), strict=True)]

    def table(self, width: int) -> Table:
        """The table that fits into a terminal of `width` columns."""
        cells = self._cells()
        ranks = sorted({column.priority for column in self.columns}, reverse=True)
        ways = [(rank, broken, _LEAST_WORDS) for rank in ranks for broken in (False, True)]
        drawn = [self._measured(cells, *way) for way in (*ways, (ranks[-1], True, 0))]
        found = next((one for one in drawn if _wide(one) <= width), None)
        shown = self._squeezed(drawn[-1], width) if found is None else found
        return self._drawn(cells, self._widened(cells, shown, width - _wide(shown)))

    def _widened(
        self, cells: Sequence[Sequence[Text]], shown: Sequence[tuple[int, str, int]], room: int
    ) -> list[tuple[int, str, int]]:
        """The same where room that is left goes to the narrowest columns of words, until their texts fit on a line."""
        widths = {place: least for place, _, least in shown}
        wanted = {
            place: max((cell.cell_len for cell in cells[place]), default=0)
            for place in widths
            if self.columns[place].unit == "words"
        }
        for _ in range(room):
            short = [place for place, width in wanted.items() if widths[place] < width]
            if not short:
                break
            widths[min(short, key=widths.__getitem__)] += 1
        return [(place, title, widths[place]) for place, title, _ in shown]

    def _squeezed(self, shown: Sequence[tuple[int, str, int]], width: int) -> list[tuple[int, str, int]]:
        """The same where a piece of words, such as an address, is longer than there is room: it breaks."""
        over = _wide(shown) - width
        return [
            (place, title, max(least - over, 1) if self.columns[place].unit == "words" else least)
            for place, title, least in shown
        ]

    def _measured(
        self, cells: Sequence[Sequence[Text]], rank: int, broken: bool, squeezed: int
    ) -> list[tuple[int, str, int]]:
        """Place, title and least width of the columns up to a priority.

        Args:
            cells: of all columns.
            rank: the lowest priority that is shown.
            broken: whether titles that are longer than what stands below them break into lines.
            squeezed: width below which words do not break further, if no piece is longer.
        """
        found: list[tuple[int, str, int]] = []
        for place, column in enumerate(self.columns):
            if column.priority <= rank:
                longest = max((cell.cell_len for cell in cells[place]), default=0)
                title, least = _broken(column.title, longest) if broken else column.title, longest
                if column.unit == "words":
                    pieces = max((Prose(cell).longest_piece for cell in cells[place]), default=0)
                    least = max(pieces, min(longest, squeezed))
                found.append((place, title, max(least, *map(len, title.split("\n")))))
        return found

    def _drawn(self, cells: Sequence[Sequence[Text]], shown: Sequence[tuple[int, str, int]]) -> Table:
        """A table of the columns that were measured."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        table.show_header = any(title for _, title, _ in shown)
        for place, title, least in shown:
            column = self.columns[place]
            table.add_column(
                title,
                justify="right" if column.is_number else "left",
                no_wrap=column.unit != "words",
                overflow="fold" if column.unit == "words" else "ellipsis",
                min_width=least,
                max_width=least if column.unit == "words" else None,
                style=column.style,
            )
        lines = zip(*cells, strict=True)
        for row in self.rows:
            if row is SECTION:
                table.add_section()
                continue
            texts = next(lines)
            drawn = (Prose(texts[at]) if self.columns[at].unit == "words" else texts[at] for at, _, _ in shown)
            table.add_row(*drawn, style=self.style(row) if self.style else None)
        return table

    @property
    def widest(self) -> int:
        """Columns of a terminal in which everything is shown on one line each."""
        widths = [
            max([len(column.title), *(cell.cell_len for cell in cells)])
            for column, cells in zip(self.columns, self._cells(), strict=True)
        ]
        return sum(widths) + _GAP * (len(widths) - 1)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(self.widest, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Prose(self.title, style="bold")
        if self.rows:
            yield self.table(options.max_width)
        if self.caption:
            yield Prose(self.caption, style="dim")


def _bare(text: str) -> str:
    """A bar keeps its place."""
    return text if "━" in text else text.strip()


def facts(name: str, pairs: Iterable[tuple[str, Any]], *, title: str = "", caption: str = "") -> Sheet[tuple[Any, ...]]:
    """Quantities and what they are, one per line; pairs without a text are left out."""
    rows = [pair for pair in pairs if pair[1] not in ("", None)]
    return Sheet(name, [Column("name", style="dim"), Column("value", unit="words")], rows, title=title, caption=caption)


def bars_sheet(
    name: str,
    rows: Sequence[tuple[str, float | None, float, str]],
    *,
    title: str,
    unit: str,
    head: str = "",
    caption: str = "",
) -> Sheet[Any]:
    """Parts of a whole, a line each with its share as a bar.

    Args:
        rows: name, amount, share of the whole, colour of the bar.
        unit: of the amounts.
        head: what the parts are called.
    """
    return Sheet(
        name,
        [
            Column("part", head),
            Column("amount", "time" if unit == "s" else "bytes", unit),
            Column("share", "share", "share"),
            Column("", "", getter=_bar_of),
        ],
        rows,
        title=title,
        caption=caption,
    )


def _bar_of(row: tuple[str, float | None, float, str]) -> Text:
    return Text(bar(row[2], 24) if row[1] is not None else "", style=row[3])


def of_part(column: Column[Any], part: Callable[[R], Any]) -> Column[R]:
    """The same column of rows that have its row as a part."""

    def value(row: R) -> Any:
        return column.value(part(row), 0)

    return replace(column, getter=value)


def sheets_of(parts: Iterable[Any]) -> Iterator[Sheet[Any]]:
    """All tables of what is printed, in their order."""
    for part in parts:
        if isinstance(part, Sheet):
            yield cast("Sheet[Any]", part)
        elif isinstance(part, Group):
            yield from sheets_of(part.renderables)
        elif isinstance(getattr(part, "renderable", None), Group | Sheet):
            yield from sheets_of([part.renderable])
        elif isinstance(part, Table):
            yield from sheets_of(cell for column in part.columns for cell in column.cells)


def stacked(*parts: RenderableType | None) -> Group:
    """The parts of a report that there are, below each other."""
    return Group(*(part for part in parts if part is not None))


def spaced(parts: Iterable[RenderableType | None]) -> Group:
    """The parts of a report that there are, with an empty line between each two."""
    lines = [line for part in parts if part is not None for line in (part, Text(""))]
    return Group(*lines[:-1])


def aligned(texts: Sequence[str]) -> list[str]:
    """Numbers with their decimal points below each other, to stand to the right; other texts as they are.

    >>> aligned(["7.2 s", "30 ms", "-"])
    ['7.2 s', '30 ms  ', '-    ']
    """
    parts = [_NUMBER.fullmatch(text) for text in texts]
    tails = [len(text) - part.end(2) if part else 0 for text, part in zip(texts, parts, strict=True)]
    most = max(tails, default=0)
    return [
        f"{text}{'':{most - tail}}" if part or text == _NOTHING else text
        for text, part, tail in zip(texts, parts, tails, strict=True)
    ]


class Predicted(Protocol):
    """A predicted value with its band, SI units."""

    @property
    def metric(self) -> str: ...
    @property
    def predicted(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def group(self) -> str: ...
    @property
    def num_cases(self) -> int: ...


def _written(unit: str, values: Sequence[Any]) -> list[Text]:
    """Values as texts: three digits and their own unit; shares with a decimal where one of them needs it."""
    if unit in _ONE_STEP:
        return [Text(_ONE_STEP[unit].text(float(one))) if _is_number(one) else _cell("text", one) for one in values]
    numbers = [float(one) for one in values if _is_number(one)]
    if unit == "share":
        digits = 1 if any(0.0 < abs(one) < _TENTH for one in numbers) else 0
        return [Text(f"{100.0 * one:,.{digits}f} %") if _is_number(one) else _cell(unit, one) for one in values]
    return [_cell(unit, one) for one in values]


def _cell(unit: str, value: Any) -> Text:
    if isinstance(value, Text):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Text("" if unit in TEXTS else _NOTHING)
    if not _is_number(value) or unit in TEXTS:
        return Text(str(value))
    if unit in _STEPS:
        steps, separator = _STEPS[unit]
        return Text(format_steps(float(value), steps, separator))
    return Text(_WRITTEN[unit](float(value)))


def _is_number(value: Any) -> bool:
    return not isinstance(value, str | Text | bool) and hasattr(value, "__float__") and math.isfinite(float(value))


def _wide(measured: Sequence[tuple[int, str, int]]) -> int:
    """Columns of the terminal that measured columns take."""
    return sum(least for _, _, least in measured) + _GAP * (len(measured) - 1)


def _broken(title: str, longest: int) -> str:
    """A title on several lines, none longer than it must be."""
    lines: list[str] = []
    for word in title.split():
        if lines and len(lines[-1]) + 1 + len(word) <= max(longest, 4):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)
