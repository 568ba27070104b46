"""Attention of encoders: every token sees every other of its image or window, and nothing is cached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.arch.shapes import FloatLike


@dataclass(frozen=True, slots=True, kw_only=True)
class BidirectionalAttention(GroupedQueryAttention):
    """Multi-head attention without a causal mask, over all tokens or inside windows that do not overlap.

    Sources: Vision Transformer, arXiv:2010.11929; windows of 8 by 8 patches, Qwen2.5-VL, arXiv:2502.13923, section 2.1.
    """

    catalog_kind: ClassVar[str] = "bidirectional"

    @property
    def kernel(self) -> str:
        """ "encoder"."""
        return "encoder"

    @property
    def kind(self) -> str:
        """ "bidirectional" or "bidirectional_W"."""
        return "bidirectional" if self.window is None else f"bidirectional_{self.window}"

    @property
    def kv_entries_per_token(self) -> float:
        """0: no later pass reads what this one has seen."""
        return 0.0

    def attention_pairs(self, chunk_tokens: FloatLike, prefix_tokens: FloatLike) -> FloatLike:
        """n (p + n) pairs, or n times the window [pairs per sequence]."""
        n, seen = np.asarray(chunk_tokens, dtype=float), np.asarray(prefix_tokens, dtype=float) + chunk_tokens
        return n * (seen if self.window is None else np.minimum(seen, self.window))
