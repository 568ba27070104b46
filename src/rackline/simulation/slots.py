"""Slots of an engine: which request has which."""

from __future__ import annotations

from collections import deque


class Slots:
    """The slots of an engine and the requests in them; the one that has been free for longest is taken.

    Args:
        number: of them all [count].
    """

    __slots__ = ("free", "of")

    def __init__(self, number: int) -> None:
        self.free = deque(range(number))
        self.of: dict[int, int] = {}  # request → slot

    def take(self, request: int) -> None:
        """A request takes a slot."""
        self.of[request] = self.free.popleft()

    def give(self, request: int) -> None:
        """A request leaves its slot."""
        self.free.append(self.of.pop(request))
