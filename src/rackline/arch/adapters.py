"""Low-rank adapters: what one adds to a model, which of many a pass touches, and the products that one changes.

W x + (alpha / rank) · B A x, with A of rank × inputs and B of outputs × rank (LoRA, arXiv:2106.09685). Which products
have one follows from the names of the modules of Hugging Face models, as PEFT matches them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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


ADAPTER_BYTES = 2.0  # of a parameter, bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedModule:
    """One kind of product with an adapter.

    Args:
        name: of its module, such as self_attn.q_proj.
        layers: that have it [count].
        copies: in each layer: routed experts, or 1 [count].
        used: of the copies, by one token [count].
        d_in, d_out: of the product.
        rank: width of the bottleneck [elements].
    """

    json_keys: ClassVar = ("name", "layers", "copies", "d_in=inputs", "d_out=outputs", "rank", "params", "flop")

    name: str
    layers: int
    d_in: Dim
    d_out: tuple[Dim, ...]
    copies: int = 1
    used: int = 1
    rank: int = 0

    @property
    def inputs(self) -> int:
        """Width of the input [elements]."""
        return self.d_in.size

    @property
    def outputs(self) -> int:
        """Width of the output [elements]."""
        return sum(part.size for part in self.d_out)

    @property
    def params(self) -> int:
        """rank · (inputs + outputs), of all layers and copies [elements]."""
        return self.layers * self.copies * self.rank * (self.inputs + self.outputs)

    @property
    def flop(self) -> float:
        """FLOP of one token in all layers [FLOP]."""
        return 2.0 * self.layers * self.used * self.rank * (self.inputs + self.outputs)


Array = NDArray[Any]
_PER_OCTAVE = 8


@cache
def adapter_shares(number: int, exponent: float) -> Array:
    """Share of the requests that use each adapter, the most popular first [1], (number,).

    share of the i-th ∝ i^-exponent (Zipf); alike at exponent 0

    Args:
        number: adapters [count].
        exponent: 0 or more [1].
    """
    weights = np.arange(1.0, number + 1.0) ** -exponent
    return weights / weights.sum()


@cache
def _touched_by(number: int, exponent: float) -> tuple[Array, Array]:
    """(sequences, different adapters that they use on average), tabulated, (points,) each."""
    sequences = np.concatenate([[0.0], 2.0 ** (np.arange(16 * _PER_OCTAVE + 1) / _PER_OCTAVE)])
    missed = np.log1p(-np.minimum(adapter_shares(number, exponent), 1.0 - 1e-12))
    return sequences, np.array([-np.expm1(one * missed).sum() for one in sequences])


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedAdapter:
    """A low-rank adapter on a model.

    Args:
        name: folder or repository.
        base: model that it says it belongs to; may be empty.
        modules: that have a bottleneck.
        whole_params: of modules that are stored whole beside them [elements].
        number: adapters of this shape, of which each request uses one [count].
        resident: how many of them memory holds at a time [count].
        popularity: exponent of Zipf's law by which requests choose; 0 for all alike [1].
        link_bytes_per_s: from the host's memory, for those that are not resident; None for the chip's way to its host
            [bytes/s].
        touched: mean number of different ones that the sequences of a pass use [count].
        where: file or repository; empty where it was made without one.
    """

    json_keys: ClassVar = (
        "name",
        "base",
        "modules",
        "whole_params",
        "total_params",
        "stored_bytes",
        "flop_per_token",
        "number",
        "resident",
        "popularity",
        "touched",
    )

    name: str
    base: str
    modules: tuple[AdaptedModule, ...]
    whole_params: int = 0
    number: int = 1
    resident: int = 1
    popularity: float = 0.0
    link_bytes_per_s: float | None = None
    touched: float = 1.0
    where: str = ""

    def adapters_touched(self, sequences: Any) -> Any:
        """Mean number of different adapters that some sequences use [count]; shapes as given.

        touched = Σ (1 - (1 - share_i)^sequences), at most those that are resident

        Args:
            sequences: of a pass [sequences], any shape.
        """
        if self.number == 1:
            return np.minimum(sequences, 1.0)
        if self.popularity:
            points, found = _touched_by(self.number, self.popularity)
            touched: Array = np.interp(np.asarray(sequences, dtype=float), points, found)
        elif isinstance(sequences, float | int):
            return min(-self.number * math.expm1(sequences * math.log1p(-1.0 / self.number)), float(self.resident))
        else:
            touched = -self.number * np.expm1(np.asarray(sequences, dtype=float) * math.log1p(-1.0 / self.number))
        return np.minimum(touched, float(self.resident))

    @property
    def most_sequences(self) -> float:
        """Sequences that use as many different adapters, on average, as are resident; infinite where all are.

        More do not run at a time: some would wait for an adapter [sequences].
        """
        if self.resident >= self.number:
            return math.inf
        if not self.popularity:
            return math.log1p(-self.resident / self.number) / math.log1p(-1.0 / self.number)
        points, found = _touched_by(self.number, self.popularity)
        return float(np.interp(self.resident, found, points))

    def used_by(self, sequences: float) -> AppliedAdapter:
        """The adapter with the number of different adapters that a pass of some sequences uses.

        Args:
            sequences: of the pass [sequences].
        """
        return replace(self, touched=max(float(self.adapters_touched(sequences)), 1.0))

    def draw(self, rng: np.random.Generator, requests: int) -> Array:
        """The adapter of each request, the most popular being 0, (requests,)."""
        return rng.choice(self.number, size=requests, p=adapter_shares(self.number, self.popularity))

    @property
    def total_params(self) -> int:
        """All that is stored [elements]."""
        return self.whole_params + sum(module.params for module in self.modules)

    @property
    def stored_bytes(self) -> float:
        """Size of the adapter in bf16 [bytes]."""
        return ADAPTER_BYTES * self.total_params

    @property
    def line(self) -> str:
        """One line for readers."""
        size, flop = self.stored_bytes / 1e6, self.flop_per_token / 1e6
        ranks = sorted({module.rank for module in self.modules})
        rank = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        several = f"; {self.number:,} of this shape, {self.resident:,} of them in memory at a time"
        if self.number == self.resident:
            several = f"; {self.resident:,} in memory" if self.number > 1 else ""
        return (
            f"adapter {self.name}: {rank} on {len(self.modules)} kinds of modules, {self.total_params:,} parameters, "
            f"{size:,.1f} MB in bf16, {flop:,.1f} MFLOP per token"
            f"{several}"
        )

    @property
    def flop_per_token(self) -> float:
        """What it adds to one token [FLOP]."""
        return sum(module.flop for module in self.modules)


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
