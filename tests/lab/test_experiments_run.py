"""Each experiment in its quick form: what does not depend on the machine's speed holds, in the stated direction."""

from __future__ import annotations

import pytest

from rackline.lab import Setup, run_experiment

pytest.importorskip("jax", reason="JAX has no wheel on this platform")


@pytest.mark.slow
@pytest.mark.part("lab")
@pytest.mark.parametrize("name", ["cipher", "experts", "moe", "pipeline", "sparse"])
def test_exact_readings_hold(name: str) -> None:
    found = run_experiment(name, Setup(quick=True))
    assert [row.quantity for row in found.rows if row.holds is False and not row.statistical] == []
    assert found.curves
    # what was trained: the direction, by its interval
    trained = [row for row in found.rows if row.low is not None and row.check != "shown"]
    assert [row.quantity for row in trained if row.holds is False] == []
