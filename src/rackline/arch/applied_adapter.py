"""A low-rank adapter on a model: its modules, their parameters and what they add to a token."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from rackline.arch.shapes import Dim

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedAdapter:
    """A low-rank adapter on a model.

    Args:
        name: folder or repository.
        base: model that it says it belongs to; may be empty.
        modules: that have a bottleneck.
        whole_params: of modules that are stored whole beside them [elements].
        resident: adapters of this shape in memory, of which each request uses one [count].
        touched: mean number of different ones that the sequences of a pass use [count].
    """

    json_keys: ClassVar = (
        "name",
        "base",
        "modules",
        "whole_params",
        "total_params",
        "stored_bytes",
        "flop_per_token",
        "resident",
        "touched",
    )

    name: str
    base: str
    modules: tuple[AdaptedModule, ...]
    whole_params: int = 0
    resident: int = 1
    touched: float = 1.0

    def used_by(self, sequences: float) -> AppliedAdapter:
        """The same in a pass of some sequences that use the resident adapters alike.

        touched = N · (1 - (1 - 1/N)^sequences)

        Args:
            sequences: of the pass [sequences].
        """
        if self.resident == 1:
            return self
        touched = -self.resident * math.expm1(sequences * math.log1p(-1.0 / self.resident))
        return replace(self, touched=max(touched, 1.0))

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
            f"{f'; {self.resident:,} in memory' if self.resident > 1 else ''}"
        )

    @property
    def flop_per_token(self) -> float:
        """What it adds to one token [FLOP]."""
        return sum(module.flop for module in self.modules)
