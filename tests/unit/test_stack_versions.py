"""What an older version of a stack adds to the kernels of the tables: graphs, host, experts, sampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rackline as rl
from helpers import deploy, numbers
from rackline.parallel import LayoutGrid, parse_layout
from rackline.passes import Batch
from rackline.passes.breakdown import RowTime
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import IDEAL, Stack, stack
from rackline.serving.steady import behind
from rackline.simulation.clock import Chunk, TableClock
from rackline.system import System

OLD = stack("vllm", version="0.11.1", chip=rl.chip("h100-sxm"))
NEW = stack("vllm", version="0.18", chip=rl.chip("h100-sxm"))


# Engine, version, chip; tokens of a pass under its server and its offline class, and sequences. Read in the sources
# that the stack's file names.
DEFAULTS = [
    ("vllm", "0.33.0", "a100-sxm-80gb", (2048, 8192, 256)),
    ("vllm", "0.33.0", "h100-sxm", (8192, 16384, 1024)),
    ("vllm", "0.33.0", "b200-sxm", (16384, 16384, 1024)),
    ("vllm", "", "mi300x", (16384, 16384, 1024)),
    ("vllm", "0.27.0", "b200-sxm", (8192, 16384, 1024)),
    ("vllm", "0.11.0", "a100-sxm-80gb", (2048, 8192, 256)),
    ("vllm", "0.11.0", "gh200", (8192, 16384, 1024)),
    ("vllm", "0.11.0", "rtx-pro-6000", (8192, 16384, 1024)),
    ("vllm", "0.11.0", "rtx-4090", (2048, 8192, 256)),
    ("vllm", "0.9.0", "a100-sxm-80gb", (2048, 8192, 256)),
    ("vllm", "0.8.5.post1", "a100-sxm-80gb", (8192, 16384, 1024)),
    ("vllm", "0.8.4", "a100-sxm-80gb", (2048, 8192, 256)),
    ("vllm", "0.8.4", "b200-sxm", (2048, 8192, 256)),
    ("vllm", "0.8.4", "h200-sxm", (8192, 16384, 1024)),
    ("vllm", "0.8.3", "a100-sxm-80gb", (2048, 8192, 1024)),
    ("sglang", "0.5.23", "h100-sxm", (8192, 8192, 2048)),
    ("sglang", "0.5.23", "b200-sxm", (16384, 16384, 2048)),
    ("sglang", "0.5.23", "a100-sxm-40gb", (4096, 4096, 2048)),
    ("sglang", "0.5.23", "rtx-5090", (4096, 4096, 2048)),
    ("sglang", "0.5.19", "rtx-5090", (2048, 2048, 2048)),
    ("sglang", "0.5.2", "a100-sxm-40gb", (8192, 8192, 2048)),
    ("sglang", "0.5.23", "t4", (2048, 2048, 2048)),
    ("sglang", "0.4.6.post1", "b200-sxm", (8192, 8192, 2048)),
    ("sglang", "0.4.7", "b200-sxm", (16384, 16384, 2048)),
    ("sglang", "0.4.7", "rtx-5090", (8192, 8192, 2048)),
    ("sglang", "0.4.7", "rtx-4090", (2048, 2048, 2048)),
    ("trtllm", "1.2.0", "a100-sxm-80gb", (8192, 8192, 2048)),
]


@pytest.mark.parametrize(("engine", "version", "chip", "expected"), DEFAULTS)
def test_batches_are_the_defaults_of_the_version_on_the_chip(
    engine: str, version: str, chip: str, expected: tuple[int, int, int]
) -> None:
    found = stack(engine, version=version, chip=rl.chip(chip))
    assert (
        found.scheduler.max_batched_tokens,
        found.scheduler.offline().max_batched_tokens,
        found.scheduler.max_num_seqs,
    ) == expected


def test_vllm_takes_more_memory_and_counts_its_graphs_since_0_20() -> None:
    before, after = (stack("vllm", version=version) for version in ("0.19.1", "0.20.0"))
    assert (before.memory.memory_fraction, after.memory.memory_fraction) == (0.9, 0.92)
    assert before.memory.graph_bytes == 0.0 < after.memory.graph_bytes


def test_logits_are_what_the_sampler_holds_at_once() -> None:
    """2 + 4 of bf16 and fp32 logits; 4 + 8 + 8 + 4 + 8 of a sort, or 4 + 4 without one."""
    assert stack("vllm", version="0.16.0").memory.logit_bytes == pytest.approx(2 + 4 + 4 + 8 + 8 + 4 + 8, rel=0.03)
    assert stack("vllm", version="0.17.1").memory.logit_bytes == 2 + 4 + 4 + 4


def test_rules_for_chips_do_not_hold_without_one() -> None:
    assert (
        stack("vllm").scheduler.max_batched_tokens
        == stack("vllm", chip=rl.chip("h100-sxm")).scheduler.max_batched_tokens
    )


def test_only_the_versions_that_were_measured_change() -> None:
    assert OLD.graphs.captured_tokens == 512
    assert OLD.host.s_per_step > 0 < OLD.host.s_per_sequence
    first, eager = stack("vllm", version="0.6.3"), stack("vllm", version="0.2.6")
    assert first.host.s_per_step == pytest.approx(OLD.host.s_per_step, rel=0.15)
    assert (eager.graphs.eager_decode, eager.host.s_per_step) == (True, 0.0), "launches are all of its host"
    for other in (NEW, stack("vllm"), stack("sglang")):
        assert other.host.s_per_step == 0.0
    for other in (NEW, first, eager, stack("vllm"), stack("sglang")):
        assert (other.graphs.captured_tokens, other.host.s_per_sequence) == (0, 0.0)
        assert not other.experts.untuned


def test_prompts_in_graphs_are_as_fast_as_their_kernels() -> None:
    """TensorRT-LLM captures passes with prompts from 1.1 on: no launches, no slowdown; before and beyond, both."""
    new, old = (stack("trtllm", version=version, chip=rl.chip("h100-sxm")) for version in ("1.2.0rc2", "1.0.0rc3"))
    assert (new.graphs.captured_prompt_tokens, old.graphs.captured_prompt_tokens) == (
        new.scheduler.max_batched_tokens,
        0,
    )
    engine = replace(engine_of(deploy("llama-3.1-8b", on="dgx-h100", label="fp8")), stack=new)
    assert float(engine.with_prompts_s(2e-3, 5e-3, tokens=8192.0, sequences=4.0)) == pytest.approx(5e-3)
    launched = float(engine.with_prompts_s(2e-3, 5e-3, tokens=8193.0, sequences=4.0))
    assert launched == pytest.approx(
        float(behind(2e-3 + 3e-3 * new.graphs.prefill_slowdown, 32 * new.graphs.eager_s_per_layer))
    )
    before = replace(engine, stack=old)
    assert float(before.with_prompts_s(2e-3, 5e-3, tokens=64.0, sequences=4.0)) == pytest.approx(launched)


@pytest.mark.parametrize(("on", "label", "slower"), [("dgx-b200", "bf16", True), ("dgx-h100", "bf16", False)])
def test_experts_without_a_tuned_configuration_are_slower_and_say_so(on: str, label: str, slower: bool) -> None:
    plain = deploy("qwen3-30b-a3b", "tp=1", on=on, label=label, calibration="vllm")
    old = replace(plain, calibration=OLD.calibrated(plain.calibration, plain.cluster.chip.generation))
    batch = Batch(decode_sequences=64.0, context_len=1000.0, group_tokens=64.0)
    before, after = (each.table().time(batch) for each in (plain, old))
    experts = {row.name: row for row in after.rows}["experts"]
    ratio = experts.seconds / {row.name: row for row in before.rows}["experts"].seconds
    assert ratio == pytest.approx(OLD.experts.untuned_slowdown if slower else 1.0)
    assert ("no tuned configuration" in experts.origin) == slower
    others = after.seconds - before.seconds - (ratio - 1.0) * experts.seconds / ratio
    assert others == pytest.approx(OLD.host.s_per_step)


def _experts(layout: str, version: str, sequences: float) -> RowTime:
    """The row of the experts of Qwen3-235B on H200 under vLLM."""
    around = stack("vllm", version=version, chip=rl.chip("h200-sxm"))
    plain = deploy("qwen3-235b-a22b", layout, on="dgx-h200", label="fp8_block", calibration="vllm")
    found = replace(plain, calibration=around.calibrated(plain.calibration, "hopper"))
    batch = Batch(decode_sequences=sequences, context_len=1000.0, group_tokens=sequences)
    return {row.name: row for row in found.table().time(batch).rows}["experts"]


@pytest.mark.parametrize("layout", ["tp=4", "tp=4,ep=4"])
def test_every_expert_is_padded_to_a_tile_in_vllm_0_12_on_hopper(layout: str) -> None:
    """128 experts with 127 rows to spare each, whatever the batch: 94 layers of 3 matrices of 4,096 x 1,536."""
    few, many = (_experts(layout, "0.12.0", sequences) for sequences in (4.0, 48.0))
    experts, width = (32, 1536) if "ep" in layout else (128, 1536 / 4)
    for row, sequences in ((few, 4.0), (many, 48.0)):
        rows = sequences * 8 + experts * 127
        assert row.amounts["compute"] == pytest.approx(94 * 2 * 3 * 4096 * width * rows)
    assert many.seconds / few.seconds < 1.5
    old, newer = (_experts(layout, version, 4.0) for version in ("0.11.0", "0.18.0"))
    assert (old.op_class, newer.op_class, few.op_class) == ("moe", "moe", "padded_moe")
    assert newer.seconds < few.seconds / 2


def test_experts_that_eight_chips_share_are_not_padded() -> None:
    """DeepGEMM is off from tp 8 on since 0.12, in one layout and in a grid of them."""
    assert _experts("tp=8", "0.12.0", 4.0).seconds == _experts("tp=8", "0.18.0", 4.0).seconds
    around = stack("vllm", version="0.12.0", chip=rl.chip("h200-sxm"))
    on, model = rl.cluster("dgx-h200"), rl.model("qwen3-235b-a22b")
    system = System.of(model, on, calibration=numbers("vllm", "dgx-h200"), stack=around)
    types = rl.precision("fp8_block", model, on.chip)
    layouts = [parse_layout(text, model) for text in ("tp=4", "tp=8")]
    batch = Batch(decode_sequences=4.0, context_len=1000.0, group_tokens=4.0)
    together = system.table(LayoutGrid.of(layouts), types).seconds(batch)
    for place, layout in enumerate(layouts):
        assert together[place] == pytest.approx(system.table(layout, types).time(batch).seconds)


def test_padding_takes_time_and_hardly_energy() -> None:
    """What is drawn for FLOP is that of the chosen pairs: 4 sequences of 8 experts, of 128 tiles of 128 rows."""
    around = stack("vllm", version="0.12.0", chip=rl.chip("h200-sxm"))
    plain = deploy("qwen3-235b-a22b", "tp=4", on="dgx-h200", label="fp8_block", calibration="vllm")
    found = replace(plain, calibration=around.calibrated(plain.calibration, "hopper")).table()
    power, batch = plain.cluster.chip.power, Batch(decode_sequences=4.0, context_len=1000.0, group_tokens=4.0)
    assert power is not None
    asked = tuple(replace(row, padding={}) for row in found.rows)
    joules, all_asked = (float(table.kernel_joules(batch)) for table in (found, replace(found, rows=asked)))
    flop = 94 * 2 * 3 * 4096 * 1536 / 4 * 128 * 127
    assert all_asked - joules == pytest.approx(flop * power.flop_joules("fp8"), rel=1e-3)


def test_the_blackboard_has_no_host() -> None:
    unit = numbers("unit", "dgx-h100")
    assert OLD.calibrated(unit, "hopper") is unit


def test_sampling_is_a_row_of_its_own() -> None:
    greedy = deploy("llama-3.1-8b", "tp=2", on="dgx-h100")
    drawn = replace(greedy, sample_bytes_per_logit=480.0)
    assert "sampling" not in {row.name for row in greedy.table().rows}
    batch = Batch(decode_sequences=128.0, context_len=500.0)
    row = {row.name: row for row in drawn.table().time(batch).rows}["sampling"]
    # every rank has all logits: 0.75 of the memory bandwidth, and a launch
    expected = 2e-6 + 480.0 * 128_256 * 128 / (0.75 * drawn.cluster.chip.hbm_bytes_per_s)
    assert row.seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    "around",
    [
        IDEAL.with_values(
            {"graphs.captured_tokens": 64, "graphs.eager_s_per_layer": 1e-3, "graphs.prefill_slowdown": 1.3}
        ),
        IDEAL.with_values(
            {"graphs.captured_tokens": 512, "graphs.eager_s_per_layer": 1e-3, "host.s_per_sequence": 1e-4}
        ),
        IDEAL.with_values({"host.s_per_sequence": 1e-4, "graphs.eager_s_per_layer": 0.5e-3}),
        IDEAL.with_values({"graphs.eager_s_per_layer": 1e-3, "graphs.eager_decode": True}),
    ],
)
@pytest.mark.parametrize("sequences", [16, 100])
@pytest.mark.parametrize("prompt", [20, 700])
def test_the_simulator_and_the_steady_state_hide_the_host_alike(around: Stack, sequences: int, prompt: int) -> None:
    deployment = deploy("llama-3.1-8b", "tp=2", on="dgx-h100")
    engine, clock = engine_of(deployment, around), TableClock.of(deployment, around)
    times = engine.time_table(False)
    alone = Batch(decode_sequences=float(sequences), context_len=300.0)
    step_s = float(engine.decode_s(alone, times, two_batch_overlap=False))
    contexts = np.full(sequences, 300.0)
    assert clock.steps(contexts, np.zeros(1), sequences)[0] == pytest.approx(step_s)
    line = clock.line(sequences, sequences)
    assert (line is None) == (step_s > float(engine.seconds(alone, times, two_batch_overlap=False)) * (1 + 1e-12))
    mixed = replace(alone, prefill_sequences=1.0, chunk_tokens=float(prompt))
    device_s = engine.seconds(mixed, times, two_batch_overlap=False)
    pushed = float(sequences + prompt)
    expected = engine.with_prompts_s(step_s, device_s, tokens=pushed, sequences=float(sequences))
    found = clock.prompts(sequences, 300.0 * sequences, 300.0, [Chunk(prompt, 0)], pushed, step_s)
    assert found == pytest.approx(float(expected), rel=1e-3)  # a chunk has half a token more of context


def test_the_longer_of_host_and_chip_counts() -> None:
    assert behind(np.array([1.0, 2.0]), 0.0).tolist() == [1.0, 2.0]
    assert float(behind(1.0, 10.0)) == pytest.approx(10.0, rel=1e-4)
    engine = engine_of(deploy("llama-3.1-8b", "tp=1", on="dgx-h100"), IDEAL.with_values({"host.s_per_sequence": 1e-4}))
    assert float(engine.without_host_s(behind(0.02, 64 * 1e-4), 64.0)) == pytest.approx(0.02)


def test_a_plan_takes_the_way_of_drawing_tokens_that_explain_takes() -> None:
    known = {"on": "dgx-h100", "layout": "tp=1", "calibration": "vllm=0.11.1"}
    work = {"input": 1000, "output": 200, "chips": 1, "serving": "aggregated", "use": "batch"}
    steps: dict[str, float] = {}
    for sampling in ("greedy", "top-p"):
        asked = rl.plan("llama-3.1-8b", sampling=sampling, **known, **work).result.plan.aggregated
        assert asked is not None
        batch = asked.estimate.batch_size
        found = rl.explain("llama-3.1-8b", batch=batch, context=1100, sampling=sampling, **known).result.explanation
        assert asked.inside.decode.seconds == pytest.approx(found.time.seconds, rel=1e-9)
        at_128 = rl.explain("llama-3.1-8b", batch=128, context=1100, sampling=sampling, **known).result.explanation
        steps[sampling] = at_128.time.seconds
    assert steps["top-p"] > steps["greedy"]


def test_explain_and_simulate_take_a_version_and_a_way_of_drawing_tokens() -> None:
    known = {"on": "dgx-h100", "layout": "tp=1", "calibration": "vllm", "engine": "vllm=0.11.1"}
    drawn = rl.explain("llama-3.1-8b", batch=128, context=1000, sampling="top-p", **known).result.explanation
    greedy = rl.explain("llama-3.1-8b", batch=128, context=1000, **known).result.explanation
    assert drawn.time.host_s == greedy.time.host_s == OLD.host.s_per_step
    sampling = {row.name: row.seconds for row in drawn.time.rows}["sampling"]
    assert drawn.time.seconds - greedy.time.seconds == pytest.approx(sampling)
    traffic = {"rate": 2, "requests": 40, "input": 100, "output": 50, "sampling": "top-p"}
    served = {
        engine: rl.simulate("llama-3.1-8b", **{**known, "engine": engine}, **traffic).result.run.result.tpot_s.mean()
        for engine in ("vllm=0.11.1", "vllm")
    }
    assert served["vllm=0.11.1"] > served["vllm"] + OLD.host.s_per_step
