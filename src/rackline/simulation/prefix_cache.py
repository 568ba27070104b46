"""Prefix cache: prompt blocks kept by hash for later requests with the same prefix, evicted least recently used first.

Blocks that running requests share are counted once. Unused blocks stay until their memory is needed; then the oldest
moves to the next tier (host memory, flash), if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rackline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """A tier behind HBM: capacity and transfer rate for the cache of one rank.

    Args:
        name: display name.
        tokens: capacity [tokens].
        tokens_per_s: rate at which the cache is loaded back [tokens/s].
        latency_s: time to the first byte [s].
    """

    name: str
    tokens: float
    tokens_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.tokens >= 0 and self.tokens_per_s > 0 and self.latency_s >= 0):
            raise InputError(
                what=f"tier {self.name}",
                given=f"{self.tokens:g} tokens at {self.tokens_per_s:g} tokens/s",
                allowed="a capacity of 0 or more, a rate above 0",
            )


class Tier:
    """Blocks in a tier, oldest first."""

    __slots__ = ("blocks", "room", "spec")

    def __init__(self, spec: TierSpec, unit_tokens: int) -> None:
        self.spec = spec
        self.room = int(spec.tokens // unit_tokens)
        self.blocks: dict[int, None] = {}


class PrefixCache:
    """The hashed blocks of one rank.

    Args:
        unit_tokens: tokens of a hashed block [tokens].
        unit_blocks: KV blocks that it takes [count].
        tiers: tiers behind HBM, fastest first.
    """

    __slots__ = ("idle", "refs", "tiers", "unit_blocks", "unit_tokens")

    def __init__(self, unit_tokens: int, unit_blocks: int, tiers: Sequence[TierSpec] = ()) -> None:
        self.unit_tokens = unit_tokens
        self.unit_blocks = unit_blocks
        self.refs: dict[int, int] = {}
        self.idle: dict[int, None] = {}  # oldest first
        self.tiers = [Tier(spec, unit_tokens) for spec in tiers]

    def match(self, hashes: Sequence[int], most: int) -> tuple[int, int, list[int]]:
        """Longest cached prefix.

        Args:
            hashes: hashes of the prompt's blocks, in order.
            most: blocks to take at most [count].

        Returns:
            (blocks in HBM, how many of them are unused, further blocks by tier).
        """
        refs, idle = self.refs, self.idle
        found = resting = 0
        for block in hashes[:most]:
            if block in refs:
                pass
            elif block in idle:
                resting += 1
            else:
                break
            found += 1
        behind = [0] * len(self.tiers)
        if self.tiers:
            for block in hashes[found:most]:
                for index, tier in enumerate(self.tiers):
                    if block in tier.blocks:
                        behind[index] += 1
                        break
                else:
                    break
        return found, resting, behind

    def touch(self, hashes: Sequence[int]) -> None:
        """Mark these blocks of lower tiers as most recently used."""
        for block in hashes:
            for tier in self.tiers:
                if block in tier.blocks:
                    del tier.blocks[block]
                    tier.blocks[block] = None
                    break

    def acquire(self, hashes: Sequence[int]) -> None:
        """Mark these blocks, which are in HBM, as in use by one more request."""
        refs, idle = self.refs, self.idle
        for block in hashes:
            count = refs.get(block)
            if count is None:
                del idle[block]
                refs[block] = 1
            else:
                refs[block] = count + 1

    def insert(self, block: int) -> bool:
        """Add a block that a request has computed; whether it is new to the cache."""
        if block in self.refs:
            self.refs[block] += 1
            return False
        if block in self.idle:
            del self.idle[block]
            self.refs[block] = 1
            return True  # replaces the idle copy, which was not counted as used
        self.refs[block] = 1
        return True

    def release(self, hashes: Sequence[int]) -> int:
        """A request releases these blocks; returns how many become unused. The end of a prompt is evicted first."""
        refs, idle = self.refs, self.idle
        freed = 0
        for block in reversed(hashes):
            count = refs[block]
            if count == 1:
                del refs[block]
                idle[block] = None
                freed += 1
            else:
                refs[block] = count - 1
        return freed

    def trim(self, room_blocks: int) -> None:
        """Evict the least recently used blocks until the rest fit into `room_blocks` KV blocks."""
        keep = max(room_blocks, 0) // self.unit_blocks
        while len(self.idle) > keep:
            block = next(iter(self.idle))
            del self.idle[block]
            self._store(0, block)

    def _store(self, index: int, block: int) -> None:
        if index >= len(self.tiers):
            return
        tier = self.tiers[index]
        tier.blocks.pop(block, None)
        tier.blocks[block] = None
        if len(tier.blocks) > tier.room:
            oldest = next(iter(tier.blocks))
            del tier.blocks[oldest]
            self._store(index + 1, oldest)
