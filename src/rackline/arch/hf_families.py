"""Families of Hugging Face configurations: one function each, from its keys to our architecture table.

A key that is absent takes the default that the family's configuration class in the transformers library
documents, written out here, or is an error. Towers for images and sound are left out; the result is the
language model.

Sources: the classes ``*Config`` in src/transformers/models/*/configuration_*.py of huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rackline.arch.hf_config import HfConfig, Table

# ------------------------------------------------------------------------------------ parts of a transformer

_SILU = {"silu": "swiglu", "swish": "swiglu"}
_GELU = {"gelu_pytorch_tanh": "geglu", "gelu": "geglu"}
_LAYER_TYPES: dict[object, str] = {"sliding_attention": "window", "full_attention": "full"}


def _stack(c: HfConfig, *, tied: bool = False) -> Table:
    return {
        "num_layers": c.count("num_hidden_layers"),
        "d_model": c.count("hidden_size"),
        "vocab_size": c.count("vocab_size"),
        "tied_embeddings": c.flag("tie_word_embeddings", default=tied),
    }


def _gqa(c: HfConfig, *, bias: bool, output_bias: bool, qk_norm: bool = False) -> Table:
    heads, d_model = c.count("num_attention_heads"), c.count("hidden_size")
    kv_heads = c.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise c.fail("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    head_dim = c.optional("head_dim")
    if head_dim is None and d_model % heads:
        raise c.fail("num_attention_heads", f"a divisor of hidden_size {d_model}, or a head_dim beside it")
    return {
        "kind": "gqa",
        "num_q_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim or d_model // heads,
        "bias": bias,
        "output_bias": output_bias,
        "qk_norm": qk_norm,
    }


def _windows(c: HfConfig, key: str, kinds: Sequence[str]) -> Table:
    """The window of some layers and the shortest pattern that repeats to their kinds."""
    if "window" not in kinds:
        return {}
    window: Table = {"window": c.count(key)}
    if "full" not in kinds:
        return window
    period = next(n for n in range(1, len(kinds) + 1) if all(k == kinds[i % n] for i, k in enumerate(kinds)))
    return window | {"pattern": list(kinds[:period])}


def _window_everywhere(c: HfConfig) -> Table:
    """Mistral's rule: all layers have the window if there is one."""
    layers = c.count("num_hidden_layers")
    kinds = ["full" if c.optional("sliding_window") is None else "window"] * layers
    return _windows(c, "sliding_window", c.items("layer_types", _LAYER_TYPES, layers) or kinds)


def _window_above(c: HfConfig) -> Table:
    """Qwen's rule: the layers from max_window_layers on have the window, if use_sliding_window is set."""
    if not c.flag("use_sliding_window", default=False):
        return {}
    layers = c.count("num_hidden_layers")
    kinds = c.items("layer_types", _LAYER_TYPES, layers)
    if kinds is None:
        full = min(layers, c.count("max_window_layers", minimum=0))
        kinds = ["full"] * full + ["window"] * (layers - full)
    return _windows(c, "sliding_window", kinds)


def _every(c: HfConfig, step: int) -> Table:
    """Layers step - 1, 2 step - 1, ... are mixtures, the others dense."""
    if step > c.count("num_hidden_layers"):
        raise c.fail("num_hidden_layers", f"at least the spacing {step} of the mixtures")
    return {"first_dense_layers": step - 1, "every": step}


def _ffn(c: HfConfig, width: int, *, bias: bool = False) -> Table:
    return {"kind": c.choice("hidden_act", _SILU, default="swiglu"), "d_ff": width, "bias": bias}


def _experts(c: HfConfig, number_key: str, width: int, chosen_key: str = "num_experts_per_tok") -> Table:
    number = c.count(number_key)
    chosen = c.count(chosen_key)
    if chosen > number:
        raise c.fail(chosen_key, f"at most {number_key} {number}")
    return {"num_experts": number, "experts_per_token": chosen, "d_expert": width}


# ------------------------------------------------------------------------------------------------- families


def _llama(c: HfConfig) -> Table:
    bias = c.flag("attention_bias", default=False)
    ffn = _ffn(c, c.count("intermediate_size"), bias=c.flag("mlp_bias", default=False))
    return {**_stack(c), "attention": _gqa(c, bias=bias, output_bias=bias), "ffn": ffn}


