"""Rows, tables, calibrations and breakdowns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import cluster, deploy, grid_table, layouts, numbers
from rackline.errors import InputError
from rackline.passes import UNIT, Batch, Calibration, OperationCalibration, PassTable, Row, features as f
from rackline.passes.calibration import CollectiveCalibration
from rackline.passes.row import feature_names, merge, scaled
from rackline.plain import plain

CHIP = cluster("dgx-h100").chip
DECODE = Batch(decode_sequences=16.0, context_len=2000.0)


def one_row_table(row: Row, given: OperationCalibration | CollectiveCalibration, **kept: object) -> PassTable:
    known = isinstance(given, OperationCalibration)
    calibration = Calibration(
        name="test",
        stack="test",
        step_policy="serial",
        operations={(row.op_class, row.dtype): given} if known else {("gemm", "*"): OperationCalibration()},
        collectives={} if known else {row.op_class: given},
    )
    return PassTable(
        rows=(row,),
        chip=CHIP,
        cluster=cluster("h100-96"),
        calibration=replace(calibration, **kept),  # type: ignore[arg-type]
        kinds={},
    )


REDUCE = Row(
    name="reduce",
    group="tensor parallel",
    op_class="all_reduce_ring",
    dtype="bf16",
    scale_up={f.TOKENS: 1e6},
    scale_out={f.TOKENS: 1e5},
    launches={f.ONE: 1.0},
    group_size=16.0,
    scale_up_steps=4.0,
    scale_out_steps=2.0,
)
GEMM = Row(
    name="gemm",
    group="ffn",
    op_class="gemm",
    dtype="bf16",
    compute={f.TOKENS: 2e9},
    hbm={f.ONE: 1e9, f.TOKENS: 1e3},
    launches={f.ONE: 3.0},
)


def test_the_one_line_by_hand() -> None:
    table = one_row_table(
        GEMM,
        OperationCalibration(overhead_s=5e-6, eta_compute=0.5, eta_memory=0.8, exposed=0.25),
        host_s_per_step=1e-4,
    )
    compute = 16 * 2e9 / (0.5 * CHIP.flop_per_s("bf16"))
    memory = (1e9 + 16e3) / (0.8 * CHIP.hbm_bytes_per_s)
    expected = 3 * 5e-6 + max(compute, memory) + 0.25 * min(compute, memory)
    found = table.time(DECODE)
    assert found.seconds == pytest.approx(expected + 1e-4, rel=1e-12)
    assert float(table.seconds(DECODE)) == pytest.approx(found.seconds, rel=1e-12)
    (row,) = found.rows
    assert row.seconds == pytest.approx(expected, rel=1e-12)
    assert row.overhead_s == pytest.approx(15e-6)
    assert row.resource_s == pytest.approx({"compute": compute, "hbm": memory})
    assert row.binds == found.binds == "hbm"


def test_a_large_batch_is_bound_by_compute_and_an_empty_row_by_overhead() -> None:
    table = one_row_table(GEMM, OperationCalibration(overhead_s=5e-6))
    assert table.time(Batch(decode_sequences=10000.0, context_len=1.0)).binds == "compute"
    empty = replace(GEMM, compute={}, hbm={f.TOKENS: 1.0})
    assert one_row_table(empty, OperationCalibration(overhead_s=5e-6)).time(DECODE).binds == "overhead"


def test_message_steps_pay_alpha_and_the_outer_latency() -> None:
    numbers_of_it = CollectiveCalibration(overheads_s=(3e-6,), alpha_s=1e-6, eta_links=(0.5,))
    table = one_row_table(REDUCE, numbers_of_it)
    up, out = table.cluster.levels  # type: ignore[union-attr]
    overhead = 3e-6 + 4 * 1e-6 + 2 * (1e-6 + out.latency_s - up.latency_s)
    slower = max(16e6 / (0.5 * up.bytes_per_s_each_way), 16e5 / (0.5 * out.bytes_per_s_each_way))
    assert table.time(DECODE).seconds == pytest.approx(overhead + slower, rel=1e-12)
    # the lecture's roofline has no latency at all
    assert table.with_calibration(UNIT).time(DECODE, "serial").rows[0].overhead_s == 0.0


@pytest.mark.parametrize("steps", [0.0, 30.0])
def test_a_ramp_is_the_same_in_the_breakdown_and_in_bulk(steps: float) -> None:
    numbers_of_it = CollectiveCalibration(overheads_s=(3e-6,), alpha_s=1e-6, ramps=(0.7,))
    table = one_row_table(replace(REDUCE, scale_up_steps=steps), numbers_of_it)
    found = table.time(DECODE)
    assert float(table.seconds(DECODE)) == pytest.approx(found.seconds, rel=1e-12)
    row, longest = found.rows[0], max(found.rows[0].resource_s.values())
    expected = row.overhead_s + longest + 0.7 * (row.overhead_s * longest) ** 0.5
    assert found.seconds == pytest.approx(expected, rel=1e-12)


def test_numbers_of_a_collective_lie_between_measured_group_sizes() -> None:
    measured = CollectiveCalibration(
        group_sizes=(2, 8), overheads_s=(2e-6, 8e-6), eta_links=(0.6, 0.8), ramps=(0.0, 1.0)
    )
    overhead, eta, ramp = measured.at(np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert overhead.tolist() == pytest.approx([2e-6, 2e-6, 5e-6, 8e-6, 16e-6])
    assert eta.tolist() == pytest.approx([0.6, 0.6, 0.7, 0.8, 0.8])
    assert ramp.tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])
    assert [float(v) for v in CollectiveCalibration().at(64.0)] == [0.0, 1.0, 0.0]


def test_a_kernel_that_the_stack_does_not_have_is_not_used() -> None:
    table = one_row_table(REDUCE, CollectiveCalibration())
    assert [one.row for one in table.numbers().in_use()] == [REDUCE]
    other = replace(table.calibration, collectives={"all_gather": CollectiveCalibration()})
    assert table.with_calibration(other).numbers().in_use() == ()
    without = table.with_calibration(other).time(DECODE)
    assert without.seconds == 0.0
    assert [(row.name, row.used, row.origin) for row in without.rows] == [
        ("reduce", False, "the stack has no such kernel")
    ]
    fallback = replace(table.calibration, collectives={"collective": CollectiveCalibration()})
    assert [one.row for one in table.with_calibration(fallback).numbers().in_use()] == [REDUCE]


def test_helper_kernels_move_their_bytes_as_often_as_the_calibration_says() -> None:
    row = replace(GEMM, extra={f.TOKENS: 1e6})
    plain, helped = (one_row_table(row, OperationCalibration(permute=permute)).time(DECODE) for permute in (0.0, 3.0))
    assert helped.seconds - plain.seconds == pytest.approx(3 * 16 * 1e6 / CHIP.hbm_bytes_per_s)


def test_a_row_works_on_the_chip_or_on_the_fabric() -> None:
    with pytest.raises(InputError, match="row mixed: got 'compute or hbm together"):
        Row(
            name="mixed",
            group="x",
            op_class="gemm",
            dtype="bf16",
            hbm={f.ONE: 1.0},
            scale_up={f.ONE: 1.0},
        )


def test_no_cluster_means_no_fabric_time() -> None:
    table = replace(one_row_table(REDUCE, CollectiveCalibration()), cluster=None)
    assert table.time(DECODE).seconds == 0.0


def test_the_slowest_policy_is_known_by_name() -> None:
    table = one_row_table(GEMM, OperationCalibration())
    with pytest.raises(InputError, match="step policy: got 'fastest', allowed: blackboard, serial, overlap"):
        table.seconds(DECODE, "fastest")  # type: ignore[arg-type]


def test_breakdown_wants_one_layout_and_one_point() -> None:
    with pytest.raises(InputError, match=r"feature tokens: got .2 points., allowed: one point"):
        one_row_table(GEMM, OperationCalibration()).time(Batch(decode_sequences=np.array([1.0, 2.0])))
    with pytest.raises(InputError, match=r"allowed: one layout; use table.layout\(index\)"):
        grid_table("llama-3.1-70b", "dgx-h100", 8).time(DECODE)


def test_lookup_falls_back_from_type_to_class_to_parent() -> None:
    def operation(overhead: float) -> OperationCalibration:
        return OperationCalibration(overhead_s=overhead)

    calibration = Calibration(
        name="t",
        stack="t",
        step_policy="serial",
        operations={
            ("gemm", "bf16"): operation(1.0),
            ("gemm", "fp8"): operation(2.0),
            ("moe", "*"): operation(3.0),
            ("attention_decode", "fp8"): operation(5.0),
        },
        collectives={"all_gather": CollectiveCalibration(alpha_s=1.0)},
    )
    look = calibration.lookup
    assert look("gemm", "fp8").overhead_s == 2.0
    assert look("gemm", "w4a8", "fp8").overhead_s == 2.0
    assert look("gemm", "int8").overhead_s == 1.0
    assert look("moe", "fp4").overhead_s == 3.0
    everywhere = replace(calibration, collectives={"collective": CollectiveCalibration(alpha_s=2.0)})
    assert calibration.collective("all_gather") == CollectiveCalibration(alpha_s=1.0)
    assert calibration.collective("all_to_all") is None
    assert everywhere.collective("all_to_all") == CollectiveCalibration(alpha_s=2.0)
    assert UNIT.collective("all_to_all") == CollectiveCalibration()
    assert look("mla_decode", "fp8").overhead_s == 5.0
    assert look("embedding", "bf16") == OperationCalibration()


def test_rows_say_where_their_numbers_come_from() -> None:
    """A stack's own table first, then the same chip under another stack, its generation, all chips."""
    assert UNIT.step_policy == "blackboard"
    assert UNIT.lookup("gemm", "bf16") == OperationCalibration()

    def origins(calibration: str, on: str) -> dict[str, tuple[str, str]]:
        found = deploy("llama-3.1-8b", "tp=2", on=on, calibration=calibration).table().time(DECODE)
        return {row.op_class: (row.evidence, row.origin) for row in found.rows if row.used}

    own = origins("vllm", "dgx-h100")
    assert own["gemm"] == ("measured", "vllm, h100-sxm")
    assert own["elementwise"] == ("assumed", "fallback: generic, all chips")
    assert own["all_gather"] == ("derived", "fallback: generic, h100-sxm")
    # only vLLM was measured on this chip
    assert origins("trtllm", "arc-pro-b60-8")["gemm"] == ("derived", "fallback: vllm, arc-pro-b60")
    # the H800 was not measured, but is a Hopper; of a TPU nothing is known
    assert origins("trtllm", "h800-8")["gemm"] == ("derived", "fallback: generic, hopper")
    assert origins("generic", "h800-8")["gemm"] == ("derived", "generic, hopper")
    assert origins("generic", "tpu-v5e-16")["gemm"] == ("derived", "generic, all chips")


