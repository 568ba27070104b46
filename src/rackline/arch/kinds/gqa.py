"""Attention over keys and values by groups of heads: all tokens, a window, picked blocks, both directions, none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.kinds import (
    Attention,
    Core,
    Dim,
    FloatLike,
    IntLike,
    Projection,
    Stateful,
    always,
    formula,
    windowed_pairs,
)
from rackline.arch.kinds.mla import Indexer


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueryAttention(Attention):
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

    kind = formula(lambda kind: "full" if kind.window is None else f"window_{kind.window}")  # "full" or "window_W"

    value_dim = formula(lambda kind: kind.v_head_dim or kind.head_dim)  # width of a value head [elements]

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

    # norms of queries and keys are two, an output gate two (sigmoid, product)
    extra_kernels = formula(
        lambda kind: 2.0 * (kind.qk_norm or kind.norm_over_heads) + 2.0 * (kind.output_gate or kind.head_gate)
    )

    normed_elements = formula(
        lambda kind: (
            (kind.qk_norm or kind.norm_over_heads)
            * float(kind.num_q_heads + (0 if kind.shares_kv else kind.num_kv_heads))
            * kind.head_dim
        )
    )

    # 1, or 0 where the cache of another layer is read
    kv_entries_per_token = formula(lambda kind: 0.0 if kind.shares_kv else 1.0)

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """All of the context, or the window; nothing where the cache of another layer is read."""
        held = context_len * self.kv_entries_per_token
        return held if self.window is None else np.minimum(held, self.window)

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """(key + value width) * KV heads on the chip; heads are copied when tp exceeds them."""
        return (self.head_dim + self.value_dim) * np.ceil(self.num_kv_heads / np.asarray(tp))

    # q·k and score·v: two dot products of head_dim and value width multiply-adds
    decode_flop_per_pair = formula(lambda kind: 2.0 * (kind.head_dim + kind.value_dim))

    decode_io_elements = formula(lambda kind: 1.0 * kind.head_dim + kind.value_dim)  # query in, output out

    # query in and output out per query head; key and value in per KV head
    prefill_io_elements = formula(lambda kind: (kind.decode_io_elements, kind.decode_io_elements))


@dataclass(frozen=True, slots=True, kw_only=True)
class BidirectionalAttention(GroupedQueryAttention):
    """Multi-head attention without a causal mask, over all tokens or inside windows that do not overlap.

    Sources: Vision Transformer, arXiv:2010.11929; windows of 8 by 8 patches, Qwen2.5-VL, arXiv:2502.13923, section 2.1.
    """

    catalog_kind: ClassVar[str] = "bidirectional"

    kernel = always("encoder")

    # "bidirectional" or "bidirectional_W"
    kind = formula(lambda kind: "bidirectional" if kind.window is None else f"bidirectional_{kind.window}")

    kv_entries_per_token = always(0.0)  # no later pass reads what this one has seen

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """n (p + n) pairs, or n times the window [pairs per sequence]."""
        n, seen = np.asarray(chunk_tokens, dtype=float), np.asarray(prefix_tokens, dtype=float) + chunk_tokens
        return n * (seen if self.window is None else np.minimum(seen, self.window))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparseAttention(GroupedQueryAttention):
    """Each query reads the best top_blocks blocks, found by an index key per token (MiniMax-M3).

    Args:
        block_size: tokens of a block [tokens].
        top_blocks: blocks that one query reads, the newest among them [count].
        index_heads, index_head_dim: heads of the index queries (each chooses for its KV heads), and their width.

    Source: MiniMax-M3 config.json and model code in vLLM (index_q_proj, index_k_proj and their norms; no values).
    """

    catalog_kind: ClassVar[str] = "gqa_block_sparse"

    block_size: int
    top_blocks: int
    index_heads: int
    index_head_dim: int

    kernel = always("block_sparse")

    kind = formula(lambda kind: f"blocks_{kind.top_blocks}x{kind.block_size}")  # "blocks_16x128"

    reach = formula(lambda kind: kind.block_size * kind.top_blocks)  # tokens that one query reads at most [tokens]

    def cores(self) -> tuple[Core, ...]:
        """The core and the indexer, whose keys are cached in the type of the cache; only block maxima leave it."""
        index = Indexer(
            num_q_heads=self.index_heads,
            index_head_dim=self.index_head_dim,
            eight_bits=False,
            all_heads_everywhere=False,
            scored_tokens=self.block_size,
        )
        return (self, index)

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """The products of grouped-query attention, with index queries and one index key."""
        heads = Dim(size=self.index_heads * self.index_head_dim, units=self.index_heads)
        index = Projection(
            name="index_qk", d_in=(Dim(size=d_model),), d_out=(heads, Dim(size=self.index_head_dim)), bias=self.bias
        )
        return (*GroupedQueryAttention.projections(self, d_model), index)

    def extra_params(self) -> int:
        """Norms of index query and key as well."""
        return GroupedQueryAttention.extra_params(self) + 2 * self.index_head_dim

    # norms and rotation of index query and key, block maxima, choice
    extra_kernels = formula(lambda kind: 4.0 + 2.0 * (kind.qk_norm or kind.norm_over_heads))

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """The chosen blocks."""
        return np.minimum(context_len, self.reach)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Pairs with the chosen blocks."""
        return windowed_pairs(chunk_tokens, prefix_tokens, self.reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSparseAttention(GroupedQueryAttention):
    """Block choice with blocks that grow as √(L / n): what is read grows as √L (lecture C17).

    With one summary key per block of B tokens and n chosen ones, a query reads L/B keys and n·B entries; at B = √(L/n)
    both counts are √(n·L). A key is half an entry, so 1.5·√(n·L) entries are read, never more than L.

    Args:
        top_blocks: n, blocks that one query reads [count].
    """

    catalog_kind: ClassVar[str] = "gqa_root_sparse"

    top_blocks: int

    kind = formula(lambda kind: f"root_{kind.top_blocks}")  # "root_N"

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """min(L, 1.5·√(n·L))."""
        context = 1.0 * context_len
        return np.minimum(context, 1.5 * np.sqrt(self.top_blocks * context))

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Sum of min(p + i, 1.5·√(n·(p + i))) over the chunk: an integral, exact to half a token a query."""
        start = np.asarray(prefix_tokens, dtype=float) + 0.5
        stop = start + np.asarray(chunk_tokens, dtype=float)
        edge = 2.25 * self.top_blocks  # where both are equal

        def below(x: FloatLike) -> FloatLike:
            low = np.minimum(x, edge)
            root = 1.5 * np.sqrt(self.top_blocks) * (2.0 / 3.0)
            return low**2 / 2.0 + root * (np.maximum(x, edge) ** 1.5 - edge**1.5)

        return below(stop) - below(start)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSparseAttention(GroupedQueryAttention):
    """Native sparse attention: compressed tokens, chosen blocks and a window.

    A query reads L / stride compressed entries, top_blocks·block_size chosen tokens and `local` newest ones.

    Args:
        stride: tokens between compressed entries [tokens].
        block_size, top_blocks: chosen blocks [tokens, count].
        local: window [tokens].

    Source: Yuan et al., arXiv:2502.11089, section 3 and table 4.
    """

    catalog_kind: ClassVar[str] = "gqa_native_sparse"

    stride: int
    block_size: int
    top_blocks: int
    local: int

    kind = formula(lambda kind: f"native_sparse_{kind.stride}")  # "native_sparse_S"

    # uncompressed tokens that one query reads at most [tokens]
    reach = formula(lambda kind: kind.block_size * kind.top_blocks + kind.local)

    kv_entries_per_token = formula(lambda kind: 1.0 + 1.0 / kind.stride)  # every token and the compressed entries

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """Compressed entries, chosen blocks, window; never more than the context."""
        context = 1.0 * context_len
        return np.minimum(context, context / self.stride + self.reach)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Pairs with what is read."""
        # L/s + r < L from L = r·s/(s − 1) on; beyond it a token more adds 1/s of a pair
        edge = self.reach * self.stride / (self.stride - 1.0) if self.stride > 1 else float(self.reach)
        full = np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, None))
        near = np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, int(edge)))
        return near + (full - near) / self.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAttention(Stateful):
    """Nothing: no projections, no cache, no kernels."""

    catalog_kind: ClassVar[str] = "none"

    kind = always("none")

    num_q_heads = always(0)  # any tensor parallelism divides it

    num_kv_heads = always(0)

    def cores(self) -> tuple[Core, ...]:
        """No kernels."""
        return ()

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """None."""
        return ()

    decode_io_elements = always(0.0)

    prefill_io_elements = always((0.0, 0.0))
