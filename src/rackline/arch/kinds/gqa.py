"""Multi-head, grouped-query and multi-query attention, full or in a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Kind, windowed_pairs
from rackline.arch.shapes import Dim, FloatLike, IntLike, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueryAttention(Kind):
    """MHA (num_kv_heads = num_q_heads), GQA and MQA (num_kv_heads = 1), full or in a sliding window.

    KV bytes per token and layer = 2 * num_kv_heads * head_dim * bytes per element (lecture C101).

    Args:
        head_dim: width of a query and key head [elements].
        v_head_dim: width of a value head where it differs; 0: as head_dim [elements].
        window: tokens that a query sees, itself included; None: all [tokens].
        bias, output_bias: whether the projections add a bias.
        qk_norm: whether queries and keys are normalised per head; norm_over_heads: over all heads together.
        sinks: whether each query head has a learned sink.
        output_gate: whether a gate as wide as the output is projected; head_gate: one gate a query head.
        keys_are_values: whether one projection serves as key and value (both are cached).
        shares_kv: whether the layer reads the cache of an earlier one and keeps none (cross-layer sharing).
    """

    catalog_kind: ClassVar[str] = "gqa"

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    window: int | None = None
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norm_over_heads: bool = False
    sinks: bool = False
    output_gate: bool = False
    head_gate: bool = False
    keys_are_values: bool = False
    shares_kv: bool = False

    def problem(self) -> str | None:
        """KV heads divide the query heads."""
        if self.num_q_heads % self.num_kv_heads:
            return f"num_kv_heads {self.num_kv_heads} does not divide num_q_heads {self.num_q_heads}"
        return None

    @property
    def kind(self) -> str:
        """ "full" or "window_W"."""
        return "full" if self.window is None else f"window_{self.window}"

    @property
    def value_dim(self) -> int:
        """Width of a value head [elements]."""
        return self.v_head_dim or self.head_dim

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused q, k, v (with the gates) and the output projection."""
        q = Dim(size=self.num_q_heads * self.head_dim, units=self.num_q_heads)
        out = Dim(size=self.num_q_heads * self.value_dim, units=self.num_q_heads)
        parts = [q]
        if self.output_gate:  # the gate is projected like a query
            parts.append(out)
        if self.head_gate:
            parts.append(Dim(size=self.num_q_heads, units=self.num_q_heads))
        if not self.shares_kv:
            width = self.head_dim if self.keys_are_values else self.head_dim + self.value_dim
            kv = Dim(size=width * self.num_kv_heads, units=self.num_kv_heads)
            # a single head cannot be spread: every chip keeps it
            parts.append(Dim(size=kv.size) if self.num_kv_heads == 1 else kv)
        model = Dim(size=d_model)
        return (
            Projection(name="qkv", d_in=(model,), d_out=tuple(parts), bias=self.bias),
            Projection(name="attention_out", d_in=(out,), d_out=(model,), bias=self.output_bias),
        )

    def extra_params(self) -> int:
        """Query and key norms, attention sinks."""
        norms = 0
        if self.norm_over_heads:
            norms = (self.num_q_heads + (0 if self.shares_kv else self.num_kv_heads)) * self.head_dim
        elif self.qk_norm:
            norms = self.head_dim * (1 if self.shares_kv else 2)
        return norms + (self.num_q_heads if self.sinks else 0)

    @property
    def extra_kernels(self) -> float:
        """Norms of queries and keys are two, an output gate two (sigmoid, product)."""
        gates = self.output_gate or self.head_gate
        return 2.0 * (self.qk_norm or self.norm_over_heads) + 2.0 * gates

    @property
    def kv_entries_per_token(self) -> float:
        """1, or 0 where the cache of another layer is read."""
        return 0.0 if self.shares_kv else 1.0

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """All of the context, or the window; nothing where the cache of another layer is read."""
        held = context_len * self.kv_entries_per_token
        return held if self.window is None else np.minimum(held, self.window)

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """(key + value width) * KV heads on the chip; heads are copied when tp exceeds them."""
        return (self.head_dim + self.value_dim) * np.ceil(self.num_kv_heads / np.asarray(tp))

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """All of the context, or the window."""
        return context_len if self.window is None else np.minimum(context_len, self.window)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """See `windowed_pairs`."""
        return windowed_pairs(chunk_tokens, prefix_tokens, self.window)

    @property
    def decode_flop_per_pair(self) -> float:
        """q·k and score·v: two dot products of head_dim and value width multiply-adds."""
        return 2.0 * (self.head_dim + self.value_dim)

    @property
    def prefill_flop_per_pair(self) -> float:
        """As in decode."""
        return self.decode_flop_per_pair

    @property
    def decode_io_elements(self) -> float:
        """Query in, output out."""
        return 1.0 * self.head_dim + self.value_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Query in and output out per query head; key and value in per KV head."""
        return self.decode_io_elements, self.decode_io_elements
