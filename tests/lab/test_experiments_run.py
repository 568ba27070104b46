"""Each experiment in its quick form: what does not depend on the machine's speed holds, in the stated direction."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from rackline.lab.experiment import Setup, start_jax
from rackline.lab.experiments import run_experiment

pytest.importorskip("jax", reason="JAX has no wheel on this platform")


# what only times show better with; no time is judged here
SMALLER: dict[str, dict[str, Any]] = {
    "pipeline": {"WIDTH": 16, "ROWS": 4, "REPEATS": 1, "NAMES": ("1f1b", "dualpipe")},
    "sparse": {"shortest_s": lambda call, repeats, clock: 1.0},
    "moe": {"shortest_s": lambda call, repeats: 1.0},
}


@pytest.mark.slow
@pytest.mark.part("lab")
@pytest.mark.parametrize("name", ["cipher", "experts", "moe", "pipeline", "sparse"])
def test_exact_readings_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start_jax()
    for key, value in SMALLER.get(name, {}).items():
        monkeypatch.setattr(importlib.import_module(f"rackline.lab.{name}"), key, value)
    found = run_experiment(name, Setup(quick=True))
    assert [row.quantity for row in found.rows if row.holds is False and not row.statistical] == []
    assert found.curves
    # what was trained: the direction, by its interval
    trained = [row for row in found.rows if row.low is not None and row.check != "shown"]
    assert [row.quantity for row in trained if row.holds is False] == []


@pytest.mark.slow
@pytest.mark.part("lab")
def test_what_needs_several_devices_runs_on_the_host_whatever_is_asked_for() -> None:
    assert run_experiment("experts", Setup(quick=True, device="gpu")).device == "cpu"
