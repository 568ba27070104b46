"""What a layer is made of: matrix products, feed-forward blocks, and attention kinds with their usual answers.

Each attention kind is a class in a file of this package, so that the pass table needs no branch per kind; a new file
with a class that names its `catalog_kind` is registered automatically. docs/how-to/attention-kind.md shows how to add
one.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from rackline.errors import CatalogError, nearest_name

IntLike = int | float | NDArray[Any]
FloatLike = float | NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """One dimension of a weight matrix.

    Args:
        size: number of elements [elements].
        units: indivisible units that tensor parallelism may spread (heads, or the elements themselves);
            1 means that every chip keeps the whole dimension.
    """

    size: int
    units: int = 1

    def shard(self, ways: IntLike) -> FloatLike:
        """Elements of this dimension on the fullest of `ways` chips (ceiling: a head is never cut)."""
        if self.units <= 1:  # 0: the head of a tower, which has none
            return float(self.size)
        return self.size / self.units * np.ceil(self.units / np.asarray(ways))


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A matrix product applied to each token: d_in elements in, d_out elements out.

    Args:
        name: what the row is called in a pass table.
        d_in, d_out: parts of the input and output dimension; a sharded part is cut by tensor parallelism.
        bias: whether each output element has a bias.
    """

    name: str
    d_in: tuple[Dim, ...]
    d_out: tuple[Dim, ...]
    bias: bool = False

    @property
    def params(self) -> int:
        """Weights and biases of the whole matrix [elements]."""
        d_in = sum(part.size for part in self.d_in)
        d_out = sum(part.size for part in self.d_out)
        return d_in * d_out + (d_out if self.bias else 0)

    def shard_in(self, ways: IntLike) -> FloatLike:
        """Input elements on the fullest of `ways` chips."""
        return sum((part.shard(ways) for part in self.d_in), 0.0)

    def shard_out(self, ways: IntLike) -> FloatLike:
        """Output elements on the fullest of `ways` chips."""
        return sum((part.shard(ways) for part in self.d_out), 0.0)

    def shard_weights(self, ways: IntLike) -> FloatLike:
        """Weights of the fullest of `ways` chips [elements]; biases are left out as negligible."""
        return self.shard_in(ways) * self.shard_out(ways)


GATED = frozenset({"swiglu", "geglu"})


