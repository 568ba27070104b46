"""Rates and classes of the requests of a question: a number, a load over time, a trace, a file of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np

from rackline.api.groups import Traffic
from rackline.errors import InputError, require
from rackline.late import late
from rackline.units import parse_per_second

with late:
    from rackline import simulation
    from rackline.simulation import class_file, classes, load, traces


def base_load(question: Traffic) -> load.Load:
    """The rates of `load` itself, of which classes have shares."""
    name = question.load or ""
    rate = None if question.rate is None else rate_of(question.rate)
    amplitude = question.diurnal_amplitude or load.PEAK_AMPLITUDE
    return load.rates_of(name, question.load_time, rate, partial(trace_of, question), amplitude=amplitude)


def trace_of(question: Traffic, path: str) -> simulation.Requests:
    """A recorded trace, with the unit of its times that the question names."""
    unit = cast("traces.TimeUnit | None", question.time_unit)  # one of its choices
    return simulation.read_trace(path, skip_bad=question.skip_bad, time_unit=unit)


def rate_of(text: str) -> float:
    """Read a rate, or inf for all at once [requests/s]."""
    return math.inf if text == "inf" else parse_per_second(text, name="rate", maximum=1e9)


def classes_of(question: Traffic) -> tuple[classes.ClassTraffic, ...]:
    """The classes of a question's file; none without one.

    Raises:
        InputError: a file of another form, with the class and the key.
    """
    if question.classes is None:
        return ()
    return class_file.read_classes(question.classes, spread=question.lengths, load_s=question.load_time)


def total_rate(question: Traffic, kinds: Sequence[classes.ClassTraffic]) -> float:
    """Rate of the traffic that the classes with a share have together [requests/s].

    Raises:
        InputError: shares of nothing, rates over time without a load.
    """
    for one in kinds:
        if one.load is not None and question.load is None:
            raise InputError(what="load", given=f"of the class {one.name}", allowed="only with `load`",
                             nearest="--load day")  # fmt: skip
    if question.rate is not None:
        return rate_of(question.rate)
    require(
        not any(one.share is not None for one in kinds),
        what="rate",
        given="nothing",
        allowed="the rate of all classes with a share",
        nearest="5/s",
    )
    return 0.0


def requests_in(question: Traffic, usual: int) -> simulation.Requests:
    """The requests of a question's classes.

    Args:
        usual: number of those that come where the question names none [requests].
    """
    kinds = classes_of(question)
    rng = np.random.default_rng(question.seed)
    if question.load is not None:
        return classes.over_time(rng, kinds, classes.loads_of(kinds, base_load(question)), question.arrival_cv)
    total = total_rate(question, kinds)
    return classes.steady(rng, kinds, question.requests or usual, total, question.arrival_cv)


def lengths_in(question: Traffic) -> classes.ClassLengths:
    """Lengths of the requests that come, of all classes together."""
    kinds = classes_of(question)
    if question.load is None:
        return classes.lengths_of(kinds, total_rate(question, kinds))
    return classes.lengths_over(kinds, classes.loads_of(kinds, base_load(question)))


def has_tiers(question: Traffic) -> bool:
    """Whether some classes are more urgent than others."""
    return len({one.priority for one in classes_of(question)}) > 1
