"""Draft models of speculative decoding by name: their pass, their memory, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from helpers import deploy
from rackline.errors import InputError
from rackline.parallel.deployment import draft_table

RUN: dict[str, Any] = {"on": "dgx-h100", "layout": "tp=4", "rate": 2, "requests": 100, "input": "1k", "output": 100}
EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 8192,
    "intermediate_size": 28672, "max_position_embeddings": 2048, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_hidden_layers": 1, "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "vocab_size": 128256,
    "draft_vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_small_model_drafts_with_all_of_its_layers() -> None:
    from dataclasses import replace

    large = deploy("llama-3.1-70b", "tp=4", on="dgx-h100")
    own = replace(large, model=replace(large.model, draft=rl.model("llama-3.1-8b")))
    names = {row.name: row for row in draft_table(own).rows}
    assert names["ffn_up"].hbm["1"] == 32 * 2 * 4096 * 2 * 14336 / 4
    assert "draft_in" not in names
    head = {row.name for row in draft_table(large).rows}
    assert "draft_in" in head


def test_simulation_holds_the_draft_model_and_takes_its_passes() -> None:
    head = rl.simulate("llama-3.1-70b", speculate="3=2.4", **RUN)
    small = rl.simulate("llama-3.1-70b", speculate="3=2.4", draft="llama-3.1-8b", **RUN)
    ours, theirs = small.to_dict(), head.to_dict()
    assert ours["tpot_s"]["mean"] > theirs["tpot_s"]["mean"]
    assert ours["deployment"]["kv_tokens_per_rank"] < theirs["deployment"]["kv_tokens_per_rank"]
    assert [one["used"] for one in ours["model_origins"]] == ["llama-3.1-70b", "llama-3.1-8b"]
    assert [text for text in head.warnings if "no layer for multi-token prediction" in text]
    assert not [text for text in small.warnings if "vocabulary" in text]


def test_a_head_has_its_own_vocabulary_and_joins_three_states(tmp_path: Path) -> None:
    from dataclasses import replace

    (tmp_path / "config.json").write_text(json.dumps(EAGLE), encoding="utf-8")
    eagle = rl.model(str(tmp_path))
    assert eagle.vocab_size == 32000
    large = deploy("llama-3.1-70b", "tp=4", on="dgx-h100")
    rows = {row.name: row for row in draft_table(replace(large, model=replace(large.model, draft=eagle))).rows}
    assert rows["draft_in"].hbm["1"] == 2 * 3 * 8192 * 8192
    assert rows["head"].hbm["1"] == 2 * 8192 * 8000
    found = rl.simulate("llama-3.1-70b", speculate="3=2.4", draft=str(tmp_path), **RUN)
    assert not found.warnings


def test_plan_says_when_a_named_draft_pays() -> None:
    asked: dict[str, Any] = {"on": "dgx-h100", "chips": 4, "layout": "tp=4", "input": "1k", "output": 200}
    asked |= {"serving": "aggregated", "precision": "bf16", "speculate": "3=2.4"}
    head = rl.plan("llama-3.1-70b", **asked).result.speculation
    small = rl.plan("llama-3.1-70b", draft="llama-3.1-8b", **asked).result.speculation
    assert small[1].breakeven[0] > head[1].breakeven[0]
    assert small[0].best_batch < head[0].best_batch


def test_refusals_and_warnings() -> None:
    with pytest.raises(InputError, match=r"draft: got 'llama-3\.1-8b', allowed: together with `speculate`"):
        rl.simulate("llama-3.1-70b", draft="llama-3.1-8b", **RUN)
    other = rl.simulate("llama-3.1-70b", draft="qwen3-0.6b", speculate=2, **RUN)
    assert [text for text in other.warnings if "vocabulary of 151,936 tokens" in text]
    assert [text for text in other.warnings if "made for their models, not with qwen3-0.6b" in text]
    own = rl.simulate("deepseek-v3", on="gb200-nvl72", layout="tp=8", speculate=2, rate=1, requests=20, input=500,
                      output=20)  # fmt: skip
    assert not [text for text in own.warnings if "multi-token" in text]
