"""The Pareto front against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from rackline.search import pareto_front


def by_definition(maximise: np.ndarray, minimise: np.ndarray) -> set[tuple[float, float]]:
    points = [(a, b) for a, b in zip(maximise, minimise, strict=True) if np.isfinite(a) and np.isfinite(b)]

    def beaten(p: tuple[float, float]) -> bool:
        return any(q != p and q[0] >= p[0] and q[1] <= p[1] for q in points)

    return {p for p in points if not beaten(p)}


@pytest.mark.parametrize("seed", range(20))
def test_front_is_what_nothing_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 60))
    # few distinct values, so that ties happen
    a, b = rng.integers(0, 9, size).astype(float), rng.integers(0, 9, size).astype(float)
    a[rng.random(size) < 0.1] = np.nan
    b[rng.random(size) < 0.1] = np.inf
    front = pareto_front(a, b)
    assert {(a[i], b[i]) for i in front} == by_definition(a, b)
    assert len(front) == len(by_definition(a, b)), "each point of the front once"
    assert np.all(np.diff(a[front]) < 0)
    assert np.all(np.diff(b[front]) < 0)


def test_nothing_in_nothing_out() -> None:
    assert pareto_front(np.array([]), np.array([])).size == 0
    assert pareto_front(np.array([np.nan, 1.0]), np.array([1.0, np.nan])).size == 0


def test_of_equal_points_the_first_is_kept() -> None:
    assert pareto_front(np.array([2.0, 2.0, 1.0]), np.array([3.0, 3.0, 3.0])).tolist() == [0]
