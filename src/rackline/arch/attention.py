"""Attention kinds: what one token of each costs in weights, KV cache, reads and FLOP.

Each kind answers the same questions (`Attention`), so that the pass table needs no branch per kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rackline.arch.shapes import Dim, FloatLike, IntLike, Projection


class Attention(Protocol):
    """What the rest of the library asks of an attention kind."""

    @property
    def kind(self) -> str:
        """Short label: rows and features of one kind share it ("full", "window_128", "mla")."""
        ...

    @property
    def num_q_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def window(self) -> int | None: ...

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Matrix products on every token of a pass."""
        ...

    def expansion(self) -> Projection | None:
        """Matrix product on every decoded token and every prefilled or re-read prefix token (MLA's kv_b)."""
        ...

    def extra_params(self) -> int:
        """Norms, sinks and other small parameters of one layer [elements]."""
        ...

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """KV cache elements that one token leaves on each of tp chips, per layer [elements]."""
        ...

    def state_elements(self, tp: IntLike) -> FloatLike:
        """Recurrent state of one sequence on each of tp chips, per layer [elements]; 0 for softmax attention."""
        ...

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """Tokens of KV that one decoded token reads at this context [tokens]."""
        ...

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """Causal query-key pairs of a chunk of new tokens behind a prefix [pairs per sequence]."""
        ...

    @property
    def decode_flop_per_pair(self) -> float:
        """FLOP of one query head against one cached token when decoding [FLOP]."""
        ...

    @property
    def prefill_flop_per_pair(self) -> float:
        """FLOP of one query head against one key when prefilling [FLOP]."""
        ...

    @property
    def state_flop_per_token(self) -> float:
        """FLOP of one head on the state for one decoded token [FLOP]."""
        ...

    @property
    def chunk_flop_per_token(self) -> float:
        """FLOP of one head for one prompt token beside the pairs [FLOP]."""
        ...

    @property
    def decode_io_elements(self) -> float:
        """Query read and output written per query head and token when decoding [elements]."""
        ...

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Elements moved per token when prefilling: (per query head, per KV head)."""
        ...


def windowed_pairs(chunk_tokens: FloatLike, prefix_tokens: FloatLike, window: int | None) -> FloatLike:
    """Causal query-key pairs of `chunk_tokens` new tokens behind `prefix_tokens` earlier ones.

    pairs = sum over i = 1..n of min(p + i, w)

    Args:
        chunk_tokens: n, new tokens [tokens], any shape.
        prefix_tokens: p, earlier tokens of the same sequence [tokens], same shape.
        window: w, how many tokens a query may see, itself included [tokens]; None means all.

    Returns:
        Pairs [count], broadcast shape.

    Assumes: the self pair counts; n² becomes n(n+1)/2.

    >>> float(windowed_pairs(4.0, 0.0, None)), float(windowed_pairs(4.0, 0.0, 2))
    (10.0, 7.0)
    """
    n, p = np.asarray(chunk_tokens, dtype=float), np.asarray(prefix_tokens, dtype=float)
    if window is None:
        return n * p + n * (n + 1) / 2
    growing = np.clip(window - p, 0.0, n)
    return growing * p + growing * (growing + 1) / 2 + (n - growing) * window


class _Stateless:
    """Attention whose only memory of the past is its KV cache."""

    __slots__ = ()

    def state_elements(self, tp: IntLike) -> FloatLike:
        """0: no recurrent state."""
        return np.zeros_like(np.asarray(tp, dtype=float))

    @property
    def state_flop_per_token(self) -> float:
        """0."""
        return 0.0

    @property
    def chunk_flop_per_token(self) -> float:
        """0."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueryAttention(_Stateless):
    """MHA (num_kv_heads = num_q_heads), GQA and MQA (num_kv_heads = 1), full or in a sliding window.

    KV bytes per token and layer = 2 * num_kv_heads * head_dim * bytes per element (lecture C101).
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    output_gate: bool = False

    @property
    def kind(self) -> str:
        """ "full" or "window_W"."""
        return "full" if self.window is None else f"window_{self.window}"

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused q, k, v and the output projection."""
        q = Dim(size=self.num_q_heads * self.head_dim, units=self.num_q_heads)
        queries = (q, q) if self.output_gate else (q,)  # the gate is projected like a query
        kv = Dim(size=2 * self.num_kv_heads * self.head_dim, units=self.num_kv_heads)
        if self.num_kv_heads == 1:  # a single head cannot be spread: every chip keeps it
            kv = Dim(size=kv.size)
        model = Dim(size=d_model)
        return (
            Projection(name="qkv", d_in=(model,), d_out=(*queries, kv), bias=self.bias),
            Projection(name="attention_out", d_in=(q,), d_out=(model,), bias=self.output_bias),
        )

    def expansion(self) -> Projection | None:
        """None: keys and values are cached as they are used."""
        return None

    def extra_params(self) -> int:
        """Query and key norms, attention sinks."""
        return (2 * self.head_dim if self.qk_norm else 0) + (self.num_q_heads if self.sinks else 0)

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """2 (key and value) * head_dim * KV heads on the chip; heads are copied when tp exceeds them."""
        return 2.0 * self.head_dim * np.ceil(self.num_kv_heads / np.asarray(tp))

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """All of the context, or the window."""
        return context_len if self.window is None else np.minimum(context_len, self.window)

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """See `windowed_pairs`."""
        return windowed_pairs(chunk_tokens, prefix_tokens, self.window)

    @property
    def decode_flop_per_pair(self) -> float:
        """q·k and score·v: two dot products of head_dim multiply-adds."""
        return 4.0 * self.head_dim

    @property
    def prefill_flop_per_pair(self) -> float:
        """As in decode."""
        return 4.0 * self.head_dim

    @property
    def decode_io_elements(self) -> float:
        """Query in, output out."""
        return 2.0 * self.head_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Query in and output out per query head; key and value in per KV head."""
        return 2.0 * self.head_dim, 2.0 * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHeadLatentAttention(_Stateless):
    """MLA: one latent per token is cached; absorbed into the query in decode, expanded in prefill.

    KV elements per token and layer = kv_lora_rank + qk_rope_head_dim, the same on every chip of a tp group.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1; DeepSeek-V3 config.json.
    """

    num_q_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def kind(self) -> str:
        """ "mla"."""
        return "mla"

    @property
    def num_kv_heads(self) -> int:
        """One shared latent."""
        return 1

    @property
    def window(self) -> int | None:
        """None: the whole context is read."""
        return None

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """Fused down-projections, query up-projection, output projection."""
        heads = self.num_q_heads
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        query = Dim(size=heads * (self.qk_nope_head_dim + self.qk_rope_head_dim), units=heads)
        model = Dim(size=d_model)
        out = Projection(name="attention_out", d_in=(Dim(size=heads * self.v_head_dim, units=heads),), d_out=(model,))
        if self.q_lora_rank == 0:
            return (Projection(name="qkv", d_in=(model,), d_out=(query, Dim(size=latent))), out)
        return (
            Projection(name="qkv_down", d_in=(model,), d_out=(Dim(size=self.q_lora_rank + latent),)),
            Projection(name="q_up", d_in=(Dim(size=self.q_lora_rank),), d_out=(query,)),
            out,
        )

    def expansion(self) -> Projection | None:
        """kv_b: absorbed (query to latent, latent to value) in decode, latent to keys and values in prefill.

        Both uses multiply by the same weights once a token, hence one row.
        """
        heads = self.num_q_heads
        size = heads * (self.qk_nope_head_dim + self.v_head_dim)
        return Projection(name="kv_up", d_in=(Dim(size=self.kv_lora_rank),), d_out=(Dim(size=size, units=heads),))

    def extra_params(self) -> int:
        """Norms of the two latents."""
        return self.q_lora_rank + self.kv_lora_rank

    def kv_elements_per_token(self, tp: IntLike) -> FloatLike:
        """The latent and the rotary key, copied on every chip of the tp group."""
        return (self.kv_lora_rank + self.qk_rope_head_dim) * np.ones_like(np.asarray(tp, dtype=float))

    def kv_read_tokens(self, context_len: FloatLike) -> FloatLike:
        """All of the context."""
        return context_len

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """See `windowed_pairs`."""
        return windowed_pairs(chunk_tokens, prefix_tokens, None)

    @property
    def decode_flop_per_pair(self) -> float:
        """Absorbed: scores over latent + rope, values over the latent."""
        return 2.0 * (self.kv_lora_rank + self.qk_rope_head_dim) + 2.0 * self.kv_lora_rank

    @property
    def prefill_flop_per_pair(self) -> float:
        """Expanded: scores over nope + rope, values over v."""
        return 2.0 * (self.qk_nope_head_dim + self.qk_rope_head_dim) + 2.0 * self.v_head_dim

    @property
    def decode_io_elements(self) -> float:
        """Absorbed query in, latent output out."""
        return 2.0 * self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Query, expanded key and value in, output out, all per query head."""
        per_head = 2.0 * (self.qk_nope_head_dim + self.qk_rope_head_dim) + 2.0 * self.v_head_dim
        return per_head, 0.0
