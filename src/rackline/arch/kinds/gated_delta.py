"""Linear attention: a recurrent state of constant size instead of a KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Stateful
from rackline.arch.shapes import Dim, FloatLike, IntLike, Projection

CHUNK = 64  # tokens that the chunkwise form works on together (flash-linear-attention's default)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaAttention(Stateful):
    """Gated delta rule (Qwen3-Next, Qwen3.5): per value head a state of key_head_dim × value_head_dim.

    A decoded token reads and writes the state once; a prompt is worked on in chunks, so that its FLOP grow linearly.
    Source: Yang et al., Gated Delta Networks, arXiv:2412.06464, section 3.3 (chunkwise form).
    """

    catalog_kind: ClassVar[str] = "gated_delta"

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def kernel(self) -> str:
        """ "gated_delta"."""
        return "gated_delta"

    @property
    def kind(self) -> str:
        """ "gated_delta"."""
        return "gated_delta"

    @property
    def num_q_heads(self) -> int:
        """Value heads, which tensor parallelism spreads."""
        return self.num_value_heads

    @property
    def num_kv_heads(self) -> int:
        """Key heads."""
        return self.num_key_heads

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused query, key, value and output gate; decay and step size; output."""
        keys = Dim(size=self.num_key_heads * self.key_head_dim, units=self.num_key_heads)
        values = Dim(size=self.num_value_heads * self.value_head_dim, units=self.num_value_heads)
        rates = Dim(size=2 * self.num_value_heads, units=self.num_value_heads)
        model = Dim(size=d_model)
        return (
            Projection(name="linear_in", d_in=(model,), d_out=(keys, keys, values, values, rates)),
            Projection(name="linear_out", d_in=(values,), d_out=(model,)),
        )

    @property
    def convolution(self) -> tuple[int, int]:
        """Over queries, keys and values."""
        channels = 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim
        return channels, self.conv_kernel

    def extra_params(self) -> int:
        """Short convolution, decay and step biases, output norm."""
        channels, width = self.convolution
        return channels * width + 2 * self.num_value_heads + self.value_head_dim

    @property
    def extra_kernels(self) -> float:
        """Gates, normalisations of q and k, the split of the projections, norm of the output."""
        return 5.0

    def state_elements(self, tp: IntLike) -> FloatLike:
        """State of one sequence on each of tp chips, per layer [elements]."""
        return np.ceil(self.num_value_heads / np.asarray(tp)) * self.key_head_dim * self.value_head_dim

    @property
    def state_flop_per_token(self) -> float:
        """FLOP of one value head for one decoded token: read-out, prediction and update of the state."""
        return 6.0 * self.key_head_dim * self.value_head_dim

    @property
    def chunk_flop_per_token(self) -> float:
        """FLOP of one value head for one prompt token: the state once per chunk, the chunk's own tokens pairwise."""
        within = 2.0 * CHUNK * (2.0 * self.key_head_dim + self.value_head_dim)
        return self.state_flop_per_token + within

    @property
    def decode_io_elements(self) -> float:
        """Query, key, value in, output out, per value head."""
        return 2.0 * self.key_head_dim + 2.0 * self.value_head_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """As in decode, and the state once per chunk."""
        return self.decode_io_elements + 2.0 * self.key_head_dim * self.value_head_dim / CHUNK, 0.0
