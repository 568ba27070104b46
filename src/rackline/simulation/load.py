"""A load over time: rates of requests in steps, from a table, a recorded trace or a shape, and what it draws."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from rackline.errors import InputError, nearest_name, placed, require
from rackline.files import is_file, read_text
from rackline.passes.features import Array
from rackline.simulation.requests import Requests
from rackline.simulation.workloads import DAY_S, AnyLengths, gamma
from rackline.units import parse_per_second, parse_seconds

SHAPES = ("day", "week", "burst")
PEAK_AMPLITUDE = 0.6
"""The daily cycle of a shape around its mean: the peak is 1.6 times the mean, the lowest rate 0.4 (assumed)."""
_LATEST_S, _MOST_DIGITS = 1e11, 6  # of a time; a clock's seconds since 1970 are 2e9
WEEKEND = 0.6
"""Rate of Saturday and Sunday over that of a working day (assumed)."""
BURST, BURST_S = 3.0, 600.0
"""A burst is three times the rate for ten minutes, once an hour (assumed)."""
_FORM = "CSV with the columns time and rate, such as 08:00,12.5, times rising"
_MOST_ROWS = 1_000_000
_PROFILE_STEPS = 96  # of a recorded trace: a quarter of an hour where it is stretched to a day


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Mean rates over time.

    Args:
        edges_s: where steps begin, and the end of the last, rising from 0 [s], (n + 1,).
        rates_per_s: of each step [requests/s], (n,).
        name: where it is from.
        estimated: what is assumed of it; empty for what was measured or given.

    Raises:
        InputError: a rate below 0, or none above.
    """

    json_keys: ClassVar = ("name", "seconds", "mean_per_s", "peak_per_s", "assumed=estimated")

    edges_s: Array
    rates_per_s: Array
    name: str = "load"
    estimated: str = ""

    def __post_init__(self) -> None:
        require(
            np.all(np.isfinite(self.rates_per_s)) and np.all(self.rates_per_s >= 0) and np.any(self.rates_per_s),
            what=self.name,
            given="rates",
            allowed="finite rates of 0 or more, some of them above 0",
        )

    @property
    def seconds(self) -> float:
        """How long it lasts [s]."""
        return float(self.edges_s[-1])

    @property
    def mean_per_s(self) -> float:
        """Mean rate [requests/s]."""
        return float(self.rates_per_s @ np.diff(self.edges_s)) / self.seconds

    @property
    def peak_per_s(self) -> float:
        """Highest rate of a step [requests/s]."""
        return float(self.rates_per_s.max())

    def at(self, time_s: Array) -> Array:
        """Rates at some times; that of the last step at its end [requests/s], same shape.

        >>> hours = Load(edges_s=np.array([0.0, 3600.0, 7200.0]), rates_per_s=np.array([1.0, 3.0]))
        >>> hours.at(np.array([0.0, 3599.0, 3600.0, 7200.0])).tolist(), hours.mean_per_s
        ([1.0, 1.0, 3.0, 3.0], 2.0)
        """
        places = np.searchsorted(self.edges_s, time_s, side="right") - 1
        return self.rates_per_s[np.clip(places, 0, len(self.rates_per_s) - 1)]

    def scaled(self, mean_per_s: float) -> Load:
        """The same shape with another mean rate [requests/s]."""
        return replace(self, rates_per_s=self.rates_per_s * (mean_per_s / self.mean_per_s))

    def lasting(self, seconds: float) -> Load:
        """The same rates over another time: stretched, not repeated [s]."""
        return replace(self, edges_s=self.edges_s * (seconds / self.seconds))

    def arrivals(self, rng: np.random.Generator, arrival_cv: float = 1.0) -> Array:
        """Arrival times of a process with these mean rates [s], (number,), ascending.

        Arrivals of a constant rate 1 are mapped by the inverse of the cumulative rate, so that they are Poisson for a
        coefficient of variation of 1.

        Args:
            arrival_cv: of the times between arrivals of the constant rate [1].
        """
        expected = np.concatenate([[0.0], np.cumsum(self.rates_per_s * np.diff(self.edges_s))])
        total = float(expected[-1])
        even = gamma(rng, int(total + 10.0 * max(arrival_cv, 1.0) * np.sqrt(total) + 50), 1.0, arrival_cv)
        even = even[even < total]
        kept = np.concatenate([[True], np.diff(expected) > 0])  # nothing arrives in steps of rate 0
        starts = self.edges_s[:-1][np.diff(expected) > 0]
        place = np.searchsorted(expected[kept], even, side="right") - 1
        rates = self.rates_per_s[self.rates_per_s > 0]
        before = np.concatenate([[0.0], expected[1:][np.diff(expected) > 0]])[:-1]
        return starts[place] + (even - before[place]) / rates[place]

    def draw(self, rng: np.random.Generator, lengths: AnyLengths, arrival_cv: float = 1.0) -> Requests:
        """Requests at these rates.

        Args:
            lengths: distribution of prompt and output lengths.
            arrival_cv: as in `arrivals`.

        Raises:
            InputError: nothing arrives.
        """
        times = self.arrivals(rng, arrival_cv)
        require(len(times), what=self.name, given="no request", allowed="rates at which at least one request arrives")
        inputs, outputs = lengths.draw(rng, len(times))
        return Requests(arrival_s=times, input_len=inputs, output_len=outputs, name=self.name)


