"""A model: groups of equal layers, embedding and head; parameters, FLOP and KV cache per token; where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from rackline.arch.adapters import AppliedAdapter
from rackline.arch.kinds import STATE_BYTES, Attention, Core, DenseFfn, FloatLike, MoeFfn

OriginKind = Literal["catalogue", "file", "hub", "cache", "object"]
_PLACES: dict[OriginKind, str] = {
    "catalogue": "catalogue",
    "file": "file",
    "hub": "Hugging Face Hub",
    "cache": "cache of the Hugging Face Hub",
    "object": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a model was read from.

    Args:
        kind: the catalogue, a file, the Hub, its cache, or an object that a program has built.
        name: as it was asked for.
        used: what was read: a catalogue name, a file, or a repository.
        revision: commit of the repository; empty elsewhere.
        native_precision: data types of the weights, as a label.
        warnings: what makes the description uncertain: assumptions, differences to the checkpoint.
    """

    kind: OriginKind
    name: str
    used: str
    revision: str = ""
    native_precision: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line for readers; empty where the name says it all."""
        where = _PLACES[self.kind]
        if not where or (self.kind == "catalogue" and self.name == self.used):
            return ""
        at = f" at {self.revision[:12]}" if self.revision else ""
        types = f", weights in {self.native_precision}" if self.native_precision else ""
        return f"{self.name}: {self.used}{at} ({where}{types})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """`count` layers of the same attention and feed-forward kind."""

    count: int
    attention: Attention
    ffn: DenseFfn | MoeFfn

    @property
    def has_attention(self) -> bool:
        """Whether the layer mixes tokens."""
        return bool(self.attention.cores())

    @property
    def has_ffn(self) -> bool:
        """Whether the layer has a feed-forward block."""
        return isinstance(self.ffn, MoeFfn) or self.ffn.d_ff > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters by kind [elements]: `total` as stored, `active` as used by one token."""

    total: dict[str, int]
    active: dict[str, int]

    @property
    def total_params(self) -> int:
        """All parameters."""
        return sum(self.total.values())

    @property
    def active_params(self) -> int:
        """Parameters that one token is multiplied with; the input embedding is a lookup and counts 0."""
        return sum(self.active.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An open model: its layer stack is known.

    Args:
        native_precision: label of the released checkpoint ("bf16", "fp8", "mxfp4", ...).
        layer_groups: layers in order of first appearance, equal ones counted together.
        norm_params_per_norm: d_model for rmsnorm, 2 d_model for layernorm [elements].
        norms_per_layer: 2, 4 with norms after each block (Gemma), 1 for a parallel block; a layer with one block of the
            two has half of them.
        other_params: parameters that belong to no product and no layer, such as hyper-connections [elements].
        residual_streams: streams that hyper-connections mix before and behind each block; 1 without them [count].
        mtp_layers: layers for multi-token prediction beside the stack, which no other count includes [count].
        tower_params: of towers for images and sound, which text does not pass [elements].
        lookup_params: of tables of which a token reads a few rows, such as those of n-grams; they are counted, but not
            held by the chips [elements].
        max_context_len: positions that the model was made for; None: not known [tokens].
        draft: model that drafts its tokens; None for its own layer for multi-token prediction or one like its last.
        adapter: low-rank adapter that all tokens go through; None for none. No count of parameters includes it.
        origin: what the description was read from; None for an object that a program has built.
    """

    name: str
    native_precision: str
    d_model: int
    vocab_size: int
    tied_embeddings: bool
    layer_groups: tuple[LayerGroup, ...]
    learned_positions: int = 0
    norm_params_per_norm: int = 0
    norms_per_layer: int = 2
    parallel_block: bool = False
    other_params: int = 0
    residual_streams: int = 1
    mtp_layers: int = 0
    tower_params: int = 0
    lookup_params: int = 0
    max_context_len: int | None = None
    adapter: AppliedAdapter | None = None
    draft: Model | None = None
    origin: Origin | None = field(default=None, compare=False)
    sources: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        """Layers of the stack."""
        return sum(group.count for group in self.layer_groups)

    @property
    def is_moe(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return self.moe() is not None

    def moe(self) -> MoeFfn | None:
        """The mixture of experts of this model, None when it is dense."""
        return next((group.ffn for group in self.layer_groups if isinstance(group.ffn, MoeFfn)), None)

    def cores(self) -> dict[str, Core]:
        """Cores of all layers by label, indexers among them."""
        return {core.kind: core for _, core in self._counted_cores()}

    def _counted_cores(self) -> Iterator[tuple[int, Core]]:
        """Layers and core, of each core of each group."""
        return ((group.count, core) for group in self.layer_groups for core in group.attention.cores())

    def attention_kinds(self) -> dict[str, Attention]:
        """Attention kinds by label."""
        return {group.attention.kind: group.attention for group in self.layer_groups}

    @property
    def num_q_heads(self) -> int:
        """Query heads of the first layer that has attention."""
        return self._first_attention().num_q_heads

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads of the first layer that has attention."""
        return self._first_attention().num_kv_heads

    def _first_attention(self) -> Attention:
        return next((g.attention for g in self.layer_groups if g.has_attention), self.layer_groups[0].attention)

    def norms_of(self, group: LayerGroup) -> int:
        """Norms of one layer of a group [count]."""
        if self.norms_per_layer == 1 or (group.has_attention and group.has_ffn):
            return self.norms_per_layer
        return self.norms_per_layer // 2

    def parameters(self) -> ParameterCount:
        """Count by kind: embedding, attention, ffn, router, experts, latent, shared_experts, norm, head, towers, ..."""
        parts = [("embedding", (self.vocab_size + self.learned_positions) * self.d_model, 0)]
        for group in self.layer_groups:
            expansion = group.attention.expansion()
            attention = sum(p.params for p in group.attention.projections(self.d_model))
            attention += (expansion.params if expansion else 0) + group.attention.extra_params()
            norms = self.norms_of(group) * self.norm_params_per_norm
            of_layer = [("attention", attention, attention), ("norm", norms, norms), *group.ffn.parts(self.d_model)]
            parts += [(kind, group.count * stored, group.count * used) for kind, stored, used in of_layer]
        outer = self.norm_params_per_norm + self.other_params
        head = self.vocab_size * self.d_model
        parts += [("norm", outer, outer), ("head", 0 if self.tied_embeddings else head, head)]
        parts += [(kind, n, 0) for kind, n in (("towers", self.tower_params), ("lookup", self.lookup_params)) if n]
        total, active = dict[str, int](), dict[str, int]()
        for kind, stored, used in parts:
            total[kind] = total.get(kind, 0) + stored
            active[kind] = active.get(kind, 0) + used
        return ParameterCount(total=total, active=active)

    @property
    def mtp_params(self) -> int:
        """Parameters of the layers for multi-token prediction [elements].

        Each is one more last layer behind a product of 2 d_model by d_model; embedding and head are those of the model
        (DeepSeek-V3, arXiv:2412.19437, section 2.2).
        """
        last = replace(
            self,
            layer_groups=(replace(self.layer_groups[-1], count=1),),
            other_params=0,
            tower_params=0,
            lookup_params=0,
        )
        layer = sum(value for kind, value in last.parameters().total.items() if kind not in ("embedding", "head"))
        joined = 2 * self.d_model * self.d_model + 2 * self.norm_params_per_norm
        return self.mtp_layers * (layer + joined)

    @property
    def total_params(self) -> int:
        """All parameters [elements]."""
        return self.parameters().total_params

    @property
    def active_params(self) -> int:
        """Parameters that one token is multiplied with [elements]."""
        return self.parameters().active_params

    @property
    def total_over_active(self) -> float:
        """The lecture's sparsity, at least 1."""
        return self.total_params / self.active_params

    def kv_bytes_per_token_by_kind(self, bytes_per_element: float = 2.0) -> dict[str, float]:
        """KV cache bytes that one new token adds by attention kind, while every window still grows [bytes]."""
        elements = dict.fromkeys(self.cores(), 0.0)
        for count, core in self._counted_cores():
            elements[core.kind] += count * (float(core.kv_elements_per_token(1)) * core.kv_entries_per_token)
        sizes = {kind: core.cache_bytes_per_element or bytes_per_element for kind, core in self.cores().items()}
        return {kind: sizes[kind] * number for kind, number in elements.items()}

    def kv_bytes_per_token(self, bytes_per_element: float = 2.0) -> float:
        """KV cache bytes that one new token adds while every window still grows [bytes]."""
        return sum(self.kv_bytes_per_token_by_kind(bytes_per_element).values())

    def kv_bytes(self, context_len: FloatLike, bytes_per_element: float = 2.0) -> FloatLike:
        """KV cache bytes of one sequence at this context; a window stops growing at its size [bytes]."""
        return self._cache_bytes(bytes_per_element, lambda core: core.kv_held_tokens(context_len), STATE_BYTES)

    def state_bytes(self) -> float:
        """Recurrent states of one sequence, independent of its context length [bytes]."""
        return STATE_BYTES * sum(count * float(core.state_elements(1)) for count, core in self._counted_cores())

    def kv_read_bytes(self, context_len: FloatLike, bytes_per_element: float = 2.0) -> FloatLike:
        """Cache and states that one decoded token reads at this context; states are written as well [bytes]."""
        return self._cache_bytes(bytes_per_element, lambda core: core.kv_read_tokens(context_len), 2.0 * STATE_BYTES)

    def _cache_bytes(
        self, bytes_per_element: float, entries: Callable[[Core], FloatLike], state_bytes: float
    ) -> FloatLike:
        """Some cache entries of each core, and its states at these bytes an element [bytes]."""
        return sum(
            (
                count
                * (
                    float(core.kv_elements_per_token(1))
                    * (core.cache_bytes_per_element or bytes_per_element)
                    * entries(core)
                    + state_bytes * float(core.state_elements(1))
                )
                for count, core in self._counted_cores()
            ),
            0.0,
        )

    def flop_per_token_by_kind(self, context_len: FloatLike) -> dict[str, FloatLike]:
        """FLOP of one decoded token at this context by kind: weights (matmul), attention per kind [FLOP]."""
        active = {kind: count for kind, count in self.parameters().active.items() if kind not in ("embedding", "norm")}
        split: dict[str, FloatLike] = {kind: 2.0 * count for kind, count in active.items() if count}
        for layers, core in self._counted_cores():
            key = f"attention_core_{core.kind}"
            per_head = core.decode_flop_per_pair * core.kv_read_tokens(context_len)
            split[key] = split.get(key, 0.0) + layers * (core.num_q_heads * (per_head + core.state_flop_per_token))
        return split

    def flop_per_token(self, context_len: FloatLike) -> FloatLike:
        """FLOP of one decoded token at this context [FLOP]."""
        return sum(self.flop_per_token_by_kind(context_len).values(), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateModel:
    """A closed model of which only sizes are known: its pass is a table with three rows.

    Args:
        total_params, active_params: all parameters, and those that one token is multiplied with [elements].
        stated_kv_bytes_per_token: as stated, used as it is at every precision [bytes].
    """

    name: str
    total_params: int
    active_params: int
    stated_kv_bytes_per_token: float
    native_precision: str = "bf16"
    origin: Origin | None = field(default=None, compare=False)
    sources: tuple[str, ...] = ()

    @property
    def total_over_active(self) -> float:
        """The lecture's sparsity, at least 1."""
        return self.total_params / self.active_params

    @property
    def is_moe(self) -> bool:
        """Whether more is stored than one token uses."""
        return self.total_params > self.active_params

    def kv_bytes_per_token(self, bytes_per_element: float = 2.0) -> float:
        """KV cache bytes per token as stated, independent of the element size [bytes]."""
        return self.stated_kv_bytes_per_token

    def kv_bytes(self, context_len: FloatLike, bytes_per_element: float = 2.0) -> FloatLike:
        """KV cache bytes of one sequence [bytes]."""
        return self.stated_kv_bytes_per_token * context_len

    def state_bytes(self) -> float:
        """0: nothing is known of states [bytes]."""
        return 0.0

    def kv_read_bytes(self, context_len: FloatLike, bytes_per_element: float = 2.0) -> FloatLike:
        """The whole cache [bytes]."""
        return self.kv_bytes(context_len, bytes_per_element)

    def flop_per_token(self, context_len: FloatLike) -> FloatLike:
        """2 FLOP per active parameter; the attention core is not known and left out (lecture C05) [FLOP]."""
        return 2.0 * self.active_params + 0.0 * context_len


AnyModel = Model | AggregateModel
