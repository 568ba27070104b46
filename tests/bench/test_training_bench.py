"""Speed of the training search: runs timed a second, with every row; run once as a test, timed with a benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers import cluster, model
from rackline.passes import calibration
from rackline.search.train_evaluate import TrainJob, evaluate_runs
from rackline.search.train_space import train_space
from rackline.training.precision import train_precision
from rackline.training.stack import training_stack


def test_runs_timed_at_once(benchmark: Any) -> None:
    on = cluster("dgx-h100").with_num_chips(2048)
    stack = training_stack("megatron-bridge")
    job = TrainJob(
        model=model("llama-3.1-70b"),
        cluster=on,
        precision=train_precision("bf16", on.chip),
        stack=stack,
        calibration=calibration(stack.kernels, on.chip),
        global_batch_sequences=2048,
        seq_len=8192,
    )
    runs = train_space(job.model, on, global_batch_sequences=2048, seq_len=8192)
    found = benchmark(evaluate_runs, job, runs, all_runs=True)
    assert found.timed == len(runs) > 10_000
    assert np.all(np.isfinite(found.step_s))
    middle = len(runs) // 2
    alone = float(job.step(runs.take(slice(middle, middle + 1))).step[0])
    assert abs(found.step_s[middle] / alone - 1.0) < 1e-9
