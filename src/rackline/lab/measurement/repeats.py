"""Repeated timings: taken in turns, so that what disturbs the machine for a while meets all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rackline.errors import InputError

AGREED = 0.05
"""Half width of the interval of a median, over it, at which repeats agree [1]."""
MEANINGLESS = 1.0
"""The same from which on the times say nothing: a median is not known to a factor of two [1]."""
_MOST_REPEATS = 10  # times as many as asked for, of short calls
_TAIL, _TWO_SIDED = 0.025, 1.96  # of the 95 % intervals
_EXACT = 70  # repeats up to which their place is exact
_AGREEING = 0.9  # share of the calls whose repeats have to agree
_PAUSE = 0.08  # between timings, over what the one before took; Linux takes up to 0.05 from a process in real time
K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Timings of one thing.

    Args:
        seconds: each [s].
    """

    seconds: tuple[float, ...]

    @property
    def typical_s(self) -> float:
        """The lower quartile: other programs only add time, and the very shortest is luck as well [s]."""
        return float(np.quantile(self.seconds, 0.25))

    @property
    def median_s(self) -> float:
        """The median, which is what a server that runs the same thing again and again pays [s]."""
        return float(np.median(self.seconds))

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the interval that holds the median with 95 % confidence; of fewer than six repeats all of them.

        The j-th and the (n + 1 - j)-th shortest of n, for the largest j with P(Binomial(n, 1/2) < j) <= 2.5 %: it holds
        for any distribution of the times.

        Sources: Le Boudec 2010, Performance Evaluation of Computer and Communication Systems, theorem 2.1; Hoefler and
            Belli 2015, Scientific Benchmarking of Parallel Computing Systems (SC15), rule 6 and section 4.2.2, which
            measures until this interval is narrow enough.
        """
        ordered, number = sorted(self.seconds), len(self.seconds)
        place = math.floor((number - _TWO_SIDED * math.sqrt(number)) / 2.0)  # of many, by the normal distribution
        if number <= _EXACT:
            below, place = 0.5**number, 0
            while below <= _TAIL:
                place += 1
                below += math.comb(number, place) * 0.5**number
        first = max(place - 1, 0)
        return ordered[first], ordered[number - 1 - first]

    @property
    def uncertainty(self) -> float:
        """Half the width of the interval of the median, over the median [1]."""
        low, high = self.interval
        return 0.5 * (high - low) / self.median_s

    @property
    def spread(self) -> float:
        """Distance between the quartiles over the lower one [1]."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float((high - low) / low)


def uncertainty(found: Iterable[Repeated]) -> float:
    """How closely the medians of several things are known: that of the least certain tenth left out [1]."""
    return float(np.quantile([one.uncertainty for one in found], _AGREEING))


def in_turns(
    calls: Mapping[K, Callable[[], float]],
    repeats: int,
    *,
    enough_s: float = 0.0,
    in_a_row: int = 1,
    agreed_within_s: float = 0.0,
    now: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> dict[K, Repeated]:
    """Run several timings in turns, with pauses between them.

    What a system does from time to time on a processor that is never idle, it does in the pauses.

    Args:
        calls: each returns its time [s].
        repeats: of each, at least [count].
        enough_s: go on until the rounds have taken this time together, up to ten times as many [s].
        in_a_row: timings of one thing before its turn is over [count].
        agreed_within_s: go on until the medians of nine in ten are known to 5 %, at most this time in all [s].
        now, pause: clock of the rounds, and what waits between them.

    Raises:
        InputError: a call took no time, so that the clock says nothing of it.
    """
    taken: dict[K, list[float]] = {key: [] for key in calls}
    began, number = now(), 0
    while True:
        found = {key: Repeated(seconds=tuple(times)) for key, times in taken.items()}
        took = now() - began
        if (
            number >= repeats
            and (took >= enough_s or number >= _MOST_REPEATS * repeats)
            and (took >= agreed_within_s or uncertainty(found.values()) <= AGREED)
        ):
            return found
        for key, call in calls.items():
            started = now()
            times = [call() for _ in range(in_a_row)]
            if not all(0.0 < one < math.inf for one in times):
                raise InputError(
                    what="machine",
                    given=f"a timing of {min(times):g} s",
                    allowed="a clock that tells passes from nothing",
                )
            taken[key] += times
            pause(_PAUSE * (now() - started))
        number += in_a_row
