"""How a family of Hugging Face configurations is read by a row: names of keys, and what no key says.

Everything that a row does not state is as in Llama: grouped queries without biases, a gated block, two RMS norms a
layer, a head of its own. The rows are in `hf_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from rackline.arch.hf_config import HfConfig, Table, layer_count, layered

Flag = bool | tuple[str, bool]
"""Fixed for the family, or a key with its default."""

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
D_MODEL = ("hidden_size", "n_embd", "d_model", "dim_model")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
HEAD_DIM = ("head_dim", "dim_head", "kv_channels", "attention_head_dim")
WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "dff", "dim_ff", "ffn_intermediate_size")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "activation", "afn")
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
EXPERT_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
SHARED_WIDTHS = ("shared_expert_intermediate_size", "shared_intermediate_size", "shared_experts_intermediate_size")
LEADING = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")

_GATED = {"silu": "swiglu", "swish": "swiglu", "swigluoai": "swiglu", "gelu": "geglu", "gelu_new": "geglu",
          "gelu_fast": "geglu", "gelu_pytorch_tanh": "geglu", "relu2": "swiglu", "relu": "swiglu"}  # fmt: skip
_PLAIN = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "gelu",
          "swish": "gelu", "xielu": "gelu", "relu": "relu", "relu2": "relu2", "relu^2": "relu2"}  # fmt: skip
KINDS: dict[object, str] = {
    "sliding_attention": "window", "full_attention": "full", "chunked_attention": "window", "local": "window",
    "global": "full", "attention": "full", "linear_attention": "linear", "mamba": "linear",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The experts of a family.

    Args:
        router_bias: whether the router keeps a correction or a bias per expert.
        shared: "": none; "count": SHARED_EXPERTS times the width of one; "width": a width of its own.
        shared_gate: whether a learned gate weighs the shared expert.
        every: key of the spacing of mixtures, layers step - 1, 2 step - 1, ... are mixtures.
        bias: whether experts have biases.
        widths: keys of the width of one expert.
    """

    router_bias: bool = False
    shared: str = ""
    shared_gate: bool = False
    every: str = ""
    bias: bool = False
    widths: tuple[str, ...] = EXPERT_WIDTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row.

    Args:
        bias, output_bias, mlp_bias: of the projections of queries, keys and values, of the output, of the block.
        gated: whether the block has a gate.
        activation: where no key says.
        qk_norm: "": none, "head": per head, "all": over all heads together.
        qk_norm_flag: whether a key switches it.
        norms: of a layer: 2, 4 with norms behind each block, 1 for a parallel block.
        norm: "plain" has no weights.
        parallel: whether attention and block run side by side.
        position_rows: key of learned positions, "" for none; position_extra: rows added to them.
        tied: default of tie_word_embeddings.
        window: "" none; "all" layers where sliding_window is set; "listed" in layer_types, else by period;
            "switched" by use_sliding_window (Qwen).
        period: layers from one full layer to the next where no list says; first_full: whether the first is full.
        window_key: name of the window.
        sinks, output_gate, head_gate: as in the attention kind.
        moe: its experts; None: a dense block everywhere.
        head_bias: whether the head has a bias.
        extra: parameters of no product, in units of (layers x d_model, d_model).
        widening: width of the block over d_model where no key says it.
        defaults: values of keys that published files leave out.
        known: keys that leave the shape as it is.
    """

    bias: Flag = False
    output_bias: Flag = False
    mlp_bias: Flag = False
    gated: bool = True
    activation: str = "silu"
    qk_norm: str = ""
    qk_norm_flag: Flag = True
    norms: int = 2
    norm: str = "rmsnorm"
    parallel: Flag = False
    position_rows: str = ""
    position_extra: int = 0
    tied: bool = False
    window: str = ""
    period: int = 0
    first_full: bool = False
    window_key: str = "sliding_window"
    sinks: Flag = False
    output_gate: Flag = False
    head_gate: Flag = False
    moe: Mixture | None = None
    head_bias: Flag = False
    extra: tuple[int, int] = (0, 0)
    widening: int = 4
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    known: tuple[str, ...] = ()


def named(c: HfConfig, keys: tuple[str, ...]) -> str:
    """The first of several names of one key that the configuration has; the usual one where it has none."""
    return next((key for key in keys if c.values.get(key) is not None), keys[0])


def flag(c: HfConfig, value: Flag) -> bool:
    """A fixed flag, or that of a key."""
    return value if isinstance(value, bool) else c.flag(value[0], default=value[1])


def reader(row: Family) -> Callable[[HfConfig], Table]:
    """The function that reads a family of the table."""

    def read(c: HfConfig) -> Table:
        return uniform(c.with_defaults(dict(row.defaults)) if row.defaults else c, row)

    return read


def uniform(c: HfConfig, row: Family) -> Table:
    """The architecture table of a configuration by a row."""
    c.leave(*row.known)
    d_model = c.count(named(c, D_MODEL))
    layers = layer_count(c, named(c, LAYERS))
    attention = grouped(c, row, d_model)
    kinds = layer_kinds(c, row, layers)
    window: Table = {"window": c.count(row.window_key)} if "window" in kinds else {}
    block = dense_block(c, row, d_model)
    mixtures = mixture_layers(c, row, layers)
    moe = mixture(c, row.moe) if row.moe is not None and any(mixtures) else None
    per_layer, once = row.extra
    head = c.count("vocab_size") if flag(c, row.head_bias) else 0
    more: Table = {
        "learned_positions": c.count(row.position_rows) + row.position_extra if row.position_rows else 0,
        "parallel_block": flag(c, row.parallel),
        "norms_per_layer": 0 if row.norms == 2 else row.norms,
        "norm": "" if row.norm == "rmsnorm" else row.norm,
        "extra_params": (per_layer * layers + once) * d_model + head,
        "mtp_layers": c.count("num_nextn_predict_layers", default=0, minimum=0),
    }
    return layered(
        c,
        [
            {
                "attention": {**attention, **window} if kinds[index] == "window" else attention,
                **({"moe": moe} if mixtures[index] else {"ffn": block}),
            }
            for index in range(layers)
        ],
        tied=row.tied,
        d_model=d_model,
        **{name: value for name, value in more.items() if value},
    )


def grouped(c: HfConfig, row: Family, d_model: int) -> Table:
    """Grouped-query attention of a row."""
    heads_key, kv_key = named(c, HEADS), named(c, KV_HEADS)
    heads = c.count(heads_key)
    kv_heads = 1 if c.values.get("multi_query") is True and not c.values.get("new_decoder_architecture") else None
    kv_heads = kv_heads or c.count(kv_key, default=heads)
    c.require(not heads % kv_heads, kv_key, f"a divisor of {heads_key} {heads}")
    head_dim = c.optional(named(c, HEAD_DIM))
    c.require(
        head_dim is not None or not d_model % heads,
        heads_key,
        f"a divisor of {named(c, D_MODEL)} {d_model}, or a head_dim beside it",
    )
    normed = row.qk_norm if flag(c, row.qk_norm_flag) else ""
    return {
        "kind": "gqa",
        "num_q_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim or d_model // heads,
        "bias": flag(c, row.bias),
        "output_bias": flag(c, row.output_bias),
        **({"qk_norm": True} if normed == "head" else {"norm_over_heads": True} if normed == "all" else {}),
        **({"sinks": True} if flag(c, row.sinks) else {}),
        **({"output_gate": True} if flag(c, row.output_gate) else {}),
        **({"head_gate": True} if flag(c, row.head_gate) else {}),
    }


def gqa(c: HfConfig, *, bias: bool, output_bias: bool, qk_norm: bool = False) -> Table:
    """Grouped-query attention of a family that is read by a function."""
    row = Family(bias=bias, output_bias=output_bias, qk_norm="head" if qk_norm else "")
    return grouped(c, row, c.count("hidden_size"))


def layer_kinds(c: HfConfig, row: Family, layers: int) -> list[str]:
    """full or window for each layer."""
    key = named(c, ("layer_types", "attention_layers"))
    listed = c.items(key, KINDS, layers) if row.window in ("listed", "switched") else None
    if row.window == "switched" and not c.flag("use_sliding_window", default=False):
        c.leave(row.window_key, "max_window_layers")
        return ["full"] * layers
    if listed is not None:
        c.leave(row.window_key, "sliding_window_pattern", "global_attn_every_n_layers", "max_window_layers")
        return listed
    if row.window == "switched":
        full = min(layers, c.count("max_window_layers", minimum=0))
        return ["full"] * full + ["window"] * (layers - full)
    has_window = c.optional(row.window_key) is not None if row.window else False
    if row.window == "all" and has_window:
        return ["window"] * layers
    if row.window == "listed" and has_window and row.period:
        period = c.count(named(c, ("sliding_window_pattern", "global_attn_every_n_layers")), default=row.period)
        first = 0 if row.first_full else period - 1
        return ["full" if index % period == first else "window" for index in range(layers)]
    return ["full"] * layers


def dense_block(c: HfConfig, row: Family, d_model: int) -> Table:
    """The dense block of a row."""
    table = _GATED if row.gated else _PLAIN
    kind = c.choice(named(c, ACTIVATIONS), table, default=table[row.activation])
    return {"kind": kind, "d_ff": c.optional(named(c, WIDTHS)) or row.widening * d_model, "bias": flag(c, row.mlp_bias)}


_BLOCKS: dict[object, str] = {"dense": "dense", "sparse": "moe", "moe": "moe", "hash_moe": "moe", "mlp": "dense"}


def mixture_layers(c: HfConfig, row: Family, layers: int) -> list[bool]:
    """Which layers are mixtures."""
    if row.moe is None or (c.optional(named(c, NUM_EXPERTS), minimum=0) or 0) == 0:
        return [False] * layers
    listed = c.items("mlp_layer_types", _BLOCKS, layers)
    first = c.count(named(c, LEADING), default=0, minimum=0)
    dense = c.layer_numbers("mlp_only_layers")
    c.leave("moe_layer_end_index", "moe_layer_interval")
    if listed is not None:
        return [kind == "moe" for kind in listed]
    step = c.count(row.moe.every, default=1) if row.moe.every else 1
    return [index >= first and (index + 1) % step == 0 and index not in dense for index in range(layers)]


def evened(c: HfConfig, key: str, default: int | None = None) -> int:
    """A whole number, or a list with one per layer that are all the same (Hunyuan)."""
    value = c.values.get(key)
    if isinstance(value, list):
        same = cast("list[object]", value)
        c.require(same and same.count(same[0]) == len(same), key, "one number, or the same number for every layer")
        return HfConfig(values={key: same[0]}, where=c.where, prefix=c.prefix).count(key, minimum=0)
    return c.count(key, default=default, minimum=0 if default == 0 else 1)


def mixture(c: HfConfig, spec: Mixture) -> Table:
    """The experts of one layer."""
    number_key, chosen_key = named(c, NUM_EXPERTS), named(c, CHOSEN)
    number, chosen = c.count(number_key), evened(c, chosen_key)
    width = evened(c, named(c, spec.widths))
    c.leave(*EXPERT_WIDTHS)
    c.require(chosen <= number, chosen_key, f"at most {number_key} {number}")
    shared = 0
    if spec.shared == "count":
        shared = evened(c, named(c, SHARED_EXPERTS), default=0) * width
        c.leave(*SHARED_WIDTHS)
    elif spec.shared == "width":
        shared = c.count(named(c, SHARED_WIDTHS), default=0, minimum=0)
        c.leave(*SHARED_EXPERTS)
    groups = c.count(named(c, ("n_group", "num_expert_group")), default=1)
    kept = c.count("topk_group", default=1)
    return {
        "num_experts": number,
        "experts_per_token": chosen,
        "d_expert": width,
        "activation": c.choice(named(c, ACTIVATIONS), _GATED, default="swiglu"),
        **({"num_shared_experts": 1, "d_shared": shared} if shared else {}),
        **({"router_bias": True} if spec.router_bias else {}),
        **({"shared_gate": True} if spec.shared_gate and shared else {}),
        **({"bias": True} if spec.bias else {}),
        **({"num_groups": groups, "groups_per_token": kept} if groups > 1 else {}),
    }
