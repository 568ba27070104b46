"""What few requests show: intervals against runs of other seeds, arrivals against the law of Poisson processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import gamma

import rackline as rl
from rackline.catalog import stated_errors
from rackline.parallel import Layout
from rackline.search.served import STATISTICS, Group, few_requests, group_of_one
from rackline.serving.workload import Mode, Workload
from rackline.simulation import Requests, simulate
from rackline.system import System

WORK = Workload(input_len=500, output_len=20)
RATE, COUNT = 20.0, 30


@pytest.fixture(scope="module")
def group() -> Group:
    """An 8B on one H100."""
    model, on = rl.model("llama-3.1-8b"), rl.cluster("dgx-h100")
    system = System.of(
        model, on, calibration=rl.calibration("vllm", on.chip), precisions=[rl.precision("bf16", model, on.chip)]
    )
    mode = Mode(admission="chunked", max_batched_tokens=2048)
    return group_of_one(system.deployment(Layout(), system.precisions[0]), system.stack, mode, WORK)


@pytest.fixture(scope="module")
def shown(group: Group) -> dict[tuple[str, str], Any]:
    return {(one.metric, one.statistic): one for one in few_requests(group, RATE, COUNT, {}).shown}


def _seen(group: Group, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """A run with arrivals from another generator."""
    gaps = -np.log(np.random.RandomState(seed).uniform(size=COUNT)) / RATE
    lengths = np.full(COUNT, 500), np.full(COUNT, 20)
    sent = Requests(arrival_s=np.cumsum(gaps), input_len=lengths[0], output_len=lengths[1])
    done = simulate(sent, group.pool, router="round-robin", beyond_s=group.beyond_s)
    return {"ttft_s": done.ttft_s, "tpot_s": done.tpot_s}


def test_nine_of_ten_other_runs_lie_inside(group: Group, shown: dict[tuple[str, str], Any]) -> None:
    runs = [_seen(group, seed) for seed in range(60)]
    for (metric, statistic), one in shown.items():
        place = STATISTICS[statistic]
        values = [run[metric].mean() if place is None else np.percentile(run[metric], place) for run in runs]
        inside = np.mean([one.low_s <= value <= one.high_s for value in values])
        assert inside >= 0.72, (metric, statistic)  # 90 % of both, 40 and 60 runs: two deviations below


def test_rates_are_those_of_a_poisson_process(group: Group) -> None:
    """The time of the n-th arrival is gamma distributed."""
    found = few_requests(group, RATE, COUNT, {})
    low, high = (RATE * COUNT / gamma.ppf(share, COUNT) for share in (0.95, 0.05))
    assert found.low_requests_per_s == pytest.approx(low, rel=0.12)
    assert found.high_requests_per_s == pytest.approx(high, rel=0.12)


def test_an_error_of_the_calibration_widens(group: Group, shown: dict[tuple[str, str], Any]) -> None:
    wide = {(one.metric, one.statistic): one for one in few_requests(group, RATE, COUNT, {"tpot_s": 0.3}).shown}
    for key, one in shown.items():
        if key[0] == "ttft_s":
            assert wide[key] == one
            continue
        assert wide[key].median_s == one.median_s
        assert wide[key].high_s >= max(one.high_s, 1.3 * one.median_s) * (1 - 1e-12)
        assert wide[key].low_s <= min(one.low_s, one.median_s / 1.3) * (1 + 1e-12)
    assert ("tpot_s", "p99") not in shown


def test_errors_are_those_of_the_file(tmp_path: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[measured.held_out.tpot_s]\np90_abs_error = 0.4\n[measured.held_out.prefill]\np90_abs_error = 0.1\n"
    )
    assert stated_errors(str(file)) == {"ttft_s": 0.1, "tpot_s": 0.4}
    assert stated_errors("vllm") == {}