def test_auto_is_the_stack_measured_most_on_the_chip() -> None:
    from rackline.passes.fallback import num_measured

    for on in ("dgx-h100", "gb200-nvl72", "l40s-8", "arc-pro-b60-8", "dgx-a100"):
        chip = cluster(on).chip
        entries = {stack: num_measured(stack, chip) for stack in ("trtllm", "vllm", "sglang")}
        assert entries[numbers("auto", on).name] == max(entries.values()) > 0, on
    assert numbers("auto", "mi300x-8").name == "atom"
    for on in ("tpu-v5e-16", ""):
        assert numbers("auto", on).name == "generic"


def test_numbers_of_another_chip_are_not_used() -> None:
    """h200-sxm has its own numbers; h100-sxm's must not leak into it."""
    for on in ("dgx-h100", "dgx-h200"):
        chip = cluster(on).chip.name
        for stack in ("trtllm", "vllm", "sglang"):
            found = numbers(stack, on)
            places = {
                one.origin.rsplit(", ", 1)[1] for one in (*found.operations.values(), *found.collectives.values())
            }
            assert places <= {chip, "hopper", "all chips"}
            assert chip in places


@pytest.mark.parametrize("on", ["dgx-h100", "mi300x-8", "tpu-v5e-16", "dgx-a100"])
def test_the_catalogue_unit_calibration_is_unit(on: str) -> None:
    """calibrations/unit.toml gives the same numbers as the built-in constant."""
    from rackline.catalog import calibration_record
    from rackline.passes.fallback import calibration_from_record

    unit = calibration_from_record(calibration_record("unit"))
    assert unit.step_policy == "blackboard"
    by_file = deploy("llama-3.1-8b", on=on).table().with_calibration(unit)
    built_in = deploy("llama-3.1-8b", on=on, calibration="unit").table()
    assert float(by_file.seconds(DECODE)) == float(built_in.seconds(DECODE))


