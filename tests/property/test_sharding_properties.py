"""Properties of cutting a model: a shard is the whole over n where it divides, and never less."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from helpers import deploy, layouts, model, types
from rackline.parallel import Layout
from rackline.parallel.memory import kv_bytes_per_sequence, weight_bytes
from rackline.passes import Batch

MODELS = ("llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b")
SHARDED = ("attention", "ffn", "experts", "shared_experts")


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40)
@given(data=st.data())
def test_all_chips_together_hold_at_least_the_whole(name: str, data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(layouts(name, 32)))
    p = types("native", name, "gb200-nvl72")
    whole = weight_bytes(model(name), Layout(), p)
    shard = weight_bytes(model(name), layout, p)
    chips = layout.chips_per_replica
    for kind, value in whole.items():
        if kind == "head" and layout.pp > 1:  # the fullest chip has the embedding or the head, not both
            continue
        assert float(shard[kind]) * chips >= float(value) * (1 - 1e-12), kind
    together = sum(map(float, shard.values()))
    assert together * chips >= sum(map(float, whole.values())) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-3.1-70b", Layout(tp=8)),
        ("llama-3.1-70b", Layout(tp=4, pp=4)),
        ("qwen3-235b-a22b", Layout(tp=4, ep=4)),
        ("qwen3-235b-a22b", Layout(tp=4, moe_tp=4)),
        ("mixtral-8x7b", Layout(tp=8, ep=4, moe_tp=2)),
    ],
)
def test_a_shard_is_the_whole_over_n_where_it_divides(name: str, layout: Layout) -> None:
    p = types("bf16", name, "gb200-nvl72")
    whole = weight_bytes(model(name), Layout(), p)
    shard = weight_bytes(model(name), layout, p)
    for kind in set(SHARDED) & set(whole):
        chips = layout.tp * layout.pp
        assert float(shard[kind]) == pytest.approx(float(whole[kind]) / chips, rel=1e-12), kind


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=30)
@given(data=st.data(), tokens=st.floats(1.0, 4096.0))
def test_all_chips_together_do_at_least_the_work(name: str, data: st.DataObject, tokens: float) -> None:
    """FLOP over the chips of one stage, each attention-dp rank with its own tokens."""
    layout = data.draw(st.sampled_from([x for x in layouts(name, 32) if x.pp == 1]))
    batch = Batch(decode_sequences=tokens, context_len=500.0, group_tokens=tokens * layout.attention_dp)
    everything = Batch(decode_sequences=tokens * layout.attention_dp, context_len=500.0)

    def flop(at: Layout, work: Batch) -> dict[str, float]:
        found = deploy(name, at).table().time(work)
        return {row.name: row.amounts.get("compute", 0.0) for row in found.rows}

    alone, cut = flop(Layout(), everything), flop(layout, batch)
    assert sum(alone.values()) > 0.0
    for row, amount in alone.items():
        assert cut[row] * layout.chips_per_replica >= amount * (1 - 1e-9), row


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_dense_work_divides_by_tp(tp: int) -> None:
    batch = Batch(
        decode_sequences=64.0,
        context_len=2000.0,
        prefill_sequences=2.0,
        chunk_tokens=512.0,
        prefix_tokens=100.0,
    )
    one = deploy("llama-3.1-70b", "tp=1").table().time(batch)
    cut = deploy("llama-3.1-70b", f"tp={tp}").table().time(batch)
    amounts = {row.name: row.amounts for row in cut.rows}
    for row in one.rows:
        if row.amounts.get("compute"):
            assert amounts[row.name]["compute"] == pytest.approx(row.amounts["compute"] / tp, rel=1e-12)
    assert sum(row.amounts.get("compute", 0.0) > 0.0 for row in one.rows) > 5
    cores = [row for row in one.rows if row.name.startswith("attention_decode")]
    assert cores
    for row in cores:
        assert amounts[row.name]["hbm"] == pytest.approx(row.amounts["hbm"] / tp, rel=1e-12)


@pytest.mark.parametrize("ep", [2, 8, 32])
def test_balanced_experts_divide_by_ep(ep: int) -> None:
    from rackline.parallel import Routing

    def experts(ranks: int) -> dict[str, float]:
        layout = Layout(attention_dp=ranks, ep=ranks)
        d = deploy("deepseek-v3", layout, label="bf16", routing=Routing(law="balanced"))
        batch = Batch(decode_sequences=4096.0 / ranks, context_len=10.0, group_tokens=4096.0)
        return next(row.amounts for row in d.table().time(batch).rows if row.name == "experts")

    one, cut = experts(1), experts(ep)
    assert cut["compute"] == pytest.approx(one["compute"] / ep, rel=1e-9)
    assert cut["hbm"] == pytest.approx(one["hbm"] / ep, rel=1e-9)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-235b-a22b", "gpt-oss-120b"])
@settings(max_examples=20)
@given(data=st.data())
def test_kv_is_copied_when_tp_exceeds_the_heads(name: str, data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from([x for x in layouts(name, 64) if x.pp == 1]))
    p = types("bf16", name, "gb200-nvl72")
    held = float(np.asarray(kv_bytes_per_sequence(model(name), layout, p, 1000.0)))
    whole = float(np.asarray(model(name).kv_bytes(1000.0)))
    assert held == pytest.approx(whole / min(layout.tp, model(name).num_kv_heads), rel=1e-12)


@settings(max_examples=20)
@given(data=st.data())
def test_a_latent_is_copied_on_every_chip(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from([x for x in layouts("deepseek-v3", 64) if x.pp == 1]))
    p = types("bf16", "deepseek-v3", "gb200-nvl72")
    held = float(np.asarray(kv_bytes_per_sequence(model("deepseek-v3"), layout, p, 1000.0)))
    assert held == pytest.approx(70272.0 * 1000)
