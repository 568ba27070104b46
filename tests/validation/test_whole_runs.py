"""Published pre-training runs: earlier ones measure the shipped numbers of practice, later ones score them."""

from __future__ import annotations

import pytest

from rackline.training.practice import published_practice
from rackline.validation.whole_runs import WholeRun, measured_practice, split, whole_run_score, whole_runs


@pytest.fixture(scope="module")
def runs() -> tuple[WholeRun, ...]:
    return whole_runs()


def test_each_run_has_its_source_and_hours(runs: tuple[WholeRun, ...]) -> None:
    assert len(runs) >= 30
    assert len({one.name for one in runs}) == len(runs)
    assert all(one.url.startswith("https://") and one.kind in ("billed", "days", "step") for one in runs)
    assert all(0.9 < one.slowdown < 4.0 for one in runs)


def test_shipped_numbers_are_those_of_runs_published_before_2025(runs: tuple[WholeRun, ...]) -> None:
    earlier, later = split(runs)
    assert max(one.published for one in earlier) < "2025" <= min(one.published for one in later)
    shipped = published_practice()
    measured = measured_practice(earlier)
    assert (shipped.num_runs, list(shipped.generations)) == (measured["num_runs"], measured["generations"])
    for name in ("slowdown", "low", "high"):
        assert getattr(shipped, name) == pytest.approx(measured[name], rel=0.02)


def test_later_runs_are_within_the_bars(runs: tuple[WholeRun, ...]) -> None:
    """Median 15 %, nine of ten within 35 %, intervals that hold 80 %; tuned steps are further off."""
    shipped, later = published_practice(), split(runs)[1]
    score = whole_run_score(later, shipped.slowdown, shipped.low, shipped.high)
    assert score.median <= 0.15
    assert score.within >= 0.9
    assert score.held >= 0.8
    assert whole_run_score(later, 1.0, shipped.low, shipped.high).median > score.median


def test_an_hour_predicted_is_an_hour_published_at_the_runs_own_slowdown(runs: tuple[WholeRun, ...]) -> None:
    for one in runs:
        assert one.predicted_hours(one.slowdown) == pytest.approx(one.chip_hours)
