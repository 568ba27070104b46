"""The table under `blackboard` with unit calibration is the closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from helpers import deploy, model
from rackline.passes import Batch
from rackline.serving import blackboard as bb


@settings(max_examples=60)
@given(
    batch_size=st.floats(1.0, 2e4),
    context_len=st.floats(1.0, 1e6),
    chips=st.integers(1, 72),
    label=st.sampled_from(["bf16", "fp8", "fp4"]),
)
def test_an_aggregate_model_is_the_closed_form(batch_size: float, context_len: float, chips: int, label: str) -> None:
    """All rows but kv_write, which the lecture leaves out: the KV that the new tokens leave."""
    d = deploy("lecture-frontier", f"tp={chips}", label=label, calibration="unit")
    table, m, chip = d.table(), model("lecture-frontier"), d.cluster.chip
    batch = Batch(decode_sequences=batch_size, context_len=context_len)
    expected = bb.pass_s(
        batch_size,
        m.total_params,
        m.active_params,
        {"bf16": 2.0, "fp8": 1.0, "fp4": 9 / 16}[label],
        context_len,
        m.kv_bytes_per_token(),
        chips * chip.flop_per_s(label),
        chips * chip.hbm_bytes_per_s,
    )
    lecture = replace(table, rows=tuple(row for row in table.rows if row.name != "kv_write"))
    assert float(lecture.seconds(batch)) == pytest.approx(expected, rel=1e-12)
    written = batch_size * m.kv_bytes_per_token() / (chips * chip.hbm_bytes_per_s)
    found = table.time(batch)
    assert found.by_resource["hbm"] == pytest.approx(lecture.time(batch).by_resource["hbm"] + written, rel=1e-12)
    assert found.seconds == pytest.approx(max(found.by_resource["compute"], found.by_resource["hbm"]))


SMALL_ROWS = ("embedding", "norm_rope_activation")


@pytest.mark.parametrize(
    ("name", "context"), [("llama-3.1-70b", 8000.0), ("llama-3.1-405b", 500.0), ("qwen3-32b", 2000.0)]
)
@pytest.mark.parametrize("batch_size", [1.0, 8.0, 64.0])
def test_a_dense_model_reads_weights_and_kv(name: str, context: float, batch_size: float) -> None:
    """Memory side: all weights once and the KV of each sequence; small rows and activations are the 2 %."""
    d = deploy(name, calibration="unit")
    m, chip = model(name), d.cluster.chip
    table = d.table()
    kept = replace(table, rows=tuple(row for row in table.rows if row.name not in SMALL_ROWS))
    found = kept.time(Batch(decode_sequences=batch_size, context_len=context))
    stored = m.total_params - (0 if m.tied_embeddings else m.vocab_size * m.d_model)  # a lookup, not a read
    expected = bb.memory_s(batch_size, stored, 2.0, context, m.kv_bytes_per_token(2.0), chip.hbm_bytes_per_s)
    assert found.by_resource["hbm"] == pytest.approx(expected, rel=0.02)
    assert found.seconds == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "llama-3.1-405b", "qwen3-32b"])
@pytest.mark.parametrize("batch_size", [512.0, 4096.0])
def test_a_dense_model_computes_two_flop_per_weight(name: str, batch_size: float) -> None:
    """Compute side at a context of one token, where attention's own products vanish."""
    d = deploy(name, calibration="unit")
    m, chip = model(name), d.cluster.chip
    table = d.table()
    kept = replace(table, rows=tuple(row for row in table.rows if row.name not in SMALL_ROWS))
    found = kept.time(Batch(decode_sequences=batch_size, context_len=1.0))
    expected = bb.compute_s(batch_size, m.active_params, chip.flop_per_s("bf16"))
    assert found.by_resource["compute"] == pytest.approx(expected, rel=0.02)
    if batch_size == 4096.0:
        assert found.seconds == pytest.approx(expected, rel=0.02)


@settings(max_examples=30)
@given(batch_size=st.floats(1.0, 3e4), context_len=st.floats(1.0, 1e5))
def test_every_table_is_at_least_the_larger_of_its_sums(batch_size: float, context_len: float) -> None:
    """A sum of maxima is never below the maximum of sums."""
    table = deploy("llama-3.1-70b", "tp=8", on="dgx-h100", calibration="unit").table()
    batch = Batch(decode_sequences=batch_size, context_len=context_len)
    assert float(table.seconds(batch, "serial")) >= float(table.seconds(batch, "blackboard")) * (1 - 1e-12)


def test_the_mixture_reads_what_it_touches() -> None:
    """One token of DeepSeek-V3 reads its active weights; thousands read all."""
    d = deploy("deepseek-v3", calibration="unit")
    m = model("deepseek-v3")
    table = d.table()

    def read(batch_size: float) -> float:
        found = table.time(Batch(decode_sequences=batch_size, context_len=1.0))
        return sum(row.amounts.get("hbm", 0.0) for row in found.rows)

    lookup = m.vocab_size * m.d_model
    assert read(1.0) == pytest.approx(2.0 * m.active_params, rel=0.01)
    per_token = (read(40_000.0) - read(20_000.0)) / 20_000.0  # activations; beyond this all experts are touched
    assert read(20_000.0) - 20_000.0 * per_token == pytest.approx(2.0 * (m.total_params - lookup), rel=0.01)
