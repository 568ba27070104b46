"""Decode steps between two events, of several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest

from rackline.simulate import PlainClock
from rackline.simulate.stretch import common_line, durations_of


def test_a_rank_that_is_passed_over_twice_still_counts() -> None:
    """The first rank is slowest later on, the second is not at first, a third is slower than the first throughout."""

    @dataclass
    class Held:
        n: int
        sum_base: int
        clock: int = 0
        longest: int = 1
        shortest: int = 1

        @property
        def kv(self) -> int:
            return self.sum_base

    clock = PlainClock(base_s=1.0, per_kv_s=0.001)
    ranks: list[Any] = [Held(n=5, sum_base=100), Held(n=1, sum_base=140), Held(n=5, sum_base=120)]
    for order in permutations(ranks):
        assert common_line(clock, [[rank] for rank in order], 100) is None
        assert common_line(clock, [[rank] for rank in order], 3) == (pytest.approx(1.14), pytest.approx(0.001))
        assert durations_of(clock, [[rank] for rank in order], 100)[-1] == pytest.approx(1.12 + 0.005 * 99)
