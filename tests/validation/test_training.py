"""Training: bars on measured steps and on published tables that nothing is fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.validation import validate
from rackline.validation.scoreboard import statistics
from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
CASES = ROOT / "cases" / "training.jsonl.gz"
MEASURED_STEPS = ROOT / "docs" / "measured" / "train-pytorch-h200.csv"


@pytest.fixture(scope="module")
def facts() -> Any:
    if not (SHARED / "facts").exists():
        pytest.skip("needs ../shared/facts")
    return load_script(Path(__file__).with_name("training_facts.py"))


def test_measured_steps_are_within_the_bars() -> None:
    board = validate([CASES])
    stats = statistics(score for score in board.scores if score.metric == "step_s")
    assert stats.supported / board.num_cases >= 0.95
    assert stats.median_abs_error <= 0.05
    assert stats.p90_abs_error <= 0.17
    assert abs(stats.bias) <= 0.03


def test_megatron_runs_are_closer_than_calculon(facts: Any) -> None:
    found = [(p / m - 1, c / m - 1) for _, _, m, p, c in facts.megatron_steps() if c is not None]
    ours, calculon = np.abs(np.array(found)).mean(axis=0)
    assert len(found) == 8
    assert ours <= 0.0365
    assert ours < calculon


def test_memory_of_megatron_runs(facts: Any) -> None:
    errors = [abs(p / m - 1) for _, _, m, p, _ in facts.megatron_memory()]
    assert len(errors) == 28
    assert np.median(errors) <= 0.05


def test_memory_of_measured_runs(facts: Any) -> None:
    assert np.median([abs(p / m - 1) for _, m, p in facts.measured_memory()]) <= 0.15


def test_peaks_of_torchtitan(facts: Any) -> None:
    errors = np.abs([p / m - 1 for _, m, p in facts.torchtitan_memory()])
    assert len(errors) == 18
    assert np.median(errors) <= 0.085
    assert np.quantile(errors, 0.9) <= 0.25


def test_rates_of_torchtitan_with_checkpointing_by_operators(facts: Any) -> None:
    """Llama 8B under FSDP, compiled, in bf16 and fp8 on 8 and 128 chips at 500 W, and whole layers again at 32k tokens;
    without torch.compile it is 16 % slower."""
    found = {what: predicted / measured - 1 for what, measured, predicted in facts.torchtitan()}
    compiled = [error for what, error in found.items() if "8B" in what and ("compile" in what or "FSDP 8" in what)]
    assert len(compiled) == 5
    assert np.max(np.abs(compiled)) <= 0.06


def test_steps_of_transformers_measured_on_a_gpu() -> None:
    """21 steps without a compiler and one with, on one H200: peaks are counted, three host times are fitted."""
    scores = validate([MEASURED_STEPS]).scores
    peaks, steps = (
        [abs(score.error) for score in scores if score.metric == metric] for metric in ("peak_bytes", "step_s")
    )
    assert len(peaks) == len(steps) == 22
    assert np.median(peaks) <= 0.015
    assert np.max(peaks) <= 0.12
    assert np.median(steps) <= 0.04
    assert np.quantile(steps, 0.9) <= 0.15


def test_bubble_rates(facts: Any) -> None:
    found = facts.zero_bubble(most_slots=1800)
    assert set(found) == {"1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-V"}
    assert np.median(np.abs(np.concatenate([np.array(values) for values in found.values()]))) <= 0.02
    for values in found.values():
        assert np.median(np.abs(values)) <= 0.02


def test_speed_up_of_torchgpipe(facts: Any) -> None:
    assert np.median([abs(p / m - 1) for _, _, m, p in facts.gpipe()]) <= 0.10


def test_deepseek_v3_trained_as_published(facts: Any) -> None:
    """Step time and H800 hours of its own run within 20 %, in its own layout, which fits without full recompute."""
    errors = {name: p / m - 1 for name, m, p in facts.deepseek()}
    assert len(errors) == 4
    assert max(map(abs, errors.values())) <= 0.20
    job, layout = facts.deepseek_run()
    batch = facts.MicroBatch(system=job, runs=facts.Runs.of([layout]))
    held = float(facts.train_memory(batch).total[0])
    assert 0.8 * job.cluster.chip.hbm_bytes < held <= job.cluster.chip.hbm_bytes
    assert layout.recompute == "modules"


def test_llama_3_405b_trained_as_published(facts: Any) -> None:
    found = [p / m - 1 for _, m, p in facts.llama3()]
    assert len(found) == 3
    assert max(map(abs, found)) <= 0.15


def test_a_run_that_ran_out_of_memory_does_not_fit(facts: Any) -> None:
    assert all(held > 80e9 for _, held in facts.ran_out())


# Recipes without recompute: model, cluster, chips, layout, stack, types, sequences, tokens of each, step [s]
# (dgxc-benchmarking 24.11.1; Megatron-Bridge 26.04.01).
WITHOUT_RECOMPUTE = (
    ("nemotron-4-340b", "dgx-h100", 512, "tp=8,pp=8,virtual_pp=12,micro_batch=1", "nemo", "bf16", 128, 4096, 4.7),
    ("nemotron-4-340b", "dgx-h100", 256, "tp=8,pp=8,virtual_pp=12,micro_batch=1", "nemo", "fp8", 64, 4096, 3.21),
    ("nemotron-4-340b", "dgx-h100", 1024, "tp=8,pp=8,virtual_pp=12,micro_batch=1", "nemo", "fp8", 256, 4096, 3.34),
    ("nemotron-3-nano-30b-a3b", "dgx-b200", 8, "ep=8,micro_batch=2", "megatron-bridge", "mxfp8", 512, 8192, 16.0),
)


@pytest.mark.parametrize("recipe", WITHOUT_RECOMPUTE, ids=lambda r: f"{r[0]}-{r[5]}-{r[2]}")
def test_published_layouts_without_recompute_fit_without_it(recipe: tuple[Any, ...]) -> None:
    name, on, chips, layout, stack, types, sequences, seq_len, step_s = recipe
    best = rl.train(
        name, on=on, chips=chips, layout=layout, stack=stack, precision=types, global_batch=sequences * seq_len,
        seq=seq_len, pace="tuned",  # recipes of benchmarks
    ).to_dict()["best"]  # fmt: skip
    assert best["layout"]["recompute"] == "none"
    assert best["step_s"] == pytest.approx(step_s, rel=0.06)
