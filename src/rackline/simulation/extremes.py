"""The longest and the shortest decoding sequence, updated as sequences join and leave."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


class Extremes:
    """Largest and smallest value of a mapping that grows and shrinks, in logarithmic time.

    Removed values stay in the heaps until they reach the top, or until they are the majority.
    """

    __slots__ = ("down", "up", "values")

    def __init__(self, values: Mapping[int, int]) -> None:
        self.values = values
        self.up: list[tuple[int, int]] = []
        self.down: list[tuple[int, int]] = []

    def add(self, key: int, value: int) -> None:
        """Add a key."""
        heapq.heappush(self.up, (value, key))
        heapq.heappush(self.down, (-value, key))
        if len(self.up) > 2 * len(self.values) + 64 or len(self.down) > 2 * len(self.values) + 64:
            self.up = [(value, key) for key, value in self.values.items()]
            self.down = [(-value, key) for key, value in self.values.items()]
            heapq.heapify(self.up)
            heapq.heapify(self.down)

    def most(self) -> int:
        """The largest value; the mapping must not be empty."""
        values, heap = self.values, self.down
        while values.get(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        return -heap[0][0]

    def least(self) -> int:
        """The smallest value; the mapping must not be empty."""
        values, heap = self.values, self.up
        while values.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0]
