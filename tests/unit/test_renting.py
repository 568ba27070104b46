"""Whole rented units are paid: hosts, trays and slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import rackline as rl
from rackline.catalog import names
from rackline.errors import InputError
from rackline.hardware import (
    billed_chips,
    cluster,
    cluster_record,
    paid_share,
    replicas,
    taken_chips,
)
from rackline.hardware.renting import scale_up_switches


@pytest.mark.parametrize("name", names("clusters"))
def test_every_cluster_says_what_one_rents(name: str) -> None:
    record, found = cluster_record(name), cluster(name)
    assert record.source_of("rented_chips") is not None
    assert record.chips_per_host == found.host_chips <= found.num_chips
    assert 1 <= found.rented_chips <= found.num_chips
    sizes = np.arange(1, found.num_chips + 1)
    count, taken = replicas(found, sizes), taken_chips(found, sizes)
    assert np.all(count * sizes <= found.num_chips)
    billed = billed_chips(found, count * taken)
    assert np.all((billed >= count * sizes - 1e-9) & (billed <= found.num_chips))
    assert np.all(paid_share(found, sizes) >= 1.0 - 1e-12)
    if found.rented_chips == 1:
        assert np.all(billed == count * sizes)


def test_a_replica_leaves_what_no_other_can_use() -> None:
    node, rack = cluster("dgx-h100"), cluster("gb200-nvl72")
    assert taken_chips(node, [1, 2, 3, 4, 5, 8, 12]).tolist() == [1, 2, 4, 4, 8, 8, 12]  # 12: more than it has
    assert replicas(rack, [3, 4, 6, 32]).tolist() == [18, 18, 9, 2]
    assert float(billed_chips(rack, 2 * 32)) == 64
    assert paid_share(node, [5]).tolist() == [8 / 5]


def test_five_of_eight_chips_cost_eight() -> None:
    question = {"on": "dgx-h100", "input": "2k", "output": 500, "layout": "tp=1,pp=5", "serving": "aggregated"}
    whole = rl.plan("llama-3.1-70b", **question).result.plan.best
    used = rl.plan("llama-3.1-70b", **question, bill="used").result.plan.best
    assert whole is not None
    assert used is not None
    assert (whole.num_chips, whole.billed_chips) == (5, 8)
    assert (used.num_chips, used.billed_chips) == (5, 5)
    assert whole.usd_per_mtok_output_all_in == pytest.approx(used.usd_per_mtok_output_all_in * 8 / 5, rel=0.02)


def test_a_part_of_a_unit_is_paid_alike_everywhere() -> None:
    """Four chips of a host of eight: plan, its fleet and its assumptions name one bill."""
    ask: dict[str, Any] = {
        "on": "dgx-h100",
        "chips": 4,
        "input": "1k",
        "output": 100,
        "layout": "tp=4",
        "serving": "aggregated",
    }
    found = rl.plan("llama-3.1-8b", **ask, mode="chunked=2048", traffic="1k", use="batch").result
    assert found.plan.best.billed_chips == found.fleet.billed_chips == 4
    assert any("all 4 chips are paid, a part of a unit of 8" in text for text in found.plan.assumptions)


@given(st.integers(1, 40), st.sampled_from((1, 2, 4, 8, 12, 16)))
def test_a_fleet_pays_for_whole_clusters_and_the_rest(taken: int, size: int) -> None:
    rack = cluster("dgx-h100").with_num_chips(size)
    billed = float(billed_chips(rack, taken))
    assert taken <= billed < taken + 8
    assert billed == taken // size * size + float(billed_chips(rack, taken % size))


def test_pools_fill_the_host_that_is_paid() -> None:
    found = rl.plan("llama-3.3-70b", on="dgx-h100", input="2k", output=500, tpot="50ms", ttft="2s").result.plan
    assert found.best is not None
    assert found.best.billed_chips == 8
    assert found.best.num_chips == 8


def test_a_bill_is_whole_or_used() -> None:
    with pytest.raises(InputError, match="whole"):
        rl.plan("llama-3.1-8b", on="dgx-h100", input="1k", output=200, bill="some")


def test_a_torus_has_no_switches() -> None:
    for name in ("tpu-v5p-64", "tpu-v6e-256"):
        assert scale_up_switches(cluster(name).scale_up, 3) == 0
