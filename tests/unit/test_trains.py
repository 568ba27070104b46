"""Batch trains: the closed forms against an exact simulation of the platform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rackline.errors import InputError
from rackline.serving.capacity import (
    TrainLine,
    arrivals_to_fill_per_s,
    left_behind_shares,
    mean_left_behind,
    share_of_fleet,
)


def simulate(line: TrainLine, departures: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Times from arrival to the end of the ride, and boarded requests a train; first come, first boarded.

    Exact: request i takes the first train after its arrival that is not yet full by those before it. Place j of the
    line of all requests rides on train d_j = max(next departure after arrival, d_{j - capacity} + 1).
    """
    rng = np.random.default_rng(seed)
    last = departures * line.interval_s
    arrivals = np.sort(rng.uniform(0.0, last, rng.poisson(line.arrivals_per_s * last)))
    earliest = np.floor(arrivals / line.interval_s).astype(np.int64) + 1
    train = earliest.copy()
    for start in range(line.capacity, len(train), line.capacity):
        before = train[start - line.capacity : start][: len(train) - start]
        block = slice(start, start + line.capacity)
        train[block] = np.maximum(earliest[block], before + 1)
    times = train * line.interval_s + line.interval_s - arrivals
    return times, np.bincount(train)[1:departures]


def test_under_capacity_mean_is_a_ride_and_a_half_and_worst_two() -> None:  # C26, C27
    line = TrainLine(interval_s=0.020, capacity=2000, arrivals_per_s=50_000.0)
    times, boarded = simulate(line, 2000, seed=1)
    assert line.load == pytest.approx(0.5)
    assert times.max() <= line.worst_s == pytest.approx(0.040)
    assert times.mean() == pytest.approx(line.mean_s, rel=2e-3)
    assert line.mean_s == pytest.approx(0.030, rel=1e-9)
    assert boarded.mean() == pytest.approx(line.load * line.capacity, rel=5e-3)
    assert boarded.max() <= line.capacity


@pytest.mark.parametrize(("capacity", "load"), [(1, 0.5), (4, 0.8), (50, 0.9), (200, 0.97)])
def test_nearly_full_trains_agree_with_the_simulation(capacity: int, load: float) -> None:
    interval = 0.020
    line = TrainLine(interval_s=interval, capacity=capacity, arrivals_per_s=load * capacity / interval)
    times, boarded = simulate(line, 40_000, seed=7)
    # the mean wait of a random queue moves by a few percent between runs of this length
    assert times.mean() == pytest.approx(line.mean_s, rel=0.03)
    assert boarded.max() <= capacity
    assert boarded.mean() == pytest.approx(line.load * line.capacity, rel=0.01)


def test_saturated_line_carries_its_capacity_and_no_more() -> None:
    line = TrainLine(interval_s=0.020, capacity=100, arrivals_per_s=6000.0)
    assert line.saturated
    assert line.mean_s == line.worst_s == float("inf")
    _, boarded = simulate(line, 1000, seed=3)
    assert (boarded[10:] == 100).all()


def test_single_place_is_the_queue_of_the_textbook() -> None:
    """B = 1 is M/D/1 seen at departures: E[W] = a^2 / (2 (1 - a)) (Pollaczek)."""
    for a in (0.1, 0.5, 0.9, 0.99):
        assert mean_left_behind(a, 1) == pytest.approx(a * a / (2 * (1 - a)), rel=1e-6)


def test_next_to_saturation_the_sum_meets_the_diffusion_limit() -> None:
    a, b = 99.8, 100
    # the discrete walk lies below the limit by a constant of about half a standard deviation
    assert mean_left_behind(a, b) == pytest.approx(a / (2 * (b - a)), rel=0.05)
    assert mean_left_behind(b * (1 - 1e-9), b) == pytest.approx(b / (2 * b * 1e-9), rel=1e-6)


@settings(max_examples=25)
@given(st.integers(1, 3000), st.floats(0.01, 0.99))
def test_more_arrivals_leave_more_behind_and_never_negative(capacity: int, load: float) -> None:
    less, more = (mean_left_behind(share * capacity, capacity) for share in (load * 0.9, load))
    assert 0.0 <= less <= more * (1 + 1e-9) + 1e-12
    assert more <= load * capacity / (2 * capacity * (1 - load)) + 1e-9  # never above the diffusion limit


