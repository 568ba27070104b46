"""A pool of a fleet: how long its replicas take to start, the hosts that they stand on, and how they come and go.

A start is machine, image, engine and weights, from the decision until the replica takes requests. A failed chip takes
its host out of service, as operators drain it for repair; a failed switch takes a rack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from rackline.errors import require
from rackline.passes.features import Array
from rackline.simulation.autoscalers import Autoscaler, Seen, Setting
from rackline.simulation.gate import Backlog, Gate, only, standing_of
from rackline.simulation.native_replica import NativeLog, NativeReplica, serve_all
from rackline.simulation.requests import RequestLog
from rackline.simulation.run import AnyReplica
from rackline.simulation.server import Pool

Kind = Literal["warm", "cold"]

LOADER_BYTES_PER_S = 1.8e9
"""Rate at which one process of an engine takes weights in: vLLM, Llama-2-7B on an A100, 13.5 GB in 7.5 s (profile in
upb-cn/vllm-startup-profiler, read 2026-11-23; arXiv:2606.07362)."""
ENGINE_S = {"bootstrap": 10.2, "compile": 8.3 + 7.4, "kv_profile": 2.2, "graphs": 2.9, "rest": 8.6}
"""vLLM, Llama-2-7B on an A100, compiled graphs in the cache, captured up to a batch of 512: the parts (same source),
and what is left of the whole start of 43 to 51 s."""
COLD_ENGINE_S = {"bootstrap": 94.0, "compile": 10.0 + 42.0, "graphs": 54.0}
"""vLLM, Llama-3.1-8B on an L40S, nothing in a cache (tensorfuse.io/docs/blogs/reducing_gpu_cold_start, 2025-09, read
2026-11-23)."""
NODE_S = 100.0
"""Until a cloud machine with a GPU is there: 80 to 120 s (tensorfuse.io, lazy loading, 2025-08, read 2026-11-23)."""
IMAGE_S = 510.0
"""Until an image of 10 GB is there: 7 to 10 min (tensorfuse.io/docs/blogs/snapshotter_graphs, read 2026-11-23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Parts of a start [s].

    Args:
        node_s, image_s: until machine and image are there; 0 where they are.
        weights_s: until the weights are in memory.
        engine_s: processes, compilation, profile of the memory, capture of graphs.
    """

    json_keys: ClassVar = ("seconds", "node_s", "image_s", "weights_s", "engine_s")

    node_s: float
    image_s: float
    weights_s: float
    engine_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.node_s + self.image_s + self.weights_s + self.engine_s


def start_up(kind: Kind, weight_bytes: float, chips: int, hosts: int, link_bytes_per_s: float = inf) -> StartUp:
    """The start of a replica.

    Args:
        kind: "warm" on a machine that has image and compiled graphs, "cold" on a new one.
        weight_bytes: of the replica, read once [bytes].
        chips, hosts: that hold it; each chip has a process that loads its part, each host a link [count].
        link_bytes_per_s: of a host to the weights: its disk or its network [bytes/s].

    >>> round(start_up("warm", 16e9, 1, 1, 7e9).seconds), round(start_up("cold", 16e9, 1, 1, 7e9).seconds)
    (48, 819)
    """
    weights_s = weight_bytes / min(LOADER_BYTES_PER_S * chips, link_bytes_per_s * hosts)
    if kind == "warm":
        return StartUp(node_s=0.0, image_s=0.0, weights_s=weights_s, engine_s=sum(ENGINE_S.values()))
    return StartUp(node_s=NODE_S, image_s=IMAGE_S, weights_s=weights_s, engine_s=sum(COLD_ENGINE_S.values()))


RACK_SHARE = 35.0 / 419.0
"""Share of failures that the network causes: 35 of 419 were switches and cables (Llama 3, arXiv:2407.21783, table 5).
That each of them stops a rack and not a host is assumed, which is the worst case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Hosts that serve nothing for a time.

    Args:
        time_s, until_s: [s].
        hosts: their numbers.
    """

    time_s: float
    until_s: float
    hosts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often hosts fail.

    Args:
        per_host_day: failures of a host, with those of its chips and its share of the network [1/day].
        repair_s: until another host serves in its place [s].
        rack_hosts: hosts of a rack [count].
        rack_share: share of failures that are of a rack [1].
    """

    per_host_day: float
    repair_s: float
    rack_hosts: int = 1
    rack_share: float = RACK_SHARE

    def __post_init__(self) -> None:
        require(
            0.0 < self.per_host_day < inf,
            what="failures",
            given=self.per_host_day,
            allowed="a rate above 0 a day and host",
        )

    def draw(self, rng: np.random.Generator, hosts: int, seconds: float) -> list[Outage]:
        """Outages of a run, in the order of time; each is the first of an independent Poisson process.

        The failures that hit a host are `per_host_day` in all: racks fail at their share of it.

        Args:
            hosts: that may fail [count].
            seconds: of the run [s].

        >>> rng = np.random.default_rng(0)
        >>> found = Failures(per_host_day=0.5, repair_s=60.0, rack_hosts=4).draw(rng, 100, 86400.0 * 100)
        >>> round(sum(len(one.hosts) for one in found) / 1e4, 2)
        0.51
        """
        racks = [tuple(range(first, min(first + self.rack_hosts, hosts))) for first in range(0, hosts, self.rack_hosts)]
        share = self.rack_share if self.rack_hosts > 1 else 0.0
        found: list[Outage] = []
        for places, rate in (([(host,) for host in range(hosts)], 1.0 - share), (racks, share)):
            for some in places:
                number = rng.poisson(rate * self.per_host_day * seconds / 86400.0)
                for time_s in np.sort(rng.uniform(0.0, seconds, number)).tolist():
                    found.append(Outage(time_s=time_s, until_s=time_s + self.repair_s, hosts=some))
        return sorted(found, key=lambda one: one.time_s)


class Places:
    """Chips that replicas of all pools share, and the hosts that hold them where hosts fail.

    Args:
        chips: that replicas may take in all [count].
        hosts: with the spare ones; None where none fails and it does not matter [count].
        host_chips: chips of a host [count].
        spare_chips: of the hosts that are paid for whether they serve or not [count].
    """

    def __init__(self, chips: float = inf, hosts: int | None = None, host_chips: int = 1, spare_chips: int = 0) -> None:
        self.left: float = chips
        self.free = None if hosts is None else [host_chips] * hosts
        self.host_chips, self.spare_chips = host_chips, spare_chips
        self.down_until: dict[int, float] = {}

    def take(self, chips: int, now: float) -> tuple[int, ...] | None:
        """Hosts for a replica: the first with room, or whole ones for a replica of several; None without room.

        Args:
            chips: of the replica [count].
            now: [s].
        """
        if chips > self.left:
            return None
        if self.free is None:
            self.left -= chips
            return ()
        share = min(chips, self.host_chips)
        number = -(-chips // self.host_chips)
        room = [host for host, free in enumerate(self.free) if free >= share and self.down_until.get(host, -inf) <= now]
        if len(room) < number:
            return None
        self.left -= chips
        for host in room[:number]:
            self.free[host] -= share
        return tuple(room[:number])

    def give_back(self, hosts: tuple[int, ...], chips: int) -> None:
        """A replica of this many chips has left these hosts."""
        self.left += chips
        if self.free is not None:
            for host in hosts:
                self.free[host] += min(chips, self.host_chips)

    def fail(self, outage: Outage) -> set[int]:
        """Hosts that fail; those that were down already are not among them."""
        hit = {host for host in outage.hosts if self.down_until.get(host, -inf) <= outage.time_s}
        self.down_until.update(dict.fromkeys(hit, outage.until_s))
        return hit


NO_REQUESTS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A pool whose number of replicas changes.

    Args:
        pool: of its replicas.
        scaler: makes the policy of one run.
        setting: what the policy knows before.
        least, most: replicas that it may have [count].
        chips: of one replica [count].
    """

    pool: Pool
    scaler: Callable[[Setting], Autoscaler]
    setting: Setting
    least: int
    most: int
    chips: int


class Member:
    """A replica from the decision to start it to its end.

    Args:
        number: in its pool [count].
        replica: runs its passes from the time when it is ready.
        hosts: that hold its chips.
        begun_s, ready_s: when it was decided on, takes requests [s].
    """

    __slots__ = ("begun_s", "drains_s", "hosts", "number", "ready_s", "replica")

    def __init__(
        self, number: int, replica: AnyReplica, hosts: tuple[int, ...], *, begun_s: float, ready_s: float
    ) -> None:
        self.number, self.replica, self.hosts, self.begun_s, self.ready_s = number, replica, hosts, begun_s, ready_s
        self.drains_s = inf  # when it takes no more


class Handed(NamedTuple):
    requests: Array
    times_s: Array


class GrowingPool:
    """The replicas of one pool during a run."""

    def __init__(
        self,
        scaled: Scaled,
        log: RequestLog | NativeLog,
        make: Callable[[], AnyReplica],
        gate: Gate,
        places: Places,
    ) -> None:
        self.scaled, self.log, self.make, self.gate, self.places = scaled, log, make, gate, places
        self.policy = scaled.scaler(scaled.setting)
        self.owner: Array = np.full(len(log.input_len), -1, dtype=np.int32)
        self.open: list[Member] = []
        self.starting: list[Member] = []
        self.draining: list[Member] = []
        self.ended: list[tuple[float, float, float]] = []  # begun, ready, ended [s]
        self.finished_before = 0  # requests of replicas that have ended
        self.held: list[Array] = []
        self.samples: list[tuple[float, ...]] = []
        self.desired = self.number = self.turn = self.arrived = 0
        self.next_s = 0.0

    @property
    def waiting_before(self) -> int:
        """Requests for which no replica is ready [requests]."""
        return sum(len(some) for some in self.held)

    @property
    def finished(self) -> int:
        """Requests that have all their tokens [requests]."""
        return self.finished_before + sum(one.replica.finished for one in (*self.open, *self.draining))

    @property
    def spans_s(self) -> Array:
        """When each replica was begun, was ready, and ended (infinite: not yet) [s], (replicas, 3)."""
        there = [(one.begun_s, one.ready_s, inf) for one in (*self.draining, *self.open, *self.starting)]
        return np.array([*self.ended, *there], dtype=float).reshape(-1, 3)

    def begin(self) -> None:
        """The replicas of the start, ready at once."""
        self.desired = min(max(self.scaled.setting.begin, self.scaled.least), self.scaled.most)
        while len(self.open) < self.desired and (member := self._new(0.0, 0.0)) is not None:
            self.make_ready(member)

    def _new(self, now: float, ready_s: float) -> Member | None:
        hosts = self.places.take(self.scaled.chips, now)
        if hosts is None:
            return None
        member = Member(self.number, self.make(), hosts, begun_s=now, ready_s=ready_s)
        self.number += 1
        self.starting.append(member)
        return member

    def make_ready(self, member: Member) -> None:
        """A replica takes requests from now on."""
        self.starting.remove(member)
        self.open.append(member)

    def serve(self, requests: Array, times_s: Array, now: float, until: float) -> None:
        """Requests go to open replicas, those that were held first; all run until a time."""
        if self.held:
            requests = np.concatenate([*self.held, requests])
            times_s = np.concatenate([np.full(len(requests) - len(times_s), now), times_s])
            self.held.clear()
        if not self.open:
            if len(requests):
                self.held.append(requests)
            requests, times_s = NO_REQUESTS, np.zeros(0)
        ones, others = ([member.replica for member in some] for some in (self.open, self.draining))
        if isinstance(self.log, NativeLog) and self.gate.is_plain:
            placed, self.turn = serve_all(
                only(NativeReplica, ones),
                only(NativeReplica, others),
                requests,
                times_s,
                self.turn,
                until,
                to_least_loaded=self.gate.looks,
            )
        else:
            placed = NO_REQUESTS
            if ones:
                standing = standing_of(ones, self.log)
                placed = self.gate.serve(standing, requests, times_s)
                standing.run(until)
            if others:
                standing_of(others, self.log).run(until)
        if len(requests):
            numbers = np.array([*(member.number for member in self.open), -1])
            self.owner[requests] = numbers[placed]

    def feed(self, backlog: Backlog, now: float) -> None:
        """Requests of the backlog go to open replicas that have idle room."""
        if not self.open or not len(backlog):
            return
        standing = standing_of([member.replica for member in self.open], self.log)
        standing.look(now)
        for request, place in backlog.feed(standing, now):
            self.owner[request] = self.open[place].number

    def handed(self) -> Handed:
        """Requests whose prompts were computed since the last call."""
        found = [member.replica.take_done() for member in (*self.open, *self.draining)]
        if not found:
            return Handed(NO_REQUESTS, np.zeros(0))
        requests, times = (np.concatenate(parts) for parts in zip(*found, strict=True))
        self.owner[requests] = -1
        return Handed(requests, times)

    def end_drained(self, now: float) -> None:
        """Replicas that drain and have nothing left are gone."""
        for member in list(self.draining):
            if not member.replica.load:
                self.draining.remove(member)
                self._end(member, min(max(member.drains_s, member.replica.now), now))

    def _end(self, member: Member, time_s: float) -> None:
        self.places.give_back(member.hosts, self.scaled.chips)
        self.finished_before += member.replica.finished
        self.ended.append((member.begun_s, member.ready_s, time_s))

    def ask(self, now: float) -> None:
        """The policy says how many replicas it wants."""
        self.desired = min(max(self.policy.wish(self.seen(now)), self.scaled.least), self.scaled.most)
        self.arrived = 0
        self.next_s = now + self.policy.interval_s

    def seen(self, now: float) -> Seen:
        """What a policy sees now."""
        running = waiting = 0
        kv = 0.0
        blocks = self.scaled.pool.spec.num_blocks * self.scaled.pool.num_ranks
        ones = [member.replica for member in self.open]
        for replica in ones:
            queued = replica.queued
            waiting += queued
            running += replica.load - queued
            kv += replica.used_blocks / blocks
        if ones and self.gate.backlog is not None:  # what fills idle room is no load
            loads, queued = self.gate.backlog.beside(ones, self.log)
            running, waiting = running - sum(loads) + sum(queued), waiting - sum(queued)
        waiting += self.waiting_before
        self.samples.append(
            (now, len(self.open), len(self.starting), len(self.draining), running, waiting, kv / max(len(self.open), 1))
        )
        return Seen(
            time_s=now, ready=len(self.open), starting=len(self.starting), running=running, waiting=waiting,
            kv_use=kv, arrived=self.arrived,
        )  # fmt: skip

    def follow(self, now: float) -> list[Member]:
        """Start and drain replicas until there are as many as desired; those that were started."""
        begun: list[Member] = []
        while len(self.open) + len(self.starting) < self.desired:
            member = self._new(now, now + self.scaled.setting.start_s)
            if member is None:  # no room until a host is back
                break
            begun.append(member)
        while len(self.open) + len(self.starting) > self.desired:
            if self.starting:  # as Kubernetes does: those that are not ready first, then the newest
                self._end(self.starting.pop(), now)
            else:
                member = self.open.pop()
                member.drains_s = now
                self.draining.append(member)
        return begun

    def fail(self, hosts: set[int], now: float, finish_s: Array) -> tuple[Array, int]:
        """Replicas on these hosts are lost; the requests that they had, and their number."""
        lost: list[Array] = []
        number = 0
        for group in (self.open, self.starting, self.draining):
            for member in [one for one in group if hosts.intersection(one.hosts)]:
                group.remove(member)
                number += 1
                mine = np.flatnonzero((self.owner == member.number) & ~np.isfinite(finish_s))
                self.owner[mine] = -1
                lost.append(mine)
                self._end(member, now)
        return (np.concatenate(lost) if lost else NO_REQUESTS), number
