"""What stands before the replicas of a pool: a rule that refuses requests, a router, a backlog that fills idle room.

The loops of `run` and `fleet` ask it request by request; how the replicas stand is read through a `Standing`, of
replicas in Python and of those in C.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable, Sequence
from ctypes import POINTER, c_int64, c_void_p
from math import isnan
from typing import TypeVar

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.entrance import AdmissionRule
from rackline.simulation.native import library
from rackline.simulation.native_replica import NativeLog, NativeReplica, goes_on
from rackline.simulation.replica import Replica
from rackline.simulation.requests import RequestLog, Requests
from rackline.simulation.routers import ROUTERS, Numbers, RoundRobin, Standing

T = TypeVar("T")
IN_C = ("round-robin", "least-loaded")
"""Routers that the loop in C has itself."""
FEED_S = 1.0
"""Time between two looks for idle room, as of a processor that polls (assumed) [s]."""


class PlainStanding(Standing):
    """Replicas in Python.

    Args:
        runs: whether a look runs their passes; else the caller does.
    """

    def __init__(self, replicas: Sequence[Replica], log: RequestLog, *, runs: bool = True) -> None:
        super().__init__(replicas, log)
        self.plain, self.runs = replicas, runs

    def look(self, time_s: float) -> None:
        """Read loads, queues and blocks."""
        if self.runs:
            self.run(time_s)
        self.loads = [one.load for one in self.plain]
        self.queued = [one.queued for one in self.plain]
        self.blocks = [one.used_blocks for one in self.plain]

    def put(self, place: int, request: int, time_s: float) -> None:
        """Give a request to a replica."""
        self.plain[place].arrivals.add(request, time_s)

    def run(self, until: float) -> None:
        """Run on past requests that are done, which are kept for `take_done`."""
        for replica in self.plain:
            kept: list[tuple[int, float]] = []
            while True:
                replica.advance(until)
                if not (replica.done and replica.tells):
                    break
                kept += replica.done
                replica.done.clear()
            replica.done = kept + replica.done

    def known(self, request: int) -> list[int]:
        """Tokens of the prompt in the caches of each."""
        unit = self.plain[0].spec.hash_tokens
        return [one.known_prefix(request) * unit for one in self.plain]


class NativeStanding(Standing):
    """Replicas in C."""

    def __init__(self, replicas: Sequence[NativeReplica], log: NativeLog) -> None:
        super().__init__(replicas, log)
        self.number = len(replicas)
        self.addresses = [one.address for one in replicas]
        self.all = (c_void_p * self.number)(*self.addresses)
        self.read = np.zeros((3, self.number), dtype=np.int64)
        self.at = ctypes.cast(self.read.ctypes.data, POINTER(c_int64))
        self._library = library()

    def look(self, time_s: float) -> None:
        """Run all passes that begin before a time, and read loads, queues and blocks."""
        goes_on(self._library.look(self.all, self.number, time_s, self.at))
        self.loads, self.queued, self.blocks = self.read.tolist()

    def put(self, place: int, request: int, time_s: float) -> None:
        """Give a request to a replica."""
        self._library.put(self.addresses[place], request, time_s)

    def run(self, until: float) -> None:
        """Run all passes that begin before a time."""
        for replica in self.replicas:
            replica.advance(until)


def only(kind: type[T], some: Iterable[object]) -> list[T]:
    """The entries of one kind."""
    return [one for one in some if isinstance(one, kind)]


def standing_of(replicas: Sequence[Replica | NativeReplica], log: RequestLog | NativeLog) -> Standing:
    """The standing of replicas of either kind."""
    if isinstance(log, NativeLog):
        return NativeStanding(only(NativeReplica, replicas), log)
    return PlainStanding(only(Replica, replicas), log)


class Gate:
    """A rule of admission and a router, during one run.

    Args:
        requests: of the run.
        router: its name.
        admission: that refuses requests; None for none.
        backlog: requests that are no load for router and rule; None for none.

    Raises:
        UnknownNameError: an unknown router.
    """

    def __init__(
        self, requests: Requests, router: str, admission: AdmissionRule | None = None, backlog: Backlog | None = None
    ) -> None:
        self.backlog = backlog if backlog is not None and len(backlog) else None
        self.router, self.admission = ROUTERS.find(router)(requests), admission and admission.begin()
        self.is_plain = admission is None and router in IN_C
        self.looks = admission is not None or not isinstance(self.router, RoundRobin)
        tiers = requests.priority
        self.urgent = np.ones(len(requests), dtype=bool) if tiers is None else tiers == tiers.min()
        self.passed = np.zeros(len(requests), dtype=bool)
        self.refused = np.zeros(len(requests), dtype=bool)

    def look(self, standing: Standing, time_s: float) -> None:
        """Read how the replicas stand at a time, without the requests of the backlog [s]."""
        standing.look(time_s)
        if self.backlog is not None and len(self.backlog.given):
            loads, queued = self.backlog.beside(standing.replicas, standing.log)
            standing.loads = [have - less for have, less in zip(standing.loads, loads, strict=True)]
            standing.queued = [have - less for have, less in zip(standing.queued, queued, strict=True)]

    def place(self, request: int, standing: Standing) -> int:
        """Place of the replica that gets a request; -1 where it is refused."""
        if self.admission is not None and not self.passed[request]:
            if not self.admission.admits(standing, urgent=bool(self.urgent[request])):
                self.refused[request] = True
                return -1
            self.passed[request] = True
        return self.router.choose(request, standing)

    def serve(self, standing: Standing, requests: Array, times_s: Array) -> Array:
        """Give requests to replicas as they come.

        Args:
            requests, times_s: in the order of time [s], (n,).

        Returns:
            Place of each one's replica, -1 where it is refused, (n,).
        """
        placed = np.full(len(requests), -1, dtype=np.int64)
        for index, (request, time_s) in enumerate(zip(requests.tolist(), times_s.tolist(), strict=True)):
            if self.looks:
                self.look(standing, time_s)
            placed[index] = found = self.place(request, standing)
            if found >= 0:
                standing.put(found, request, time_s)
        return placed


class Backlog:
    """Requests of offline classes: they go to replicas that have idle room.

    A replica has room while nobody waits there, a place is free and the share of its KV blocks stays below that which
    the class may fill.

    Args:
        requests: of the run; those of offline classes are taken.
    """

    def __init__(self, requests: Requests) -> None:
        offline = requests.offline
        self.mine = np.zeros(len(requests), dtype=bool) if offline is None else offline
        self.requests, self.fills = requests, [one.fill for one in requests.kinds]
        self.left = deque(np.flatnonzero(self.mine).tolist())
        self.given: Array = np.zeros(0, dtype=np.int64)
        self.holders: Array = np.zeros(0, dtype=np.int64)  # number of the replica of each
        self.numbers = Numbers()

    def __len__(self) -> int:
        """Requests that wait for room."""
        return len(self.left)

    def put_back(self, requests: Sequence[int]) -> None:
        """Requests whose replica is lost wait again."""
        self.left.extendleft(reversed(requests))
        keep = ~np.isin(self.given, requests)
        self.given, self.holders = self.given[keep], self.holders[keep]

    def beside(
        self, replicas: Sequence[Replica | NativeReplica], log: RequestLog | NativeLog
    ) -> tuple[list[int], list[int]]:
        """Requests of the backlog that each replica has, and of these those that have not begun [requests]."""
        there, waits = self._open(log)
        order = np.argsort(names := np.array(self.numbers.of(replicas)))
        places = np.minimum(np.searchsorted(names[order], self.holders), len(names) - 1)
        known = there & (names[order][places] == self.holders)
        loads, queued = np.zeros((2, len(names)), dtype=np.int64)
        loads[order] = np.bincount(places[known], minlength=len(names))
        queued[order] = np.bincount(places[known & waits], minlength=len(names))
        return loads.tolist(), queued.tolist()

    def _open(self, log: RequestLog | NativeLog) -> tuple[Array, Array]:
        """Masks of what was given and has no answer, and has not begun."""
        requests: list[int] = self.given.tolist()
        ends, begins = ([isnan(column[one]) for one in requests] for column in (log.finish_s, log.admitted_s))
        return np.array(ends, dtype=bool), np.array(begins, dtype=bool)

    def feed(self, standing: Standing, now: float) -> list[tuple[int, int]]:
        """Fill the idle room: (request, place) of what was given to replicas.

        Args:
            standing: as it was read last.
            now: [s].
        """
        given: list[tuple[int, int]] = []
        if not self.left or self.requests.classes is None:
            return given
        keep = self._open(standing.log)[0]
        self.given, self.holders = self.given[keep], self.holders[keep]
        spec = standing.replicas[0].pool.spec
        columns = (self.requests.arrival_s, self.requests.input_len, self.requests.output_len, self.requests.classes)
        for place, (load, queued, used) in enumerate(
            zip(standing.loads, standing.queued, standing.blocks, strict=True)
        ):
            blocks = used
            while self.left and not queued and load < standing.seats:
                arrival, prompt, answer, kind = (column[self.left[0]] for column in columns)
                blocks += spec.blocks_of(int(prompt + answer))
                if arrival > now or (load and blocks > self.fills[kind] * standing.room):
                    break
                request = self.left.popleft()
                standing.put(place, request, now)
                given.append((request, place))
                load += 1
        self.given = np.append(self.given, np.array([one for one, _ in given], dtype=np.int64))
        numbers = self.numbers.of(standing.replicas)
        holders = [numbers[place] for _, place in given]
        self.holders = np.append(self.holders, np.array(holders, dtype=np.int64))
        return given
