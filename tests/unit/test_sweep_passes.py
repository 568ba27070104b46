"""Passes of a sweep are those of `explain`, point by point, in any grouping."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import rackline as rl
from rackline.api.resolve import cluster_of
from rackline.hardware import paid_share
from rackline.sweeps.chunk import Job, evaluate, job_of
from rackline.sweeps.file import read_file
from rackline.sweeps.space import Chunk


def job(**tables: Any) -> Job:
    tables.setdefault("output", {})
    tables["output"] = {
        "results": ["server_s", "seconds", "max_sequences", "usd_per_mtok_output", "output_tokens_per_s_per_chip"],
        "float_bits": 64,
        **tables["output"],
    }
    return job_of(read_file(tables))


def rows(found: Job, per_chunk: int = 10**6) -> pl.DataFrame:
    return pl.concat([evaluate(found, chunk)[0] for chunk in found.space.chunks(per_chunk)])


def explained(row: dict[str, Any], fixed: dict[str, Any], setting: tuple[str, ...] = ()) -> Any:
    """The same point as a question of its own."""
    given = {**fixed, **{name: row[name] for name in ("model", "on", "batch", "context", "prefill") if name in row}}
    if row.get("layout") is not None:
        given["layout"] = row["layout"]
    values = {name: row[name] for name in setting}
    return rl.explain(given.pop("model"), **{**given, "set": values or None}).result.explanation


DENSE = {"model": "llama-3.1-8b", "on": "dgx-h100"}
EXPERTS = {"model": "gpt-oss-120b", "on": "dgx-h200"}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({**DENSE, "layout": ["tp=1", "tp=4", "tp=2,pp=2"], "batch": [1, 7, 300], "context": ["1k", "30k"]}, {}),
        ({**DENSE, "layout": "tp=2", "batch": [0, 16], "context": ["2k"], "prefill": ["1k", "20k"]}, {}),
        ({**EXPERTS, "layout": ["tp=2", "attention_dp=4,ep=4"], "batch": [1, 64, 2000], "context": ["8k"]}, {}),
        ({**EXPERTS, "layout": "attention_dp=8,ep=8", "batch": [64], "context": ["8k"], "engine": "vllm=0.11.1",
          "sampling": "top-p", "precision": "bf16", "routing": "uniform", "memory_fraction": 0.8}, {}),
        ({**DENSE, "layout": ["tp=1", "tp=8"], "batch": [1, 64], "context": ["4k"]},
         {"hbm_bytes_per_s": ["2TB/s", "3.35TB/s", "9TB/s"], "chip.peak_flop_per_s.bf16": [5e14, 2e15]}),
        ({**EXPERTS, "layout": "attention_dp=8,ep=8", "batch": [1, 512], "context": ["4k"]},
         {"levels.scale_up.bytes_per_s_each_way": ["100GB/s", "900GB/s"], "levels.scale_up.latency_s": ["1us", "5us"]}),
        ({**DENSE, "layout": "tp=1", "batch": [8, 900], "context": ["4k"]}, {"hbm_bytes": ["40GB", "200GB"]}),
        ({**DENSE, "layout": "tp=4", "batch": [8], "context": ["4k"], "calibration": ["unit", "vllm"],
          "policy": ["serial", "blackboard"]}, {}),
    ],
)  # fmt: skip
def test_every_point_is_that_of_explain(options: dict[str, Any], settings: dict[str, Any]) -> None:
    found = job(options=options, set=settings)
    table = rows(found)
    fixed = {name: value for name, value in options.items() if not isinstance(value, list)}
    axes = [name for name, value in options.items() if isinstance(value, list) and name not in ("batch", "context")]
    assert table.height == np.prod([len(v) for v in (*options.values(), *settings.values()) if isinstance(v, list)])
    for row in table.iter_rows(named=True):
        more = {name: row[name] for name in axes if name in ("calibration", "policy")}
        one = explained(row, {**fixed, **more}, tuple(settings))
        assert row["seconds"] == pytest.approx(one.time.seconds, rel=1e-12)
        assert row["server_s"] == pytest.approx(one.server_s, rel=1e-12)
        assert (row["reason"] is None) == one.fits
        assert row["feasible"] == one.fits
        if row["batch"]:
            chips = one.deployment.layout.chips_per_replica
            rate = row["batch"] / one.server_s / chips
            assert row["output_tokens_per_s_per_chip"] == pytest.approx(rate, rel=1e-12)
            rent = one.deployment.cluster.usd_per_chip_hour * float(paid_share(one.deployment.cluster, chips))
            assert row["usd_per_mtok_output"] == pytest.approx(rent / 3600 / rate * 1e6, rel=1e-12)
        else:
            assert row["usd_per_mtok_output"] is None


def test_rates_are_lanes_and_the_rest_are_tables() -> None:
    found = job(
        options={**DENSE, "on": ["dgx-h100", "l40s-8"], "layout": "tp=1", "batch": [1, 2], "context": "1k"},
        set={
            "hbm_bytes_per_s": {"log": ["1TB/s", "9TB/s"], "num": 3},
            "hbm_bytes": ["40GB", "80GB"],
            "usd_per_chip_hour": [1, 2],
            "num_layers": [16, 32],
            "scale_up_bandwidth": ["100GB/s", "200GB/s"],
        },
        inputs={"x": [1, 2]},
    )
    assert {name: level for name, (level, _) in found.levels.items()} == {
        "on": "table",
        "batch": "point",
        "hbm_bytes_per_s": "lane",
        "hbm_bytes": "table",
        "usd_per_chip_hour": "after",
        "num_layers": "table",
        "scale_up_bandwidth": "lane",
        "x": "after",
    }


def test_what_is_above_the_price_is_not_the_price() -> None:
    options = {**DENSE, "layout": "tp=1", "batch": [1, 8], "context": "1k"}
    assert job(options=options, set={"power.idle_w": [100, 120]}).levels["power.idle_w"][0] == "table"


def test_a_rate_that_changes_more_than_coefficients_is_a_table() -> None:
    """L40S borrows its numbers from other chips by its power: its peak is no mere rate."""
    options = {**DENSE, "on": "l40s-8", "layout": "tp=1", "batch": [1, 2], "context": "1k"}
    found = job(options={**options, "calibration": "generic"}, set={"peak_flop_per_s.bf16": [1e14, 4e14]})
    levels = {name: level for name, (level, _) in found.levels.items()}
    table = rows(found)
    for row in table.iter_rows(named=True):
        one = explained(row, {**options, "calibration": "generic"}, ("peak_flop_per_s.bf16",))
        assert row["seconds"] == pytest.approx(one.time.seconds, rel=1e-12), levels


def test_the_price_comes_after_and_the_rest_stays() -> None:
    found = job(
        options={**DENSE, "layout": "tp=1", "batch": [1, 8], "context": "1k"},
        set={"usd_per_chip_hour": [1.0, 3.0]},
    )
    table = rows(found)
    cheap, dear = (table.filter(pl.col("usd_per_chip_hour") == price) for price in (1.0, 3.0))
    assert np.allclose(dear["usd_per_mtok_output"] / cheap["usd_per_mtok_output"], 3.0)
    assert dear["server_s"].equals(cheap["server_s"])


@pytest.mark.parametrize("options", [DENSE, EXPERTS])
def test_the_smallest_layout_is_that_of_explain(options: dict[str, Any]) -> None:
    found = job(options={**options, "layout": "smallest", "batch": [1, 64, 800], "context": ["2k", "60k"]})
    for row in rows(found).iter_rows(named=True):
        if row["reason"] is None:
            one = explained({**row, "layout": None}, options)
            assert row["layout"] == one.deployment.layout.label()
            assert row["server_s"] == pytest.approx(one.server_s, rel=1e-12)
            assert row["chips_per_replica"] == one.deployment.layout.chips_per_replica


@pytest.mark.parametrize(("rule", "column"), [("cheapest", "usd_per_mtok_output"), ("fastest", "server_s")])
def test_a_rule_takes_the_best_of_all_layouts_at_every_point(rule: str, column: str) -> None:
    space: dict[str, Any] = {
        "options": {**EXPERTS, "batch": [1, 40, 900], "context": ["2k", "60k"]},
        "set": {"hbm_bytes_per_s": ["2TB/s", "8TB/s"]},
    }
    best = rows(job(**{**space, "options": {**space["options"], "layout": rule}}))
    every = rows(job(**{**space, "options": {**space["options"], "layout": "all"}}))
    assert every.height > 10 * best.height
    keys = ["hbm_bytes_per_s", "batch", "context"]
    least = every.filter("feasible").group_by(keys).agg(pl.col(column).min().alias("least"))
    joined = best.filter("feasible").join(least, on=keys)
    assert joined.height == least.height > 4
    assert np.allclose(joined[column], joined["least"], rtol=1e-12)


def test_draws_of_everything_are_the_same_points() -> None:
    """One sample over a rate, the batch and a price: each draw is a lane of its own."""
    found = job(
        options={
            **DENSE,
            "layout": "tp=2",
            "batch": {"log_uniform": [1, 400]},
            "context": {"uniform": ["1k", "20k"]},
        },
        set={"hbm_bytes_per_s": {"normal": ["3TB/s", "0.3TB/s"]}, "usd_per_chip_hour": {"uniform": [1, 4]}},
        sample={"num": 16, "seed": 3},
    )
    table = rows(found)
    assert table.height == 16
    assert table["sample"].to_list() == list(range(16))
    for row in table.iter_rows(named=True):
        one = explained(row, {**DENSE, "layout": "tp=2"}, ("hbm_bytes_per_s",))
        assert row["server_s"] == pytest.approx(one.server_s, rel=1e-12)
        cost = row["usd_per_chip_hour"] / 3600 / row["output_tokens_per_s_per_chip"] * 1e6
        paid = float(paid_share(cluster_of("dgx-h100"), 2))
        assert row["usd_per_mtok_output"] == pytest.approx(cost * paid, rel=1e-12)


def test_the_cut_into_chunks_changes_nothing() -> None:
    found = job(
        options={**EXPERTS, "on": ["dgx-h200", "dgx-h100"], "layout": ["tp=2", "tp=8", "tp=3"], "batch": [1, 9, 90],
                 "context": ["1k", "2k", "9k"]},
        set={"hbm_bytes_per_s": ["2TB/s", "8TB/s"], "usd_per_chip_hour": [1, 2]},
    )  # fmt: skip
    whole = rows(found)
    keys = ["on", "layout", "hbm_bytes_per_s", "batch", "context", "usd_per_chip_hour"]
    assert whole.height == 2 * 3 * 3 * 3 * 2 * 2
    for size in (1, 7, 40):
        parts: list[Chunk] = list(found.space.chunks(size))
        assert len(parts) > 1
        cut = pl.concat([evaluate(found, chunk)[0] for chunk in parts])
        assert_frame_equal(cut.sort(keys), whole.sort(keys), rel_tol=1e-12)


def test_failed_points_are_rows_with_a_reason() -> None:
    found = job(
        options={"model": "deepseek-v3", "on": ["l40s-8", "dgx-h200"], "precision": ["fp8", "fp4"], "batch": [1, 10**6],
                 "context": "4k", "layout": ["tp=8,ep=8", "tp=7", "ep=x"]},
        set={"num_experts": [256, 8]},
        constraints={"fast": "server_s < 1"},
    )  # fmt: skip
    table = rows(found)
    assert table.height == 2 * 2 * 2 * 3 * 2
    reasons = table.filter(pl.col("reason").is_not_null())
    assert not reasons["feasible"].any()
    said = " ".join(map(str, reasons["reason"].unique().to_list()))
    for words in ("tp=7 does not divide", "weights do not fit", "batch does not fit", "a whole number", "groups"):
        assert words in said
    assert table.filter(pl.col("layout") == "tp=7")["server_s"].null_count() == 16
    assert table.filter(pl.col("feasible")).height > 0


def test_columns_are_computed_from_columns_and_fixed_numbers() -> None:
    found = job(
        options={**DENSE, "layout": "tp=1", "batch": [1, 8], "context": "1k"},
        inputs={"utilisation": 0.5, "x": [1.0, 2.0]},
        derived={"cost": "usd_per_mtok_output / utilisation * x", "twice": "cost * 2", "is_long": "context > 500"},
        constraints={"cheap": "cost < 4"},
        objectives={"cost": "min"},
    )
    table = rows(found)
    assert np.allclose(table["cost"], table["usd_per_mtok_output"] / 0.5 * table["x"])
    assert np.allclose(table["twice"], 2 * table["cost"])
    assert table["is_long"].all()
    assert table["feasible"].to_list() == (table["cost"] < 4).to_list() == table["cheap"].to_list()
