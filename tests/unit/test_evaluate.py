"""Bulk evaluation: shapes, chunks, threads, alternatives, and the compiled scalar step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import deploy, grid_table, layouts
from rackline.errors import InputError
from rackline.parallel import Routing
from rackline.passes import Batch
from rackline.passes.javascript import compile_table

POLICIES = ("serial", "overlap", "blackboard")


def test_shapes_of_one_layout() -> None:
    table = deploy("llama-3.1-8b").table()
    assert table.seconds(Batch(decode_sequences=4.0, context_len=10.0)).shape == ()
    assert table.seconds(Batch(decode_sequences=np.arange(1.0, 4.0), context_len=10.0)).shape == (3,)
    grid = Batch(decode_sequences=np.arange(1.0, 4.0)[:, None], context_len=np.arange(5.0)[None, :])
    assert table.seconds(grid).shape == (3, 5)


def test_shapes_of_many_layouts() -> None:
    table = grid_table("qwen3-235b-a22b", "dgx-h100", 8)
    num = len(layouts("qwen3-235b-a22b", 8))
    assert table.seconds(Batch(decode_sequences=4.0, context_len=10.0, group_tokens=8.0)).shape[0] == num
    points = np.arange(1.0, 4.0)
    assert table.seconds(Batch(decode_sequences=points, context_len=10.0)).shape == (num, 3)
    dp = np.array([layout.attention_dp for layout in layouts("qwen3-235b-a22b", 8)], dtype=float)
    own = Batch(decode_sequences=points[None, :], context_len=10.0, group_tokens=points * dp[:, None])
    assert table.seconds(own).shape == (num, 3)
    wide = Batch(
        decode_sequences=points[None, :, None],
        context_len=np.array([10.0, 20.0]),
        group_tokens=points[None, :, None] * dp[:, None, None],
    )
    assert table.seconds(wide).shape == (num, 3, 2)
    np.testing.assert_allclose(table.seconds(wide)[:, :, 0], table.seconds(own), rtol=1e-12)


def test_a_batch_of_the_wrong_number_of_layouts() -> None:
    table = grid_table("qwen3-235b-a22b", "dgx-h100", 8)
    with pytest.raises(InputError, match=r"batch shape: got \(3, 2\), allowed: .*68 layouts"):
        table.seconds(Batch(decode_sequences=np.ones((3, 2)), context_len=10.0))


@pytest.mark.parametrize("policy", POLICIES)
def test_chunks_and_threads_change_nothing(policy: str) -> None:
    table = deploy("deepseek-v3", "tp=2,attention_dp=4,ep=8", on="dgx-h200").table()
    points = 8192 * 2 + 17
    context = np.linspace(0.0, 1e5, points)
    features = table.features(
        Batch(decode_sequences=np.linspace(1.0, 512.0, points), context_len=context, group_tokens=2048.0)
    )
    times = table.time_table(policy)  # type: ignore[arg-type]
    whole = times.seconds(features)
    assert whole.shape == (points,)
    np.testing.assert_array_equal(whole, times.seconds(features, threads=2))
    for index in (0, 8191, 8192, points - 1):
        alone = {name: np.broadcast_to(v, (points,))[index] for name, v in features.items()}
        assert float(times.seconds(alone)) == pytest.approx(whole[index], rel=1e-12)


def test_the_fastest_kernel_runs_at_each_point() -> None:
    table = deploy("llama-3.1-70b", "tp=8", on="dgx-h100").table()
    small = table.time(Batch(decode_sequences=1.0, context_len=100.0))
    large = table.time(Batch(prefill_sequences=4.0, chunk_tokens=8192.0))

    def chosen(found) -> list[str]:  # type: ignore[no-untyped-def]
        return [row.name for row in found.rows if row.used and row.name.startswith("all_reduce")]

    assert len(chosen(small)) == len(chosen(large)) == 1
    assert chosen(large) in (["all_reduce_ring"], ["all_reduce_two_shot"])
    for found in (small, large):
        has = {one.row.name for one in table.numbers().in_use()}
        seconds = {row.name: row.seconds for row in found.rows if row.name.startswith("all_reduce") and row.name in has}
        assert len(seconds) >= 3
        assert min(seconds, key=lambda name: seconds[name]) == chosen(found)[0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "layout", "on"),
    [
        ("llama-3.1-70b", "tp=8", "dgx-h100"),
        ("deepseek-v3", "attention_dp=32,ep=32", "gb200-nvl72"),
        ("gpt-oss-120b", "tp=4", "dgx-h200"),
        ("lecture-frontier", "tp=72", "gb200-nvl72"),
    ],
)
def test_the_compiled_step_is_the_table(policy: str, name: str, layout: str, on: str) -> None:
    table = deploy(name, layout, on=on).table()
    step = compile_table(table, policy)  # type: ignore[arg-type]
    ranks = 32.0 if "attention_dp" in layout else 1.0
    for decode, context, chunk in ((1.0, 10.0, 0.0), (200.0, 5000.0, 0.0), (64.0, 300.0, 2048.0)):
        batch = Batch(
            decode_sequences=decode,
            context_len=context,
            prefill_sequences=1.0 * (chunk > 0),
            chunk_tokens=chunk,
            group_tokens=(decode + chunk) * ranks,
        )
        features = {key: float(np.asarray(value)) for key, value in table.features(batch).items()}
        assert step(**features) == pytest.approx(float(table.seconds(batch, policy)), rel=1e-9)  # type: ignore[arg-type]


def test_only_one_layout_compiles() -> None:
    with pytest.raises(InputError, match="one layout"):
        compile_table(grid_table("llama-3.1-70b", "dgx-h100", 8))


def test_the_compiled_step_is_the_table_under_popular_experts() -> None:
    """Drawn loads of several expert-parallel ranks lie on the same grid as the others."""
    found = replace(deploy("deepseek-v3", "tp=8,ep=8", on="dgx-h200"), routing=Routing(law="power_law", exponent=0.85))
    table = found.table()
    step = compile_table(table)
    for sequences in (1.0, 3.0, 37.0, 777.0):
        features = table.features(Batch(decode_sequences=sequences, context_len=1000.0))
        given = {name: float(np.asarray(value)) for name, value in features.items()}
        expected = float(table.seconds(Batch(decode_sequences=sequences, context_len=1000.0)))
        assert step(**given) == pytest.approx(expected, rel=1e-9)
