"""Small Hugging Face configurations, one a family, that tests change key by key."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "torch_dtype": "bfloat16",
}
QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3", "head_dim": 64}
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 6,
}
GPT_OSS: dict[str, Any] = {
    **LLAMA,
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 128,
}
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 13,
        "hidden_size": 256,
        "intermediate_size": 512,
        "sliding_window": 1024,
    },
}
LLAMA4: dict[str, Any] = {
    "model_type": "llama4",
    "torch_dtype": "bfloat16",
    "text_config": {
        **LLAMA,
        "model_type": "llama4_text",
        "num_hidden_layers": 8,
        "intermediate_size_mlp": 1024,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
    },
}
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 512,
    "sliding_window": 1024,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
