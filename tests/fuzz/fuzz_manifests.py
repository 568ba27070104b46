"""Manifests: the tensors of a checkpoint and of an adapter, sweeps, price sheets, calibrations and machines."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

from mutate import ODD, ODD_TEXTS, ROOT, broken, changed, changed_line, json_text, write

_DATA = ROOT / "src/rackline/catalog/data"
_PRICES = sorted((_DATA / "prices").glob("*.toml"))[::6]
_NUMBERS = [_DATA / kind / f"{name}.toml" for kind in ("calibrations",) for name in ("vllm", "sglang")]
_MACHINE = ROOT / "docs/measured/machine-llama-cpp-fp32.toml"
_MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
_SHAPES = {
    "model.embed_tokens.weight": [128, 64], "lm_head.weight": [128, 64], "model.norm.weight": [64],
    "model.layers.0.self_attn.q_proj.weight": [64, 64], "model.layers.0.self_attn.k_proj.weight": [32, 64],
    "model.layers.0.self_attn.v_proj.weight": [32, 64], "model.layers.0.self_attn.o_proj.weight": [64, 64],
    "model.layers.0.mlp.gate_proj.weight": [128, 64], "model.layers.0.mlp.up_proj.weight": [128, 64],
    "model.layers.0.mlp.down_proj.weight": [64, 128], "model.layers.0.input_layernorm.weight": [64],
    "model.layers.0.post_attention_layernorm.weight": [64],
}  # fmt: skip
_HEADER: dict[str, Any] = {
    name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 2]} for name, shape in _SHAPES.items()
}
_INDEX: dict[str, Any] = {"metadata": {"total_size": 100}, "weight_map": dict.fromkeys(_SHAPES, "model.safetensors")}
_ADAPTER: dict[str, Any] = {
    "peft_type": "LORA", "r": 16, "lora_alpha": 32, "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
    "target_modules": ["q_proj", "v_proj"], "bias": "none", "rank_pattern": {}, "layers_to_transform": None,
}  # fmt: skip
_SWEEP = """ask = "explain"
title = "small"

[options]
model = "llama-3.1-8b"
on = "dgx-h100"
batch = { log = [1, 8], num = 3 }
context = ["1k", "2k"]
layout = "tp=1"

[set]
"chip.usd_per_hour" = [1.0, 2.0]

[inputs]
utilisation = 0.6

[derived]
usd = "usd_per_mtok_output / utilisation"

[constraints]
fast = "server_s <= 0.05"

[objectives]
usd = "min"

[output]
results = ["server_s", "usd_per_mtok_output"]
"""
_ON = ["--on", "dgx-h100", "--chips", "1", "--batch", "2", "--context", "1k", "--layout", "tp=1"]


def manifest(rng: Random, folder: Path) -> list[str]:
    """A command that reads one."""
    match rng.randrange(6):
        case 0 | 1:
            return ["models", _checkpoint(rng, folder / "model")]
        case 2:
            file = write(rng, folder / "adapter_config.json", json_text(changed(rng, _ADAPTER)), share=0.3)
            adapter = file if rng.random() < 0.5 else str(folder)
            return ["explain", "llama-3.1-8b", *_ON, "--adapter", adapter, "--adapters", rng.choice(["2", *ODD_TEXTS])]
        case 3:
            return ["sweep", write(rng, folder / "s.toml", changed_line(rng, _SWEEP), share=0.3), "--dry-run"]
        case 4:
            text = changed_line(rng, rng.choice(_PRICES).read_text(encoding="utf-8"))
            return ["infer-prices", write(rng, folder / "p.toml", text, share=0.2)]
        case _:
            numbers = rng.choice([*_NUMBERS, _MACHINE])
            file = write(rng, folder / "n.toml", changed_line(rng, numbers.read_text(encoding="utf-8")), share=0.2)
            if numbers == _MACHINE:
                return [
                    "explain",
                    "llama-3.1-8b",
                    "--on",
                    file,
                    "--batch",
                    "2",
                    "--context",
                    "1k",
                    "--precision",
                    "fp32",
                ]
            return ["explain", "llama-3.1-8b", *_ON, "--calibration", file]


def _checkpoint(rng: Random, folder: Path) -> str:
    """A folder as the Hub has them: configuration, index, one file of tensors that ends behind its header."""
    folder.mkdir()
    (folder / "config.json").write_text(json_text(changed(rng, _MODEL) if rng.random() < 0.3 else _MODEL))
    if rng.random() < 0.6:
        data = changed(rng, _INDEX) if rng.random() < 0.7 else _INDEX
        write(rng, folder / "model.safetensors.index.json", json_text(data), share=0.2)
    header = changed(rng, _HEADER) if rng.random() < 0.6 else _HEADER
    text = json.dumps(header)
    body = broken(rng, text) if rng.random() < 0.3 else text.encode(errors="surrogatepass")
    length = len(body)
    if rng.random() < 0.2:
        odd = rng.choice([one for one in (*ODD, 2**62) if isinstance(one, int) and 0 <= one < 2**63])
        length = int(odd)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + body)
    return str(folder)
