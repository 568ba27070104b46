"""Linear attention with one square state per head: lightning attention and Kimi delta attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Stateful
from rackline.arch.shapes import Dim, FloatLike, IntLike, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareStateAttention(Stateful):
    """What lightning and Kimi delta attention share: per head a state of head_dim × head_dim.

    Args:
        num_heads: heads [count].
        head_dim: width of queries, keys and values of a head [elements].
        chunk_size: tokens that the chunkwise form works on together [tokens].
    """

    num_heads: int
    head_dim: int
    chunk_size: int = 64

    @property
    def num_q_heads(self) -> int:
        """Heads, which tensor parallelism spreads."""
        return self.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Each head has its own state."""
        return self.num_heads

    def state_elements(self, tp: IntLike) -> FloatLike:
        """State of one sequence on each of tp chips, per layer [elements]."""
        return np.ceil(self.num_heads / np.asarray(tp)) * self.head_dim**2

    @property
    def decode_io_elements(self) -> float:
        """Query, key, value in, output out, per head."""
        return 4.0 * self.head_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """As in decode, and the state once per chunk."""
        return self.decode_io_elements + 2.0 * self.head_dim**2 / self.chunk_size, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttention(SquareStateAttention):
    """Lightning attention (MiniMax-01): linear attention with a fixed decay a head, gated and normalised output.

    Sources: Qin et al., arXiv:2401.04658; MiniMax-01, arXiv:2501.08313, section 2.2.
    """

    catalog_kind: ClassVar[str] = "lightning"

    chunk_size: int = 256

    @property
    def kind(self) -> str:
        """ "lightning"."""
        return "lightning"

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused query, key and value; output gate; output."""
        heads, model = Dim(size=self.num_heads * self.head_dim, units=self.num_heads), Dim(size=d_model)
        return (
            Projection(name="linear_in", d_in=(model,), d_out=(heads, heads, heads, heads)),
            Projection(name="linear_out", d_in=(heads,), d_out=(model,)),
        )

    def extra_params(self) -> int:
        """Norm of the output."""
        return self.num_heads * self.head_dim

    @property
    def extra_kernels(self) -> float:
        """Activation of q, k and v, norm, sigmoid and product of the gate."""
        return 4.0

    @property
    def state_flop_per_token(self) -> float:
        """Decay and rank-one update (3 FLOP per element), read-out (2)."""
        return 5.0 * self.head_dim**2

    @property
    def chunk_flop_per_token(self) -> float:
        """Scores and values inside the chunk; state in and out."""
        return 4.0 * self.chunk_size * self.head_dim + 4.0 * self.head_dim**2


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaAttention(SquareStateAttention):
    """Kimi delta attention (Kimi Linear, Kimi K3): a delta rule whose decay differs by channel.

    Args:
        conv_kernel: tokens that the short convolutions of query, key and value span [tokens].
        full_rank_gate: whether the output gate is a full projection instead of one of rank head_dim.

    Source: Kimi Linear, arXiv:2510.26692, section 3 and its released model code.
    """

    catalog_kind: ClassVar[str] = "kda"

    conv_kernel: int
    full_rank_gate: bool = False

    @property
    def kernel(self) -> str:
        """ "kda"."""
        return "kda"

    @property
    def kind(self) -> str:
        """ "kda"."""
        return "kda"

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused query, key, value and step size; decay of rank head_dim; output gate; output."""
        heads, model = Dim(size=self.num_heads * self.head_dim, units=self.num_heads), Dim(size=d_model)
        steps, rank = Dim(size=self.num_heads, units=self.num_heads), Dim(size=self.head_dim)
        if self.full_rank_gate:
            gates = (Projection(name="kda_gate", d_in=(model,), d_out=(heads,)),)
        else:
            gates = (
                Projection(name="kda_gate_down", d_in=(model,), d_out=(rank,)),
                Projection(name="kda_gate_up", d_in=(rank,), d_out=(heads,)),
            )
        return (
            Projection(name="kda_in", d_in=(model,), d_out=(heads, heads, heads, steps)),
            Projection(name="kda_decay_down", d_in=(model,), d_out=(rank,)),
            Projection(name="kda_decay_up", d_in=(rank,), d_out=(heads,)),
            *gates,
            Projection(name="kda_out", d_in=(heads,), d_out=(model,)),
        )

    def extra_params(self) -> int:
        """Convolutions, decay of each head, its bias a channel, norm of the output."""
        channels = self.num_heads * self.head_dim
        return 3 * channels * self.conv_kernel + self.num_heads + channels + self.head_dim

    @property
    def convolution(self) -> tuple[int, int]:
        """Over queries, keys and values."""
        return 3 * self.num_heads * self.head_dim, self.conv_kernel

    @property
    def extra_kernels(self) -> float:
        """Decay, normalisations of q and k, step size, gated norm of the output."""
        return 5.0

    @property
    def state_flop_per_token(self) -> float:
        """Decay (1 FLOP per element), prediction, update and read-out (2 each)."""
        return 7.0 * self.head_dim**2

    @property
    def chunk_flop_per_token(self) -> float:
        """The state once per chunk, the chunk's own tokens pairwise: two scores, the triangular solve, the values."""
        return 6.0 * self.head_dim**2 + 8.0 * self.chunk_size * self.head_dim
