"""The KV blocks of a rank: how many are in use, and what preempted requests left behind in the free ones."""

from __future__ import annotations

from collections import deque


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
