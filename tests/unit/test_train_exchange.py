"""What a training step sends, in which width and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from helpers import micro_batch
from rackline import arch
from rackline.arch import Model, MoeFfn
from rackline.hardware import cluster
from rackline.passes import calibration
from rackline.training.memory import cheapest_recompute, train_memory
from rackline.training.runs import RECOMPUTE, SCHEDULES, Runs, ScheduleName, TrainLayout, layout_problem
from rackline.training.schedules.dualpipe import table
from rackline.training.stack import IDEAL, TrainingStack, TrainPrecision, train_precision, training_stack
from rackline.training.step import (
    DUALPIPE_CORES,
    StepParts,
    StepTime,
    bubble_seconds,
    hide_exchange,
    paired_share,
    step_parts,
    step_time,
)
from rackline.training.work import expert_rows

BF16 = TrainPrecision(label="bf16")


def named(name: str) -> Model:
    found = arch.model(name)
    assert isinstance(found, Model)
    return found


def sent(
    layout: TrainLayout,
    precision: TrainPrecision = BF16,
    stack: TrainingStack = IDEAL,
    routing: Mapping[str, int] | None = None,
) -> dict[str, tuple[float, float]]:
    """Row → bytes inside and across domains of one token that DeepSeek-V3 sends in one layer on H800."""
    model = named("deepseek-v3")
    ffn = model.moe()
    assert isinstance(ffn, MoeFfn)
    ffn = replace(ffn, **(routing or {}))
    on = cluster("h800-8").with_num_chips(2048)
    batch = micro_batch(model, [layout], on, seq_len=4096, precision=precision, stack=stack)

    def amount(row: Any, resource: str) -> float:
        return sum(float(np.ravel(v)[0]) for v in row.amounts(resource).values())

    rows = [one.row for one in expert_rows(batch, ffn, 1)]
    return {row.name: (amount(row, "scale_up"), amount(row, "scale_out")) for row in rows}


EP64 = TrainLayout(pp=16, ep=64, dp=128)


def test_node_limited_routing_bounds_the_domains_of_a_token() -> None:
    """3.6 of 8 nodes in place of 5.3, seven eighths of them away, for dispatch and for combine."""
    limited = sent(EP64)["ep_dispatch_outside_forward"][1]
    free = sent(EP64, routing={"num_groups": 1, "groups_per_token": 1})["ep_dispatch_outside_forward"][1]
    assert limited / (2 * 7168 * 7 / 8) == pytest.approx(3.63, abs=0.01)
    assert free / (2 * 7168 * 7 / 8) == pytest.approx(5.29, abs=0.02)


def test_dispatch_is_narrow_and_combine_wide_in_both_directions() -> None:
    on = cluster("h800-8").chip
    types = train_precision("fp8-block", on, stack=training_stack("hai-llm"))
    found = sent(EP64, types)
    assert len(found) == 4
    for phase in ("forward", "input"):
        narrow, wide = (found[f"ep_{name}_outside_{phase}"] for name in ("dispatch", "combine"))
        assert np.array(narrow) / np.array(wide) == pytest.approx(np.full(2, (1 + 4 / 128) / 2))
    # where products run in bf16, tokens are sent in bf16
    assert train_precision("bf16", on, stack=training_stack("hai-llm")).dispatch_bytes == 2.0
    assert train_precision("fp8-block", on).dispatch_bytes == 2.0


def test_a_plain_all_to_all_sends_a_token_to_each_of_its_experts() -> None:
    copies = IDEAL.with_values({"communication.forwards_tokens": False})
    plain = sent(EP64, stack=copies)["ep_dispatch_outside_forward"]
    assert plain[1] == pytest.approx(2 * 7168 * 8 * 56 / 64)
    assert plain[0] == pytest.approx(2 * 7168 * 8 * 7 / 64)


def test_experts_cut_by_tensor_parallelism_gather_and_scatter_bf16_tokens() -> None:
    found = sent(TrainLayout(tp=4, ep=1, expert_tp=4, dp=512))
    assert set(found) == {f"etp_{n}_{p}" for n in ("all_gather", "reduce_scatter") for p in ("forward", "input")}
    for inside, outside in found.values():
        assert inside == pytest.approx(2 * 7168 * 3 / 4)
        assert outside == 0.0
    # beside a run whose experts are whole, which gathers nothing
    model = named("deepseek-v3")
    moe = model.moe()
    assert isinstance(moe, MoeFfn)
    layouts = [TrainLayout(tp=4, expert_tp=4, dp=512), TrainLayout(tp=4, dp=512)]
    batch = micro_batch(model, layouts, cluster("h800-8").with_num_chips(2048), seq_len=4096)
    for row in [one.row for one in expert_rows(batch, moe, 3)]:
        amount = np.ravel(sum(row.amounts("scale_up").values()))
        assert amount == pytest.approx([3 * 2 * 7168 * 3 / 4, 0.0])


def test_pairs_of_dualpipe_are_those_of_its_table() -> None:
    """A forward right before a backward of the other direction, counted in the order that DeepSeek's code runs."""
    for pp, micro_batches in ((4, 12), (8, 20), (16, 120)):
        pairs = [
            sum(one.op == "F" and other.op == "B" and one.chunk != other.chunk for one, other in pairwise(slots))
            for slots in table(pp, micro_batches, 2)
        ]
        share = float(paired_share(np.array(float(pp)), np.array(float(micro_batches))))
        assert share == pytest.approx(np.mean(pairs) / micro_batches)