def _mistral(c: HfConfig) -> Table:
    attention = {**_gqa(c, bias=False, output_bias=False), **_window_everywhere(c)}
    return {**_stack(c), "attention": attention, "ffn": _ffn(c, c.count("intermediate_size"))}


def _mixtral(c: HfConfig) -> Table:
    # intermediate_size is the width of one expert; there are no dense layers.
    return {**_mistral(c), "moe": _experts(c, "num_local_experts", c.count("intermediate_size"))}


def _qwen2(c: HfConfig) -> Table:
    # Queries, keys and values always have biases, the output projection never; there is no key for it.
    attention = {**_gqa(c, bias=True, output_bias=False), **_window_above(c)}
    return {**_stack(c), "attention": attention, "ffn": _ffn(c, c.count("intermediate_size"))}


def _qwen3(c: HfConfig) -> Table:
    bias = c.flag("attention_bias", default=False)
    attention = {**_gqa(c, bias=bias, output_bias=bias, qk_norm=True), **_window_above(c)}
    return {**_stack(c), "attention": attention, "ffn": _ffn(c, c.count("intermediate_size"))}


def _qwen3_moe(c: HfConfig) -> Table:
    if c.values.get("mlp_only_layers"):
        raise c.fail("mlp_only_layers", "an empty list (dense layers at free places are not supported)")
    moe = _experts(c, "num_experts", c.count("moe_intermediate_size"))
    return {**_qwen3(c), "moe": {**moe, **_every(c, c.count("decoder_sparse_step", default=1))}}


def _qwen3_5_moe(c: HfConfig) -> Table:
    """Gated delta layers with full attention in between; every layer a mixture of experts with a gated shared one."""
    if c.values.get("mlp_only_layers"):
        raise c.fail("mlp_only_layers", "an empty list (dense layers at free places are not supported)")
    step = c.count("full_attention_interval")
    layers = c.count("num_hidden_layers")
    given = c.values.get("layer_types")
    pattern = ["full" if (index + 1) % step == 0 else "linear" for index in range(step)]
    if given is not None:
        named = ["full_attention" if kind == "full" else "linear_attention" for kind in pattern]
        if given != [named[index % step] for index in range(layers)]:
            raise c.fail("layer_types", f"full attention in every layer whose number is divisible by {step}")
    attention = _gqa(c, bias=False, output_bias=False, qk_norm=True)
    shared = c.count("shared_expert_intermediate_size")
    width = c.count("moe_intermediate_size")
    moe = {**_experts(c, "num_experts", width), "num_shared_experts": 1, "d_shared": shared, "shared_gate": True}
    return {
        **_stack(c),
        "attention": {**attention, "pattern": pattern, "output_gate": bool(c.values.get("attn_output_gate", False))},
        "ffn": _ffn(c, width),
        "moe": moe,
        "linear": {
            "num_key_heads": c.count("linear_num_key_heads"),
            "num_value_heads": c.count("linear_num_value_heads"),
            "key_head_dim": c.count("linear_key_head_dim"),
            "value_head_dim": c.count("linear_value_head_dim"),
            "conv_kernel": c.count("linear_conv_kernel_dim"),
        },
    }


def _deepseek_v3(c: HfConfig) -> Table:
    if c.flag("attention_bias", default=False):
        raise c.fail("attention_bias", "false (latent attention has no biases)")
    attention: Table = {
        "kind": "mla",
        "num_q_heads": c.count("num_attention_heads"),
        "q_lora_rank": c.count("q_lora_rank", default=0),
        "kv_lora_rank": c.count("kv_lora_rank"),
        "qk_nope_head_dim": c.count("qk_nope_head_dim"),
        "qk_rope_head_dim": c.count("qk_rope_head_dim"),
        "v_head_dim": c.count("v_head_dim"),
    }
    if "q_lora_rank" not in c.values:
        raise c.fail("q_lora_rank", "a whole number, or null for queries without a latent")
    c.choice("topk_method", {"noaux_tc": ""}, default="")  # without it there would be no router bias
    if c.count("moe_layer_freq", default=1) != 1:
        raise c.fail("moe_layer_freq", "1")
    dense = c.count("first_k_dense_replace", minimum=0)
    if dense > c.count("num_hidden_layers"):
        raise c.fail("first_k_dense_replace", f"at most num_hidden_layers {c.count('num_hidden_layers')}")
    width = c.count("moe_intermediate_size")
    shared = c.count("n_shared_experts", default=0, minimum=0)
    moe: Table = {
        **_experts(c, "n_routed_experts", width),
        "num_shared_experts": shared,
        "d_shared": shared * width,
        "first_dense_layers": dense,
        # Balancing without an auxiliary loss keeps one correction per expert beside the router.
        "router_bias": True,
    }
    return {
        **_stack(c),
        "attention": attention,
        "ffn": _ffn(c, c.count("intermediate_size")),
        "moe": moe,
        "mtp_layers": c.count("num_nextn_predict_layers", default=0, minimum=0),
    }


