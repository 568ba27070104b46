"""Low-rank adapters: what one adds to a model, and which of many a pass touches.

W x + (alpha / rank) · B A x, with A of rank × inputs and B of outputs × rank (LoRA, arXiv:2106.09685).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rackline.arch.kinds import Dim

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
        """Parameters of an adapter: whole matrices and low-rank ones [elements]."""
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
