"""What runs of a server tell of it when it was well, and causes of engines that compute on a processor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError
from rackline.validation import read_cases
from rackline.validation.causes import Error, causes, changed, error_when_well, happens, seen_of
from rackline.validation.observed import served_run
from rackline.validation.requests import ServedRun
from rackline.validation.resolve import Resolver

MEASURED = Path(__file__).resolve().parents[2] / "docs" / "measured"
STORED = MEASURED / "observed-llama-cpp.jsonl"


@pytest.fixture(scope="module")
def run() -> ServedRun:
    """A run of llama.cpp on two cores."""
    resolver = Resolver(calibration_name=str(MEASURED / "machine-llama-cpp-fp32.toml"))
    return served_run(resolver, read_cases([str(STORED)]).cases[0])


def test_a_server_as_simulated_has_the_noise_of_any(run: ServedRun) -> None:
    found, least = error_when_well([(run, seen_of(run.simulated()))] * 2), Error()
    assert found.requests == pytest.approx(least.requests)
    assert found.gaps == pytest.approx(least.gaps)
    assert found.shift(3) == pytest.approx(np.zeros(9))
    assert found.noise(2) == pytest.approx([0.2, 0.2, 0.05, 0.05, 0.05, 0.1, 0.2])


def test_shift_and_noise_are_those_of_its_runs(run: ServedRun) -> None:
    seen = seen_of(run.simulated())
    rng = np.random.default_rng(5)
    off = rng.normal(0.3, 0.5, len(seen.ttft_s))
    runs = [
        (run, replace(seen, ttft_s=seen.ttft_s * np.exp(off), gaps_s=seen.gaps_s * np.array([1.0, 1.0, by])))
        for by in (0.5, 2.0)
    ]
    found = error_when_well(runs)
    assert found.request_shift == pytest.approx([off.mean(), 0.0])
    assert found.requests == pytest.approx([off.std(), 0.05])
    assert found.gap_shift == pytest.approx(np.zeros(3), abs=1e-12)
    assert found.gaps == pytest.approx([0.05, 0.1, np.sqrt(2.0) * np.log(2.0)])


def test_an_engine_on_a_processor_has_causes_of_its_own(run: ServedRun) -> None:
    possible = {cause.key for cause in causes() if happens(cause, run)}
    assert {"cores", "sequences", "power", "neighbour"} <= possible
    assert not possible & {"host", "cache", "eager", "graphs"}  # each slot has a cache of its own


def test_half_the_cores_take_twice_the_time_of_each_pass(run: ServedRun) -> None:
    spaced = replace(run.requests, arrival_s=1e3 * np.arange(len(run.requests)))  # nobody waits
    alone = replace(run, requests=spaced)
    usual = alone.simulated()
    alone_s, slower_s = usual.ttft_s, changed(alone, "cores", 2.0, usual).simulated().ttft_s
    assert np.median(slower_s / alone_s) == pytest.approx(2.0, rel=0.1)


def test_runs_of_a_better_day_must_be_runs(tmp_path: Path) -> None:
    none = tmp_path / "none.jsonl"
    none.write_text('{"id": "a", "kind": "serve", "model": "llama-3.1-8b", "chip": "h100-sxm"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="observe --save"):
        rl.diagnose(str(STORED), well=str(none))
