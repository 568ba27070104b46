"""Short texts that all reports share: resources, money, layouts, and lines that never part a number from its unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.text import Text

from rackline.units import (
    JOULE_STEPS,
    format_bytes,
    format_count,
    format_flop_rate,
    format_percent,
    format_rate,
    format_seconds,
    format_steps,
    format_usd,
)

RESOURCE_NAMES = {
    "compute": "compute",
    "hbm": "HBM",
    "scale_up": "scale-up",
    "scale_out": "scale-out",
    "overhead": "overhead",
}
RESOURCE_STYLES = {
    "compute": "blue",
    "hbm": "yellow",
    "scale_up": "magenta",
    "scale_out": "red",
    "overhead": "bright_black",
}


def composed(*parts: str | Text | tuple[str, str] | None, style: str = "") -> Text:
    """A text of those parts that there are, each with its style.

    Args:
        style: of all of it.

    >>> composed(("30 ms", "bold"), None, " a token").plain
    '30 ms a token'
    """
    return Text.assemble(*(part for part in parts if part), style=style)


def resource_text(resource: str) -> Text:
    """Name of a resource in its colour."""
    return Text(RESOURCE_NAMES.get(resource, resource), style=RESOURCE_STYLES.get(resource, ""))


def share(part: float, whole: float) -> float:
    """Part over whole; 0 for an empty whole."""
    return part / whole if whole else 0.0


def percent(fraction: float) -> str:
    """Whole percent, and one digit below ten.

    >>> percent(0.423), percent(0.0123)
    ('42 %', '1.2 %')
    """
    value = fraction * 100.0
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def written(value: float) -> str:
    """Three significant digits as one writes them: no exponent, commas from a thousand on.

    >>> written(0.0421), written(16.44), written(999.7), written(12345.6)
    ('0.0421', '16.4', '1,000', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def money(amount: float, priced: bool = True) -> str:
    """Dollars; chip-hours where the cluster has no price.

    >>> money(0.5), money(0.5, priced=False)
    ('$0.500', '0.500 chip-h')
    """
    if priced:
        return format_usd(amount)
    return f"{format_usd(amount).replace('$', '')} chip-h"


def money_name(priced: bool) -> str:
    """What a cost is counted in."""
    return "$" if priced else "chip-hours"


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of time for a whole table, so that its columns compare at a glance."""

    name: str
    seconds: float

    @classmethod
    def of(cls, longest_s: float) -> Unit:
        """Seconds, milliseconds or microseconds, such that the longest time is at least 1."""
        for name, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if longest_s >= factor:
                return cls(name, factor)
        return cls("ns", 1e-9)

    def text(self, value: float) -> str:
        """Three significant digits, three decimals at most; "-" for 0.

        >>> Unit.of(0.02).text(0.0123456), Unit.of(0.02).text(11.7e-6)
        ('12.3', '0.012')
        """
        scaled = value / self.seconds
        if scaled == 0.0:
            return "-"
        if scaled < 0.0005:
            return "0.000"
        decimals = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2 if scaled >= 0.9995 else 3
        return f"{scaled:.{decimals}f}"


def short_count(value: float) -> str:
    """A count that people chose, without zeros at its end.

    >>> short_count(4000), short_count(4500), short_count(128)
    ('4k', '4.5k', '128')
    """
    return re.sub(r"(\.\d*?)0+(?=[a-zA-Z]|$)", r"\1", format_count(value)).replace(".k", "k").replace(".M", "M")


def flop(value: float) -> str:
    """An amount of arithmetic."""
    return format_flop_rate(value).removesuffix("/s") if value else "-"


def tera(value: float) -> str:
    """A rate in units of 1e12.

    >>> tera(1.979e15), tera(98.9e12)
    ('1,979', '98.9')
    """
    scaled = value / 1e12
    return f"{scaled:,.0f}" if scaled >= 99.95 else f"{scaled:.3g}"


def size(value: float) -> str:
    """An amount of bytes; an empty cell for 0."""
    return format_bytes(value) if value else "-"


def of_key(key: str, value: float) -> str:
    """Write a catalogue number with the unit that its key names.

    >>> of_key("levels.scale_up.latency_s", 1e-6), of_key("peak_flop_per_s.bf16", 989e12)
    ('1.00 us', '989 TFLOP/s')
    """
    last = key.rsplit(".", 1)[-1]
    if "flop_per_s" in key:
        return format_flop_rate(value)
    if "bytes_per_s" in last:
        return format_rate(value)
    if "bytes" in last:
        return format_bytes(value)
    if last.startswith("usd_per"):
        return f"{format_usd(value)}/h"
    if "joules_per" in last:
        return format_steps(value, JOULE_STEPS)
    if last.startswith("power_w"):
        return f"{value:,.0f} W"
    if last.endswith("_s") or "_s_per_" in last:
        return format_seconds(value)
    if last.endswith("params"):
        return format_count(value)
    if last in ("rounding",):
        return format_percent(value)
    return f"{value:,.0f}" if float(value).is_integer() else written(value)


def spread_over(values: Sequence[float], count: int) -> list[int]:
    """Indices of at most `count` values that lie evenly over the range; the first and the last are kept.

    Args:
        values: falling or rising positions, such as logarithms.

    >>> spread_over([0.0, 0.1, 0.2, 1.0], 3)
    [0, 2, 3]
    """
    if len(values) <= count:
        return list(range(len(values)))
    first, last = values[0], values[-1]
    picked: set[int] = set()
    for step in range(count):
        wanted = first + (last - first) * step / (count - 1)
        picked.add(min(range(len(values)), key=lambda index: abs(values[index] - wanted)))
    return sorted(picked)


def interval_text(metric: str, low: float, high: float) -> str:
    """A range of a predicted number: seconds with their unit, others with three digits.

    >>> interval_text("tpot_s", 0.01, 0.012), interval_text("usd_per_mtok_output_all_in", 0.5, 0.6)
    ('10.0 ms to 12.0 ms', '0.5 to 0.6')
    """
    if metric.endswith("_s") and not metric.endswith("_per_s"):
        return f"{format_seconds(low)} to {format_seconds(high)}"
    return f"{low:,.3g} to {high:,.3g}" if high < 1000 else f"{low:,.0f} to {high:,.0f}"


_EDGE = 6  # columns of an edge of a frame that are no title
_UNIT = r"%|×|[mµn]?s|min|h|d|[kMGTPE]?i?B(?:/s)?|[kMG]?W|[kMGTPE]?FLOP(?:/s)?"
_BREAK = re.compile(rf"(?<=\d) (?={_UNIT}(?!\w))|( +|(?<=\w,)(?=[a-z_]+=))")
"""Where a line may end: at spaces but those before a unit, and between the parts of a layout."""


def line_ends(plain: str) -> list[int]:
    """Places in one line of a text at which it may break.

    >>> line_ends("tp=8,ep=2 in 30 ms")
    [5, 10, 13]
    """
    return [found.end() for found in _BREAK.finditer(plain) if found[1] is not None]


class Prose:
    """Text that keeps a number and its unit on one line, and breaks a layout between its parts.

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

    def lines(self, width: int) -> list[Text]:
        """The text in lines of at most `width` columns."""
        found: list[Text] = []
        for paragraph in self.text.split("\n", allow_blank=True):
            plain, start, fits, cuts = paragraph.plain, 0, 0, list[int]()
            for end in [*line_ends(plain), len(plain)]:
                while cell_len(plain[start:end].rstrip()) > width:
                    start = fits if fits > start else start + width
                    cuts.append(start)
                fits = end
            found += paragraph.divide(cuts) if cuts else [paragraph]
        for line in found:
            line.rstrip()
        return found

    @property
    def longest_piece(self) -> int:
        """Columns of the longest part that does not break."""
        pieces = 0
        for line in self.plain.split("\n"):
            ends = [0, *line_ends(line), len(line)]
            pieces = max([pieces, *(cell_len(line[a:b].rstrip()) for a, b in pairwise(ends))])
        return pieces

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max((cell_len(line) for line in self.plain.split("\n")), default=0)
        return Measurement(min(self.longest_piece, options.max_width), min(longest, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n").join(self.lines(options.max_width))


class Box:
    """An answer in a frame, with what it is of in the upper edge and what was asked in the lower one.

    A title that is longer than the edge stands inside the frame, whole.

    Args:
        body: the answer.
        title: what it is of.
        subtitle: what was asked.
        style: of the frame.
    """

    def __init__(self, body: Text, title: str, subtitle: str = "", style: str = "none") -> None:
        self.body, self.title, self.subtitle, self.style = body, title, subtitle, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _EDGE
        title, subtitle, body = self.title, self.subtitle, self.body.copy()
        if cell_len(title) > room:
            title, body = "", Text.assemble((f"{title}\n", "bold"), body)
        if cell_len(subtitle) > room:
            subtitle, body = "", Text.assemble(body, (f"\n{subtitle}", "dim"))
        yield Panel(
            Prose(body),
            title=title or None,
            title_align="left",
            subtitle=subtitle or None,
            subtitle_align="left",
            border_style=self.style,
        )