def test_filling_and_fleet() -> None:  # C31 - C33
    assert arrivals_to_fill_per_s(2000.0, 0.1) == pytest.approx(20_000.0)
    assert 1 / share_of_fleet(128_000.0, 378e6) == pytest.approx(2953, abs=1)
    assert 1 / share_of_fleet(128_000.0, 502e6) == pytest.approx(3922, abs=1)


@pytest.mark.parametrize("bad", [{"interval_s": 0.0}, {"capacity": -1}, {"arrivals_per_s": float("nan")}])
def test_bad_input(bad: dict[str, float]) -> None:
    values = {"interval_s": 0.02, "capacity": 10, "arrivals_per_s": 1.0, **bad}
    with pytest.raises(InputError, match="allowed"):
        TrainLine(**values)  # type: ignore[arg-type]


def test_half_a_place_is_refused() -> None:
    with pytest.raises(InputError, match="whole number"):
        mean_left_behind(1.0, 2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("capacity", "load"), [(1, 0.7), (20, 0.95), (4, 0.8), (50, 0.98)])
def test_the_worst_wait_near_saturation_is_that_of_the_simulation(capacity: int, load: float) -> None:
    line = TrainLine(interval_s=0.020, capacity=capacity, arrivals_per_s=load * capacity / 0.020)
    times, _ = simulate(line, 60_000, seed=5)
    missed = np.floor((times - line.interval_s) / line.interval_s).astype(int)
    shares = line.trains_missed()
    assert shares.sum() == pytest.approx(1.0, abs=1e-6)
    for count in range(3):
        assert (missed > count).mean() == pytest.approx(1.0 - shares[: count + 1].sum(), rel=0.25, abs=0.004)
    assert line.worst_s > 2 * line.interval_s
    assert (times > line.worst_s).mean() <= 0.002
    assert (times > line.worst_s - line.interval_s).mean() > 0.0006


def test_the_worst_is_two_intervals_while_trains_have_room() -> None:
    for load in (0.05, 0.5, 0.8):
        assert TrainLine(interval_s=0.02, capacity=2000, arrivals_per_s=load * 1e5).worst_s == pytest.approx(0.04)


def test_those_left_behind_have_the_mean_of_the_sum() -> None:
    for arrivals, capacity in ((0.7, 1), (19.0, 20), (96.0, 100), (99.9, 100)):
        shares = left_behind_shares(arrivals, capacity)
        mean = float(np.sum(np.arange(shares.size) * shares))
        assert mean == pytest.approx(mean_left_behind(arrivals, capacity), rel=5e-3)


def test_a_simpy_platform_agrees() -> None:
    """One process brings requests, one departs every interval with at most `capacity` of them."""
    import simpy

    rng = np.random.default_rng(11)
    line = TrainLine(interval_s=1.0, capacity=20, arrivals_per_s=19.0)
    env = simpy.Environment()
    platform: list[float] = []
    times: list[float] = []

    def bring():  # type: ignore[no-untyped-def]
        while True:
            yield env.timeout(float(rng.exponential(1.0 / line.arrivals_per_s)))
            platform.append(env.now)

    def depart():  # type: ignore[no-untyped-def]
        while True:
            yield env.timeout(line.interval_s)
            boarded, platform[:] = platform[: line.capacity], platform[line.capacity :]
            times.extend(env.now + line.interval_s - came for came in boarded)

    env.process(bring())
    env.process(depart())
    env.run(until=8_000.0)
    assert np.mean(times) == pytest.approx(line.mean_s, rel=0.04)
    late = np.mean(np.array(times) > 3.0)  # two full trains left before theirs
    assert late == pytest.approx(float(line.trains_missed()[2:].sum()), abs=0.02)
    assert np.mean(np.array(times) > line.worst_s) < 0.003


def test_a_saturated_line_has_no_shares() -> None:
    line = TrainLine(interval_s=1.0, capacity=2, arrivals_per_s=2.0)
    with pytest.raises(InputError, match="below 1"):
        line.trains_missed()
    with pytest.raises(InputError, match="below 2"):
        left_behind_shares(2.0, 2)
