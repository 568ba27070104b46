"""Work on several processes that share what they prepared."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from rackline.processes import mapped


def powers(base: int) -> Callable[[int], int]:
    def power(exponent: int) -> int:
        if exponent < 0:
            raise ValueError("a negative exponent")
        if exponent > 99:
            os._exit(3)
        return base**exponent

    return power


@pytest.mark.parametrize("processes", [1, 2])
def test_each_task_is_done_once_and_counted(processes: int) -> None:
    told: list[tuple[str, int, int]] = []
    found = dict(mapped(powers, (3,), range(4), processes, lambda *progress: told.append(progress)))
    assert found == {0: 1, 1: 3, 2: 9, 3: 27}
    assert [(finished, total) for _, finished, total in told] == [(n, 4) for n in (1, 2, 3, 4)]
    assert {name for name, _, _ in told} == {"0", "1", "2", "3"}


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_task_comes_as_it_is(processes: int) -> None:
    with pytest.raises(ValueError, match="a negative exponent"):
        dict(mapped(powers, (3,), [1, -1], processes))


def test_a_killed_process_is_not_waited_for() -> None:
    with pytest.raises(RuntimeError, match="status 3"):
        dict(mapped(powers, (3,), [100, 100], 2))
