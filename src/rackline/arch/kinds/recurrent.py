"""Kinds whose only memory is a recurrent state: gated delta rule, lightning and Kimi delta attention, Mamba-2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rackline.arch.kinds import Dim, Projection, Stateful, always, formula, same_as

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

    kind = kernel = always("gated_delta")

    num_q_heads = same_as("num_value_heads")  # which tensor parallelism spreads

    num_kv_heads = same_as("num_key_heads")

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

    # over queries, keys and values
    convolution = formula(
        lambda kind: (
            2 * kind.num_key_heads * kind.key_head_dim + kind.num_value_heads * kind.value_head_dim,
            kind.conv_kernel,
        )
    )

    def extra_params(self) -> int:
        """Short convolution, decay and step biases, output norm."""
        channels, width = self.convolution
        return channels * width + 2 * self.num_value_heads + self.value_head_dim

    extra_kernels = always(5.0)  # gates, normalisations of q and k, the split of the projections, norm of the output

    state_elements_per_head = formula(lambda kind: kind.key_head_dim * kind.value_head_dim)

    # FLOP of one value head for one decoded token: read-out, prediction and update of the state
    state_flop_per_token = formula(lambda kind: 6.0 * kind.key_head_dim * kind.value_head_dim)

    # FLOP of one value head for one prompt token: the state once per chunk, the chunk's own tokens pairwise
    chunk_flop_per_token = formula(
        lambda kind: kind.state_flop_per_token + 2.0 * CHUNK * (2.0 * kind.key_head_dim + kind.value_head_dim)
    )

    # query, key, value in, output out, per value head
    decode_io_elements = formula(lambda kind: 2.0 * kind.key_head_dim + 2.0 * kind.value_head_dim)

    # as in decode, and the state once per chunk
    prefill_io_elements = formula(
        lambda kind: (kind.decode_io_elements + 2.0 * kind.key_head_dim * kind.value_head_dim / CHUNK, 0.0)
    )


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

    num_q_heads = same_as("num_heads")  # which tensor parallelism spreads

    num_kv_heads = same_as("num_heads")  # each head has its own state

    state_elements_per_head = formula(lambda kind: kind.head_dim**2)

    decode_io_elements = formula(lambda kind: 4.0 * kind.head_dim)  # query, key, value in, output out, per head

    # as in decode, and the state once per chunk
    prefill_io_elements = formula(
        lambda kind: (kind.decode_io_elements + 2.0 * kind.head_dim**2 / kind.chunk_size, 0.0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttention(SquareStateAttention):
    """Lightning attention (MiniMax-01): linear attention with a fixed decay a head, gated and normalised output.

    Sources: Qin et al., arXiv:2401.04658; MiniMax-01, arXiv:2501.08313, section 2.2.
    """

    catalog_kind: ClassVar[str] = "lightning"

    chunk_size: int = 256

    kind = always("lightning")

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

    extra_kernels = always(4.0)  # activation of q, k and v, norm, sigmoid and product of the gate

    # decay and rank-one update (3 FLOP per element), read-out (2)
    state_flop_per_token = formula(lambda kind: 5.0 * kind.head_dim**2)

    # scores and values inside the chunk; state in and out
    chunk_flop_per_token = formula(lambda kind: 4.0 * kind.chunk_size * kind.head_dim + 4.0 * kind.head_dim**2)


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

    kind = kernel = always("kda")

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

    # over queries, keys and values
    convolution = formula(lambda kind: (3 * kind.num_heads * kind.head_dim, kind.conv_kernel))

    extra_kernels = always(5.0)  # decay, normalisations of q and k, step size, gated norm of the output

    # decay (1 FLOP per element), prediction, update and read-out (2 each)
    state_flop_per_token = formula(lambda kind: 7.0 * kind.head_dim**2)

    # the state once per chunk, the chunk's own tokens pairwise: two scores, the triangular solve, the values
    chunk_flop_per_token = formula(lambda kind: 6.0 * kind.head_dim**2 + 8.0 * kind.chunk_size * kind.head_dim)


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

    kind = always("mamba2")

    num_q_heads = same_as("num_heads")  # which tensor parallelism spreads

    num_kv_heads = same_as("num_groups")  # groups of B and C

    inner = formula(lambda kind: kind.num_heads * kind.head_dim)  # num_heads · head_dim [elements]

    # channels of the short convolution: input, B and C [elements]
    channels = formula(lambda kind: kind.inner + 2 * kind.num_groups * kind.state_size)

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

    convolution = formula(lambda kind: (kind.channels, kind.conv_kernel))  # over the input, B and C

    extra_kernels = always(3.0)  # split, gated norm, step sizes

    state_elements_per_head = formula(lambda kind: kind.head_dim * kind.state_size)

    # one head, one decoded token: decay and rank-one update (3 FLOP per element), read-out (2)
    state_flop_per_token = formula(lambda kind: 5.0 * kind.head_dim * kind.state_size)

    # one head, one prompt token: C·B of its chunk (shared by a group), times the inputs; states in and out
    chunk_flop_per_token = formula(
        lambda kind: (
            2.0 * kind.chunk_size * kind.state_size * kind.num_groups / kind.num_heads
            + 2.0 * kind.chunk_size * kind.head_dim
            + 4.0 * kind.head_dim * kind.state_size
        )
    )

    # input, gate and output of a head, its share of B and C
    decode_io_elements = formula(
        lambda kind: 3.0 * kind.head_dim + 2.0 * kind.state_size * kind.num_groups / kind.num_heads
    )

    # as in decode, and the state once per chunk
    prefill_io_elements = formula(
        lambda kind: (kind.decode_io_elements + 2.0 * kind.head_dim * kind.state_size / kind.chunk_size, 0.0)
    )
