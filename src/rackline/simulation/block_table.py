"""Prefix cache over arrays: blocks are numbered, so that a prompt of thousands of them is looked up at once.

The cache of `prefix_cache` where blocks do not expire, with the policies of `KEEPINGS`; tests hold one to the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, assert_never

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.evictions import KEEPINGS, Keeping
from rackline.simulation.prefix_cache import CacheRules, Tier, TierSpec


class ArrayStore:
    """Blocks in the order of their last use.

    Args:
        size: highest number of a block, plus 1 [count].
    """

    __slots__ = ("_added", "_serial", "_stamps", "count", "held")

    def __init__(self, size: int) -> None:
        self.held = np.zeros(size, dtype=bool)
        self._stamps = np.zeros(size, dtype=np.int64)
        self._added: deque[tuple[int, Array]] = deque()  # (stamp of the first, blocks); stamps are consecutive
        self._serial = self.count = 0

    def add(self, blocks: Array) -> None:
        """Add blocks as most recently used, none of them twice."""
        if not len(blocks):
            return
        self.count += len(blocks) - int(np.count_nonzero(self.held[blocks]))
        self.held[blocks] = True
        self._stamps[blocks] = np.arange(self._serial, self._serial + len(blocks))
        self._added.append((self._serial, blocks))
        self._serial += len(blocks)

    def discard(self, blocks: Array) -> None:
        """Remove those of the blocks that are here."""
        self.count -= int(np.count_nonzero(self.held[blocks]))
        self.held[blocks] = False

    def pop(self, number: int) -> Array:
        """Remove the least recently used blocks, at most all of them."""
        gone: list[Array] = []
        while number > 0 and self._added:
            first, blocks = self._added.popleft()
            here = np.flatnonzero(self.held[blocks] & (self._stamps[blocks] == np.arange(first, first + len(blocks))))
            if len(here) > number:
                place = int(here[number])
                self._added.appendleft((first + place, blocks[place:]))
                here = here[:number]
            taken = blocks[here]
            self.held[taken] = False
            self.count -= len(taken)
            number -= len(taken)
            gone.append(taken)
        return np.concatenate(gone) if gone else np.zeros(0, dtype=np.int64)


class BlockTable:
    """The numbered blocks of one rank, with the methods of `PrefixCache`.

    Args:
        size: highest number of a block, plus 1 [count].
        unit_tokens: tokens of a block [tokens].
        unit_blocks: KV blocks that it takes [count].
        tiers: tiers behind HBM, fastest first.
        rules: of the cache, least recently used first and without expiry.
    """

    __slots__ = ("_keeping", "idle", "refs", "rules", "tiers", "unit_blocks", "unit_tokens")

    next_expiry_s = inf

    def __init__(
        self, size: int, unit_tokens: int, unit_blocks: int, tiers: Sequence[TierSpec], rules: CacheRules
    ) -> None:
        self.unit_tokens, self.unit_blocks, self.rules = unit_tokens, unit_blocks, rules
        self.refs = np.zeros(size, dtype=np.int32)
        self.idle = ArrayStore(size)
        self.tiers = [Tier(spec, unit_tokens, ArrayStore(size)) for spec in tiers]
        self._keeping: Keeping = KEEPINGS.find(rules.kept)

    def match(self, hashes: Array, most: int, now: float = 0.0) -> tuple[int, int, list[int]]:
        """Longest cached prefix: (blocks in HBM, how many of them are unused, further blocks by tier)."""
        blocks = hashes[:most]
        idle = self.idle.held[blocks]
        known: Any = np.array([idle, self.refs[blocks] > 0]).any(axis=0)
        found = _leading(known)
        behind: list[int] = []
        rest = blocks[found:]
        if self.tiers and len(rest):
            held = np.array([tier.blocks.held[rest] for tier in self.tiers])
            some: Array = np.any(held, axis=0)
            level = np.argmax(held, axis=0)[: _leading(some)]
            behind = np.bincount(level, minlength=len(self.tiers)).tolist()
        return found, int(np.count_nonzero(idle[:found])), behind or [0] * len(self.tiers)

    def touch(self, hashes: Array) -> None:
        """Mark these blocks of lower tiers as most recently used."""
        for tier in self.tiers:
            here = tier.blocks.held[hashes]
            tier.blocks.add(hashes[here])
            hashes = hashes[~here]

    def acquire(self, hashes: Array) -> None:
        """Mark these blocks, which are in HBM, as in use by one more request."""
        self.idle.discard(hashes)
        self.refs[hashes] += 1

    def insert(self, blocks: Array, depth: int, parent: int | None, now: float = 0.0) -> int:
        """Add consecutive blocks that a request has computed or loaded; returns how many another one has already."""
        double = int(np.count_nonzero(self.refs[blocks]))
        self.acquire(blocks)
        return double

    def release(self, hashes: Array, now: float = 0.0) -> int:
        """A request releases these blocks; returns how many become unused."""
        self.refs[hashes] -= 1
        freed = hashes[self.refs[hashes] == 0]
        freed = freed[::-1] if self.rules.ends_first else freed
        match self._keeping.place:
            case "hbm":
                self.idle.add(freed)
            case "tier":
                self._move_down(freed)
            case "nowhere":
                pass
            case _:
                assert_never(self._keeping.place)
        return len(freed)

    def expire(self, now: float) -> None:
        """Nothing expires."""

    def _move_down(self, blocks: Array) -> None:
        for tier in self.tiers:
            tier.blocks.add(blocks)
            blocks = tier.blocks.pop(tier.blocks.count - tier.room)
            if not len(blocks):
                return

    def trim(self, room_blocks: int) -> None:
        """Evict unused blocks until the rest fit into `room_blocks` KV blocks."""
        over = self.idle.count - max(room_blocks, 0) // self.unit_blocks
        if over > 0:
            self._move_down(self.idle.pop(over))


def _leading(flags: Any) -> int:
    """How many of them are true before the first that is not."""
    if not len(flags):
        return 0
    place = int(np.argmin(flags))
    return place if not flags[place] else len(flags)