def test_dualpipe_hides_the_exchange_up_to_the_compute() -> None:
    runs = Runs.of([TrainLayout(pp=4, dp=8, schedule=name) for name in ("1f1b", "dualpipe")])
    m = np.array([40.0, 40.0])
    share = float(paired_share(np.array(4.0), np.array(40.0)))
    slower = 20.0 / 112.0  # 20 of the 132 cores of an H800 exchange (DeepSeek-V3, section 3.2.1)
    assert pytest.approx(slower) == DUALPIPE_CORES / (1 - DUALPIPE_CORES)
    for exchange, pair in ((0.3, 0.7 + 0.6 * slower), (5.0, 5.0)):
        shown = {"gemm": np.full(2, 0.6), "elementwise": np.full(2, 0.1), "expert_outside": np.full(2, exchange)}
        alone = np.full(2, 0.7 + exchange)
        found = hide_exchange(runs, m, shown, alone)
        assert found.mean[0] == alone[0]
        assert found.pair[1] == pytest.approx(pair)
        assert found.mean[1] == pytest.approx(share * pair + (1 - share) * alone[1])
        assert sum(value[1] for value in found.shown.values()) == pytest.approx(found.mean[1])
        assert found.shown["expert_outside"][0] == exchange


def test_the_bubble_of_dualpipe_is_the_published_one() -> None:
    """(PP/2 - 1) · (F&B + B - 3 W), with F, input and weight gradients of one second each."""
    runs = Runs.of([TrainLayout(pp=pp, dp=1, schedule="dualpipe") for pp in (2, 4, 8)])
    one = np.ones(3)
    phases = {"forward": one, "input": one, "weight": one}
    found = bubble_seconds(runs, phases, 0.0 * one, 3.0 * one, 0.0 * one, pair=3.0 * one)
    assert found == pytest.approx(np.array([0.0, 1.0, 3.0]) * (3.0 + 2.0 - 3.0))


def parts_of(layouts: list[TrainLayout], **more: Any) -> StepParts:
    on = cluster("dgx-h100").with_num_chips(layouts[0].num_chips)
    kernels = calibration("generic", on.chip)
    return step_parts(micro_batch(named("llama-3.1-8b"), layouts, on, seq_len=4096, kernels=kernels, **more))