def shape(name: str, mean_per_s: float, amplitude: float = PEAK_AMPLITUDE) -> Load:
    """A load of an assumed shape: a day, a week of them, or a burst an hour.

    Args:
        name: one of `SHAPES`.
        mean_per_s: mean rate [requests/s].
        amplitude: of the daily sine, which begins at its lowest [1].

    Raises:
        InputError: another name.

    >>> [round(shape(name, 2.0).peak_per_s, 2) for name in SHAPES]
    [3.2, 3.61, 4.5]
    """
    if name not in SHAPES:
        raise InputError(what="load", given=name, allowed=", ".join(SHAPES), nearest=nearest_name(name, SHAPES))
    days = 7 if name == "week" else 1
    step = 300.0
    edges = np.arange(0.0, days * DAY_S + step, step)
    middle = 0.5 * (edges[1:] + edges[:-1])
    rates = 1.0 - amplitude * np.cos(2.0 * np.pi * middle / DAY_S)
    said = f"a daily cycle of ±{amplitude:.0%}"
    if name == "week":
        rates[middle >= 5.0 * DAY_S] *= WEEKEND
        said += f", weekends at {WEEKEND:.0%}"
    if name == "burst":
        rates = np.where(middle % 3600.0 < BURST_S, BURST, 1.0)
        said = f"{BURST:g} times the rate for {BURST_S / 60.0:g} minutes of each hour"
    return Load(edges_s=edges, rates_per_s=rates, name=f"a {name}", estimated=said).scaled(mean_per_s)


def together(loads: Sequence[Load], name: str) -> Load:
    """Several loads at once, all of the same length.

    Args:
        name: of the whole.

    >>> one = Load(edges_s=np.array([0.0, 10.0]), rates_per_s=np.array([1.0]))
    >>> two = Load(edges_s=np.array([0.0, 5.0, 10.0]), rates_per_s=np.array([0.0, 2.0]))
    >>> together([one, two], "both").rates_per_s.tolist()
    [1.0, 3.0]
    """
    edges = np.unique(np.concatenate([one.edges_s for one in loads]))
    rates = np.sum([one.at(edges[:-1]) for one in loads], axis=0)
    said = "; ".join(dict.fromkeys(one.estimated for one in loads if one.estimated))
    return Load(edges_s=edges, rates_per_s=rates, name=name, estimated=said)


