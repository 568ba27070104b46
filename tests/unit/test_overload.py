"""When a queue counts as one that keeps growing: the thresholds, each from both sides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rackline.simulation.metrics import Result


class Many(list[int]):
    """Requests that depend on no others."""

    after = None


def overload(*, count: int, waiting: int, last_quarter_s: float, interrupted: bool = False) -> dict[str, float] | None:
    """A run whose second quarter waits two seconds and in which so many have not started when the last one comes."""
    last_s = 100.0
    admitted = np.full(count, last_s)
    admitted[count - waiting :] += 1.0
    quarters = np.array_split(np.zeros(count), 4)
    waits = np.concatenate([part + wait for part, wait in zip(quarters, (0.5, 2.0, 2.2, last_quarter_s), strict=True)])
    run: Any = SimpleNamespace(
        requests=Many(range(count)),
        engine_s=np.linspace(1.0, last_s, count),
        admitted_s=admitted,
        queue_s=waits,
        interrupted=interrupted,
    )
    return Result.overload(run)


def test_a_tenth_has_to_wait() -> None:
    assert overload(count=80, waiting=8, last_quarter_s=9.0) is not None
    assert overload(count=80, waiting=7, last_quarter_s=9.0) is None


def test_the_last_quarter_has_to_wait_half_as_much_again_as_the_second() -> None:
    assert overload(count=80, waiting=40, last_quarter_s=3.0) is not None
    assert overload(count=80, waiting=40, last_quarter_s=2.99) is None


def test_either_reason_is_enough_to_say_nothing() -> None:
    assert overload(count=80, waiting=1, last_quarter_s=1.0) is None
    assert overload(count=80, waiting=40, last_quarter_s=9.0, interrupted=True) is None


def test_too_few_requests_say_nothing() -> None:
    assert overload(count=40, waiting=20, last_quarter_s=9.0) is not None
    assert overload(count=39, waiting=20, last_quarter_s=9.0) is None


def test_rates_of_what_came_and_what_started() -> None:
    found = overload(count=80, waiting=20, last_quarter_s=9.0)
    assert found == {"arrived_per_s": pytest.approx(0.8), "started_per_s": pytest.approx(0.6), "waiting": 20}
