"""Parts that families of Hugging Face configurations share: stack, attention, windows, feed-forward, experts."""

from __future__ import annotations

from collections.abc import Sequence

from rackline.arch.hf_config import HfConfig, Table

SILU = {"silu": "swiglu", "swish": "swiglu"}
GELU = {"gelu_pytorch_tanh": "geglu", "gelu": "geglu"}
LAYER_TYPES: dict[object, str] = {"sliding_attention": "window", "full_attention": "full"}


def stack(c: HfConfig, *, tied: bool = False) -> Table:
    return {
        "num_layers": c.count("num_hidden_layers"),
        "d_model": c.count("hidden_size"),
        "vocab_size": c.count("vocab_size"),
        "tied_embeddings": c.flag("tie_word_embeddings", default=tied),
    }


def gqa(c: HfConfig, *, bias: bool, output_bias: bool, qk_norm: bool = False) -> Table:
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


def windows(c: HfConfig, key: str, kinds: Sequence[str]) -> Table:
    """The window of some layers and the shortest pattern that repeats to their kinds."""
    if "window" not in kinds:
        return {}
    window: Table = {"window": c.count(key)}
    if "full" not in kinds:
        return window
    period = next(n for n in range(1, len(kinds) + 1) if all(k == kinds[i % n] for i, k in enumerate(kinds)))
    return window | {"pattern": list(kinds[:period])}


def window_everywhere(c: HfConfig) -> Table:
    """Mistral's rule: all layers have the window if there is one."""
    layers = c.count("num_hidden_layers")
    kinds = ["full" if c.optional("sliding_window") is None else "window"] * layers
    return windows(c, "sliding_window", c.items("layer_types", LAYER_TYPES, layers) or kinds)


def window_above(c: HfConfig) -> Table:
    """Qwen's rule: the layers from max_window_layers on have the window, if use_sliding_window is set."""
    if not c.flag("use_sliding_window", default=False):
        c.leave("sliding_window", "max_window_layers")  # behind a switch that is off
        return {}
    layers = c.count("num_hidden_layers")
    kinds = c.items("layer_types", LAYER_TYPES, layers)
    if kinds is None:
        full = min(layers, c.count("max_window_layers", minimum=0))
        kinds = ["full"] * full + ["window"] * (layers - full)
    return windows(c, "sliding_window", kinds)


def every(c: HfConfig, step: int) -> Table:
    """Layers step - 1, 2 step - 1, ... are mixtures, the others dense."""
    if step > c.count("num_hidden_layers"):
        raise c.fail("num_hidden_layers", f"at least the spacing {step} of the mixtures")
    return {"first_dense_layers": step - 1, "every": step}


def ffn(c: HfConfig, width: int, *, bias: bool = False) -> Table:
    return {"kind": c.choice("hidden_act", SILU, default="swiglu"), "d_ff": width, "bias": bias}


def experts(c: HfConfig, number_key: str, width: int, chosen_key: str = "num_experts_per_tok") -> Table:
    number = c.count(number_key)
    chosen = c.count(chosen_key)
    if chosen > number:
        raise c.fail(chosen_key, f"at most {number_key} {number}")
    return {"num_experts": number, "experts_per_token": chosen, "d_expert": width}
