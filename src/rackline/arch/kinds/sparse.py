"""Sparse attention: an indexer scores all cached tokens, the core reads the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Core, Kind, windowed_pairs
from rackline.arch.kinds.mla import MultiHeadLatentAttention
from rackline.arch.shapes import Dim, FloatLike, IntLike, Projection

INDEX_BYTES_PER_ELEMENT = 132 / 128
"""Index keys are cached as 128 values of fp8 and one fp32 scale (DeepSeek-V3.2 in vLLM and SGLang)."""

SCORE_BYTES = 8.0
"""A score is written as fp32 by the indexer and read by the top-k kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Kind):
    """Lightning indexer: a few small heads score every cached token for every query; one key per token is cached.

    score(t, s) = Σ_h w(t, h) · relu(q(t, h) · k(s)), so 2 · index_head_dim FLOP per head and pair. Heads are not cut
    by tensor parallelism, every chip scores all tokens (unless said otherwise).

    Args:
        num_q_heads: heads of the index queries [count].
        index_head_dim: width of a head and of the key [elements].
        ratio: tokens that one index key stands for [tokens].
        eight_bits: whether keys are kept in fp8 regardless of the KV cache's type.
        all_heads_everywhere: whether every chip of a tp group scores with all heads.
        scored_tokens: tokens for which one score leaves the kernel [tokens].

    Sources: DeepSeek-V3.2-Exp report (arXiv:2512.02556), equation 1; deepseek-ai/DeepSeek-V3.2-Exp inference/model.py.
    """

    num_q_heads: int
    index_head_dim: int
    ratio: int = 1
    eight_bits: bool = True
    all_heads_everywhere: bool = True
    scored_tokens: int = 1

    @property
    def kernel(self) -> str:
        """ "index"; of its own over compressed tokens, and over blocks of tokens."""
        return "compressed_index" if self.ratio > 1 else "index" if self.scored_tokens == 1 else "block_index"

    @property
    def kind(self) -> str:
        """ "index", or "index_R" over compressed tokens."""
        return "index" if self.ratio == 1 else f"index_{self.ratio}"

    @property
    def kv_entries_per_token(self) -> float:
        """One key for `ratio` tokens."""
        return 1.0 / self.ratio

    @property
    def num_kv_heads(self) -> int:
        """One key for all heads."""
        return 1

    @property
    def heads_are_copied(self) -> bool:
        """True where every chip scores with all heads."""
        return self.all_heads_everywhere

    @property
    def cache_bytes_per_element(self) -> float | None:
        """fp8 with one scale a key, or as the cache beside it."""
        return INDEX_BYTES_PER_ELEMENT if self.eight_bits else None

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """One key, copied on every chip."""
        return self.index_head_dim * np.ones_like(np.asarray(tp, dtype=float))

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """All keys."""
        return context_len / self.ratio

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Every pair is scored."""
        return np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, None)) / self.ratio

    @property
    def decode_flop_per_pair(self) -> float:
        """One dot product."""
        return 2.0 * self.index_head_dim

    @property
    def prefill_flop_per_pair(self) -> float:
        """As in decode."""
        return self.decode_flop_per_pair

    @property
    def bytes_per_pair(self) -> float:
        """Scores pass memory on their way to the top-k kernel."""
        return SCORE_BYTES / self.scored_tokens

    @property
    def decode_io_elements(self) -> float:
        """Query in."""
        return 1.0 * self.index_head_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Query in per head, key in once."""
        return 1.0 * self.index_head_dim, 1.0 * self.index_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLatentAttention(MultiHeadLatentAttention):
    """Latent attention over the top_k tokens that an indexer picks (DeepSeek-V3.2, GLM-5).

    A decoded token reads min(L, top_k) latents and all L index keys. The cache holds every latent and every index key.
    A prompt runs absorbed over the picked tokens, or expanded and masked over all of them where that is less work.

    Args:
        top_k: tokens that one query attends to [tokens].
        index_heads: heads of the indexer; 0 where the layer uses the choice of an earlier one [count].
        index_head_dim: width of an index head and of the cached index key [elements].

    Sources: DeepSeek-V3.2-Exp report (arXiv:2512.02556), section 2; masked form for short prompts: section 2.3.
    """

    catalog_kind: ClassVar[str] = "mla_sparse"

    top_k: int
    index_heads: int = 0
    index_head_dim: int = 0

    def problem(self) -> str | None:
        """An indexer has heads and a width."""
        if bool(self.index_heads) != bool(self.index_head_dim):
            return "index_heads and index_head_dim are both zero or both positive"
        return None

    @property
    def kernel(self) -> str:
        """ "sparse"."""
        return "sparse"

    @property
    def kind(self) -> str:
        """ "mla_top_K"."""
        return f"mla_top_{self.top_k}"

    def cores(self) -> tuple[Core, ...]:
        """The core, and the indexer where the layer has its own."""
        if not self.index_heads:
            return (self,)
        return (self, Indexer(num_q_heads=self.index_heads, index_head_dim=self.index_head_dim))

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Those of latent attention, then index queries (from the query latent), index key and head weights."""
        base = MultiHeadLatentAttention.projections(self, d_model)
        if not self.index_heads:
            return base
        source = Dim(size=self.q_lora_rank or d_model)
        queries = Dim(size=self.index_heads * self.index_head_dim)
        key_and_weights = (Dim(size=self.index_head_dim), Dim(size=self.index_heads))
        return (
            *base,
            Projection(name="index_q", d_in=(source,), d_out=(queries,)),
            Projection(name="index_k_weights", d_in=(Dim(size=d_model),), d_out=key_and_weights),
        )

    def extra_params(self) -> int:
        """Norms of the latents; weight and bias of the layer norm of the index key."""
        index = 2 * self.index_head_dim if self.index_heads else 0
        return MultiHeadLatentAttention.extra_params(self) + index

    @property
    def expands_prefix(self) -> bool:
        """False: the absorbed form reads latents as they are."""
        return False

    @property
    def extra_kernels(self) -> float:
        """Indexer: norm, rotation and quantisation of its query and key, scaling of its weights, top-k."""
        return 6.0 if self.index_heads else 0.0

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """The picked tokens."""
        return np.minimum(context_len, self.top_k)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Picked pairs, or all pairs in the expanded form counted by their work: the smaller of the two."""
        dense = self.expanded_flop_per_pair / self.prefill_flop_per_pair
        picked = windowed_pairs(chunk_tokens, prefix_tokens, self.top_k)
        return np.minimum(picked, dense * np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, None)))

    @property
    def prefill_flop_per_pair(self) -> float:
        """Absorbed, as in decode."""
        return self.decode_flop_per_pair

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Absorbed query in, latent output out, per head; the picked latents are read from the cache."""
        return self.decode_io_elements, 0.0
