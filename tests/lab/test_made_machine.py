"""`measure` and the experiments on a machine and an engine whose true times are known.

A clock that goes on by 2^-10 seconds whenever it is read times the device; passes of the engine take what a known
calibration says, up to 4 % more or less; requests take what the simulator says. What is fitted must agree with that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rackline.lab.experiment import start_jax
from rackline.web.forms import plain_text

pytest.importorskip("jax", reason="JAX has no wheel on this platform")
start_jax()  # before any test imports JAX by itself

import rackline as rl  # noqa: E402
from rackline.lab import decode, measured, serve  # noqa: E402
from rackline.lab.engine import Engine, Limits, Scheduler, ServedTimes, Work  # noqa: E402
from rackline.lab.experiment import Experiment, Setup  # noqa: E402
from rackline.lab.experiments import run_experiment  # noqa: E402
from rackline.lab.fitted import calibration_of, starts  # noqa: E402
from rackline.lab.rates import Device, measured_rates  # noqa: E402
from rackline.lab.transformer import Shape, deployment_of  # noqa: E402
from rackline.parallel import Deployment  # noqa: E402
from rackline.serving.stack import stack  # noqa: E402
from rackline.simulation import CacheConfig, Requests, pool_of, simulate  # noqa: E402

SHAPE = Shape(num_layers=3, d_model=512, num_q_heads=8, num_kv_heads=4, head_dim=64, d_ff=1408, vocab_size=4096)
LIMITS = Limits(sequences=8, context_len=512, prompt_tokens=128)
TRUE = {"product_compute": 0.9, "product_memory": 0.5, "cache_memory": 0.15, "prompt_compute": 0.3}
DEVICES = {
    "cpu": Device(name="Made(R) CPU 3", vendor="made", kind="cpu", cores=4, cache_bytes=2.0**23, memory_bytes=2.0**34,
                  clock_hz=2.5e9),
    "gpu": Device(name="Made GPU", vendor="made", kind="gpu", cores=132, cache_bytes=2.0**25, memory_bytes=2.0**36,
                  clock_hz=None, count=2),
}  # fmt: skip
SCHEDULERS = {
    "cpu": Scheduler(admission="prefill_first", max_num_seqs=8, max_batched_tokens=128, prompt_tokens=64),
    "gpu": Scheduler(
        admission="chunked", max_num_seqs=6, max_batched_tokens=96, prompt_tokens=48, neighbour_passes=True
    ),
}


class Ticks:
    """A clock that goes on by 2^-10 seconds whenever it is read."""

    def __init__(self, *, cpu: bool = False) -> None:
        self.read = 0

    def now(self) -> float:
        """Seconds so far."""
        self.read += 1
        return 2.0**-10 * self.read


@dataclass(slots=True, kw_only=True)
class Made(Engine):
    """An engine whose passes take what a calibration says."""

    truth: Deployment

    def prepare(self, works: Sequence[Work]) -> None:
        """Nothing to do."""

    def seconds(self, work: Work) -> float:
        """By the pass table, 4 % more or less, the same for the same pass."""
        off = (31 * work.sequences + 17 * work.context_len + 7 * work.prompt_tokens) % 9 - 4
        return float(self.truth.table().seconds(work.batch())[0]) * (1.0 + off / 100.0)

    def serve(self, requests: Requests) -> ServedTimes:
        """By the simulator."""
        settings = self.scheduler
        around = stack("vllm").with_values(
            {
                "scheduler.admission": settings.admission,
                "scheduler.max_num_seqs": settings.max_num_seqs,
                "scheduler.max_batched_tokens": settings.max_batched_tokens,
            }
        )
        cache = CacheConfig(pool_tokens=10_000, longest=LIMITS.context_len)
        found = simulate(requests, pool_of(self.truth, around, cache=cache))
        return ServedTimes(ttft_s=found.ttft_s, e2e_s=found.e2e_s)


def made(scheduler: Scheduler, *, shape: Shape = SHAPE, limits: Limits = LIMITS, in_a_row: int = 1) -> Made:
    """The engine with a model."""
    truth = deployment_of(shape)
    chip = replace(truth.cluster.chip, peak_flop_per_s={"fp32": 2e11, "bf16": 2e11}, hbm_bytes_per_s=1e10)
    values = {**{one.name: one.start for one in starts(1e-5)}, **TRUE}
    truth = replace(
        truth, cluster=replace(truth.cluster, chip=chip), calibration=calibration_of(values, "made", "made")
    )
    return Made(
        name="made",
        shape=shape,
        dtype="fp32",
        limits=limits,
        scheduler=scheduler,
        context_block=1,
        in_a_row=in_a_row,
        versions={"made": "1.2"},
        truth=truth,
    )


def measured_answer(kind: str, folder: Path) -> Any:
    """Measure a machine; its catalogue entry is written to `folder/here.toml`."""
    engine = made(SCHEDULERS[kind], in_a_row=1 if kind == "cpu" else 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(measured, "Clock", Ticks)
        patch.setattr(measured, "start_engine", Mock(return_value=engine))
        patch.setattr(measured, "device_of", Mock(return_value=DEVICES[kind]))
        patch.setattr(measured, "_ENOUGH_S", 0.0)
        return rl.measure(quick=True, output="here.toml")


class Slots:
    """An engine with slots, whose clock goes on with its passes: 1/512 s a prompt, half as much and more a step."""

    scheduler, shape = serve.SERVED_SCHEDULER, serve.SERVED_SHAPE

    def __init__(self) -> None:
        self.running, self.now_s, self.clock = 0, 0.0, self
        self.newest = np.zeros(serve.SLOTS, dtype=np.int32)

    def now(self) -> float:
        """Seconds so far, a little more each time, so that trains depart."""
        self.now_s += 2.0**-20
        return self.now_s

    def wait_until(self, moment: float) -> None:
        """Time goes by."""
        self.now_s = max(self.now_s, moment)

    def ready(self, prompt_sizes: Sequence[int]) -> None:
        """All slots are free."""
        assert self.running == 0
        assert prompt_sizes == [serve.PROMPT]

    def enter(self, prompt: Any) -> None:
        """A prompt into the next slot."""
        assert prompt.size == serve.PROMPT
        self.running, self.now_s = self.running + 1, self.now_s + 2.0**-9

    def step(self) -> None:
        """One token of each."""
        self.now_s += 2.0**-10 * (1.0 + self.running / 8.0)

    def leave(self, place: int) -> None:
        """A slot is free again."""
        assert place < self.running
        self.running -= 1


def experiment(name: str) -> Experiment:
    """An experiment on the made machine, whole."""
    with pytest.MonkeyPatch.context() as patch:
        slots = Slots()
        patch.setattr(serve, "served_engine", Mock(return_value=slots))
        patch.setattr(serve, "time", SimpleNamespace(perf_counter=lambda: slots.now_s))
        patch.setattr(decode, "Clock", Ticks)
        patch.setattr(decode, "measured_rates", partial(measured_rates, small=True))
        patch.setattr(decode, "device_of", Mock(return_value=DEVICES["cpu"]))
        patch.setattr(decode, "JaxEngine", made_for_decode)
        patch.setattr(measured, "_ENOUGH_S", 0.0)
        return run_experiment(name, Setup(quick=True))


def made_for_decode(*, shape: Shape, limits: Limits, scheduler: Scheduler, **_: Any) -> Made:
    """The engine of the experiment on decoding."""
    return made(scheduler, shape=shape, limits=limits)


@pytest.mark.parametrize("name", ["decode", "serve"])
def test_experiments_hold_on_a_made_machine(name: str) -> None:
    result = experiment(name)
    assert [row.quantity for row in result.rows if row.holds is False and not row.statistical] == []
    compared = [row for row in result.rows if row.statistical and row.error is not None]
    assert all(abs(row.error or 0.0) < 0.5 for row in compared)
    assert result.curves


@pytest.mark.parametrize("kind", DEVICES)
def test_a_made_machine_is_measured_and_fitted(kind: str, tmp_path: Path) -> None:
    data = measured_answer(kind, tmp_path).to_dict()
    assert data["fitted"]["median_abs_error"] < 0.04  # passes differ from the truth by up to 4 %
    assert data["fitted"]["p90_abs_error"] < 0.08
    assert data["held_out"]["decode"]["median_abs_error"] < 0.06
    assert data["held_out"]["served"]["median_abs_error"] < 0.15  # waiting adds to the error of a pass
    assert {rate["spread"] for rate in data["rates"]} == {0.0}  # the clock's steps are equal
    read = next(rate for rate in data["rates"] if rate["name"] == "read")
    assert read["value"] == read["footprint_bytes"] * 2.0**10  # one step of the clock


def test_a_measured_machine_answers_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = measured_answer("cpu", tmp_path)
    monkeypatch.chdir(tmp_path)
    row = next(row for row in answer.to_dict()["rows"] if row["kind"] == "decode" and row["is_fitted"])
    written = tomllib.loads((tmp_path / "here.toml").read_text(encoding="utf-8"))
    assert written["measured"]["engine"] == "made"
    assert row["predicted_s"] == pytest.approx(row["measured_s"], rel=0.1)
    assert "here.toml" in plain_text(list(answer.text(100)))
    assert answer.plot().spec
