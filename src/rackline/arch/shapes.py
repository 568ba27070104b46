"""Dimensions and projections: how a weight matrix is described and how tensor parallelism cuts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