@pytest.mark.parametrize(("zero", "gathers"), [(2, 1.0), (3, 2.0)])
def test_gathers_and_scatters_of_shards_have_their_own_widths(zero: int, gathers: float) -> None:
    layout = TrainLayout(dp=32, zero=zero)
    parts = parts_of([layout], precision=replace(BF16, gather_bytes=1.0))
    exposed = {width: step_time(parts, IDEAL.with_values({"memory.gradient_bytes": width})) for width in (2.0, 4.0)}
    shown = {width: float(time.shown["shards"][0]) for width, time in exposed.items()}
    scatter, gather = float(parts.scatter[0]), float(parts.shard_gather[0])
    for width, value in shown.items():
        assert value == pytest.approx(gathers * 1.0 * gather + width * scatter)


def test_frozen_weights_are_gathered_and_not_scattered() -> None:
    layout = TrainLayout(dp=32, zero=3)
    whole, adapters = parts_of([layout]), parts_of([layout], lora_rank=16)
    assert float(adapters.shard_gather[0]) == float(whole.shard_gather[0])
    assert float(adapters.scatter[0]) < 0.02 * float(whole.scatter[0])
    # adapters are bf16 on the wire, whatever the frozen weights are
    narrow = parts_of([TrainLayout(dp=32)], lora_rank=16, precision=replace(BF16, gather_bytes=1.0))
    time = step_time(narrow, IDEAL.with_values({"memory.gradient_bytes": 4.0}))
    assert float(time.data[0]) == pytest.approx(4.0 * float(narrow.scatter[0]) + 2.0 * float(narrow.gather[0]))


def test_an_optimiser_with_narrow_moments_moves_fewer_bytes() -> None:
    wide, narrow = (parts_of([TrainLayout(dp=32)], precision=replace(BF16, moment_bytes=b)) for b in (8.0, 4.0))
    assert float(wide.optimizer[0] / narrow.optimizer[0]) == pytest.approx((34 + 16) / (34 + 8))


def test_weights_are_kept_and_gathered_as_their_label_says() -> None:
    """One scale a tensor: eight bits everywhere; blocks of a matrix on Hopper: bf16; mxfp8: bf16 kept, 8 gathered."""
    hopper, blackwell = cluster("dgx-h100").chip, cluster("dgx-b200").chip
    for label, chip, kept, gathered in (
        ("bf16", hopper, 2.0, 2.0),
        ("fp8", hopper, 1.0, 1.0),
        ("fp8-cs", blackwell, 1.0, 1.0),
        ("fp8-block", hopper, 2.0, 2.0),
        ("mxfp8", hopper, 2.0, 2.0),
        ("mxfp8", blackwell, 2.0, 1.0),
        ("fp8-mx", blackwell, 2.0, 1.0),
        ("nvfp4", blackwell, 2.0, 2.0),
    ):
        found = train_precision(label, chip)
        assert (found.weight_bytes, found.gather_bytes) == (kept, gathered), label


@pytest.mark.parametrize(
    ("cp", "seq_len", "possible"),
    [(1, 4097, True), (2, 4096, True), (2, 4098, False), (4, 4096, True), (4, 4100, False), (3, 4096, False)],
)
def test_context_parallelism_cuts_a_sequence_into_two_halves_a_chip(cp: int, seq_len: int, possible: bool) -> None:
    on = cluster("dgx-h100").with_num_chips(8)
    found = layout_problem(TrainLayout(cp=cp), named("llama-3.1-8b"), on, 8, seq_len)
    assert (found is None) == possible
    if found is not None:
        assert found == (f"cp={cp} does not divide a sequence of {seq_len} tokens (in two halves)", "cp=1")


def test_schedules_of_the_catalogue_are_those_of_the_library() -> None:
    from typing import get_args

    from rackline.catalog import names

    assert get_args(ScheduleName) == SCHEDULES
    found = {name: training_stack(name).parallelism.schedules for name in names("training_stacks")}
    assert found["megatron-bridge"] == found["nemo"] == found["llama-3"] == ("1f1b", "interleaved")
    assert found["hai-llm"] == ("dualpipe",)
    assert found["llm-foundry"] == ()


