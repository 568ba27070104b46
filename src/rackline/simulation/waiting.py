"""Waiting requests: for admission by a rank in the order of its policy, and for their arrival time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from math import inf


class ArrivalOrder(deque[int]):
    """Requests waiting to be admitted, in the order of arrival."""

    __slots__ = ()

    def add(self, request: int, arrival_s: float) -> None:
        """Add a request."""
        self.append(request)

    def put_back(self, request: int, arrival_s: float) -> None:
        """Put a preempted request at the front."""
        self.appendleft(request)

    def first(self) -> int:
        """The next request."""
        return self[0]

    def remove_first(self) -> None:
        """Remove the next request."""
        self.popleft()


class KeyOrder(list[tuple[float, float, int]]):
    """Requests waiting to be admitted, smallest key first, then in the order of arrival.

    Args:
        key: function from a request to its key.
    """

    __slots__ = ("key",)

    def __init__(self, key: Callable[[int], float]) -> None:
        super().__init__()
        self.key = key

    def add(self, request: int, arrival_s: float) -> None:
        """Add a request."""
        heapq.heappush(self, (self.key(request), arrival_s, request))

    put_back = add

    def first(self) -> int:
        """The next request."""
        return self[0][2]

    def remove_first(self) -> None:
        """Remove the next request."""
        heapq.heappop(self)


class ArrivalQueue:
    """Requests ordered by the time at which they reach a replica."""

    __slots__ = ("_in_order", "_late", "_serial")

    def __init__(self) -> None:
        self._in_order: deque[tuple[float, int]] = deque()
        self._late: list[tuple[float, int, int]] = []  # requests that were added after later ones
        self._serial = 0

    def __len__(self) -> int:
        return len(self._in_order) + len(self._late)

    def add(self, request: int, time_s: float) -> None:
        """Add a request that arrives at this time."""
        if not self._late and (not self._in_order or time_s >= self._in_order[-1][0]):
            self._in_order.append((time_s, request))
        else:
            self._serial += 1
            heapq.heappush(self._late, (time_s, self._serial, request))

    def next_s(self) -> float:
        """Arrival time of the next request; infinite if there is none [s]."""
        first = self._in_order[0][0] if self._in_order else inf
        return min(first, self._late[0][0]) if self._late else first

    def pop_until(self, now: float) -> tuple[float, int] | None:
        """Time and index of the next request that has arrived by now; None if there is none."""
        queue, late = self._in_order, self._late
        if late and late[0][0] <= now and (not queue or late[0][0] < queue[0][0]):
            time_s, _, request = heapq.heappop(late)
            return time_s, request
        if queue and queue[0][0] <= now:
            return queue.popleft()
        return None
