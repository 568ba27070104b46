"""The line stands once: its fast forms, the breakdown and the row function say the same, whatever the table.

Tables, features and calibrations are drawn at random: rows on the chip and on the fabric, alternatives for one job,
streams, ramps, exposed from 0 to 1, kernels that a stack lacks. What is expected is written out here from DESIGN's
sentence, in plain Python floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from helpers import cluster
from rackline.passes import Calibration, OperationCalibration, PassTable, Row, StepPolicy, features as f
from rackline.passes.calibration import POLICIES, CollectiveCalibration
from rackline.passes.javascript import compile_table
from rackline.passes.row import fastest, line_seconds, row_seconds

CLUSTER = cluster("h100-96")
FEATURES = (f.ONE, f.TOKENS, f.LOGIT_ROWS, f.kv_tokens("full"), f.PREFILL_TOKENS)
STREAMS = ("compute", "communication", "copy")
shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0))


def amounts(scale: float, most: int = 3) -> st.SearchStrategy[dict[str, float]]:
    one = st.one_of(st.just(0.0), st.floats(1e-3, 1.0).map(lambda x: x * scale))
    return st.dictionaries(st.sampled_from(FEATURES), one, max_size=most)


@st.composite
def tables(draw: st.DrawFn) -> PassTable:
    """One layout, one to eight rows."""
    rows: list[Row] = []
    operations: dict[tuple[str, str], OperationCalibration] = {("any", "bf16"): OperationCalibration()}
    collectives = {"any": CollectiveCalibration()}
    for index in range(draw(st.integers(1, 8))):
        name = f"row_{index}"
        common: dict[str, Any] = {
            "name": name,
            "group": "layer",
            "op_class": name,
            "dtype": "bf16",
            "stream": draw(st.sampled_from(STREAMS)),
            "launches": draw(amounts(10.0, 2)),
        }
        if draw(st.booleans()):
            rows.append(
                Row(
                    **common,
                    compute=draw(amounts(1e13)),
                    hbm=draw(amounts(1e10)),
                    depth=draw(amounts(1e3, 1)),
                    tiles=draw(amounts(1e3, 1)),
                )
            )
            operations[name, "bf16"] = OperationCalibration(
                overhead_s=draw(st.floats(0.0, 1e-4)),
                eta_compute=draw(st.floats(0.05, 1.0)),
                eta_memory=draw(st.floats(0.05, 1.0)),
                exposed=draw(shares),
                depth_s=draw(st.floats(0.0, 1e-8)),
                tile_s=draw(st.floats(0.0, 1e-6)),
            )
            continue
        # alternatives of one job: all on one feature of their own stream, some of them unknown to the stack
        job = draw(st.sampled_from(["", "reduce", "exchange"]))
        feature = f.TOKENS if job else draw(st.sampled_from(FEATURES))
        stream = {"reduce": "communication", "exchange": "copy"}.get(job, common["stream"])
        bytes_of = st.floats(1e3, 1e9)
        rows.append(
            Row(
                **{**common, "stream": stream},
                scale_up={feature: draw(bytes_of)},
                scale_out={feature: draw(bytes_of)} if draw(st.booleans()) else {},
                scale_up_steps=draw(st.sampled_from([0.0, 1.0, 7.0])),
                scale_out_steps=draw(st.sampled_from([0.0, 2.0])),
                group_size=draw(st.sampled_from([1.0, 2.0, 6.0, 48.0])),
                choice=job,
            )
        )
        if draw(st.integers(0, 3)):
            collectives[name] = CollectiveCalibration(
                group_sizes=(2, 8),
                overheads_s=(draw(st.floats(0.0, 1e-5)), draw(st.floats(0.0, 1e-4))),
                eta_links=(draw(st.floats(0.1, 1.0)), draw(st.floats(0.1, 1.0))),
                ramps=draw(st.sampled_from([(0.0, 0.0), (0.0, 1.3), (0.4, 2.6)])),
                alpha_s=draw(st.sampled_from([0.0, 1e-6])),
            )
    calibration = Calibration(
        name="drawn",
        stack="drawn",
        step_policy="serial",
        host_s_per_step=draw(st.sampled_from([0.0, 1e-4])),
        operations=operations,
        collectives=collectives,
    )
    return PassTable(rows=tuple(rows), chip=CLUSTER.chip, cluster=CLUSTER, calibration=calibration, kinds={})


def batches() -> st.SearchStrategy[dict[str, float]]:
    value = st.one_of(st.just(0.0), st.floats(1e-2, 1e4))
    return st.fixed_dictionaries({f.ONE: st.just(1.0), **dict.fromkeys(FEATURES[1:], value)})


@dataclass(frozen=True, slots=True)
class Expected:
    """One row by hand [s]."""

    row: Row
    resources: tuple[float, float]
    overhead: float
    seconds: float


def expected_rows(table: PassTable, features: dict[str, float]) -> list[Expected]:
    """overhead + max t + exposed (sum t - max t) + ramp sqrt(overhead max t), from the calibration's own numbers."""
    found: list[Expected] = []
    numbers, chip = table.calibration, table.chip
    up, out = CLUSTER.levels

    def amount(coefficients: Any) -> float:
        return sum(value * features[name] for name, value in coefficients.items())

    for row in table.rows:
        if row.is_fabric:
            collective = numbers.collectives.get(row.op_class)
            if collective is None:
                continue
            overhead_s, eta, ramp = (float(x) for x in collective.at(row.group_size))
            times = (
                amount(row.scale_up) / (eta * up.bytes_per_s_each_way),
                amount(row.scale_out) / (eta * out.bytes_per_s_each_way),
            )
            outer = collective.alpha_s + out.latency_s - up.latency_s
            steps = row.scale_up_steps * collective.alpha_s + row.scale_out_steps * outer
            overhead, exposed = amount(row.launches) * overhead_s + steps, 0.0
        else:
            kernel = numbers.operations[row.op_class, row.dtype]
            times = (
                amount(row.compute) / (kernel.eta_compute * chip.flop_per_s("bf16")),
                amount(row.hbm) / (kernel.eta_memory * chip.hbm_bytes_per_s),
            )
            overhead = amount(row.launches) * kernel.overhead_s + amount(row.depth) * kernel.depth_s
            overhead += amount(row.tiles) * kernel.tile_s / chip.cores
            exposed, ramp = kernel.exposed, 0.0
        longest = max(times)
        seconds = overhead + longest + exposed * (sum(times) - longest) + ramp * math.sqrt(overhead * longest)
        found.append(Expected(row, times, overhead, seconds))
    return found


