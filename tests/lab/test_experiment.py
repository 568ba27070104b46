"""Readings, verdicts, intervals; the command, its report and its refusals; stored results."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from rackline.cli.main import run
from rackline.lab import EXPERIMENTS, Experiment, Reading, entry
from rackline.lab.experiment import Curve, mean_interval
from rackline.lab.experiments import experiment_figure, read_experiments, report_page, verdicts_by_claim
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
