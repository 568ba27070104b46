"""Multi-head latent attention (DeepSeek-V2 and V3, Kimi K2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.attention import Kind, windowed_pairs
from rackline.arch.shapes import Dim, FloatLike, IntLike, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHeadLatentAttention(Kind):
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

    @property
    def kind(self) -> str:
        """ "mla"."""
        return "mla"

    @property
    def kernel(self) -> str:
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

    @property
    def expands_prefix(self) -> bool:
        """A chunk expands the latents of its prefix again."""
        return True

    def extra_params(self) -> int:
        """Norms of the two latents."""
        return self.q_lora_rank + self.kv_lora_rank

    @property
    def extra_kernels(self) -> float:
        """Sigmoid and product of an output gate."""
        return 2.0 * self.output_gate

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
    def expanded_flop_per_pair(self) -> float:
        """Scores over nope + rope, values over v [FLOP]."""
        return 2.0 * (self.qk_nope_head_dim + self.qk_rope_head_dim) + 2.0 * self.v_head_dim

    @property
    def prefill_flop_per_pair(self) -> float:
        """Expanded."""
        return self.expanded_flop_per_pair

    @property
    def decode_io_elements(self) -> float:
        """Absorbed query in, latent output out."""
        return 2.0 * self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """Query, expanded key and value in, output out, all per query head."""
        per_head = 2.0 * (self.qk_nope_head_dim + self.qk_rope_head_dim) + 2.0 * self.v_head_dim
        return per_head, 0.0
