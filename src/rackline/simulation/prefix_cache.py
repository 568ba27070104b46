"""Prefix cache: blocks of prompts and answers kept by hash for later requests that begin with them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from rackline.errors import require
from rackline.simulation.evictions import EVICTIONS, BlockUse, Eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """A tier behind HBM: capacity and transfer rate for the cache of one rank.

    Args:
        name: display name.
        tokens: capacity [tokens].
        tokens_per_s: rate at which the cache is loaded back [tokens/s].
        latency_s: time to the first byte [s].
        ttl_s: time after which a block expires here; that of the rules where it is None [s].
        usd_per_byte_hour: of keeping a byte; None where it is not known [USD/byte/hour].
    """

    name: str
    tokens: float
    tokens_per_s: float
    latency_s: float = 0.0
    ttl_s: float | None = None
    usd_per_byte_hour: float | None = None

    def __post_init__(self) -> None:
        if self.ttl_s is not None:
            require(self.ttl_s > 0, what=f"tier {self.name}", given=f"ttl={self.ttl_s:g}s", allowed="above 0 s")
        require(
            self.tokens >= 0 and self.tokens_per_s > 0 and self.latency_s >= 0,
            what=f"tier {self.name}",
            given=f"{self.tokens:g} tokens at {self.tokens_per_s:g} tokens/s",
            allowed="a capacity of 0 or more, a rate above 0",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """What is kept and for how long.

    Args:
        eviction: which block goes when memory is needed, in each tier.
        ttl_s: time after which a block expires; infinite if it never does. A tier may keep it longer: a block
            whose time in HBM is over then moves there [s].
        ttl_from_use: whether the time begins anew with each use (a sliding expiry), or once, when it is written.
        recompute_s: time to recompute a block at the start of a prompt, and the increase with each block before it
            [s].
        ends_first: whether blocks of one request are marked as used from its end to its start, so that the end is
            evicted first.
        kept: what becomes of the blocks of a task between its calls; see `evictions.Keeping`.
    """

    eviction: Eviction = field(default_factory=lambda: EVICTIONS["lru"])
    ttl_s: float = inf
    ttl_from_use: bool = True
    recompute_s: tuple[float, float] = (1.0, 0.0)
    ends_first: bool = True
    kept: str = "keep"

    def __post_init__(self) -> None:
        require(self.ttl_s > 0, what="cache_ttl", given=self.ttl_s, allowed="above 0 s", nearest="300")


class _Past:
    """What keys of blocks depend on: uses, order of writing, place in the prompt."""

    __slots__ = ("depth", "parents", "rules", "serial", "uses", "written")

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self.uses: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.depth: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        self.serial = 0

    def key(self, block: int, floor: float) -> float:
        """Present key of a block, where the key evicted last was `floor`."""
        first_s, more_s = self.rules.recompute_s
        recompute_s = first_s + more_s * self.depth[block]
        use = BlockUse(self.uses[block], self.written[block], recompute_s, floor)
        key = self.rules.eviction.key
        return 0.0 if key is None else key(use)

    def use(self, block: int, depth: int, parent: int | None) -> None:
        """A request uses a block, which may be new."""
        if block not in self.uses:
            self.serial += 1
            self.written[block], self.depth[block], self.uses[block] = self.serial, depth, 0
            if parent is not None:
                self.parents[block] = parent
        self.uses[block] += 1

    def forget(self, block: int) -> None:
        """A block has left the last tier."""
        for column in (self.uses, self.written, self.depth, self.parents):
            column.pop(block, None)


class RecencyStore(dict[int, None]):
    """Blocks in the order of their last use."""

    __slots__ = ()

    def add(self, block: int) -> None:
        """Add a block as most recently used."""
        self.pop(block, None)
        self[block] = None

    def discard(self, block: int) -> None:
        """Remove a block, if it is there."""
        self.pop(block, None)

    def pop_first(self) -> int:
        """Remove the least recently used block."""
        block = next(iter(self))
        del self[block]
        return block


class KeyStore:
    """Blocks with a key each: the lowest goes first, but none before those that follow it in a prompt.

    Args:
        key_of: key of a block as it is added, given the highest key that was evicted here before.
        parents: block → the one before it in its prompt.
    """

    __slots__ = ("_children", "_heap", "_key_of", "_keys", "_parents", "_serial",
                 "floor")  # fmt: skip

    def __init__(self, key_of: Callable[[int, float], float], parents: dict[int, int]) -> None:
        self._key_of, self._parents = key_of, parents
        self._keys: dict[int, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._children: dict[int, int] = {}  # block → blocks here that follow it
        self._serial = 0
        self.floor = 0.0  # highest key that was evicted

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        """All blocks."""
        return iter(self._keys)

    def __contains__(self, block: object) -> bool:
        """Whether a block is here."""
        return block in self._keys

    def add(self, block: int) -> None:
        """Add a block with its present key; among equal keys it goes last."""
        if block not in self._keys:
            parent = self._parents.get(block)
            if parent is not None:
                self._children[parent] = self._children.get(parent, 0) + 1
        self._serial += 1
        self._keys[block] = (self._key_of(block, self.floor), self._serial)
        heapq.heappush(self._heap, (*self._keys[block], block))

    def discard(self, block: int) -> None:
        """Remove a block, if it is there."""
        if self._keys.pop(block, None) is None:
            return
        parent = self._parents.get(block)
        if parent is None:
            return
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
            return
        del self._children[parent]
        if parent in self._keys:  # it may go now
            heapq.heappush(self._heap, (*self._keys[parent], parent))

    def pop_first(self) -> int:
        """Remove the block with the lowest key that no other here follows."""
        while self._heap:
            key, serial, block = heapq.heappop(self._heap)
            if self._keys.get(block) == (key, serial) and block not in self._children:
                self.floor = max(self.floor, key)
                self.discard(block)
                return block
        block = next(iter(self._keys))  # hashes that follow each other in a circle, which no prompt gives
        self.discard(block)
        return block


BlockStore = RecencyStore | KeyStore
"""Blocks by hash, and which of them is evicted next."""


Blocks = TypeVar("Blocks")


class Tier(Generic[Blocks]):
    """Blocks of a tier behind HBM."""

    __slots__ = ("blocks", "room", "spec", "ttl_s")

    def __init__(self, spec: TierSpec, unit_tokens: int, blocks: Blocks, ttl_s: float = inf) -> None:
        self.spec = spec
        self.ttl_s = ttl_s if spec.ttl_s is None else spec.ttl_s
        self.room = int(spec.tokens // unit_tokens)
        self.blocks = blocks


class PrefixCache:
    """The hashed blocks of one rank.

    Args:
        unit_tokens: tokens of a hashed block [tokens].
        unit_blocks: KV blocks that it takes [count].
        tiers: tiers behind HBM, fastest first.
        rules: eviction and expiry.

    Raises:
        InputError: a tier whose blocks expire before those of a faster one.
    """

    __slots__ = ("_expires", "_lives", "_past", "_stamped", "idle", "refs", "rules", "stamps", "tiers", "unit_blocks",
                 "unit_tokens")  # fmt: skip

    def __init__(
        self, unit_tokens: int, unit_blocks: int, tiers: Sequence[TierSpec] = (), rules: CacheRules | None = None
    ) -> None:
        self.unit_tokens = unit_tokens
        self.unit_blocks = unit_blocks
        self.rules = rules or CacheRules()
        self._past = None if self.rules.eviction.key is None else _Past(self.rules)
        self.refs: dict[int, int] = {}
        self.idle = self._store()
        self.tiers = [Tier(spec, unit_tokens, self._store(), self.rules.ttl_s) for spec in tiers]
        self._lives = (self.rules.ttl_s, *(tier.ttl_s for tier in self.tiers))  # by level, HBM first [s]
        for before, tier in zip(self._lives, self.tiers, strict=False):
            require(
                tier.ttl_s >= before,
                what=f"tier {tier.spec.name}",
                given=f"ttl={tier.ttl_s:g}s",
                allowed=(f"at least {before:g} s" if before < inf else "none")
                + ", as long as in the memory before it (`cache_ttl` for HBM)",
            )
        self._expires = self._lives[0] < inf
        self.stamps: dict[int, float] = {}  # block → when its time began [s], where blocks expire
        # by level, what expires there, in the order of the stamps
        self._stamped: list[deque[tuple[float, int]]] = [deque() for life in self._lives if life < inf]

    def _store(self) -> BlockStore:
        past = self._past
        return RecencyStore() if past is None else KeyStore(past.key, past.parents)

    # looking up

    def match(self, hashes: Sequence[int], most: int, now: float = 0.0) -> tuple[int, int, list[int]]:
        """Longest cached prefix.

        Args:
            hashes: hashes of the prompt's blocks, in order.
            most: blocks to take at most [count].
            now: time, for blocks that expire [s].

        Returns:
            (blocks in HBM, how many of them are unused, further blocks by tier).
        """
        refs, idle = self.refs, self.idle
        found = resting = 0
        for block in hashes[:most]:
            if block in refs:
                if self._expires and not self.rules.ttl_from_use and not self._is_alive(block, now):
                    break
            elif block in idle and self._is_alive(block, now):
                resting += 1
            else:
                break
            found += 1
        behind = [0] * len(self.tiers)
        if self.tiers:
            for block in hashes[found:most]:
                for index, tier in enumerate(self.tiers):
                    if block in tier.blocks and self._is_alive(block, now, 1 + index):
                        behind[index] += 1
                        break
                else:
                    break
        return found, resting, behind

    def _is_alive(self, block: int, now: float, level: int = 0) -> bool:
        return not self._expires or now < self.stamps.get(block, -inf) + self._lives[level]

    def touch(self, hashes: Sequence[int]) -> None:
        """Mark these blocks of lower tiers as most recently used."""
        for block in hashes:
            for tier in self.tiers:
                if block in tier.blocks:
                    tier.blocks.add(block)
                    break

    # use

    def acquire(self, hashes: Sequence[int]) -> None:
        """Mark these blocks, which are in HBM, as in use by one more request."""
        refs, past = self.refs, self._past
        for block in hashes:
            count = refs.get(block)
            if count is None:
                self.idle.discard(block)
                refs[block] = 1
            else:
                refs[block] = count + 1
            if past is not None:
                past.use(block, 0, None)

    def insert(self, blocks: Sequence[int], depth: int, parent: int | None, now: float = 0.0) -> int:
        """Add consecutive blocks that a request has computed or loaded.

        Args:
            blocks: their hashes.
            depth: blocks of the request before them [count].
            parent: the one before them; None at the start of a prompt.
            now: when [s].

        Returns:
            How many of them another running request has computed already: they are not needed twice.
        """
        refs, past = self.refs, self._past
        double = 0
        for place, block in enumerate(blocks, start=depth):
            if past is not None:
                past.use(block, place, parent)
                parent = block
            if self._expires and not self.rules.ttl_from_use and not self._is_alive(block, now):
                self._stamp(block, now)
            if block in refs:
                refs[block] += 1
                double += 1
                continue
            self.idle.discard(block)  # a copy that was not counted as used
            refs[block] = 1
        return double

    def release(self, hashes: Sequence[int], now: float = 0.0) -> int:
        """A request releases these blocks; returns how many become unused."""
        refs = self.refs
        freed = 0
        for block in reversed(hashes) if self.rules.ends_first else hashes:
            count = refs[block]
            if count > 1:
                refs[block] = count - 1
                continue
            del refs[block]
            freed += 1
            if self._expires:
                if self.rules.ttl_from_use:
                    self._stamp(block, now)
                elif not self._is_alive(block, now):
                    self._move_on(block, now, 0)
                    continue
            self.idle.add(block)
        return freed

    # expiry and eviction

    @property
    def next_expiry_s(self) -> float:
        """When the next block may expire [s]; infinite if none does."""
        pairs = zip(self._stamped, self._lives, strict=False)
        return min((stamped[0][0] + life for stamped, life in pairs if stamped), default=inf)

    def _stamp(self, block: int, now: float) -> None:
        self.stamps[block] = now
        for stamped in self._stamped:
            stamped.append((now, block))

    def expire(self, now: float) -> None:
        """Take unused blocks whose time is over out of the memory where it is; a tier that keeps longer gets them."""
        for level, stamped in enumerate(self._stamped):
            life = self._lives[level]
            while stamped and stamped[0][0] + life <= now:
                time_s, block = stamped.popleft()
                here = self.tiers[level - 1].blocks if level else self.idle
                if self.stamps.get(block) == time_s and block in here:
                    here.discard(block)
                    self._move_on(block, now, level)

    def _move_on(self, block: int, now: float, level: int) -> None:
        """The time of a block in one memory is over: it goes to the next tier in which it may still stay."""
        for index in range(level, len(self.tiers)):
            if self._is_alive(block, now, 1 + index):
                self._move_down(block, index)
                return
        if not self._is_kept(block):
            self._forget(block)

    def _is_kept(self, block: int) -> bool:
        return block in self.refs or block in self.idle or any(block in tier.blocks for tier in self.tiers)

    def _move_down(self, block: int, first: int) -> None:
        """Put a block into a tier; what that evicts goes further down."""
        for tier in self.tiers[first:]:
            tier.blocks.add(block)
            if len(tier.blocks) <= tier.room:
                return
            block = tier.blocks.pop_first()
        if not self._is_kept(block):
            self._forget(block)

    def _forget(self, block: int) -> None:
        self.stamps.pop(block, None)
        if self._past is not None:
            self._past.forget(block)

    def trim(self, room_blocks: int) -> None:
        """Evict unused blocks until the rest fit into `room_blocks` KV blocks."""
        keep = max(room_blocks, 0) // self.unit_blocks
        while len(self.idle) > keep:
            self._move_down(self.idle.pop_first(), 0)


# Prefix-aware routing balances the load only beyond this imbalance, and follows a cache match above this share of the
# prompt. Defaults of SGLang's gateway: balance_abs_threshold, balance_rel_threshold, cache_threshold
# (sgl-model-gateway/src/policies/mod.rs, CacheAwareConfig, read 2026-11-25).
IMBALANCE_REQUESTS = 32
IMBALANCE_RATIO = 1.1
MATCH_SHARE = 0.5


def matched(known: Sequence[int], loads: Sequence[int], num_blocks: int) -> int | None:
    """Place of the cache to which a request goes for its prefix; None where the load decides.

    Args:
        known: blocks of the prefix in each cache [count].
        loads: waiting and running requests beside each cache [requests].
        num_blocks: of the prompt [count].

    >>> matched([0, 6], [3, 9], 8), matched([0, 3], [3, 9], 8), matched([0, 6], [3, 90], 8)
    (1, None, None)
    """
    if max(loads) - min(loads) > IMBALANCE_REQUESTS and max(loads) > IMBALANCE_RATIO * min(loads):
        return None
    best = max(range(len(known)), key=lambda place: (known[place], -loads[place]))
    return best if num_blocks and known[best] > MATCH_SHARE * num_blocks else None
