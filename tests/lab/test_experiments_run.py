"""Each experiment in its quick form: what does not depend on the machine's speed holds, in the stated direction."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from rackline.lab.experiment import Experiment, Setup, start_jax
from rackline.lab.experiments import run_experiment

pytest.importorskip("jax", reason="JAX has no wheel on this platform")


SECONDS: Iterator[float] = iter(())  # of each call that would be timed; an experiment begins with the first
# what only times show better with; no time is judged here
SMALLER: dict[str, dict[str, Any]] = {
    "pipeline": {"WIDTH": 16, "ROWS": 4, "REPEATS": 1, "NAMES": ("1f1b", "dualpipe")},
    "sparse": {"shortest_s": lambda call, repeats, clock: next(SECONDS)},
    "moe": {"shortest_s": lambda call, repeats: next(SECONDS)},
}


NAMES = ("cipher", "experts", "pipeline")
LONG = ("moe", "sparse")


def ran(name: str, patch: pytest.MonkeyPatch) -> Experiment:
    """The quick form of an experiment, with sizes as below."""
    start_jax()
    patch.setitem(globals(), "SECONDS", (1.0 - 0.01 * number for number in count()))
    for key, value in SMALLER.get(name, {}).items():
        patch.setattr(importlib.import_module(f"rackline.lab.{name}"), key, value)
    return run_experiment(name, Setup(quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.nightly) for name in LONG)])
def test_exact_readings_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(name, monkeypatch)
    assert [row.quantity for row in found.rows if row.holds is False and not row.statistical] == []
    assert found.curves
    # what was trained: the direction, by its interval
    trained = [row for row in found.rows if row.low is not None and row.check != "shown"]
    assert [row.quantity for row in trained if row.holds is False] == []


@pytest.mark.slow
def test_what_needs_several_devices_runs_on_the_host_whatever_is_asked_for() -> None:
    assert run_experiment("experts", Setup(quick=True, device="gpu")).device == "cpu"
