"""What a kernel has to do, counted once: FLOP and bytes of a product, of attention, of experts.

The rows of a pass (`blocks`), those of a training step and the fits to measured kernels are made of these. Every
argument may be an array.
"""

from __future__ import annotations

from dataclasses import dataclass

from rackline.arch import Core
from rackline.passes.features import FloatLike

TILE = 128.0  # rows and columns of a tile of work on one core [elements]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductWork:
    """One matrix product: per row of the input, and its weights once.

    Args:
        flop: 2 · in · out, a row [FLOP].
        weight_bytes: read once [bytes].
        row_bytes: input as stored and output in bf16, a row [bytes].
        quantise_bytes: bf16 read and 8 bits written where the input is quantised apart, a row [bytes].
    """

    flop: FloatLike
    weight_bytes: FloatLike
    row_bytes: FloatLike
    quantise_bytes: FloatLike

    @classmethod
    def of(
        cls, d_in: FloatLike, d_out: FloatLike, *, bytes_per_weight: float, bytes_per_activation: float
    ) -> ProductWork:
        """Work of d_in × d_out weights."""
        return cls(
            flop=2.0 * d_in * d_out,
            weight_bytes=d_in * d_out * bytes_per_weight,
            row_bytes=d_in * bytes_per_activation + d_out * 2.0,
            quantise_bytes=3.0 * d_in,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """One attention core of some heads.

    Args:
        pair_flop: scores and values of a query-key pair, all heads [FLOP].
        token_bytes: what a new token moves: queries, keys and values in, output out, its cache entry [bytes].
    """

    pair_flop: FloatLike
    token_bytes: FloatLike

    @classmethod
    def decode(cls, core: Core, heads: FloatLike, entry_bytes: FloatLike) -> AttentionWork:
        """Of a decoded token; the cache that it reads comes on top.

        Args:
            heads: query heads on the chip [count].
            entry_bytes: of one cache entry on the chip [bytes].
        """
        return cls(
            pair_flop=heads * core.decode_flop_per_pair,
            token_bytes=heads * core.decode_io_elements * 2.0 + entry_bytes * core.kv_entries_per_token,
        )

    @classmethod
    def prefill(cls, core: Core, heads: FloatLike, kv_heads: FloatLike, entry_bytes: FloatLike) -> AttentionWork:
        """Of a prompt token: queries, keys, values and outputs pass memory once (flash).

        Args:
            heads, kv_heads: on the chip [count].
            entry_bytes: of one cache entry on the chip [bytes].
        """
        per_q, per_kv = core.prefill_io_elements
        return cls(
            pair_flop=heads * core.prefill_flop_per_pair,
            token_bytes=(heads * per_q + kv_heads * per_kv) * 2.0 + entry_bytes * core.kv_entries_per_token,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsWork:
    """Routed experts of one rank: per expert that is touched, and per token-expert pair.

    Args:
        pair_flop: of one pair [FLOP].
        pair_bytes: of one pair: input as stored, output and what lies between the matrices in bf16 [bytes].
        expert_bytes: weights of one expert [bytes].
        expert_tiles: of one expert with one tile of tokens [count].
        permute_bytes: to sort one pair, read and written in bf16 [bytes].
    """

    pair_flop: FloatLike
    pair_bytes: FloatLike
    expert_bytes: FloatLike
    expert_tiles: FloatLike
    permute_bytes: FloatLike

    @classmethod
    def of(
        cls,
        d_in: FloatLike,
        width: FloatLike,
        *,
        matrices: FloatLike,
        bytes_per_weight: float,
        bytes_per_activation: float,
    ) -> ExpertsWork:
        """Work of experts with `matrices` matrices of d_in × width."""
        elements = matrices * d_in * width
        return cls(
            pair_flop=2.0 * elements,
            pair_bytes=d_in * (bytes_per_activation + 2.0) + 2.0 * matrices * width,
            expert_bytes=elements * bytes_per_weight,
            expert_tiles=(2.0 * width + d_in) / TILE,
            permute_bytes=4.0 * d_in,
        )