def expert_matrices(activation: str) -> int:
    """Weight matrices of one feed-forward block: 3 when gated (gate, up, down), else 2 (up, down)."""
    return 3 if activation in GATED else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """A dense feed-forward block: d_model → d_ff → d_model."""

    activation: str
    d_ff: int
    bias: bool = False

    def projections(self, d_model: int, prefix: str = "ffn") -> tuple[Projection, ...]:
        """Up (with the gate fused into it) and down; nothing where the layer has no feed-forward block."""
        if not self.d_ff:
            return ()
        inner = Dim(size=self.d_ff, units=self.d_ff)
        up = (inner,) * (expert_matrices(self.activation) - 1)
        model = Dim(size=d_model)
        return (
            Projection(name=f"{prefix}_up", d_in=(model,), d_out=up, bias=self.bias),
            Projection(name=f"{prefix}_down", d_in=(inner,), d_out=(model,), bias=self.bias),
        )

    def params(self, d_model: int) -> int:
        """Parameters of the block [elements]."""
        return sum(p.params for p in self.projections(d_model))

    def parts(self, d_model: int) -> list[tuple[str, int, int]]:
        """Parts of a layer with all their parameters, and those that one token uses [elements]."""
        return [("ffn", self.params(d_model), self.params(d_model))]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """A mixture of experts: a router picks experts_per_token of num_experts; shared experts see every token.

    Args:
        d_expert: width of one routed expert [elements].
        d_shared: width of all shared experts together [elements], 0 for none.
        d_latent: width to which tokens are projected for the routed experts, 0 for none [elements].
        router_bias: whether the router has a bias per expert.
        extra_params: parameters that belong to no product [elements].
        num_groups, groups_per_token: a token picks its experts from `groups_per_token` of the groups (node-limited
            routing).
    """

    activation: str
    num_experts: int
    experts_per_token: int
    d_expert: int
    d_shared: int = 0
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    d_latent: int = 0
    extra_params: int = 0
    num_groups: int = 1
    groups_per_token: int = 1

    def expert_d_in(self, d_model: int) -> int:
        """Width of the tokens that the routed experts see [elements]."""
        return self.d_latent or d_model

    def latent(self, d_model: int) -> tuple[Projection, ...]:
        """Projections into the latent and out of it, on every token; () without one."""
        if not self.d_latent:
            return ()
        model, latent = Dim(size=d_model), Dim(size=self.d_latent)
        return (
            Projection(name="latent_down", d_in=(model,), d_out=(latent,)),
            Projection(name="latent_up", d_in=(latent,), d_out=(model,)),
        )

    @property
    def matrices(self) -> int:
        """Weight matrices of one expert."""
        return expert_matrices(self.activation)

    def shared(self) -> DenseFfn | None:
        """The shared experts as one dense block."""
        return DenseFfn(activation=self.activation, d_ff=self.d_shared) if self.d_shared else None

    def expert_params(self, d_model: int) -> int:
        """Parameters of one routed expert [elements]."""
        width = self.expert_d_in(d_model)
        biases = (self.matrices - 1) * self.d_expert + width if self.bias else 0
        return self.matrices * width * self.d_expert + biases

    def router_params(self, d_model: int) -> int:
        """Parameters of the router (and of the gate of the shared experts, and of extra_params) [elements]."""
        router = d_model * self.num_experts + (self.num_experts if self.router_bias else 0)
        return router + (d_model if self.shared_gate else 0) + self.extra_params

    def latent_params(self, d_model: int) -> int:
        """Parameters of the projections into the latent and back [elements]."""
        return sum(p.params for p in self.latent(d_model))

    def shared_params(self, d_model: int) -> int:
        """Parameters of the shared experts [elements]."""
        shared = self.shared()
        return shared.params(d_model) if shared else 0

    def parts(self, d_model: int) -> list[tuple[str, int, int]]:
        """Parts of a layer with all their parameters, and those that one token uses [elements]."""
        expert, router = self.expert_params(d_model), self.router_params(d_model)
        beside = (("latent", self.latent_params(d_model)), ("shared_experts", self.shared_params(d_model)))
        (latent, shared) = ([(kind, each, each)] if each else [] for kind, each in beside)
        experts = ("experts", self.num_experts * expert, self.experts_per_token * expert)
        return [experts, *latent, ("router", router, router), *shared]


STATE_BYTES = 4.0
"""Bytes of an element of a recurrent state, which is kept in fp32."""

LATENT_KERNELS = ("mla", "sparse", "compressed", "compressed_sparse")
"""Kernels of many heads over one shared vector a token."""


def windowed_pairs(chunk_tokens: FloatLike, prefix_tokens: FloatLike, window: FloatLike | None) -> FloatLike:
    """Causal query-key pairs of `chunk_tokens` new tokens behind `prefix_tokens` earlier ones.

    pairs = sum over i = 1..n of min(p + i, w)

    Args:
        chunk_tokens: n, new tokens [tokens], any shape.
        prefix_tokens: p, earlier tokens of the same sequence [tokens], same shape.
        window: w, how many tokens a query may see, itself included [tokens]; None means all.

    Returns:
        Pairs [count], broadcast shape.

    Assumes: the self pair counts; n² becomes n(n+1)/2.

    >>> float(windowed_pairs(4.0, 0.0, None)), float(windowed_pairs(4.0, 0.0, 2))
    (10.0, 7.0)
    """
    n, p = np.asarray(chunk_tokens, dtype=float), np.asarray(prefix_tokens, dtype=float)
    if window is None:
        return n * p + n * (n + 1) / 2
    growing = np.clip(window - p, 0.0, n)
    return growing * p + growing * (growing + 1) / 2 + (n - growing) * window