def profile(requests: Requests, name: str) -> Load:
    """The rates of recorded requests in equal steps of their time.

    Raises:
        InputError: all arrive at once.
    """
    times = requests.arrival_s
    last = float(times.max())
    require(last > 0, what="load", given=f"{len(times)} requests at once", allowed="requests over some time")
    steps = int(min(_PROFILE_STEPS, max(len(times) // 20, 1)))
    counts, edges = np.histogram(times, bins=steps, range=(0.0, last))
    return Load(edges_s=edges, rates_per_s=counts / (last / steps), name=name)


def is_table(path: str | Path) -> bool:
    """Whether a file is a table of rates and no trace: its first line is a header that names no tokens of prompts."""
    first = read_text(path, what="load", allowed=_FORM, max_bytes=2**31).partition("\n")[0].lower()
    return not first.lstrip().startswith(("{", "[")) and not any(word in first for word in ("input", "token", "prompt"))


def read_load(path: str | Path) -> Load:
    """Read a table of rates: each holds from its time to the next, the last as long as the one before it.

    Times are clock times such as 08:30, or times with a unit such as 90min, or seconds.

    Raises:
        InputError: another form, with the line; fewer than two rows; times that do not rise from 0.
    """
    text = read_text(path, what="load", allowed=_FORM, max_bytes=64 * 2**20)
    try:
        rows = [(number, row) for number, row in enumerate(csv.reader(io.StringIO(text), strict=True), 1) if any(row)]
    except csv.Error as error:
        raise InputError(what="load", given=str(error), allowed=_FORM, where=str(path)) from None
    header = [cell.strip().lower().removesuffix("_s").removesuffix("_per") for cell in rows[0][1]] if rows else []
    for name in ("time", "rate"):
        if name not in header:
            near = nearest_name(name, header)
            given = ", ".join(rows[0][1])[:60] if rows else "an empty file"
            raise InputError(what="load", given=given, allowed=_FORM, nearest=near and f"{name} for {near}",
                             where=str(path))  # fmt: skip
    require(
        3 <= len(rows) <= _MOST_ROWS,
        what="load",
        given=f"{len(rows) - 1} rates",
        allowed=f"2 to {_MOST_ROWS:,}",
        where=str(path),
    )
    times, rates = np.empty(len(rows) - 1), np.empty(len(rows) - 1)
    for place, (number, row) in enumerate(rows[1:]):
        where = f"{path}, line {number}"
        require(
            len(row) == len(header), what="load", given=f"{len(row)} cells", allowed=f"{len(header)} cells", where=where
        )
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        with placed(where):
            times[place] = _seconds(cells["time"])
            rates[place] = parse_per_second(cells["rate"], name="rate", zero_allowed=True, maximum=1e6)
        require(
            not place or times[place] > times[place - 1],
            what="time",
            given=cells["time"],
            allowed="later than the one before it",
            where=where,
        )
    times -= times[0]
    edges = np.append(times, times[-1] + (times[-1] - times[-2]))
    return Load(edges_s=edges, rates_per_s=rates, name=Path(path).name)


def _seconds(text: str) -> float:
    """Seconds of 08:30, 08:30:15, 90min or 5400."""
    parts = text.split(":")
    if len(parts) in (2, 3) and all(part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts):
        return float(sum(int(part) * scale for part, scale in zip(parts, (3600, 60, 1), strict=False)))
    try:
        found = float(text)
    except ValueError:
        return parse_seconds(text, name="time", zero_allowed=True, maximum=_LATEST_S)
    require(abs(found) <= _LATEST_S, what="time", given=text, allowed=f"at most {_LATEST_S:.0e} seconds")
    return found


def rates_of(
    name: str,
    seconds: float | None,
    rate_per_s: float | None,
    read: Callable[[str], Requests],
    *,
    option: str = "rate",
    amplitude: float | None = None,
) -> Load:
    """The rates of a table, of a recorded trace or of a shape.

    Args:
        name: file, or one of the shapes.
        seconds: to which they are stretched; None leaves them as they are [s].
        rate_per_s: to whose mean they are scaled; None leaves them as they are [requests/s].
        read: reads a trace.
        option: that gives the mean.
        amplitude: of a shape's daily cycle; None for the usual one [1].

    Raises:
        InputError: neither a file that holds rates nor a shape; a shape without a mean rate.
    """
    if name in SHAPES:
        if rate_per_s is None:
            raise InputError(what=option, given="nothing", allowed=f"the mean of a {name}", nearest="5/s")
        found = shape(name, rate_per_s, PEAK_AMPLITUDE if amplitude is None else amplitude)
    elif not is_file(name):
        near = nearest_name(name, SHAPES)
        raise InputError(what="load", given=name, allowed=f"a file, or {', '.join(SHAPES)}", nearest=near)
    else:
        found = read_load(name) if is_table(name) else profile(read(name), Path(name).name)
    if seconds is not None:
        found = found.lasting(seconds)
    return found if rate_per_s is None else found.scaled(rate_per_s)


def is_recorded(path: str) -> bool:
    """Whether a load is that of a recorded trace."""
    return path not in SHAPES and is_file(path) and not is_table(path)
