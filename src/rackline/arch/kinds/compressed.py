"""Compressed attention (DeepSeek-V4): a short window of tokens, and one cache entry for every few older ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Core, Kind, always, windowed_pairs
from rackline.arch.kinds.mla import Indexer
from rackline.arch.products import Dim, FloatLike, IntLike, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(Kind):
    """One shared vector per token serves all heads as key and value; `ratio` tokens are compressed into one entry.

    A query reads the window and either all compressed entries (heavily compressed, ratio 128) or the top_k that an
    indexer picks among them (compressed sparse, ratio 4). Entries overlap when they are picked: the compressor then has
    two sets of weights. The output goes through groups of low rank. States of unfinished groups are left out.

    Args:
        num_q_heads: query heads [count].
        head_dim: width of a head and of a cache entry [elements].
        q_lora_rank: width of the query latent [elements].
        o_groups, o_lora_rank: groups of heads of the output projection, and the width of each [count, elements].
        window: newest tokens that are read as they are [tokens].
        ratio: tokens that one compressed entry stands for; 0: none, the window alone [tokens].
        top_k: compressed entries that one query reads; 0: all of them [entries].
        index_heads, index_head_dim: the indexer, where entries are picked; 0 where a layer uses the choice of an
            earlier one.
        shares_kv: whether the compressed entries are those of an earlier layer (DeepSeek-V4.1).

    Sources: deepseek-ai/DeepSeek-V4-Pro inference/model.py and technical report (2026-04), section on hybrid attention.
    """

    catalog_kind: ClassVar[str] = "compressed"

    num_q_heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratio: int = 0
    top_k: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    shares_kv: bool = False

    def problem(self) -> str | None:
        """Groups divide the heads; picking needs entries and an indexer."""
        if self.num_q_heads % self.o_groups:
            return f"o_groups {self.o_groups} does not divide num_q_heads {self.num_q_heads}"
        if bool(self.index_heads) != bool(self.index_head_dim) or (self.index_heads and not self.top_k):
            return "index_heads and index_head_dim are both zero, or both positive with a top_k"
        if self.top_k and not self.ratio:
            return "top_k picks compressed entries, but ratio is 0"
        return None

    @property
    def kind(self) -> str:
        """ "compressed_4", "compressed_128" or "window_128_shared"."""
        return f"compressed_{self.ratio}{'_shared' * self.shares_kv}" if self.ratio else f"window_{self.window}_shared"

    @property
    def kernel(self) -> str:
        """ "compressed"; of its own where entries are picked."""
        return "compressed_sparse" if self.top_k else "compressed"

    num_kv_heads = always(1)

    def cores(self) -> tuple[Core, ...]:
        """The core, and the indexer over compressed keys."""
        if not self.index_heads:
            return (self,)
        index = Indexer(num_q_heads=self.index_heads, index_head_dim=self.index_head_dim, ratio=self.ratio)
        return (self, index)

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Query and entry down, query up, compressors, indexer, grouped output."""
        model, latent = Dim(size=d_model), Dim(size=self.q_lora_rank)
        queries = Dim(size=self.num_q_heads * self.head_dim, units=self.num_q_heads)
        per_group = Dim(size=self.num_q_heads * self.head_dim // self.o_groups)
        groups = Dim(size=self.o_groups * self.o_lora_rank, units=self.o_groups)
        found = [
            Projection(name="qkv_down", d_in=(model,), d_out=(latent, Dim(size=self.head_dim))),
            Projection(name="q_up", d_in=(latent,), d_out=(queries,)),
        ]
        if self.ratio and not self.shares_kv:
            # values and gates, twice where groups of tokens overlap
            width = 2 * self.head_dim * (2 if self.top_k else 1)
            found.append(Projection(name="compressor", d_in=(model,), d_out=(Dim(size=width),)))
        if self.index_heads:
            heads = Dim(size=self.index_heads * self.index_head_dim)
            found.append(Projection(name="index_q", d_in=(latent,), d_out=(heads,)))
            keys = (Dim(size=4 * self.index_head_dim), Dim(size=self.index_heads))
            found.append(Projection(name="index_k_weights", d_in=(model,), d_out=keys))
        # each group of heads has its own product: all groups together read every head once
        found.append(Projection(name="attention_out_down", d_in=(per_group,), d_out=(groups,)))
        found.append(Projection(name="attention_out", d_in=(groups,), d_out=(model,)))
        return tuple(found)

    def extra_params(self) -> int:
        """Norms of latent and entry, sinks; norms and position tables of the compressors."""
        total = self.q_lora_rank + self.head_dim + self.num_q_heads
        sets = 2 if self.top_k else 1
        if self.ratio and not self.shares_kv:
            total += self.head_dim + self.ratio * sets * self.head_dim
        if self.index_heads:
            total += self.index_head_dim + self.ratio * sets * self.index_head_dim
        return total

    @property
    def extra_kernels(self) -> float:
        """Norms and rotation of the entry, inverse rotation of the output; compressor; indexer."""
        return 2.0 + (3.0 if self.ratio and not self.shares_kv else 0.0) + (8.0 if self.index_heads else 0.0)

    @property
    def kv_entries_per_token(self) -> float:
        """In the long run one in `ratio`, none where they are shared; 1 while a lone window grows."""
        if self.shares_kv:
            return 0.0
        return 1.0 / self.ratio if self.ratio else 1.0

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """The window and all compressed entries of its own."""
        context = 1.0 * context_len
        own = self.ratio and not self.shares_kv
        return np.minimum(context, self.window) + (context / self.ratio if own else 0.0)

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """One shared vector, copied on every chip."""
        return self.head_dim * np.ones_like(np.asarray(tp, dtype=float))

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """The window, and the compressed entries or the picked ones."""
        context = 1.0 * context_len
        entries = context / self.ratio if self.ratio else 0.0 * context
        return np.minimum(context, self.window) + (np.minimum(entries, self.top_k) if self.top_k else entries)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Pairs inside the window, and with compressed entries."""
        pairs = np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, self.window))
        if not self.ratio:
            return pairs
        reach = self.top_k * self.ratio if self.top_k else None
        return pairs + np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, reach)) / self.ratio

    @property
    def decode_flop_per_pair(self) -> float:
        """Score and value over the same vector."""
        return 4.0 * self.head_dim

    @property
    def prefill_flop_per_pair(self) -> float:
        """As in decode."""
        return self.decode_flop_per_pair

    @property
    def decode_io_elements(self) -> float:
        """Query in, output out."""
        return 2.0 * self.head_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Query in, output out per head; the entry once."""
        return self.decode_io_elements, 1.0 * self.head_dim