def always(value: Any) -> Any:
    """A property of a kind that has one value for all of its layers."""
    return property(lambda kind: value)


def formula(value: Callable[[Any], Any]) -> Any:
    """A property of a kind as a formula of its fields and of its other properties."""
    return property(value)


def same_as(name: str) -> Any:
    """A property of a kind that is another of its properties or fields under the name that the pass table uses."""
    return property(attrgetter(name))


class Core:
    """One kernel over a cache or a state: a row when decoding and a row when prefilling.

    What has no value here each kind says itself, as a field, a property or a method.

    Args:
        kind: short label: rows and features of one kind share it ("full", "window_128", "mla").
        kernel: which calibration its kernels have: "attention", "mla" or one of its own (see `PARENT_CLASS`).
        num_q_heads, num_kv_heads: heads of queries, and of keys and values [count].
        heads_are_copied: whether every chip of a tp group keeps all query heads instead of its share.
        window: tokens that a query sees; None for the whole context [tokens].
        entry_elements: elements of a cache entry that every chip of a tp group keeps whole [elements].
        kv_entries_per_token: cache entries that one new token adds: 1, less where tokens are compressed, 0 where a
            cache is shared.
        cache_bytes_per_element: bytes of a cached element where the kind fixes them [bytes]; None: as the deployment
            says.
        state_elements_per_head: recurrent state of one sequence and head [elements]; 0 for softmax attention.
        decode_flop_per_pair: FLOP of one query head against one cached token when decoding [FLOP].
        prefill_flop_per_pair: FLOP of one query head against one key when prefilling [FLOP].
        bytes_per_pair: bytes that pass memory for each query-key pair, all heads together: scores that a later kernel
            reads.
        state_flop_per_token: FLOP of one head on the state for one decoded token [FLOP].
        chunk_flop_per_token: FLOP of one head for one prompt token beside the pairs [FLOP].
        decode_io_elements: query read and output written per query head and token when decoding [elements].
        prefill_io_elements: elements moved per token when prefilling: (per query head, per KV head).
    """

    __slots__ = ()

    kind: str
    kernel: str = always("attention")
    num_q_heads: int
    num_kv_heads: int
    heads_are_copied: bool = always(False)  # heads are spread, one is never cut
    window: Any = None
    entry_elements: int = always(0)
    kv_entries_per_token: float = always(1.0)
    cache_bytes_per_element: float | None = always(None)
    state_elements_per_head: int = always(0)
    decode_flop_per_pair: float
    prefill_flop_per_pair: float = same_as("decode_flop_per_pair")
    bytes_per_pair: float = always(0.0)  # scores stay on the chip
    state_flop_per_token: float = always(0.0)
    chunk_flop_per_token: float = always(0.0)
    decode_io_elements: float
    prefill_io_elements: tuple[float, float]

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """Elements of one cache entry on each of tp chips, per layer [elements]."""
        return self.entry_elements * np.ones_like(np.asarray(tp, dtype=float))

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """Cache entries that a sequence of this context holds: what each token added [tokens]."""
        return context_len * self.kv_entries_per_token

    def state_elements(self, tp: IntLike) -> FloatLike:
        """Recurrent state of one sequence on each of tp chips, per layer [elements]."""
        return np.ceil(self.num_q_heads / np.asarray(tp, dtype=float)) * self.state_elements_per_head

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """Cache entries that one decoded token reads at this context: all of it, or the window [tokens]."""
        return context_len if self.window is None else np.minimum(context_len, self.window)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Causal query-key pairs of a chunk of new tokens behind a prefix [pairs per sequence]."""
        return windowed_pairs(chunk_tokens, prefix_tokens, self.window)


class Attention(Core):
    """What the rest of the library asks of an attention kind: its own core, its projections, further cores.

    The usual answers are those of a cache entry per token, heads cut by tp, and nothing else beside the core.

    Args:
        may_be_zero: parameters without a default that may be 0 in a file.
        expands_prefix: whether a chunk expands the re-read tokens of its prefix as well.
        extra_kernels: launches of small kernels per layer beyond those of a plain one [count].
        normed_elements: queries and keys of a token that are normalised [elements].
        convolution: channels and width of the short convolution before a recurrent state [elements, tokens]; None
            without.
    """

    __slots__ = ()

    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    expands_prefix: bool = always(False)
    extra_kernels: float = always(0.0)
    normed_elements: float = always(0.0)
    convolution: Any = always(None)

    def problem(self) -> str | None:
        """What is inconsistent in the parameters, as a sentence; None if nothing is."""
        return None

    def cores(self) -> tuple[Core, ...]:
        """Kernels of the layer: this one, then what it needs beside it (an indexer); () for a layer without any."""
        return (self,)

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Matrix products on every token of a pass."""
        raise NotImplementedError

    def expansion(self) -> Projection | None:
        """Matrix product on every decoded token and every prefilled token (MLA's kv_b).

        None where keys and values are cached as they are used.
        """
        return None

    def extra_params(self) -> int:
        """Norms, sinks and other small parameters of one layer [elements]."""
        return 0


