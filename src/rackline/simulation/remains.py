"""KV blocks of preempted requests that are free but not yet overwritten."""

from __future__ import annotations

from collections import deque


class Remains:
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

    def reuse(self, request: int, blocks: int) -> int:
        """A request takes back up to a number of its own blocks; returns how many. The rest is nobody's."""
        part = self.left.pop(request, None)
        if part is None:
            return 0
        found = min(blocks, part[1])
        part[0] = -1
        part[1] -= found
        return found
