"""The KV blocks of a rank: how many are in use, and what preempted requests left in the free ones."""

from __future__ import annotations

from collections import deque


class KvBlocks:
    """KV blocks of a rank by number.

    Args:
        total: of the rank [count].
        keeps_content: whether a preempted request may find its blocks again.
    """

    __slots__ = ("freed", "total", "used")

    def __init__(self, total: int, *, keeps_content: bool) -> None:
        self.total, self.used = total, 0
        self.freed = FreedBlocks(total) if keeps_content else None

    @property
    def free(self) -> int:
        """Blocks that nobody uses [count]."""
        return self.total - self.used

    def take(self, blocks: int) -> None:
        """Take a number of free blocks into use."""
        self.used += blocks
        if self.freed is not None and blocks > 0:
            self.freed.take(blocks)

    def give(self, owner: int, blocks: int) -> None:
        """Blocks are free again; their content is of use to `owner`, -1 for nobody."""
        self.used -= blocks
        if self.freed is not None:
            self.freed.give(owner, blocks)

    def left_of(self, request: int) -> int:
        """Free blocks that still hold what a request left [count]."""
        return self.freed.left_of(request) if self.freed is not None else 0

    def take_again(self, request: int, blocks: int) -> int:
        """A request takes up to a number of the blocks that it left; returns how many."""
        found = self.freed.reuse(request, blocks) if self.freed is not None else 0
        self.used += found
        return found


class FreedBlocks:
    """Free blocks in the order in which they were freed, with what preempted requests left in them.

    A cache by hash of blocks keeps their content until somebody takes them, oldest first, the end of a request before
    its beginning: a request that comes back soon finds most of its prompt.
    """

    __slots__ = ("left", "queue")

    def __init__(self, total: int) -> None:
        self.queue: deque[list[int]] = deque([[-1, total]])
        self.left: dict[int, list[int]] = {}

    def take(self, blocks: int) -> None:
        """The oldest ones are in use now."""
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
        """Blocks are free again; -1 for content that nobody will ask for."""
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
        """A request takes back up to a number of its own blocks; returns how many. The rest is nobody's."""
        part = self.left.pop(request, None)
        if part is None:
            return 0
        found = min(blocks, part[1])
        part[0] = -1
        part[1] -= found
        return found