class Stateful(Attention):
    """Usual answers of a kind whose only memory is a recurrent state: no cache, no pairs of tokens."""

    __slots__ = ()

    kv_entries_per_token = always(0.0)
    decode_flop_per_pair = always(0.0)

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """0."""
        return 0.0 * context_len

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """0: no pairs of tokens."""
        return 0.0 * np.asarray(chunk_tokens, dtype=float)


_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "int | None": (int,), "float": (int, float), "bool": (bool,)}


@functools.cache
def _classes() -> Mapping[str, type]:
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            name = getattr(value, "catalog_kind", None)
            if isinstance(value, type) and isinstance(name, str) and value.__module__.endswith(module.name):
                found[name] = value
    return found


def attention_kind_names() -> tuple[str, ...]:
    """Names under which a catalogue file may call for an attention kind, sorted.

    >>> "mla_sparse" in attention_kind_names()
    True
    """
    return tuple(sorted(_classes()))


def attention_from_parameters(kind: str, parameters: Mapping[str, object], *, where: str) -> Attention:
    """Build an attention kind from its name and the parameters of a catalogue table.

    Args:
        kind: one of `attention_kind_names`.
        parameters: name → number, flag or text.
        where: file or model, for messages.

    Raises:
        CatalogError: the kind or a parameter is unknown, missing or of the wrong type, or they contradict each other.
    """
    found = _classes().get(kind)
    if found is None:
        allowed = "one of " + ", ".join(attention_kind_names())
        raise CatalogError(
            what="kind", given=kind, allowed=allowed, where=where, nearest=nearest_name(kind, attention_kind_names())
        )
    known = {each.name: each for each in fields(found) if each.init}
    zero = cast("frozenset[str]", getattr(found, "may_be_zero", frozenset[str]()))
    for name, value in parameters.items():
        if name not in known:
            allowed = "a parameter of " + kind
            raise CatalogError(
                what=name, given=value, allowed=allowed, where=where, nearest=nearest_name(name, list(known))
            )
        types = _TYPES[str(known[name].type)]
        is_flag = isinstance(value, bool)
        if not isinstance(value, types) or is_flag != (types == (bool,)):
            raise CatalogError(what=name, given=value, allowed=f"of type {known[name].type}", where=where)
        if not is_flag and known[name].default is MISSING and name not in zero and not value:
            raise CatalogError(what=name, given=value, allowed="more than zero", where=where)
    for name, each in known.items():
        if each.default is MISSING and name not in parameters:
            raise CatalogError(what=name, given="nothing", allowed=f"required by {kind}", where=where)
    built = found(**parameters)
    if reason := built.problem():
        raise CatalogError(what=kind, given=reason, allowed="a consistent table", where=where)
    return built
