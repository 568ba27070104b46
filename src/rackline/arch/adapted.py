"""An adapter on a model: the products that it changes, by names of modules of Hugging Face models, as PEFT does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rackline.arch.adapters import AdaptedModule, AppliedAdapter
from rackline.arch.kinds import DenseFfn, Dim, MoeFfn
from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.arch.kinds.mla import MultiHeadLatentAttention
from rackline.arch.kinds.recurrent import GatedDeltaAttention
from rackline.arch.model import LayerGroup, Model
from rackline.errors import ConfigError, nearest_name

if TYPE_CHECKING:
    from rackline.hub import Adapter

_ALIASES = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "wq": "q_proj", "wk": "k_proj", "wv": "v_proj",
    "wo": "o_proj", "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj", "fc1": "up_proj", "fc2": "down_proj",
    "c_fc": "up_proj", "dense_h_to_4h": "up_proj", "dense_4h_to_h": "down_proj", "qkv": "qkv_proj",
    "query_key_value": "qkv_proj", "c_attn": "qkv_proj", "Wqkv": "qkv_proj",
}  # fmt: skip
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def apply_adapter(model: Model, adapter: Adapter) -> Model:
    """The model with an adapter.

    Raises:
        ConfigError: a target that no module of the model has, with the modules that it has.

    Assumes: experts have adapters where their modules are named, each its own; adapters of some layers spread over
        kinds of layers as the layers do.
    """
    known = list(_merged(_modules(model)))
    only = len(adapter.targets) == 1
    chosen = {
        module: _rank(module.name, adapter)
        for module in known
        if any(_matches(module.name, target, only=only) for target in adapter.targets)
    }
    fused = [one for target in adapter.targets for one in _fused(known, target)]
    found = [*(replace(module, rank=rank) for module, rank in chosen.items())]
    found += [replace(module, rank=_rank(module.name, adapter)) for module in fused]
    short = [module.name.rpartition(".")[2] for module in known]
    missing = [target for target in adapter.targets if not _matches_any(target, known, fused)]
    if missing or not found:
        raise ConfigError(
            what="target_modules",
            given=", ".join(missing) or ", ".join(adapter.targets),
            allowed=f"modules of {model.name}: {', '.join(dict.fromkeys(short))}, or all-linear",
            nearest=nearest_name(missing[0] if missing else "", short),
            where=adapter.where,
        )
    if adapter.layers is not None:
        share = len(adapter.layers) / model.num_layers
        found = [replace(one, layers=max(1, round(one.layers * share))) for one in found]
    table = model.vocab_size * model.d_model
    whole = sum(table for name in adapter.trained_whole if name.rpartition(".")[2] in ("lm_head", "embed_tokens"))
    applied = AppliedAdapter(
        name=adapter.name, base=adapter.base, modules=tuple(found), whole_params=whole, where=adapter.where
    )
    return replace(model, adapter=applied)


def _modules(model: Model) -> Iterator[AdaptedModule]:
    """Products of all layers by the names of Hugging Face modules."""
    wide = Dim(size=model.d_model)
    for group in model.layer_groups:
        for name, d_in, d_out in _of_attention(group, wide):
            yield AdaptedModule(name=name, layers=group.count, d_in=d_in, d_out=d_out)
        match group.ffn:
            case DenseFfn() as ffn:
                yield from _of_block("mlp", ffn.activation, ffn.d_ff, wide, group.count)
            case MoeFfn() as ffn:
                inner = Dim(size=ffn.expert_d_in(model.d_model))
                for one in _of_block("mlp.experts", ffn.activation, ffn.d_expert, inner, group.count):
                    yield replace(one, copies=ffn.num_experts, used=ffn.experts_per_token)
                if ffn.d_shared:
                    yield from _of_block("mlp.shared_experts", ffn.activation, ffn.d_shared, wide, group.count)


def _of_attention(group: LayerGroup, wide: Dim) -> Iterator[tuple[str, Dim, tuple[Dim, ...]]]:
    kind = group.attention
    match kind:
        case GroupedQueryAttention():
            queries = Dim(size=kind.num_q_heads * kind.head_dim, units=kind.num_q_heads)
            values = Dim(size=kind.num_q_heads * kind.value_dim, units=kind.num_q_heads)
            yield "self_attn.q_proj", wide, (queries, values) if kind.output_gate else (queries,)
            if not kind.shares_kv:
                yield "self_attn.k_proj", wide, (Dim(size=kind.num_kv_heads * kind.head_dim, units=kind.num_kv_heads),)
                if not kind.keys_are_values:
                    width = kind.num_kv_heads * kind.value_dim
                    yield "self_attn.v_proj", wide, (Dim(size=width, units=kind.num_kv_heads),)
            yield "self_attn.o_proj", values, (wide,)
        case MultiHeadLatentAttention():
            heads = kind.num_q_heads
            queries = Dim(size=heads * (kind.qk_nope_head_dim + kind.qk_rope_head_dim), units=heads)
            if kind.q_lora_rank:
                yield "self_attn.q_a_proj", wide, (Dim(size=kind.q_lora_rank),)
                yield "self_attn.q_b_proj", Dim(size=kind.q_lora_rank), (queries,)
            else:
                yield "self_attn.q_proj", wide, (queries,)
            yield "self_attn.kv_a_proj_with_mqa", wide, (Dim(size=kind.kv_lora_rank + kind.qk_rope_head_dim),)
            expansion = kind.expansion()
            if expansion is not None:
                yield "self_attn.kv_b_proj", expansion.d_in[0], expansion.d_out
            yield "self_attn.o_proj", Dim(size=heads * kind.v_head_dim, units=heads), (wide,)
        case GatedDeltaAttention():
            first, last = kind.projections(wide.size)
            yield "linear_attn.in_proj_qkvz", wide, first.d_out[:4]
            yield "linear_attn.in_proj_ba", wide, first.d_out[4:]
            yield "linear_attn.out_proj", last.d_in[0], last.d_out
        case _:
            for product in kind.projections(wide.size):
                name = {"mamba_in": "in_proj", "mamba_out": "out_proj"}.get(product.name, product.name)
                yield f"mixer.{name}", product.d_in[0], product.d_out


def _of_block(where: str, activation: str, width: int, wide: Dim, layers: int) -> Iterator[AdaptedModule]:
    if not width:
        return
    inner = Dim(size=width, units=width)
    if activation in ("swiglu", "geglu"):
        yield AdaptedModule(name=f"{where}.gate_proj", layers=layers, d_in=wide, d_out=(inner,))
    yield AdaptedModule(name=f"{where}.up_proj", layers=layers, d_in=wide, d_out=(inner,))
    yield AdaptedModule(name=f"{where}.down_proj", layers=layers, d_in=inner, d_out=(wide,))


def _merged(modules: Iterator[AdaptedModule]) -> Iterator[AdaptedModule]:
    """Equal products of several groups of layers as one."""
    layers: dict[AdaptedModule, int] = {}
    for module in modules:
        key = replace(module, layers=0)
        layers[key] = layers.get(key, 0) + module.layers
    return (replace(module, layers=count) for module, count in layers.items())


def _full(name: str) -> str:
    """A name as a model has it, in its first layer and of its first expert."""
    return f"model.layers.0.{name.replace('experts.', 'experts.0.', 1) if 'mlp.experts.' in name else name}"


def _matches(name: str, target: str, *, only: bool) -> bool:
    """Whether PEFT gives a module an adapter.

    Args:
        target: the end of a name; a whole name as a regular expression where it is the only one.
        only: whether the targets are one text.
    """
    if target == "all-linear":
        return True
    end = ".".join([*target.split(".")[:-1], _ALIASES.get(target.split(".")[-1], target.split(".")[-1])])
    full = _full(name)
    if full == end or full.endswith(f".{end}"):
        return True
    try:
        return only and re.fullmatch(target, full) is not None
    except re.error:
        return False


def _fused(known: Sequence[AdaptedModule], target: str) -> list[AdaptedModule]:
    """Modules that a model stores as one, such as qkv_proj: one bottleneck for all outputs."""
    end = target.split(".")[-1]
    parts = _FUSED.get(_ALIASES.get(end, end), ())
    wanted = [module for module in known if module.name.rpartition(".")[2] in parts]
    found: list[AdaptedModule] = []
    for first in (module for module in wanted if module.name.endswith(parts[:1])):
        where = first.name.rpartition(".")[0]
        same = [one for one in wanted if one.name.rpartition(".")[0] == where and one.layers == first.layers]
        outs = tuple(part for one in same for part in one.d_out)
        found.append(replace(first, name=f"{where}.{_ALIASES.get(end, end)}", d_out=outs))
    return found


def _matches_any(target: str, known: Sequence[AdaptedModule], fused: Sequence[AdaptedModule]) -> bool:
    end = target.split(".")[-1]
    return (
        any(module.name.endswith(f".{_ALIASES.get(end, end)}") for module in fused)
        or end in ("lm_head", "embed_tokens", "gate")  # head, embedding and router: small, left out
        or any(_matches(module.name, target, only=True) for module in known)
    )


def _rank(name: str, adapter: Adapter) -> int:
    full = _full(name)
    for pattern, rank in adapter.rank_pattern:
        try:
            if re.match(rf"(?:.*\.)?(?:{pattern})$", full):
                return rank
        except re.error:
            continue
    return adapter.rank
