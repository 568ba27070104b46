"""Repeated timings: taken in turns, so that what disturbs the machine for a while meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

SPREAD_ALLOWED = 0.1
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
    def spread(self) -> float:
        """Distance between the quartiles over the lower one [1]."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float((high - low) / low)


def in_turns(
    calls: Mapping[K, Callable[[], float]], repeats: int, enough_s: float = 0.0, in_a_row: int = 1
) -> dict[K, Repeated]:
    """Run several timings in turns, with pauses between them.

    What a system does from time to time on a processor that is never idle, it does in the pauses.

    Args:
        calls: each returns its time [s].
        repeats: of each, at least [count].
        enough_s: go on until the rounds have taken this time together, up to ten times as many [s].
        in_a_row: timings of one thing before its turn is over [count].
    """
    found: dict[K, list[float]] = {key: [] for key in calls}
    began = time.perf_counter()
    for number in range(0, 10 * repeats, in_a_row):
        if number >= repeats and time.perf_counter() - began >= enough_s:
            break
        for key, call in calls.items():
            started = time.perf_counter()
            found[key] += [call() for _ in range(in_a_row)]
            time.sleep(_PAUSE * (time.perf_counter() - started))
    return {key: Repeated(seconds=tuple(times)) for key, times in found.items()}
