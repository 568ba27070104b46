"""Mamba-2: a state-space layer whose state does not grow with the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Stateful
from rackline.arch.shapes import Dim, FloatLike, IntLike, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(Stateful):
    """State-space duality layer (Mamba-2, Nemotron-H and 3): a state of head_dim × state_size per head.

    Args:
        num_heads: heads; num_heads · head_dim is the inner width [count].
        head_dim: width of a head [elements].
        state_size: width of the state of each of its elements [elements].
        num_groups: groups of heads that share input and output matrices B and C [count].
        conv_kernel: tokens that the short convolution spans [tokens].
        chunk_size: tokens that the chunkwise form works on together [tokens].
        conv_bias: whether the convolution has a bias.

    Source: Dao and Gu, arXiv:2405.21060, sections 6 and 8 (chunkwise form and layer).
    """

    catalog_kind: ClassVar[str] = "mamba2"

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int
    chunk_size: int = 128
    conv_bias: bool = True

    def problem(self) -> str | None:
        """Groups divide the heads."""
        if not self.num_groups or self.num_heads % self.num_groups:
            return f"num_groups {self.num_groups} does not divide num_heads {self.num_heads}"
        return None

    @property
    def kind(self) -> str:
        """ "mamba2"."""
        return "mamba2"

    @property
    def num_q_heads(self) -> int:
        """Heads, which tensor parallelism spreads."""
        return self.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Groups of B and C."""
        return self.num_groups

    @property
    def inner(self) -> int:
        """num_heads · head_dim [elements]."""
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the short convolution: input, B and C [elements]."""
        return self.inner + 2 * self.num_groups * self.state_size

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused gate, input, B, C and step size; output."""
        inner = Dim(size=self.inner, units=self.num_heads)
        matrices = Dim(size=2 * self.num_groups * self.state_size, units=self.num_groups)
        steps = Dim(size=self.num_heads, units=self.num_heads)
        model = Dim(size=d_model)
        return (
            Projection(name="mamba_in", d_in=(model,), d_out=(inner, inner, matrices, steps)),
            Projection(name="mamba_out", d_in=(inner,), d_out=(model,)),
        )

    def extra_params(self) -> int:
        """Convolution; step bias, decay and skip of each head; norm of the gated output."""
        return self.channels * (self.conv_kernel + self.conv_bias) + 3 * self.num_heads + self.inner

    @property
    def convolution(self) -> tuple[int, int]:
        """Over the input, B and C."""
        return self.channels, self.conv_kernel

    @property
    def extra_kernels(self) -> float:
        """Split, gated norm, step sizes."""
        return 3.0

    def state_elements(self, tp: IntLike) -> FloatLike:
        """State of one sequence on each of tp chips, per layer [elements]."""
        return np.ceil(self.num_heads / np.asarray(tp)) * self.head_dim * self.state_size

    @property
    def state_flop_per_token(self) -> float:
        """One head, one decoded token: decay and rank-one update (3 FLOP per element), read-out (2)."""
        return 5.0 * self.head_dim * self.state_size

    @property
    def chunk_flop_per_token(self) -> float:
        """One head, one prompt token: C·B of its chunk (shared by a group), times the inputs; states in and out."""
        shared = 2.0 * self.chunk_size * self.state_size * self.num_groups / self.num_heads
        return shared + 2.0 * self.chunk_size * self.head_dim + 4.0 * self.head_dim * self.state_size

    @property
    def decode_io_elements(self) -> float:
        """Input, gate and output of a head, its share of B and C."""
        return 3.0 * self.head_dim + 2.0 * self.state_size * self.num_groups / self.num_heads

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """As in decode, and the state once per chunk."""
        return self.decode_io_elements + 2.0 * self.head_dim * self.state_size / self.chunk_size, 0.0
