"""Small sizes of what bench/engine.py measures; run once as tests, timed with `--benchmark-enable`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers import cluster, deploy, grid_table, layouts, model, numbers, planned
from rackline.passes import Batch
from rackline.passes.javascript import compile_table
from rackline.serving.workload import Workload
from rackline.system import Constraints


@pytest.mark.parametrize(
    ("name", "on", "label"), [("llama-3.1-70b", "dgx-h100", "bf16"), ("deepseek-v3", "gb200-nvl72", "fp8")]
)
def test_full_passes(benchmark: Any, name: str, on: str, label: str) -> None:
    table = grid_table(name, on, cluster(on).num_chips, label)
    ranks = np.array([layout.attention_dp for layout in layouts(name, cluster(on).num_chips)], dtype=float)
    batch_size = np.geomspace(1.0, 512.0, 8)[None, :, None]
    context_len = np.geomspace(128.0, 32768.0, 8)[None, None, :]
    times = table.time_table()

    def run() -> np.ndarray:
        batch = Batch(
            decode_sequences=batch_size,
            context_len=context_len,
            group_tokens=batch_size * ranks[:, None, None],
        )
        return times.seconds(table.features(batch), threads=2)

    seconds = benchmark(run)
    assert seconds.shape == (len(ranks), 8, 8)
    index = len(ranks) // 2
    one = Batch(
        decode_sequences=float(batch_size[0, 3, 0]),
        context_len=float(context_len[0, 0, 5]),
        group_tokens=float(batch_size[0, 3, 0]) * ranks[index],
    )
    assert seconds[index, 3, 5] == pytest.approx(table.layout(index).time(one).seconds, rel=1e-9)


def test_one_breakdown(benchmark: Any) -> None:
    table = deploy("deepseek-v3", "attention_dp=32,ep=32", label="fp8").table()
    batch = Batch(decode_sequences=64.0, context_len=4000.0, group_tokens=2048.0)
    found = benchmark(table.time, batch)
    assert found.seconds == pytest.approx(float(table.seconds(batch)), rel=1e-9)


def test_one_compiled_step(benchmark: Any) -> None:
    table = deploy("llama-3.1-70b", "tp=8", on="dgx-h100").table()
    batch = Batch(decode_sequences=64.0, context_len=4000.0)
    step = compile_table(table)
    features = table.features(batch)
    arguments = [float(np.asarray(features.get(name, 0.0))) for name in step.parameters]
    seconds = benchmark(step.call, *arguments)
    assert seconds == pytest.approx(float(table.seconds(batch)), rel=1e-9)


def test_plan_on_a_node(benchmark: Any) -> None:
    def run() -> Any:
        return planned(
            model("qwen3-235b-a22b"),
            cluster("dgx-h200"),
            Workload(input_len=4000, output_len=1000),
            calibration=numbers("auto", "dgx-h200"),
            constraints=Constraints(tpot_s=0.03, ttft_s=2.0),
        )

    found = benchmark(run)
    assert found.best is not None
    assert found.best.tpot_s <= 0.03
