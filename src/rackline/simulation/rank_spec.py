"""Limits of one rank, and how far its sequences advance in a number of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor

from rackline.errors import InputError
from rackline.simulation.policies import Reserve
from rackline.simulation.prefix_cache import CacheRules, TierSpec
from rackline.simulation.resident_adapters import AdapterSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """Limits of one rank.

    Args:
        pool_tokens: KV cache capacity [tokens].
        block_size: tokens per KV block [tokens].
        fixed_tokens: cache that a sequence takes at any length (windows, recurrent state), in tokens [tokens].
        grows: whether the cache of a sequence grows with each token in addition.
        max_num_seqs: running sequences at most [sequences].
        max_batched_tokens: token budget of a pass [tokens].
        reserve: cache that must be free for admission; None for the policy's own.
        swap_tokens_per_s: rate at which preempted sequences are swapped to the host and back; 0 recomputes them
            [tokens/s].
        prefix_caching: whether prompt blocks are kept by hash.
        hash_tokens: tokens per hashed block [tokens].
        tiers: tiers behind HBM for hashed blocks.
        cache_rules: eviction and expiry of hashed blocks.
        adapters: room for low-rank adapters, where requests use several; None else.
        neighbour_passes: whether only sequences of neighbouring slots share a pass.
    """

    pool_tokens: int
    block_size: int = 16
    fixed_tokens: int = 0
    grows: bool = True
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    reserve: Reserve | None = None
    swap_tokens_per_s: float = 0.0
    prefix_caching: bool = False
    hash_tokens: int = 512
    tiers: tuple[TierSpec, ...] = ()
    cache_rules: CacheRules = field(default_factory=CacheRules)
    adapters: AdapterSlots | None = None
    neighbour_passes: bool = False

    def __post_init__(self) -> None:
        for name in ("pool_tokens", "block_size", "max_num_seqs", "max_batched_tokens", "hash_tokens"):
            if getattr(self, name) < 1:
                raise InputError(what=name, given=getattr(self, name), allowed="at least 1", nearest="1")
        if not self.grows and self.reserve != "final":
            raise InputError(what="reserve", given=self.reserve, allowed="final, as the cache has a fixed size")
        if self.prefix_caching and self.hash_tokens % self.block_size:
            raise InputError(
                what="hash_tokens", given=self.hash_tokens, allowed=f"a multiple of the block size {self.block_size}"
            )

    @property
    def num_blocks(self) -> int:
        """KV blocks of the pool [count]."""
        return self.pool_tokens // self.block_size

    def blocks_of(self, tokens: int) -> int:
        """KV blocks of one sequence [count]."""
        return (-(-tokens // self.block_size) if self.grows else 0) - (-self.fixed_tokens // self.block_size)


def token_clock(steps: int, tokens_per_step: float) -> int:
    """Whole tokens that a sequence has gained after `steps` steps, at the mean rate over many steps [tokens]."""
    return steps if tokens_per_step == 1.0 else floor(steps * tokens_per_step + 1e-9)
