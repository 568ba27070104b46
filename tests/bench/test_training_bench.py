"""Speed of the training search: runs timed a second, with every row; run once as a test, timed with a benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers import cluster, model
from rackline.search.train_space import evaluate_runs, timed_steps, train_space
from rackline.training.system import TrainingSystem


def test_runs_timed_at_once(benchmark: Any) -> None:
    on = cluster("dgx-h100").with_num_chips(2048)
    system = TrainingSystem.of(
        model("llama-3.1-70b"), on, stack="megatron-bridge", global_batch_sequences=2048, seq_len=8192
    )
    runs = train_space(system)
    found = benchmark(evaluate_runs, system, runs, all_runs=True)
    assert found.timed == len(runs) > 10_000
    assert np.all(np.isfinite(found.step_s))
    middle = len(runs) // 2
    alone = float(timed_steps(system, runs.take(slice(middle, middle + 1))).step[0])
    assert abs(found.step_s[middle] / alone - 1.0) < 1e-9