def _gpt_oss(c: HfConfig) -> Table:
    bias, layers = c.flag("attention_bias", default=True), c.count("num_hidden_layers")
    # The configuration class alternates windows and full attention, beginning with a window.
    kinds = c.items("layer_types", _LAYER_TYPES, layers) or [("window", "full")[i % 2] for i in range(layers)]
    attention = {
        **_gqa(c, bias=bias, output_bias=bias),
        **_windows(c, "sliding_window", kinds),
        "sinks": True,
    }
    width = c.count("intermediate_size")
    moe = {**_experts(c, "num_local_experts", width), "bias": True, "router_bias": True}
    return {**_stack(c), "attention": attention, "ffn": _ffn(c, width), "moe": moe}


def _gemma3_text(c: HfConfig) -> Table:
    # Defaults of Gemma3TextConfig, on which published files rely.
    layers, bias = c.count("num_hidden_layers"), c.flag("attention_bias", default=False)
    kinds = c.items("layer_types", _LAYER_TYPES, layers)
    if kinds is None:
        period = c.count("sliding_window_pattern", default=6)
        kinds = ["window" if (i + 1) % period else "full" for i in range(layers)]
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}
    given = {key: value for key, value in c.values.items() if value is not None}
    full = HfConfig(values={**defaults, "sliding_window": 4096, **given}, where=c.where, prefix=c.prefix)
    attention = _gqa(full, bias=bias, output_bias=bias, qk_norm=True)
    activation = full.choice("hidden_activation", _GELU, default="geglu")
    return {
        **_stack(full, tied=True),
        "norms_per_layer": 4,
        "attention": {**attention, **_windows(full, "sliding_window", kinds)},
        "ffn": {"kind": activation, "d_ff": full.count("intermediate_size")},
    }


def _llama4_text(c: HfConfig) -> Table:
    # A chunk of attention is taken as a window of its size: exact within the first chunk; beyond it a token
    # reads 1 to one chunk of tokens, half of the window on average.
    layers, bias = c.count("num_hidden_layers"), c.flag("attention_bias", default=False)
    interval = c.count("no_rope_layer_interval", default=4)
    table: dict[object, str] = {"chunked_attention": "window", "full_attention": "full"}
    kinds = c.items("layer_types", table, layers)
    if kinds is None and c.values.get("no_rope_layers"):
        kinds = c.items("no_rope_layers", {1: "window", 0: "full"}, layers)
    if kinds is None:
        kinds = ["window" if (i + 1) % interval else "full" for i in range(layers)]
    step = c.count("interleave_moe_layer_step", default=1)
    if c.values.get("moe_layers") not in (None, list(range(step - 1, layers, step))):
        raise c.fail("moe_layers", f"every layer in {step}, as interleave_moe_layer_step says")
    width = c.count("intermediate_size")
    moe: Table = {
        **_experts(c, "num_local_experts", width),
        "num_shared_experts": 1,
        "d_shared": width,
        **_every(c, step),
    }
    # use_qk_norm normalises without weights, so it leaves the shape as it is.
    attention = _gqa(c, bias=bias, output_bias=bias)
    return {
        **_stack(c),
        "attention": {**attention, **_windows(c, "attention_chunk_size", kinds)},
        "ffn": _ffn(c, c.count("intermediate_size_mlp")),
        "moe": moe,
    }


FAMILIES: dict[str, Callable[[HfConfig], Table]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "gpt_oss": _gpt_oss,
    "gemma3_text": _gemma3_text,
    "llama4_text": _llama4_text,
}

WRAPPERS: dict[str, tuple[str, ...]] = {
    "kimi_k25": ("kimi_k2", "deepseek_v3"),
    "gemma3": ("gemma3_text",),
    "llama4": ("llama4_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
}
"""Families that keep their language model in text_config, and what it may be."""