def test_hidden_exchange_leaves_other_schedules_alone() -> None:
    runs = Runs.of([TrainLayout(pp=4, dp=8, schedule="zb-h1")])
    shown = {"expert_outside": np.array([1.0])}
    found = hide_exchange(runs, np.array([40.0]), shown, np.array([2.0]))
    assert found.mean is found.pair
    assert found.shown == shown


def test_the_cheapest_recompute_that_fits_is_taken() -> None:
    on = cluster("dgx-h100").with_num_chips(16)
    runs = Runs.of([TrainLayout(tp=4, pp=4, virtual_pp=8)])
    batch = micro_batch(named("llama-3.1-8b"), runs, on, seq_len=8192)
    needs: dict[str, float] = {}
    for name in ("none", "modules", "full"):
        one = replace(batch, runs=replace(runs, recompute=np.array([RECOMPUTE.index(name)])))
        needs[name] = float(train_memory(one).total[0])
    assert needs["none"] > needs["modules"] > needs["full"]
    for hbm_bytes, chosen in (
        (1.01 * needs["none"], "none"),
        (0.99 * needs["none"], "modules"),
        (0.99 * needs["modules"], "full"),
        (0.99 * needs["full"], "none"),  # nothing fits: our count is not theirs
    ):
        found = cheapest_recompute(batch, hbm_bytes)
        assert found == [chosen]
    # scores that are written out are the first to be dropped
    unfused = IDEAL.with_values({"kernels.flash_attention": False})
    plain = micro_batch(named("llama-3.1-8b"), runs, on, seq_len=8192, stack=unfused)
    with_scores = float(train_memory(plain).total[0])
    found = cheapest_recompute(plain, (with_scores + needs["none"]) / 2)
    assert found == ["selective"]


def test_weights_of_a_stage_grow_with_its_layers() -> None:
    """36 layers of experts over 12, 8 and 4 stages: the fullest holds 3, 5 and 9, and its share of the ends."""
    on = cluster("dgx-h100").with_num_chips(16)

    def weights(pp: int) -> float:
        batch = micro_batch(named("gpt-oss-120b"), [TrainLayout(pp=pp)], on, seq_len=4096)
        return float(train_memory(batch).weights[0])

    three, five, nine = (weights(pp) for pp in (12, 8, 4))
    assert (five - three) / (nine - three) == pytest.approx(2 / 6)


def test_a_pipeline_of_pytorch_exchanges_once_a_step_and_holds_weights_and_gradients_whole() -> None:
    on = cluster("dgx-h100").with_num_chips(64)
    fsdp = training_stack("torch-fsdp").with_values({"parallelism.schedules": ("1f1b",)})
    layouts = [TrainLayout(pp=4, dp=16, zero=zero) for zero in (1, 2, 3)]

    def asked(stack: TrainingStack) -> tuple[Any, StepTime]:
        batch = micro_batch(named("llama-3.1-8b"), layouts, on, seq_len=8192, stack=stack, batch=256)
        return train_memory(batch), step_time(step_parts(batch), stack)

    held, time = asked(fsdp)
    other, each = asked(fsdp.with_values({"parallelism.fsdp2": False}))
    for name in ("weights", "gradients"):
        assert len({*getattr(held, name)}) == 1
        assert getattr(other, name)[2] < getattr(other, name)[0]
    assert time.shown["shards"] == pytest.approx(0.0)
    assert each.shown["shards"][2] > each.shown["shards"][1] > 0.0
    assert time.data == pytest.approx(time.data[0])
    # the last stage keeps the logits of all sixteen micro-batches in bf16
    assert held.logits[0] == pytest.approx((fsdp.memory.logit_bytes + 2.0 * 16) * 8192 * 128256)
