"""Grouped-query attention over selected blocks of the cache: fixed blocks, blocks that grow with √L, native sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Core, windowed_pairs
from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.arch.kinds.sparse import Indexer
from rackline.arch.shapes import Dim, FloatLike, Projection


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

    @property
    def kernel(self) -> str:
        """ "block_sparse"."""
        return "block_sparse"

    @property
    def kind(self) -> str:
        """ "blocks_16x128"."""
        return f"blocks_{self.top_blocks}x{self.block_size}"

    @property
    def reach(self) -> int:
        """Tokens that one query reads at most [tokens]."""
        return self.block_size * self.top_blocks

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
        """As grouped-query attention, with index queries and one index key."""
        heads = Dim(size=self.index_heads * self.index_head_dim, units=self.index_heads)
        index = Projection(
            name="index_qk", d_in=(Dim(size=d_model),), d_out=(heads, Dim(size=self.index_head_dim)), bias=self.bias
        )
        return (*GroupedQueryAttention.projections(self, d_model), index)

    def extra_params(self) -> int:
        """Norms of index query and key as well."""
        return GroupedQueryAttention.extra_params(self) + 2 * self.index_head_dim

    @property
    def extra_kernels(self) -> float:
        """Norms and rotation of index query and key, block maxima, choice."""
        return 4.0 + 2.0 * (self.qk_norm or self.norm_over_heads)

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

    @property
    def kind(self) -> str:
        """ "root_N"."""
        return f"root_{self.top_blocks}"

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

    @property
    def kind(self) -> str:
        """ "native_sparse_S"."""
        return f"native_sparse_{self.stride}"

    @property
    def reach(self) -> int:
        """Uncompressed tokens that one query reads at most [tokens]."""
        return self.block_size * self.top_blocks + self.local

    @property
    def kv_entries_per_token(self) -> float:
        """Every token and the compressed entries."""
        return 1.0 + 1.0 / self.stride

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
