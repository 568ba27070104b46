"""Rates of requests: one number, a shape of a day or a week, a table or a recorded trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from rackline.errors import InputError, nearest_name
from rackline.late import late
from rackline.units import parse_per_second

with late:
    from rackline import simulation
    from rackline.api import groups
    from rackline.simulation import load, traces


def base_load(question: groups.Traffic) -> load.Load:
    """The rates of `load` itself, of which classes have shares."""
    name = question.load or ""
    if name not in ("day", "week"):
        question.refuse("diurnal_amplitude", allowed="without `load`, or with `load` day or week")
    rate = None if question.rate is None else rate_of(question.rate)
    amplitude = question.diurnal_amplitude or load.PEAK_AMPLITUDE
    return rates_of(name, question.load_time, rate, partial(trace_of, question), amplitude=amplitude)


def rates_of(
    name: str,
    seconds: float | None,
    rate_per_s: float | None,
    read: Callable[[str], simulation.Requests],
    *,
    option: str = "rate",
    amplitude: float | None = None,
) -> load.Load:
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
    if name in load.SHAPES:
        if rate_per_s is None:
            raise InputError(what=option, given="nothing", allowed=f"the mean of a {name}", nearest="5/s")
        found = load.shape(name, rate_per_s, load.PEAK_AMPLITUDE if amplitude is None else amplitude)
    elif not Path(name).is_file():
        near = nearest_name(name, load.SHAPES)
        raise InputError(what="load", given=name, allowed=f"a file, or {', '.join(load.SHAPES)}", nearest=near)
    else:
        found = load.read_load(name) if load.is_table(name) else load.profile(read(name), Path(name).name)
    if seconds is not None:
        found = found.lasting(seconds)
    return found if rate_per_s is None else found.scaled(rate_per_s)


def trace_of(question: groups.Traffic, path: str) -> simulation.Requests:
    """A recorded trace, with the unit of its times that the question names."""
    unit = cast("traces.TimeUnit | None", question.time_unit)  # one of its choices
    return simulation.read_trace(path, skip_bad=question.skip_bad, time_unit=unit)


def is_recorded(path: str) -> bool:
    """Whether a load is that of a recorded trace."""
    return path not in load.SHAPES and Path(path).is_file() and not load.is_table(path)


def rate_of(text: str) -> float:
    """Read a rate, or inf for all at once [requests/s]."""
    return math.inf if text == "inf" else parse_per_second(text, name="rate", maximum=1e9)
