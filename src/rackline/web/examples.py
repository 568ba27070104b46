"""An example of a request for each question, as the description of the API shows it; tests ask each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "plan": {"model": "llama-3.1-8b", "on": "l40s-8", "input": "2k", "output": 500, "tpot": "50ms", "chips": 1,
             "layout": "tp=1", "precision": "fp8", "serving": "aggregated"},
    "train": {"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 64, "tokens": "1T", "global_batch": "4M"},
    "simulate": {"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 1, "rate": "5", "input": "1k", "output": 200,
                 "requests": 500},
    "explain": {"model": "llama-3.1-70b", "on": "dgx-h100", "batch": 64, "context": "8k", "layout": "tp=8"},
    "fit": {"model": "llama-3.1-70b", "on": "dgx-h100", "context": "32k"},
    "tiers": {"model": "llama-3.1-70b", "on": "dgx-h100", "prompt": "100k", "layout": "tp=8"},
    "price": {"model": "llama-3.1-8b", "on": "dgx-h100", "layout": "tp=1"},
    "infer-prices": {"sheets": ["google-gemini-3.1-pro"]},
    "budget": {"quality_of": "70b@15T"},
    "validate": {
        "files": ["cases.jsonl"],
        "uploads": {
            "cases.jsonl": '{"id": "a", "kind": "static-batch", "source": "own", "model": "llama-3.1-8b", '
            '"chip": "h100-sxm", "num_chips": 1, "stack": "trtllm", "precision": "bf16", "layout": {"tp": 1}, '
            '"batch_size": 8, "input_len": 1000, "output_len": 100, "measured": {"token_s": 0.008}}\n'
        },
    },
    "calibrate": {
        "tables": ["gemm.csv"],
        "uploads": {
            "gemm.csv": "chip,stack,stack_version,kernel,dtype,m,n,k,seconds\n"
            "h100-sxm,own,1,own,bfloat16,64,8192,8192,6.2e-05\nh100-sxm,own,1,own,bfloat16,512,8192,8192,1.3e-04\n"
            "h100-sxm,own,1,own,bfloat16,4096,8192,8192,8.6e-04\nh100-sxm,own,1,own,bfloat16,64,4096,4096,2.1e-05\n"
            "h100-sxm,own,1,own,bfloat16,8192,4096,4096,4.4e-04\nh100-sxm,own,1,own,bfloat16,8,4096,4096,1.9e-05\n"
        },
    },
    "lecture": {"claim": "C99"},
    "rl": {"model": "qwen3-8b", "on": "dgx-h100", "chips": 16, "output": "1k"},
    "chips": {"name": "h100-sxm"},
    "clusters": {"name": "gb200-nvl72"},
    "models": {"name": "deepseek-v3"},
    "memory": {},
    "compare": {"names": ["h100-sxm", "b200-sxm"]},
    "encode": {
        "model": "config.json",
        "on": "dgx-h100",
        "uploads": {
            "config.json": '{"model_type": "qwen3_vl", "dtype": "bfloat16", "text_config": {"model_type": '
            '"qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "vocab_size": 151936, '
            '"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}, '
            '"vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, '
            '"patch_size": 16, "spatial_merge_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304}}'
        },
    },
    "ask": {
        "file": "questions.toml",
        "uploads": {
            "questions.toml": '[[questions]]\nask = "fit"\nmodel = "llama-3.1-8b"\non = ["dgx-h100", "l40s-8"]\n'
        },
    },
    "schema": {"name": "fit"},
}  # fmt: skip
"""By question: the body of a `POST`."""
