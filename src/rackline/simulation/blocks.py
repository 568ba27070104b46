"""KV blocks of a rank: how many are in use, and unused ones of a memory tier in the order of their eviction."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol


class KvBlocks:
    """Counts of a rank's KV blocks.

    Args:
        total: blocks of the rank [count].
        keeps_content: whether a preempted request may find its blocks again.
    """

    __slots__ = ("freed", "total", "used")

    def __init__(self, total: int, *, keeps_content: bool) -> None:
        self.total, self.used = total, 0
        self.freed = FreedBlocks(total) if keeps_content else None

    @property
    def free(self) -> int:
        """Blocks that are not in use [count]."""
        return self.total - self.used

    def take(self, blocks: int) -> None:
        """Take free blocks into use."""
        self.used += blocks
        if self.freed is not None and blocks > 0:
            self.freed.take(blocks)

    def give(self, owner: int, blocks: int) -> None:
        """Free blocks; request `owner` may find their content again, -1 for no request."""
        self.used -= blocks
        if self.freed is not None:
            self.freed.give(owner, blocks)

    def left_of(self, request: int) -> int:
        """Free blocks that still hold what a request left [count]."""
        return self.freed.left_of(request) if self.freed is not None else 0

    def take_again(self, request: int, blocks: int) -> int:
        """A request takes back up to `blocks` of the blocks that it left; returns how many."""
        found = self.freed.reuse(request, blocks) if self.freed is not None else 0
        self.used += found
        return found


class FreedBlocks:
    """Free blocks in the order in which they were freed, with what preempted requests left in them.

    A block hash cache keeps the content of free blocks until they are reused, oldest first, and the end of a request
    before its beginning: a request that resumes soon finds most of its prompt.
    """

    __slots__ = ("left", "queue")

    def __init__(self, total: int) -> None:
        self.queue: deque[list[int]] = deque([[-1, total]])
        self.left: dict[int, list[int]] = {}

    def take(self, blocks: int) -> None:
        """Take the oldest free blocks into use."""
        queue = self.queue
        while blocks > 0 and queue:
            part = queue[0]
            if part[1] > blocks:
                part[1] -= blocks
                return
            blocks -= part[1]
            queue.popleft()
            if part[0] >= 0 and self.left.get(part[0]) is part:
                del self.left[part[0]]

    def give(self, request: int, blocks: int) -> None:
        """Free blocks; request -1 for content that no request will look up."""
        if blocks <= 0:
            return
        if request < 0 and self.queue and self.queue[-1][0] < 0:
            self.queue[-1][1] += blocks
            return
        part = [request, blocks]
        self.queue.append(part)
        if request >= 0:
            self.left[request] = part

    def left_of(self, request: int) -> int:
        """Blocks that still hold what a request left [count]."""
        part = self.left.get(request)
        return 0 if part is None else part[1]

    def reuse(self, request: int, blocks: int) -> int:
        """A request takes back up to `blocks` of its own blocks; returns how many. The rest loses its owner."""
        part = self.left.pop(request, None)
        if part is None:
            return 0
        found = min(blocks, part[1])
        part[0] = -1
        part[1] -= found
        return found


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
