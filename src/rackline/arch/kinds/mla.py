"""Latent attention over all tokens or those that an indexer picks, and attention over compressed tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rackline.arch.kinds import Attention, Core, Dim, FloatLike, Projection, always, formula, same_as, windowed_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHeadLatentAttention(Attention):
    """MLA: one latent per token is cached; absorbed into the query in decode, expanded in prefill.

    KV elements per token and layer = kv_lora_rank + qk_rope_head_dim, the same on every chip of a tp group.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1; DeepSeek-V3 config.json.
    """

    catalog_kind: ClassVar[str] = "mla"
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"q_lora_rank", "qk_rope_head_dim"})

    num_q_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    output_gate: bool = False

    kind = always("mla")

    kernel = always("mla")

    num_kv_heads = always(1)  # one shared latent

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused down-projections, query up-projection, output projection."""
        heads = self.num_q_heads
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        query = Dim(size=heads * (self.qk_nope_head_dim + self.qk_rope_head_dim), units=heads)
        model = Dim(size=d_model)
        values = Dim(size=heads * self.v_head_dim, units=heads)
        out = Projection(name="attention_out", d_in=(values,), d_out=(model,))
        if self.output_gate:
            out_and_gate = (Projection(name="attention_gate", d_in=(model,), d_out=(values,)), out)
        else:
            out_and_gate = (out,)
        if self.q_lora_rank == 0:
            return (Projection(name="qkv", d_in=(model,), d_out=(query, Dim(size=latent))), *out_and_gate)
        return (
            Projection(name="qkv_down", d_in=(model,), d_out=(Dim(size=self.q_lora_rank + latent),)),
            Projection(name="q_up", d_in=(Dim(size=self.q_lora_rank),), d_out=(query,)),
            *out_and_gate,
        )

    def expansion(self) -> Projection | None:
        """kv_b: absorbed (query to latent, latent to value) in decode, latent to keys and values in prefill.

        Both uses multiply by the same weights once per token, hence one row.
        """
        heads = self.num_q_heads
        size = heads * (self.qk_nope_head_dim + self.v_head_dim)
        return Projection(name="kv_up", d_in=(Dim(size=self.kv_lora_rank),), d_out=(Dim(size=size, units=heads),))

    expands_prefix = always(True)  # a chunk expands the latents of its prefix again

    def extra_params(self) -> int:
        """Norms of the two latents."""
        return self.q_lora_rank + self.kv_lora_rank

    extra_kernels = formula(lambda kind: 2.0 * kind.output_gate)  # sigmoid and product of an output gate

    # the latent and the rotary key
    entry_elements = formula(lambda kind: kind.kv_lora_rank + kind.qk_rope_head_dim)

    # absorbed: scores over latent + rope, values over the latent
    decode_flop_per_pair = formula(
        lambda kind: 2.0 * (kind.kv_lora_rank + kind.qk_rope_head_dim) + 2.0 * kind.kv_lora_rank
    )

    # scores over nope + rope, values over v [FLOP]
    expanded_flop_per_pair = formula(
        lambda kind: 2.0 * (kind.qk_nope_head_dim + kind.qk_rope_head_dim) + 2.0 * kind.v_head_dim
    )

    prefill_flop_per_pair = same_as("expanded_flop_per_pair")

    # absorbed query in, latent output out
    decode_io_elements = formula(lambda kind: 2.0 * kind.kv_lora_rank + kind.qk_rope_head_dim)

    # query, expanded key and value in, output out, all per query head
    prefill_io_elements = formula(
        lambda kind: (2.0 * (kind.qk_nope_head_dim + kind.qk_rope_head_dim) + 2.0 * kind.v_head_dim, 0.0)
    )


INDEX_BYTES_PER_ELEMENT = 132 / 128
"""Index keys are cached as 128 values of fp8 and one fp32 scale (DeepSeek-V3.2 in vLLM and SGLang)."""

