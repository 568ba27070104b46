"""A layer without a token mixer: feed-forward only (Nemotron-H, layers emptied by architecture search)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rackline.arch.attention import Core, Stateful
from rackline.arch.shapes import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAttention(Stateful):
    """Nothing: no projections, no cache, no kernels."""

    catalog_kind: ClassVar[str] = "none"

    @property
    def kind(self) -> str:
        """ "none"."""
        return "none"

    @property
    def num_q_heads(self) -> int:
        """0: any tensor parallelism divides it."""
        return 0

    @property
    def num_kv_heads(self) -> int:
        """0."""
        return 0

    def cores(self) -> tuple[Core, ...]:
        """No kernels."""
        return ()

    def projections(self, d_model: int) -> tuple[Projection, ...]:
        """None."""
        return ()

    @property
    def decode_io_elements(self) -> float:
        """0."""
        return 0.0

    @property
    def prefill_io_elements(self) -> tuple[float, float]:
        """0."""
        return 0.0, 0.0
