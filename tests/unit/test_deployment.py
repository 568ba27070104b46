"""Deployments: which rows a layout has and what they cost."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from helpers import deploy, model
from rackline.errors import LayoutError
from rackline.parallel import stage_imbalance
from rackline.passes import Batch
from rackline.plain import plain

DECODE = Batch(decode_sequences=32.0, context_len=1000.0)


def rows(name: str, layout: str, batch: Batch = DECODE, **kept: str) -> dict[str, float]:
    """Name of each row in use → the sum of its amounts."""
    found = deploy(name, layout, **kept).table().time(batch)
    return {row.name: sum(row.amounts.values()) for row in found.rows if row.used}


def test_impossible_layouts_are_refused() -> None:
    with pytest.raises(LayoutError, match="needs 16 chips, the cluster has 8"):
        deploy("llama-3.1-70b", "tp=16", on="dgx-h100")


def test_one_chip_does_not_talk() -> None:
    found = deploy("llama-3.1-70b").table().time(DECODE)
    assert found.by_resource["scale_up"] == found.by_resource["scale_out"] == 0.0
    assert sum(row.seconds for row in found.rows if row.group == "tensor parallel") == 0.0


def test_tensor_parallel_reduces_two_blocks_a_layer_and_the_embedding() -> None:
    """80 layers, 2 all-reduces each, one after the embedding, of 2·8192 B per token; a reducing switch moves 9/8."""
    used = rows("llama-3.1-70b", "tp=8", on="dgx-h100")
    (moved,) = (amount for name, amount in used.items() if name.startswith("all_reduce"))
    per_call = 32 * 2 * 8192
    candidates = [161 * per_call * factor for factor in (9 / 8, 7.0, 2.0)]
    assert any(moved == pytest.approx(candidate) for candidate in candidates)


def test_a_parallel_block_reduces_once_a_layer() -> None:
    table = deploy("palm-540b", "tp=8", on="dgx-h100").table()
    ring = next(row for row in table.rows if row.name == "all_reduce_ring")
    assert float(np.asarray(ring.launches["1"])) == 118 + 1


def test_expert_parallel_ranks_exchange_tokens_only_between_attention_ranks() -> None:
    shared = rows("deepseek-v3", "tp=8,ep=8", label="fp8")
    apart = rows("deepseek-v3", "attention_dp=8,ep=8", label="fp8")
    assert not any(name.startswith(("dispatch", "combine")) for name in shared)
    assert sum(name.startswith("dispatch") for name in apart) == 1
    assert sum(name.startswith("combine") for name in apart) == 1


def test_dispatch_sends_a_token_to_its_distinct_ranks() -> None:
    table = deploy("deepseek-v3", "attention_dp=64,ep=64", label="fp8").table()
    direct = next(row for row in table.rows if row.name == "dispatch_direct")
    # 8 of the 128 experts of four open groups, on 32 ranks of four experts: 7.36 distinct ranks, 7.7 without groups
    # (ledger Y13); 7168 bytes in fp8, 58 layers, one token of 64 is mine, 63/64 leave
    distinct = 32 * (1 - math.comb(124, 8) / math.comb(128, 8))
    per_group_token = 58 * 7168 * distinct / 64 * 63 / 64
    assert float(np.asarray(direct.scale_up["group_tokens"])) == pytest.approx(per_group_token, rel=0.01)


def test_context_is_free_of_weights_and_weights_of_context() -> None:
    table = deploy("llama-3.1-70b", calibration="unit").table()

    def hbm(context: float) -> dict[str, float]:
        batch = Batch(decode_sequences=8.0, context_len=context)
        return {row.name: row.amounts.get("hbm", 0.0) for row in table.time(batch).rows}

    short, long = hbm(0.0), hbm(1000.0)
    changed = {name for name in short if short[name] != long[name]}
    assert changed == {"attention_decode_full"}
    grown = long["attention_decode_full"] - short["attention_decode_full"]
    assert grown == pytest.approx(8 * 1000 * model("llama-3.1-70b").kv_bytes_per_token(2.0))


def test_prefill_of_mla_expands_the_prefix_again() -> None:
    table = deploy("deepseek-v3", label="bf16").table()

    def flop(prefix: float) -> dict[str, float]:
        batch = Batch(prefill_sequences=1.0, chunk_tokens=100.0, prefix_tokens=prefix)
        return {row.name: row.amounts.get("compute", 0.0) for row in table.time(batch).rows}

    fresh, behind = flop(0.0), flop(900.0)
    assert behind["kv_up"] == pytest.approx(10 * fresh["kv_up"])
    assert behind["q_up"] == fresh["q_up"]
    assert fresh["attention_decode_mla"] == 0.0


def test_quantised_weights_read_fewer_bytes() -> None:
    bf16 = deploy("llama-3.1-70b", calibration="unit").table().time(DECODE)
    fp8 = deploy("llama-3.1-70b", label="fp8,kv=bf16", calibration="unit").table().time(DECODE)

    def read(found, name: str) -> float:  # type: ignore[no-untyped-def]
        return next(row.amounts["hbm"] for row in found.rows if row.name == name)

    assert read(fp8, "ffn_up") / read(bf16, "ffn_up") == pytest.approx(0.5, rel=0.02)
    assert read(fp8, "head") == read(bf16, "head")
    assert read(fp8, "attention_decode_full") == read(bf16, "attention_decode_full")


def test_pipeline_stages_send_activations() -> None:
    assert "pipeline_send" in rows("llama-3.1-70b", "tp=4,pp=2", on="dgx-h100")
    assert "pipeline_send" not in rows("llama-3.1-70b", "tp=8", on="dgx-h100")


def test_pipeline_stretch_is_the_fullest_stage() -> None:
    assert deploy("llama-3.1-70b", "pp=4").stage_imbalance == 1.0
    assert deploy("llama-3.1-70b", "pp=3").stage_imbalance == pytest.approx(27 * 3 / 80)
    stretch = stage_imbalance(model("deepseek-v3"), np.array([1, 2, 4, 8]))
    assert np.asarray(stretch).tolist() == pytest.approx([1, 31 * 2 / 61, 16 * 4 / 61, 8 * 8 / 61])
    assert stage_imbalance(model("lecture-frontier"), 1) == 1.0


def test_aggregate_models_have_three_rows() -> None:
    table = deploy("lecture-frontier", "tp=72").table()
    assert [row.name for row in table.rows] == ["weights", "kv_cache", "kv_write"]


def test_plain_data_is_json() -> None:
    d = deploy("deepseek-v3", "tp=8,ep=8", label="fp8")
    data = json.loads(json.dumps(plain(d)))
    assert data["layout"]["ep"] == 8
    assert data["chip"] == "gb200"
    found = d.table().time(DECODE)
    assert json.loads(json.dumps(plain(found)))["seconds"] == found.seconds
