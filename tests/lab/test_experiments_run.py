"""Each experiment in its quick form: what does not depend on the machine's speed holds, in the stated direction.

What is asked, predicted and counted is that of `readings.json`. After a change that is meant to move it:

    PYTHONPATH=tests uv run python tests/lab/test_experiments_run.py write
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rackline.lab.experiment import Experiment, Reading, Setup, start_jax
from rackline.lab.experiments import run_experiment
from rackline.plain import plain
from scripts import load_script
from stored import laid_out

pytest.importorskip("jax", reason="JAX has no wheel on this platform")


SECONDS: Iterator[float] = iter(())  # of each call that would be timed; an experiment begins with the first
# what only times show better with; no time is judged here
SMALLER: dict[str, dict[str, Any]] = {
    "pipeline": {"WIDTH": 16, "ROWS": 4, "REPEATS": 1, "NAMES": ("1f1b", "dualpipe")},
    "sparse": {"shortest_s": lambda call, repeats, clock: next(SECONDS)},
    "moe": {"shortest_s": lambda call, repeats: next(SECONDS)},
}


NAMES = ("cipher", "experts", "moe", "pipeline", "sparse")
STORED = Path(__file__).with_name("readings.json")
TIMES = ("s", "ms", "us", "bytes/s", "FLOP/s")


def counted(reading: Reading, *, timed: bool) -> dict[str, Any]:
    """A reading without what depends on the machine: rounding errors, what was trained, and times unless set here."""
    row = plain(reading)
    exact = reading.check in ("equal", "shown") and not reading.statistical and reading.unit not in TIMES
    exact = exact or (timed and "time" in reading.quantity)
    left_out = {"holds", "error", "low", "high", *(() if exact else ("measured",))}
    return {key: value for key, value in row.items() if key not in left_out}


def described(found: Experiment) -> dict[str, Any]:
    """An experiment without times: its readings, what it says but for the numbers, and where its curves have points."""
    return {
        **{key: plain(getattr(found, key)) for key in ("claims", "seed", "quick", "axes", "log_axes")},
        "rows": [counted(row, timed="shortest_s" in SMALLER.get(found.name, ())) for row in found.rows],
        "findings": [re.sub(r"[\d.,]*\d(e-?\d+)?", "N", text) for text in found.findings],
        "curves": [[curve.name, curve.kind, [plain(x) for x in curve.x]] for curve in found.curves],
    }


def ran(name: str, patch: pytest.MonkeyPatch) -> Experiment:
    """The quick form of an experiment, with sizes as below."""
    start_jax()
    patch.setitem(globals(), "SECONDS", (1.0 - 0.01 * number for number in count()))
    for key, value in SMALLER.get(name, {}).items():
        patch.setattr(importlib.import_module(f"rackline.lab.{name}"), key, value)
    return run_experiment(name, Setup(quick=True))


@pytest.mark.slow
@pytest.mark.part("lab")
@pytest.mark.parametrize("name", NAMES)
def test_exact_readings_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(name, monkeypatch)
    assert [row.quantity for row in found.rows if row.holds is False and not row.statistical] == []
    assert found.curves
    # what was trained: the direction, by its interval
    trained = [row for row in found.rows if row.low is not None and row.check != "shown"]
    assert [row.quantity for row in trained if row.holds is False] == []
    stored: Mapping[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))[name]
    moved = load_script("golden_answers").differences(stored, json.loads(json.dumps(described(found))), rel=0.02)
    assert list(moved) == []


@pytest.mark.slow
@pytest.mark.part("lab")
def test_what_needs_several_devices_runs_on_the_host_whatever_is_asked_for() -> None:
    assert run_experiment("experts", Setup(quick=True, device="gpu")).device == "cpu"


def main() -> int:
    """Write the readings of today."""
    if sys.argv[1:] != ["write"]:
        print(__doc__)
        return 2
    found: dict[str, Any] = {}
    for name in NAMES:
        with pytest.MonkeyPatch.context() as patch:
            found[name] = described(ran(name, patch))
    STORED.write_text(laid_out(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
