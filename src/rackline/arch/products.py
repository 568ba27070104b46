"""What a token is multiplied with: dimensions and projections, feed-forward blocks, low-rank adapters on a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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
        """Of one token, all layers [FLOP]."""
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
        """The same with the number of different ones that a pass of some sequences uses.

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
        """In bf16 [bytes]."""
        return ADAPTER_BYTES * self.total_params

    @property
    def line(self) -> str:
        """One line for readers."""
        size, flop = self.stored_bytes / 1e6, self.flop_per_token / 1e6
        ranks = sorted({module.rank for module in self.modules})
        rank = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return (
            f"adapter {self.name}: {rank} on {len(self.modules)} kinds of modules, {self.total_params:,} parameters, "
            f"{size:,.1f} MB in bf16, {flop:,.1f} MFLOP per token"
            f"{self._how_many}"
        )

    @property
    def _how_many(self) -> str:
        if self.number == 1:
            return ""
        if self.number == self.resident:
            return f"; {self.resident:,} in memory"
        return f"; {self.number:,} of this shape, {self.resident:,} of them in memory at a time"

    @property
    def flop_per_token(self) -> float:
        """What it adds to one token [FLOP]."""
        return sum(module.flop for module in self.modules)
