"""What holds for every schedule and every run: work is conserved, stages do not overlap, more is never slower."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from helpers import micro_batch
from rackline import arch
from rackline.hardware import Cluster, cluster
from rackline.passes.features import TOKENS
from rackline.training.flop import attention_flop, model_flop
from rackline.training.runs import RECOMPUTE, TrainLayout
from rackline.training.schedules import SCHEDULE_OF, Durations, Timeline
from rackline.training.stack import IDEAL, training_stack
from rackline.training.step import StepParts, step_parts, step_time
from rackline.training.work import work_of

LAYOUTS = st.builds(
    TrainLayout,
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 8]),
    zero=st.integers(0, 3),
    micro_batch=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(RECOMPUTE),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]),
)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, Timeline, int, int]:
    """(name, timeline, stages, micro-batches) of a schedule with unequal stages."""
    name = draw(st.sampled_from(list(SCHEDULE_OF)))
    kind = SCHEDULE_OF[name]
    pp = 2 * draw(st.integers(1, 4))
    m = pp * draw(st.integers(2, 4))
    v = draw(st.integers(2, 3)) if name == "interleaved" else 1
    parts = pp * kind.num_chunks(v) // kind.copies
    times = st.floats(0.1, 3.0)
    durations = Durations(
        forward=draw(st.lists(times, min_size=parts, max_size=parts)),
        backward=draw(st.lists(times, min_size=parts, max_size=parts)),
        weight=draw(st.lists(times, min_size=parts, max_size=parts)),
        hop_s=draw(st.floats(0.0, 0.5)),
    )
    return name, kind.run(pp, m, durations, v), pp, m


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_every_micro_batch_passes_every_part_once_in_each_direction(found: tuple[str, Timeline, int, int]) -> None:
    name, line, pp, m = found
    kind = SCHEDULE_OF[name]
    ops = ("F", "B", "W") if kind.splits_backward else ("F", "B")
    for events in line.of_device:
        counts = Counter((e.slot.op, e.slot.chunk, e.slot.micro_batch) for e in events)
        assert set(counts.values()) == {1}
        chunks = {e.slot.chunk for e in events}
        assert len(counts) == len(ops) * len(chunks) * m // kind.copies
        assert {key[0] for key in counts} == set(ops)
    assert len(line.of_device) == pp


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_no_stage_overlaps_itself_and_memory_returns_to_its_start(found: tuple[str, Timeline, int, int]) -> None:
    _, line, _, _ = found
    for device, events in enumerate(line.of_device):
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(events))
        held = line.in_flight(device, 0.3)
        assert held[-1][1] == pytest.approx(0.0, abs=1e-9)
        assert min(value for _, value in held) > -1e-9
    assert -1e-9 <= line.bubble_fraction < 1.0
    assert line.step_s >= max(line.busy_s) - 1e-9


def parts_of(layout: TrainLayout, on: Cluster, name: str) -> StepParts:
    """Rows and exchanges of a step of 64 sequences of 4096 tokens."""
    model: Any = arch.model(name)
    return step_parts(micro_batch(model, [layout], on, seq_len=4096))


def seconds(layout: TrainLayout, on: Cluster, name: str = "llama-3.1-8b", stack: Any = None) -> float:
    """Time of such a step."""
    return float(step_time(parts_of(layout, on, name), stack or training_stack("nemo")).step[0])


@settings(max_examples=40, deadline=None)
@given(LAYOUTS)
def test_more_bandwidth_is_never_slower(layout: TrainLayout) -> None:
    plain = cluster("dgx-h100").with_num_chips(layout.num_chips)
    base = seconds(layout, plain)
    assert base > 0.0
    for key in ("chip.hbm_bytes_per_s",):
        faster = cluster("dgx-h100", {key: 2 * plain.chip.hbm_bytes_per_s}).with_num_chips(layout.num_chips)
        assert seconds(layout, faster) <= base * (1 + 1e-9)
    import dataclasses

    wider = dataclasses.replace(
        plain,
        levels=tuple(
            dataclasses.replace(level, bytes_per_s_each_way=2 * level.bytes_per_s_each_way) for level in plain.levels
        ),
    )
    assert seconds(layout, wider) <= base * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(LAYOUTS, st.sampled_from(["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b"]))
def test_gradients_conserve_work(layout: TrainLayout, name: str) -> None:
    """Products: gradients of inputs and of weights cost as much as the forward pass each."""
    model: Any = arch.model(name)
    on = cluster("dgx-h100")
    batch = micro_batch(model, [layout], on, seq_len=4096)
    features = batch.features()
    flop = {"forward": 0.0, "input": 0.0, "weight": 0.0}
    for one in work_of(batch):
        if one.kind in ("gemm", "experts", "head"):
            flop[one.phase] += float(sum(np.sum(v * features[k]) for k, v in one.row.compute.items()))
    assert flop["input"] == pytest.approx(flop["forward"])
    assert flop["weight"] == pytest.approx(flop["forward"])


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "mpt-7b"])
def test_one_chip_reduces_to_the_model(name: str) -> None:
    """tp = pp = cp = ep = 1: products of the pass are 2 FLOP per token and active parameter, biases and norms aside."""
    model: Any = arch.model(name)
    on = cluster("dgx-h100")
    batch = micro_batch(model, [TrainLayout()], on, seq_len=2048)
    features = batch.features()
    products = sum(
        float(np.sum(value * features[key]))
        for one in work_of(batch)
        if one.kind in ("gemm", "experts", "head") and one.phase == "forward"
        for key, value in one.row.compute.items()
    )
    assert float(features[TOKENS][0]) == 2048.0
    assert products == pytest.approx(2.0 * model.active_params * 2048, rel=0.005)
    whole = float(model_flop(model, 2048, 1.0))
    assert whole == pytest.approx(3 * products + 3 * attention_flop(model, 2048), rel=0.005)


def test_ideal_step_of_one_chip_is_its_flop_over_the_peak() -> None:
    on = cluster("dgx-h100").with_num_chips(1)
    model: Any = arch.model("llama-3.1-8b")
    step_s = seconds(TrainLayout(micro_batch=8, zero=0), on, stack=IDEAL)
    least = float(model_flop(model, 4096, 64.0, causal=True)) / on.chip.flop_per_s("bf16")
    assert least < step_s < 1.25 * least


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
def test_the_ideal_stack_adds_nothing_of_its_own(name: str) -> None:
    """No fixed time, no host time: a step is its passes, its bubble and its exchanges."""
    layout = TrainLayout(tp=2, pp=2, dp=2, ep=2 if name == "deepseek-v3" else 1)
    on = cluster("dgx-h100").with_num_chips(8)
    step = step_time(parts_of(layout, on, name), IDEAL)
    assert np.all(step.fixed == 0.0)
    assert np.all(step.host == 0.0)
    assert np.all(step.step > step.data + step.optimizer + step.bubble)
