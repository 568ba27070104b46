"""Which request comes when: those that arrive by themselves, those that follow others, and tasks that take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from rackline.simulation.requests import Requests


class Flow:
    """The arrivals of a run, as its requests end.

    A request waits for the one that it follows and for all that it joins, each with its pause. Users of a closed loop
    take the next request of all. Where tasks take turns, one begins when another has ended, so that their number stays;
    once enough requests have ended, or no further task is left, nothing more arrives.

    Args:
        requests: of the run.
    """

    def __init__(self, requests: Requests) -> None:
        self.times: list[float] = requests.arrival_s.tolist()
        before: list[int] = [-1] * len(self.times) if requests.after is None else requests.after.tolist()
        self._followers: dict[int, list[tuple[int, float]]] = {}
        for index, one in enumerate(before):
            if one >= 0:
                self._followers.setdefault(one, []).append((index, self.times[index]))
        self._missing: dict[int, int] = {}  # request → those that it still waits for, where they are several
        self._ready_s: dict[int, float] = {}
        if requests.joins is not None:
            for index, one, pause_s in zip(*(column.tolist() for column in requests.joins), strict=True):
                self._followers.setdefault(one, []).append((index, pause_s))
                self._missing[index] = self._missing.get(index, 1) + 1
        # a user who is free sends the next request of all, so that no user runs out of them before the others
        rest = sorted(index for index, one in enumerate(before) if one >= 0) if requests.process == "closed" else []
        self._rest: Iterator[int] | None = iter(rest) if requests.process == "closed" else None
        self._free = [index for index, one in enumerate(before) if one < 0]
        self._task: list[int] = []
        self._roots: list[list[int]] = []
        self._begun = self._ended = 0
        self._turns = requests.turns if requests.task is not None else None
        if self._turns is not None and requests.task is not None:
            self._task = requests.task.tolist()
            self._left = np.bincount(requests.task).tolist()
            self._roots = [[] for _ in self._left]
            for index in self._free:
                self._roots[self._task[index]].append(index)
            self._begun = min(self._turns.lanes, len(self._roots))

    @property
    def goes_on(self) -> bool:
        """Whether any request waits for others."""
        return bool(self._followers) or self._turns is not None

    def first(self) -> Sequence[tuple[int, float]]:
        """(request, time [s]) of those that wait for no other."""
        if self._turns is None:
            return [(index, self.times[index]) for index in self._free]
        return [one for task in range(self._begun) for one in self._task_from(task, 0.0)]

    def _task_from(self, task: int, time_s: float) -> list[tuple[int, float]]:
        start = min(self.times[index] for index in self._roots[task])
        return [(index, time_s + self.times[index] - start) for index in self._roots[task]]

    def after(self, request: int, end_s: float) -> Sequence[tuple[int, float]]:
        """(request, time [s]) of those that come because one has ended."""
        if self._rest is not None:
            return [(index, end_s + self.times[index]) for index in islice(self._rest, 1)]
        found: list[tuple[int, float]] = []
        for index, pause_s in self._followers.get(request, ()):
            time_s = end_s + pause_s
            if index in self._missing:
                time_s = self._ready_s[index] = max(time_s, self._ready_s.get(index, 0.0))
                self._missing[index] -= 1
                if self._missing[index]:
                    continue
            found.append((index, time_s))
        if self._turns is None:
            return found
        self._ended += 1
        task = self._task[request]
        self._left[task] -= 1
        if not self._left[task]:
            self._begun += 1
            if self._begun <= len(self._roots):
                found += self._task_from(self._begun - 1, end_s)
        return [] if self._ended >= self._turns.calls or self._begun > len(self._roots) else found