def expected_seconds(table: PassTable, features: dict[str, float], policy: StepPolicy) -> float:
    """How rows combine: sum, longest stream, or longest resource; of alternatives the fastest."""
    jobs: dict[str, list[Expected]] = {}
    for one in expected_rows(table, features):
        jobs.setdefault(one.row.choice or one.row.name, []).append(one)
    if policy == "blackboard":
        # alternatives are compared by their wire time, that of a batch in which every feature is 1
        wire = {one.row.name: max(one.resources) for one in expected_rows(table, dict.fromkeys(FEATURES, 1.0))}
        used = [min(options, key=lambda one: wire[one.row.name]) for options in jobs.values()]
        on_chip = [one for one in used if not one.row.is_fabric]
        on_links = [one for one in used if one.row.is_fabric]
        sums = [sum(one.resources[i] for one in rows) for rows in (on_chip, on_links) for i in (0, 1)]
        total = max(sums) + sum(one.overhead for one in used)
    else:
        used = [min(options, key=lambda one: one.seconds) for options in jobs.values()]
        streams: dict[str, float] = {}
        for one in used:
            stream = one.row.stream if policy == "overlap" else ""
            streams[stream] = streams.get(stream, 0.0) + one.seconds
        total = max(streams.values(), default=0.0)
    return total + table.calibration.host_s_per_step


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60)
@given(table=tables(), features=batches())
def test_every_form_is_the_line(policy: StepPolicy, table: PassTable, features: dict[str, float]) -> None:
    expected = expected_seconds(table, features, policy)
    close = pytest.approx(expected, rel=1e-9, abs=1e-18)
    assert float(table.time_table(policy).seconds(features)) == close
    assert compile_table(table, policy)(**features) == close
    found = table.breakdown(policy).time(features)
    assert found.seconds == close
    used = [row for row in found.rows if row.used]
    if policy != "overlap":
        parts = found.by_resource if policy == "blackboard" else {row.name: row.seconds for row in used}
        values = list(parts.values())
        combined = max(values[:4]) + values[4] if policy == "blackboard" else sum(values)
        assert combined + found.host_s == close


@settings(max_examples=60)
@given(table=tables(), features=batches())
def test_a_row_takes_the_line(table: PassTable, features: dict[str, float]) -> None:
    """As floats, as arrays over points, and in the breakdown."""
    many = {name: np.array([value, 2.0 * value, 0.0]) for name, value in features.items()}
    rows = {row.name: row for row in table.breakdown().time(features).rows}
    for one in expected_rows(table, features):
        numbers = table.row_numbers(one.row)
        close = pytest.approx(one.seconds, rel=1e-9, abs=1e-18)
        assert float(row_seconds(numbers, features)) == close
        assert float(np.broadcast_to(row_seconds(numbers, many), 3)[0]) == close
        assert rows[one.row.name].seconds == close
    unknown = set(rows) - {one.row.name for one in expected_rows(table, features)}
    assert all(rows[name].seconds == 0.0 and not rows[name].used for name in unknown)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20)
@given(
    first=tables(), factors=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=4), features=batches(), data=st.data()
)
def test_many_layouts_are_many_tables(
    policy: StepPolicy, first: PassTable, factors: list[float], features: dict[str, float], data: st.DataObject
) -> None:
    """Coefficients that are arrays over layouts, each a multiple of the first."""
    scale = np.array(factors)
    column = data.draw(st.sampled_from(["compute", "hbm", "launches", "scale_up"]))
    rows = tuple(
        replace(row, **{column: {name: value * scale for name, value in getattr(row, column).items()}})
        for row in first.rows
    )
    table = replace(first, rows=rows, num_layouts=len(factors))
    together = table.time_table(policy).seconds(features)
    each = [expected_seconds(table.layout(index), features, policy) for index in range(len(factors))]
    np.testing.assert_allclose(together.ravel(), each, rtol=1e-9, atol=1e-18)


@given(
    overhead=st.floats(0.0, 1.0),
    resources=st.lists(st.floats(0.0, 1.0), max_size=4),
    exposed=shares,
    ramp=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_the_line_is_designs_sentence(overhead: float, resources: list[float], exposed: float, ramp: float) -> None:
    longest = max(resources, default=0.0)
    by_hand = overhead + longest + exposed * (sum(resources) - longest) + ramp * math.sqrt(overhead * longest)
    assert float(line_seconds(overhead, resources, exposed=exposed, ramp=ramp)) == pytest.approx(by_hand, abs=1e-12)


def test_the_fastest_kernel_does_the_job_at_each_point() -> None:
    assert fastest([np.array([1.0, 5.0]), 3.0]).tolist() == [1.0, 3.0]
