"""Unused blocks of one memory tier in the order in which they are evicted."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Protocol


class BlockStore(Protocol):
    """Blocks by hash, and which of them is evicted next."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def __contains__(self, block: object, /) -> bool: ...

    def add(self, block: int) -> None:
        """Add a block, or add it anew if it is there: as most recently used, with its present worth."""
        ...

    def discard(self, block: int) -> None:
        """Remove a block, if it is there."""
        ...

    def pop_first(self) -> int:
        """Remove the block that is evicted first."""
        ...


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