SCORE_BYTES = 8.0
"""A score is written as fp32 by the indexer and read by the top-k kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Core):
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

    # "index"; of its own over compressed tokens, and over blocks of tokens
    kernel = formula(
        lambda kind: "compressed_index" if kind.ratio > 1 else "index" if kind.scored_tokens == 1 else "block_index"
    )

    # "index", or "index_R" over compressed tokens
    kind = formula(lambda kind: "index" if kind.ratio == 1 else f"index_{kind.ratio}")

    kv_entries_per_token = formula(lambda kind: 1.0 / kind.ratio)  # one key for `ratio` tokens

    num_kv_heads = always(1)  # one key for all heads

    heads_are_copied = same_as("all_heads_everywhere")  # whether every chip scores with all heads

    # fp8 with one scale a key, or as the cache beside it
    cache_bytes_per_element = formula(lambda kind: INDEX_BYTES_PER_ELEMENT if kind.eight_bits else None)

    entry_elements = same_as("index_head_dim")  # one key

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """All keys."""
        return context_len / self.ratio

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Every pair is scored."""
        return np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, None)) / self.ratio

    decode_flop_per_pair = formula(lambda kind: 2.0 * kind.index_head_dim)  # one dot product

    # scores pass memory on their way to the top-k kernel
    bytes_per_pair = formula(lambda kind: SCORE_BYTES / kind.scored_tokens)

    decode_io_elements = formula(lambda kind: 1.0 * kind.index_head_dim)  # query in

    # query in per head, key in once
    prefill_io_elements = formula(lambda kind: (1.0 * kind.index_head_dim, 1.0 * kind.index_head_dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLatentAttention(MultiHeadLatentAttention):
    """Latent attention over the top_k tokens that an indexer picks (DeepSeek-V3.2, GLM-5).

    A decoded token reads min(L, top_k) latents and all L index keys. The cache holds every latent and every index key.
    A prompt runs absorbed over the picked tokens, or expanded and masked over all of them where that is less work.

    Args:
        top_k: tokens that one query attends to [tokens].
        index_heads: heads of the indexer; 0 where the layer uses the choice of an earlier one [count].
        index_head_dim: width of an index head and of the cached index key [elements].
        index_ratio: tokens that one index key stands for (GLM-5.3 pools them) [tokens].

    Sources: DeepSeek-V3.2-Exp report (arXiv:2512.02556), section 2; masked form for short prompts: section 2.3.
    """

    catalog_kind: ClassVar[str] = "mla_sparse"

    top_k: int
    index_heads: int = 0
    index_head_dim: int = 0
    index_ratio: int = 1

    def problem(self) -> str | None:
        """An indexer has heads and a width."""
        if bool(self.index_heads) != bool(self.index_head_dim):
            return "index_heads and index_head_dim are both zero or both positive"
        return None

    kernel = always("sparse")

    kind = formula(lambda kind: f"mla_top_{kind.top_k}")  # "mla_top_K"

    def cores(self) -> tuple[Core, ...]:
        """The core, and the indexer where the layer has its own."""
        if not self.index_heads:
            return (self,)
        return (
            self,
            Indexer(num_q_heads=self.index_heads, index_head_dim=self.index_head_dim, ratio=self.index_ratio),
        )

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """The products of latent attention, then index queries (from the query latent), index key and head weights."""
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

    expands_prefix = always(False)  # the absorbed form reads latents as they are

    # indexer: norm, rotation and quantisation of its query and key, scaling of its weights, top-k
    extra_kernels = formula(lambda kind: 6.0 if kind.index_heads else 0.0)

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """The picked tokens."""
        return np.minimum(context_len, self.top_k)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Picked pairs, or all pairs in the expanded form counted by their work: the smaller of the two."""
        dense = self.expanded_flop_per_pair / self.prefill_flop_per_pair
        picked = windowed_pairs(chunk_tokens, prefix_tokens, self.top_k)
        return np.minimum(picked, dense * np.asarray(windowed_pairs(chunk_tokens, prefix_tokens, None)))

    prefill_flop_per_pair = same_as("decode_flop_per_pair")  # absorbed, as in decode

    # absorbed query in, latent output out, per head; the picked latents are read from the cache
    prefill_io_elements = formula(lambda kind: (kind.decode_io_elements, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(Attention):
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
    window: int = field()  # without it the default would be that of all kinds, None
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

    # "compressed_4", "compressed_128" or "window_128_shared"
    kind = formula(
        lambda kind: (
            f"compressed_{kind.ratio}{'_shared' * kind.shares_kv}" if kind.ratio else f"window_{kind.window}_shared"
        )
    )

    # "compressed"; of its own where entries are picked
    kernel = formula(lambda kind: "compressed_sparse" if kind.top_k else "compressed")

    num_kv_heads = always(1)

    def cores(self) -> tuple[Core, ...]:
        """The core, and the indexer over compressed keys."""
        if not self.index_heads:
            return (self,)
        return (self, Indexer(num_q_heads=self.index_heads, index_head_dim=self.index_head_dim, ratio=self.ratio))

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

    # norms and rotation of the entry, inverse rotation of the output; compressor; indexer
    extra_kernels = formula(
        lambda kind: 2.0 + (3.0 if kind.ratio and not kind.shares_kv else 0.0) + (8.0 if kind.index_heads else 0.0)
    )

    # in the long run one in `ratio`, none where they are shared; 1 while a lone window grows
    kv_entries_per_token = formula(lambda kind: 0.0 if kind.shares_kv else 1.0 / kind.ratio if kind.ratio else 1.0)

    def kv_held_tokens(self, context_len: FloatLike) -> FloatLike:
        """The window and all compressed entries of its own."""
        context = 1.0 * context_len
        own = self.ratio and not self.shares_kv
        return np.minimum(context, self.window) + (context / self.ratio if own else 0.0)

    entry_elements = same_as("head_dim")  # one shared vector

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

    decode_flop_per_pair = formula(lambda kind: 4.0 * kind.head_dim)  # score and value over the same vector

    decode_io_elements = formula(lambda kind: 2.0 * kind.head_dim)  # query in, output out

    # query in, output out per head; the entry once
    prefill_io_elements = formula(lambda kind: (kind.decode_io_elements, 1.0 * kind.head_dim))