def test_layout_picks_scalars() -> None:
    table = grid_table("llama-3.1-70b", "dgx-h100", 8)
    assert table.num_layouts == len(layouts("llama-3.1-70b", 8))
    one = table.layout(2)
    assert one.num_layouts is None
    assert one.layout(0) is one
    assert all(isinstance(v, float) for row in one.rows for v in row.compute.values())


def test_merge_and_scaled() -> None:
    assert merge({"a": 1.0, "b": 2.0}, {"b": 3.0}) == {"a": 1.0, "b": 5.0}
    assert scaled({"a": 2.0}, 4.0) == {"a": 8.0}
    assert feature_names([GEMM]) == (f.ONE, f.TOKENS)


def test_json_of_a_breakdown_has_the_rows_in_use() -> None:
    table = deploy("qwen3-235b-a22b", "tp=4,attention_dp=2,ep=8", on="dgx-h100").table()
    found = table.time(Batch(decode_sequences=8.0, context_len=500.0, group_tokens=16.0))
    data = plain(found)
    assert len(data["rows"]) == sum(row.used for row in found.rows) < len(found.rows)
    assert sum(row["seconds"] for row in data["rows"]) == pytest.approx(data["seconds"])
    assert sum(data["by_group_s"].values()) == pytest.approx(data["seconds"])
    assert (data["calibration"], data["evidence"]) == ("generic", "derived")
    assert all(row["origin"].startswith("generic, ") for row in data["rows"])
    assert found.seconds > 0


def test_row_names_are_unique_and_formulas_are_there() -> None:
    for name in ("llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "llama-4-maverick"):
        rows = deploy(name, "tp=8").table().rows
        assert len({row.name for row in rows}) == len(rows)
        assert all(row.formula for row in rows)
