"""Rows, tables, calibrations and breakdowns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import cluster, deploy, grid_table, layouts, numbers

from rackline.errors import InputError
from rackline.passes import UNIT, Batch, Calibration, OperationCalibration, PassTable, Row
from rackline.passes import features as f
from rackline.passes.table import feature_names, merge, scaled

CHIP = cluster("dgx-h100").chip
DECODE = Batch(decode_sequences=16.0, context_len=2000.0)


def one_row_table(row: Row, operation: OperationCalibration, **kept: object) -> PassTable:
    calibration = Calibration(
        name="test", stack="test", step_policy="serial", operations={(row.op_class, row.dtype): operation}
    )
    return PassTable(
        rows=(row,),
        chip=CHIP,
        cluster=cluster("h100-96"),
        calibration=replace(calibration, **kept),  # type: ignore[arg-type]
        kinds={},
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
    row = Row(
        name="reduce",
        group="tensor parallel",
        op_class="collective",
        dtype="bf16",
        scale_up={f.TOKENS: 1e6},
        scale_out={f.TOKENS: 1e5},
        launches={f.ONE: 1.0},
        scale_up_steps=4.0,
        scale_out_steps=2.0,
    )
    table = one_row_table(row, OperationCalibration(overhead_s=3e-6, alpha_s=1e-6, eta_link=0.5))
    up, out = table.cluster.levels  # type: ignore[union-attr]
    overhead = 3e-6 + 4 * 1e-6 + 2 * (1e-6 + out.latency_s - up.latency_s)
    slower = max(16e6 / (0.5 * up.bytes_per_s_each_way), 16e5 / (0.5 * out.bytes_per_s_each_way))
    assert table.time(DECODE).seconds == pytest.approx(overhead + slower, rel=1e-12)
    # without alpha the lecture's roofline has no latency at all
    assert table.with_calibration(UNIT).time(DECODE, "serial").rows[0].overhead_s == 0.0


@pytest.mark.parametrize("exposed", [0.0, 0.4])
@pytest.mark.parametrize("steps", [0.0, 30.0])
def test_a_ramp_is_the_same_in_the_breakdown_and_in_bulk(exposed: float, steps: float) -> None:
    row = Row(
        name="reduce",
        group="tensor parallel",
        op_class="collective",
        dtype="bf16",
        scale_up={f.TOKENS: 1e6},
        scale_out={f.TOKENS: 1e5},
        launches={f.ONE: 1.0},
        scale_up_steps=steps,
    )
    operation = OperationCalibration(overhead_s=3e-6, alpha_s=1e-6, ramp=0.7, exposed=exposed)
    table = one_row_table(row, operation)
    found = table.time(DECODE)
    assert float(table.seconds(DECODE)) == pytest.approx(found.seconds, rel=1e-12)
    busy = found.seconds - found.rows[0].overhead_s
    assert busy > max(found.rows[0].resource_s.values())


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
    row = Row(
        name="send", group="x", op_class="collective", dtype="bf16", scale_up={f.TOKENS: 1e9}
    )
    table = replace(one_row_table(row, OperationCalibration()), cluster=None)
    assert table.time(DECODE).seconds == 0.0


def test_the_slowest_policy_is_known_by_name() -> None:
    table = one_row_table(GEMM, OperationCalibration())
    with pytest.raises(InputError, match="step policy: got 'fastest', allowed: blackboard, serial, overlap"):
        table.seconds(DECODE, "fastest")  # type: ignore[arg-type]


def test_breakdown_wants_one_layout_and_one_point() -> None:
    with pytest.raises(InputError, match="batch|points|feature"):
        one_row_table(GEMM, OperationCalibration()).time(Batch(decode_sequences=np.array([1.0, 2.0])))
    with pytest.raises(InputError, match=r"allowed: one layout; take table.layout\(index\)"):
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
            ("collective", "bf16"): operation(4.0),
            ("attention_decode", "fp8"): operation(5.0),
        },
    )
    look = calibration.lookup
    assert look("gemm", "fp8").overhead_s == 2.0
    assert look("gemm", "w4a8", "fp8").overhead_s == 2.0
    assert look("gemm", "int8").overhead_s == 1.0
    assert look("moe", "fp4").overhead_s == 3.0
    assert look("all_reduce", "bf16").overhead_s == 4.0
    assert look("mla_decode", "fp8").overhead_s == 5.0
    assert look("embedding", "bf16") == OperationCalibration()


def test_the_assumed_set_says_that_it_is_assumed_and_unit_is_the_roofline() -> None:
    assumed = numbers("assumed")
    assert assumed.evidence == "assumed"
    assert {operation.evidence for operation in assumed.operations.values()} == {"assumed"}
    assert UNIT.step_policy == "blackboard"
    assert UNIT.lookup("gemm", "bf16") == OperationCalibration()
    found = deploy("llama-3.1-8b").table().time(DECODE)
    assert {row.evidence for row in found.rows if row.op_class == "gemm"} == {"assumed"}


@pytest.mark.parametrize("on", ["dgx-h100", "mi300x-8", "tpu-v5e-16", "dgx-a100"])
def test_the_catalogue_unit_calibration_is_unit(on: str) -> None:
    """calibrations/unit.toml gives the same numbers as the built-in constant."""
    from rackline.passes import calibration

    by_file = deploy("llama-3.1-8b", on=on).table().with_calibration(calibration("unit"))
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
    data = found.as_dict()
    assert len(data["rows"]) == sum(row.used for row in found.rows) < len(found.rows)
    assert sum(row["seconds"] for row in data["rows"]) == pytest.approx(data["seconds"])
    assert sum(data["by_group_s"].values()) == pytest.approx(data["seconds"])
    assert data["calibration"] == data["evidence"] == "assumed"
    assert found.seconds > 0


def test_row_names_are_unique_and_formulas_are_there() -> None:
    for name in ("llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "llama-4-maverick"):
        rows = deploy(name, "tp=8").table().rows
        assert len({row.name for row in rows}) == len(rows)
        assert all(row.formula for row in rows)
