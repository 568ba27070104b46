"""Readings, verdicts, intervals; the command, its report and its refusals; stored results."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rackline.cli.main import run
from rackline.lab.experiment import Curve, Experiment, Reading, mean_interval, share_interval, shares_apart
from rackline.lab.experiments import (
    EXPERIMENTS,
    entry,
    experiment_figure,
    measured_text,
    read_experiments,
    report_page,
    verdicts_by_claim,
)
from rackline.ledger.said import shipped
from rackline.plain import plain

HOLDS = Reading(quantity="a", predicted=1.0, measured=1.04, tolerance=0.05, check="equal")
DIFFERS = Reading(quantity="b", predicted=1.0, measured=1.06, tolerance=0.05, check="equal")
MADE = Experiment(
    name="cipher",
    claims=("C128", "C130"),
    rows=(HOLDS, Reading(quantity="c", unit="s", measured=0.25)),
    findings=("it works",),
    seconds=2.0,
    device="cpu",
    curves=(Curve(name="one", kind="predicted", x=(1.0, 2.0), y=(0.1, 0.5)),),
    axes=("rounds", "share of bits"),
)


@pytest.mark.parametrize(
    ("reading", "holds"),
    [
        (HOLDS, True),
        (DIFFERS, False),
        (Reading(quantity="exact", predicted=0.0, measured=0.0, check="equal"), True),
        (Reading(quantity="exact", predicted=0.0, measured=1.0, check="equal"), False),
        (Reading(quantity="bound", predicted=1e-5, measured=1e-6, check="at_most"), True),
        (Reading(quantity="bound", predicted=1e-5, measured=1e-4, check="at_most"), False),
        (Reading(quantity="bound", predicted=2.0, measured=2.0, check="at_most"), True),
        (Reading(quantity="bound", predicted=0.9, measured=0.95, check="at_least"), True),
        (Reading(quantity="bound", predicted=0.9, measured=0.8, check="at_least"), False),
        (Reading(quantity="not judged", predicted=1.0, measured=9.0), None),
        # an interval on one side of the bound decides, one that contains it does not
        (Reading(quantity="runs", predicted=1.0, measured=0.8, low=0.7, high=0.9, check="at_most"), True),
        (Reading(quantity="runs", predicted=1.0, measured=0.8, low=0.4, high=1.2, check="at_most"), None),
        (Reading(quantity="runs", predicted=1.0, measured=1.4, low=1.2, high=1.6, check="at_most"), False),
        (Reading(quantity="runs", predicted=0.0, measured=-0.3, low=-0.5, high=-0.1, check="at_least"), False),
        (Reading(quantity="runs", predicted=1.0, measured=1.2, low=0.9, high=1.5, check="equal"), None),
    ],
)
def test_when_a_reading_holds(reading: Reading, holds: bool | None) -> None:
    assert reading.holds is holds


def test_an_interval_is_written_where_both_of_its_ends_are_known() -> None:
    reading = Reading(quantity="runs", predicted=1.0, measured=0.8, low=0.7, high=0.9)
    assert measured_text(reading) == "0.8 (0.7 to 0.9)"
    assert measured_text(dataclasses.replace(reading, low=None)) == "0.8"
    assert measured_text(dataclasses.replace(reading, high=None)) == "0.8"


def test_verdict_of_an_experiment() -> None:
    shown = Reading(quantity="shown", measured=1.0)
    for rows, verdict in (
        ((HOLDS, shown), "holds"),
        ((HOLDS, DIFFERS), "differs"),
        ((shown,), "undecided"),
        ((HOLDS, Reading(quantity="r", predicted=1.0, measured=1.2, low=0.9, high=1.5, check="equal")), "undecided"),
    ):
        assert Experiment(name="cipher", claims=(), rows=rows).verdict == verdict


def test_interval_covers_the_mean_nineteen_times_of_twenty() -> None:
    import numpy as np

    random = np.random.default_rng(1)
    covered = 0
    for sample in random.normal(3.0, 2.0, (2000, 4)):
        _, low, high = mean_interval(list(sample))
        covered += low <= 3.0 <= high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)  # 3 standard errors of 2,000 draws


def test_the_interval_of_one_run_is_unbounded() -> None:
    assert mean_interval([1.5]) == (1.5, -math.inf, math.inf)


def test_every_experiment_has_a_module_that_runs() -> None:
    for name in EXPERIMENTS:
        assert entry(name).systems
        pytest.importorskip("jax")
        assert callable(importlib.import_module(f"rackline.lab.{name}").run)


def test_stored_results_come_back(tmp_path: Path) -> None:
    file = tmp_path / "lab.json"
    file.write_text(json.dumps({"experiments": [plain(MADE)]}))
    assert read_experiments(file) == (MADE,)
    assert verdicts_by_claim((MADE,)) == {"C128": "holds (cipher)", "C130": "holds (cipher)"}


def test_lecture_shows_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lab.json"
    file.write_text(json.dumps({"experiments": [plain(MADE)]}))
    assert run(["lecture", "--claim", "C130", "--measured", str(file)]) == 0
    assert "measured: holds (cipher)" in capsys.readouterr().out
    assert run(["lecture", "--segment", "7", "--json", "--measured", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["experiments"] == {"C128": "holds (cipher)", "C130": "holds (cipher)"}


@pytest.mark.parametrize(
    "text", ["{}", "[]", "nothing", '{"experiments": [1]}', '{"experiments": [{"name": "cipher"}]}']
)
def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    assert run(["lecture", "--measured", str(file)]) == 2
    assert "rackline lab all --json" in " ".join(capsys.readouterr().err.split())


def test_an_experiment_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "cypher"]) == 2
    assert "cipher" in capsys.readouterr().err


def test_without_jax(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = importlib.import_module

    def missing(name: str, *more: Any) -> Any:
        if name == "jax":
            raise ModuleNotFoundError(name=name)
        return real(name, *more)

    monkeypatch.setattr("rackline.late.importlib.import_module", missing)
    assert run(["lab", "cipher", "--quick"]) == 2
    assert "rackline[lab]" in capsys.readouterr().err


def test_report_and_figure() -> None:
    pytest.importorskip("vl_convert")
    text = report_page([MADE])
    for words in ('id="cipher"', "it works", "<svg", "C128, C130", "250 ms"):
        assert words in text
    assert experiment_figure(MADE).rows[0]["kind"] == "predicted"


class TestIntervalOfShares:
    def test_it_stays_between_0_and_1_where_that_of_a_mean_does_not(self) -> None:
        values = [1.0, 0.9, 0.98, 0.93, 1.0]
        assert mean_interval(values)[2] > 1.0
        mean, low, high = share_interval(values, 50)
        assert mean == pytest.approx(0.962)
        assert 0.0 < low < mean < high < 1.0

    def test_runs_that_agree_leave_the_uncertainty_of_their_trials(self) -> None:
        _, low, high = share_interval([1.0, 1.0, 1.0, 1.0, 1.0], 100)
        # Wilson by hand for 500 of 500 with t = 2.776 at four degrees of freedom: n / (n + t^2)
        assert (low, high) == pytest.approx((500 / (500 + 2.7764**2), 1.0), rel=1e-4)

    def test_it_covers_shares_whose_seeds_differ(self) -> None:
        """Five runs of 200 trials, each of a share of its own from a beta law of mean 0.9: 200 repetitions."""
        random = np.random.default_rng(4)
        covered = 0
        for _ in range(200):
            shares = random.binomial(200, random.beta(27.0, 3.0, 5)) / 200.0
            _, low, high = share_interval(shares.tolist(), 200)
            covered += low <= 0.9 <= high
        assert covered >= 180

    def test_one_run_says_nothing(self) -> None:
        assert share_interval([0.3], 10) == (0.3, 0.0, 1.0)

    def test_a_difference_stays_between_minus_1_and_1(self) -> None:
        low, high = (Reading.of_shares([value] * 5, 1000, quantity="a") for value in (0.0, 1.0))
        gap = shares_apart(low, high, quantity="b")
        assert gap.low is not None
        assert gap.high is not None
        assert -1.0 <= gap.low <= gap.measured == -1.0 < gap.high < -0.98


def test_jax_starts_with_eight_devices_as_the_command_imports_it() -> None:
    """Without the variable that tests set, and with JAX imported by the modules before it is started."""
    code = (
        "import rackline.lab.experiments, rackline.lab.experiment as lab; jax = lab.start_jax(); "
        "print(len(jax.devices('cpu')))"
    )
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "8", done.stderr


def test_results_of_a_reader_take_the_place_of_the_stored_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A net that changes half of its signs after training would make it a cipher: C128 follows."""
    row = Reading(quantity="signs that change, trained residual network", measured=0.5, low=0.45, high=0.55)
    file = tmp_path / "lab.json"
    file.write_text(json.dumps({"experiments": [plain(dataclasses.replace(MADE, rows=(row,)))]}), encoding="utf-8")
    verdicts: list[str] = []
    for more in ([], ["--measured", str(file)]):
        assert run(["lecture", "--claim", "C128", "--json", *more]) == 0
        verdicts.append(json.loads(capsys.readouterr().out)["claims"][0]["verdict"])
    assert verdicts == ["holds", "holds only if"]


def test_what_ships_with_the_ledger_is_an_extract_of_the_stored_results() -> None:
    """`uv run python bench/lab_pages.py` writes it."""
    root = Path(__file__).resolve().parents[2]
    stored = root / "docs" / "measured" / "lab.json"
    found, runs = read_experiments(stored), json.loads(stored.read_text(encoding="utf-8"))["runs"]
    rows = {(one.name, row.quantity): row for one in found for row in one.rows}
    for (name, quantity), one in shipped().items():
        row = rows[name, quantity]
        assert (one.measured, one.run) == (row.measured, runs[name])
        assert (one.low, one.high) == (
            (one.measured, one.measured) if row.low is None or row.high is None else (row.low, row.high)
        )
