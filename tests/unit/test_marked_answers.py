"""What is uncertain about a model stands in every answer about it, in the Python API as on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from rackline.hub.checkpoint import INDEX

ONE: dict[str, Any] = {"on": "wse3-1"}
ASKS: dict[str, dict[str, Any]] = {
    "plan": {"input": "1k", "output": 50, "layout": "tp=1", "serving": "aggregated", **ONE},
    "simulate": {"rate": 1, "requests": 3, "input": 100, "output": 5, **ONE},
    "explain": {"batch": 1, "context": "1k", "layout": "tp=1", **ONE},
    "fit": {"context": "1k", **ONE},
    "price": {"contexts": "4k", "layout": "tp=1", "price": 10, **ONE},
    "tiers": {"prompt": "4k", "layout": "tp=1", "price": 10, **ONE},
    "train": {"on": "dgx-h100", "chips": 8, "tokens": "1G", "global_batch": "64k", "layout": "dp=8"},
    "models": {},
}
CONFIG = {
    "model_type": "quite_new", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1024, "max_position_embeddings": 65536,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("name", ASKS)
def test_an_assumed_family_is_marked(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    found = getattr(rl, name)(str(tmp_path), assume="llama", **ASKS[name])
    assert [text for text in found.warnings if "model_type 'quite_new' read as llama (--assume)" in text]
    assert found.to_dict()["warnings"] == list(found.warnings)


@pytest.mark.parametrize("name", ASKS)
def test_a_count_that_is_more_than_one_percent_off_is_marked(name: str, tmp_path: Path) -> None:
    from hub_server import header

    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "llama"}), encoding="utf-8")
    tensors = {"model.embed_tokens.weight": ("BF16", [1024, 512]), "lm_head.weight": ("BF16", [1024, 512])}
    (tmp_path / "model.safetensors").write_bytes(header(tensors))
    assert not (tmp_path / INDEX).exists()
    found = getattr(rl, name)(str(tmp_path), **ASKS[name])
    assert [text for text in found.warnings if "parameters counted" in text], found.warnings
