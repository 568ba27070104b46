"""A fleet whose replicas come and go: they start, take requests, drain or fail, while policies look at what they do.

Between two events (a question to a policy, a replica that becomes ready, a failure) the set of replicas that take
requests is constant, and each runs on its own in the loop of `replica` or `native`. So a day of a million requests is
as many passes as before, and a few thousand events.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.simulation.autoscalers import Autoscaler, Seen, Setting
from rackline.simulation.entrance import Entrance, Frontend
from rackline.simulation.failures import Outage, Places
from rackline.simulation.fleet_run import FleetRun, PoolRun, Served
from rackline.simulation.gate import FEED_S, Backlog, Gate, standing_of
from rackline.simulation.native import NativeLog, NativeReplica, compiled_clock, knows, serve_all
from rackline.simulation.rank_spec import Handover, Pool
from rackline.simulation.replica import Replica
from rackline.simulation.requests import RequestLog, Requests
from rackline.simulation.run import AnyReplica, Progress, that_fit

_TAIL_S = 6 * 3600.0  # after the load has ended, for what still waits
_EVENTS_A_REPORT = 64
_NONE = np.zeros(0, dtype=np.int64)


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


class _Member:
    """A replica from the decision to start it to its end.

    Args:
        number: in its pool [count].
        begun_s, ready_s: [s].
        hosts: that hold its chips.
    """

    __slots__ = ("begun_s", "ended_s", "hosts", "number", "ready_s", "replica")

    def __init__(self, number: int, begun_s: float, ready_s: float, hosts: tuple[int, ...]) -> None:
        self.number, self.begun_s, self.ready_s, self.hosts = number, begun_s, ready_s, hosts
        self.replica: AnyReplica | None = None  # until it is ready
        self.ended_s = inf


class _Handed(NamedTuple):
    requests: Array
    times_s: Array


class _Group:
    """The replicas of one pool during a run."""

    def __init__(
        self,
        scaled: Scaled,
        log: RequestLog | NativeLog,
        make: Callable[[], AnyReplica],
        gate: Gate,
        places: Places,
        *,
        hands_over: bool,
    ) -> None:
        self.scaled, self.log, self.make, self.gate = scaled, log, make, gate
        self.hands_over, self.places = hands_over, places
        self.policy = scaled.scaler(scaled.setting)
        self.owner: Array = np.full(len(log.input_len), -1, dtype=np.int32)
        self.open: list[_Member] = []
        self.starting: list[_Member] = []
        self.draining: list[_Member] = []
        self.ended: list[_Member] = []
        self.retired: list[Served] = []
        self.held: list[Array] = []
        self.samples: list[tuple[float, ...]] = []
        self.desired = self.number = self.turn = self.arrived = 0
        self.next_s = 0.0

    @property
    def waiting_before(self) -> int:
        """Requests for which no replica is ready [requests]."""
        return sum(len(some) for some in self.held)

    def begin(self) -> None:
        """The replicas of the start, ready at once."""
        self.desired = min(max(self.scaled.setting.begin, self.scaled.least), self.scaled.most)
        while len(self.open) < self.desired and (member := self._new(0.0, 0.0)) is not None:
            self.make_ready(member)

    def _new(self, now: float, ready_s: float) -> _Member | None:
        hosts = self.places.take(self.scaled.chips, now)
        if hosts is None:
            return None
        self.number += 1
        member = _Member(self.number - 1, now, ready_s, hosts)
        self.starting.append(member)
        return member

    def make_ready(self, member: _Member) -> None:
        """A replica takes requests from now on."""
        self.starting.remove(member)
        member.replica = self.make()
        if self.hands_over:
            member.replica.goes_on()
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
            requests, times_s = _NONE, np.zeros(0)
        ones = [member.replica for member in self.open if member.replica is not None]
        others = [member.replica for member in self.draining if member.replica is not None]
        if isinstance(self.log, NativeLog) and self.gate.is_plain:
            natives, rest = ([one for one in some if isinstance(one, NativeReplica)] for some in (ones, others))
            placed, self.turn = serve_all(
                natives, rest, requests, times_s, self.turn, until, to_least_loaded=self.gate.looks
            )
        else:
            placed = _NONE
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
        ones = [member.replica for member in self.open if member.replica is not None]
        if not ones or not len(backlog):
            return
        standing = standing_of(ones, self.log)
        standing.look(now)
        for request, place in backlog.feed(standing, now):
            self.owner[request] = self.open[place].number

    def handed(self) -> _Handed:
        """Requests whose prompts were computed since the last call."""
        found = [member.replica.take_done() for member in (*self.open, *self.draining) if member.replica is not None]
        if not found:
            return _Handed(_NONE, np.zeros(0))
        requests, times = (np.concatenate(parts) for parts in zip(*found, strict=True))
        self.owner[requests] = -1
        return _Handed(requests, times)

    def end_drained(self, now: float) -> None:
        """Replicas that drain and have nothing left are gone."""
        for member in list(self.draining):
            if member.replica is not None and not member.replica.load:
                self.draining.remove(member)
                self._end(member, min(max(member.ended_s, member.replica.now), now))

    def _end(self, member: _Member, time_s: float) -> None:
        member.ended_s = time_s
        self.places.give_back(member.hosts, self.scaled.chips)
        if member.replica is not None:
            self.retired.append(Served.of(member.replica))
            member.replica = None
        self.ended.append(member)

    def ask(self, now: float) -> None:
        """The policy says how many replicas it wants."""
        wish = self.policy.wish(self.seen(now))
        self.desired = min(max(wish, self.scaled.least), self.scaled.most)
        self.arrived = 0
        self.next_s = now + self.policy.interval_s

    def seen(self, now: float) -> Seen:
        """What a policy sees now."""
        running = waiting = 0
        kv = 0.0
        blocks = self.scaled.pool.spec.num_blocks * self.scaled.pool.num_ranks
        ones = [member.replica for member in self.open if member.replica is not None]
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

    def follow(self, now: float) -> list[_Member]:
        """Start and drain replicas until there are as many as desired; those that were started."""
        begun: list[_Member] = []
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
                member.ended_s = now
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
        return (np.concatenate(lost) if lost else _NONE), number


def run_fleet(
    requests: Requests,
    main: Scaled,
    *,
    seconds: float,
    entrance: Entrance | None = None,
    front: Scaled | None = None,
    handover: Handover | None = None,
    outages: Sequence[Outage] = (),
    places: Places | None = None,
    skip_bad: bool = False,
    compiled: bool = True,
    progress: Progress | None = None,
) -> FleetRun:
    """Serve requests with replicas whose number follows a policy.

    Args:
        requests: that arrive independently of each other.
        main: the pool that decodes, or does all.
        seconds: that are paid for; the end of the load [s].
        entrance: what requests pass before a replica; round robin alone by default.
        front: the pool that computes prompts, if there is one; `handover` says how it passes them on.
        outages: of hosts, in the order of time.
        places: chips and hosts for replicas; as many as it takes by default.
        skip_bad, compiled, progress: as in `simulate`.

    Raises:
        InputError: a request that never fits, or that follows another one.
    """
    requests, skipped = that_fit(requests, main.pool, handover, skip_bad)
    run = _Fleet(requests, main, front, handover, entrance or Entrance(), outages, places or Places(), compiled)
    interrupted = False
    collects = gc.isenabled()
    gc.disable()
    try:
        run.go(seconds, progress)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if collects:
            gc.enable()
    return run.result(seconds, skipped=skipped, interrupted=interrupted)


class _Fleet:
    """One run."""

    def __init__(
        self,
        requests: Requests,
        main: Scaled,
        front: Scaled | None,
        handover: Handover | None,
        entrance: Entrance,
        outages: Sequence[Outage],
        places: Places,
        compiled: bool,
    ) -> None:
        self.backlog = Backlog(requests)
        gates = [Gate(requests, entrance.router, entrance.admission, self.backlog)]
        gates += [] if front is None else [Gate(requests, entrance.router)]
        self.requests, self.handover, self.places = requests, handover, places
        self.outages = list(outages)
        pools = [main.pool] if front is None else [front.pool, main.pool]
        plain = requests.hashes is None and requests.adapters is None and all(knows(pool) for pool in pools)
        clocks = [compiled_clock(pool.clock, pool.spec.max_num_seqs) for pool in pools] if compiled and plain else []
        native = bool(clocks) and all(clock is not None for clock in clocks)
        self.log = log = NativeLog(requests) if native else RequestLog(requests, len(main.pool.spec.tiers))

        def maker(place: int, pool: Pool, hands_over: bool) -> Callable[[], AnyReplica]:
            if isinstance(log, RequestLog):
                follows = gates[0].router.follows_prefixes and not hands_over
                return partial(Replica, pool, log, hands_over=hands_over, follows_prefixes=follows)
            clock = clocks[place]
            if clock is None:
                raise RuntimeError("a clock without a compiled form")
            return partial(NativeReplica, clock, pool, log, hands_over=hands_over)

        sides = [(main, False)] if front is None else [(front, True), (main, False)]
        self.groups = [
            _Group(scaled, log, maker(place, scaled.pool, ahead), gates[place], places, hands_over=ahead)
            for place, (scaled, ahead) in enumerate(sides)
        ]
        self.first, self.main = self.groups[0], self.groups[-1]
        self.frontend, self.gate = Frontend(entrance.frontend, requests), gates[0]
        if len(self.backlog) and front is not None:
            raise InputError(what="offline class", given="requests", allowed="one pool")
        at_s = self.frontend.pass_all(requests.arrival_s, self.backlog.mine) + entrance.beyond_s
        order = np.argsort(at_s, kind="stable")
        self.order = order[~self.backlog.mine[order]]
        self.times = at_s[self.order]
        if isinstance(log, NativeLog):
            log.arrival_s[:] = requests.arrival_s
        else:
            log.arrival_s = requests.arrival_s.tolist()
        self.events: list[tuple[float, int, int, _Group | None, _Member | None]] = []
        self.serial = self.cursor = self.lost = self.failed = 0
        self.moving = _Handed(_NONE, np.zeros(0))
        self.retries = np.zeros(len(requests), dtype=np.int32)
        self.now = 0.0

    def go(self, seconds: float, progress: Progress | None) -> None:
        """Events in the order of time until every request has its answer, or too long after the load has ended."""
        for group in self.groups:
            group.begin()
        for outage in self.outages:
            self._event(outage.time_s, None, None)
            self._event(outage.until_s, None, None)
        total, number = len(self.requests), 0
        while True:
            for group in self.groups:
                if self.now >= group.next_s:
                    group.ask(self.now)
                for member in group.follow(self.now):
                    self._event(member.ready_s, group, member)
            if self.now >= seconds and (self.finished >= total - len(self.backlog) or self.now >= seconds + _TAIL_S):
                return
            until = min(min(group.next_s for group in self.groups), self.events[0][0] if self.events else inf)
            if self.now < seconds:
                until = min(until, seconds)
                if len(self.backlog):
                    self.first.feed(self.backlog, self.now)
                    until = min(until, self.now + FEED_S)
            self._serve(until)
            self.now = until
            number += 1
            if progress is not None and number % _EVENTS_A_REPORT == 0:
                progress(min(self.finished, total), total, self.now)
            while self.events and self.events[0][0] <= self.now:
                _, _, _, group, member = heapq.heappop(self.events)
                if group is not None and member is not None and member in group.starting:
                    group.make_ready(member)
            self._fail()

    @property
    def finished(self) -> int:
        """Requests that have all their tokens, or were refused [requests]."""
        group = self.main
        there = sum(one.replica.finished for one in (*group.open, *group.draining) if one.replica is not None)
        kept = int(self.gate.refused.sum()) if self.gate.admission is not None else 0
        return there + sum(one.finished for one in group.retired) + self.of_one_token + kept

    of_one_token = 0

    def _event(self, time_s: float, group: _Group | None, member: _Member | None) -> None:
        self.serial += 1
        heapq.heappush(self.events, (time_s, self.serial, 0, group, member))

    def _serve(self, until: float) -> None:
        """All passes that begin before a time."""
        last = int(np.searchsorted(self.times, until, side="left"))
        mine, times = self.order[self.cursor : last], self.times[self.cursor : last]
        self.cursor = last
        for group in self.groups:
            group.arrived += len(mine)
        self.first.serve(mine, times, self.now, until)
        if self.handover is not None:
            self._hand_over(until)
        for group in self.groups:
            group.end_drained(until)

    def _hand_over(self, until: float) -> None:
        """Prompts that are computed move to the pool that decodes."""
        handover, done = self.handover, self.first.handed()
        if handover is None:
            return
        requests, ends = done
        if len(requests):
            alone = self.requests.output_len[requests] == 1
            moved = ends + handover.latency_s + self.requests.input_len[requests] / handover.tokens_per_s
            for column, places, times in (("finish_s", alone, ends), ("first_s", ~alone, moved)):
                values = getattr(self.log, column)
                for one, time_s in zip(requests[places].tolist(), times[places].tolist(), strict=True):
                    values[one] = time_s
            self.of_one_token += int(alone.sum())
            requests = np.concatenate([self.moving.requests, requests[~alone]])
            times_s = np.concatenate([self.moving.times_s, moved[~alone]])
            order = np.argsort(times_s, kind="stable")
            self.moving = _Handed(requests[order], times_s[order])
        there = int(np.searchsorted(self.moving.times_s, until, side="left"))
        ready = self.moving.requests[:there]
        self.log.make_ready(ready)
        self.main.serve(ready, np.maximum(self.moving.times_s[:there], self.now), self.now, until)
        self.moving = _Handed(self.moving.requests[there:], self.moving.times_s[there:])

    def _fail(self) -> None:
        """Hosts that fail now, and the requests that are sent again."""
        while self.outages and self.outages[0].time_s <= self.now:
            outage = self.outages.pop(0)
            hosts = self.places.fail(outage)
            if not hosts:
                continue
            finish_s = np.asarray(self.log.finish_s, dtype=float)
            for group in self.groups:
                requests, number = group.fail(hosts, self.now, finish_s)
                self.failed += number
                if len(requests):
                    self.log.forget(requests)
                    self.retries[requests] += 1
                    self.lost += len(requests)
                    idle = self.backlog.mine[requests]
                    self.first.held.append(np.sort(requests[~idle]))
                    self.backlog.put_back(np.sort(requests[idle]).tolist())

    def result(self, seconds: float, *, skipped: int, interrupted: bool) -> FleetRun:
        """What came of it; after an interruption, of the requests that had arrived.

        Raises:
            KeyboardInterrupt: again, where none had.
        """
        log, requests = self.log, self.requests
        end = min(self.now, seconds) if interrupted else seconds
        came = requests.arrival_s < end if interrupted else np.ones(len(requests), dtype=bool)
        if not came.any():
            raise KeyboardInterrupt
        pools: list[PoolRun] = []
        for group in self.groups:
            members = [*group.ended, *group.draining, *group.open, *group.starting]
            spans = np.array(
                [(one.begun_s, one.ready_s, one.ended_s if one in group.ended else inf) for one in members],
                dtype=float,
            ).reshape(-1, 3)
            served = [*group.retired, *(Served.of(one.replica) for one in members if one.replica is not None)]
            pools.append(
                PoolRun(
                    chips=group.scaled.chips,
                    spans_s=spans,
                    samples=np.array(group.samples, dtype=float).reshape(-1, 7),
                    busy_s=sum(one.busy_s for one in served),
                )
            )
        columns = {
            name: np.array(getattr(log, name), dtype=float)[came]
            for name in ("arrival_s", "admitted_s", "first_s", "finish_s")
        }
        return FleetRun(
            requests=requests.pick(came) if interrupted else requests,
            **columns,
            preempted=np.array(log.preempted, dtype=int)[came],
            refused=self.gate.refused[came],
            frontend=tuple(self.frontend.data()),
            retries=self.retries[came],
            pools=tuple(pools),
            seconds=end,
            spare_chips=self.places.spare_chips,
            failed_replicas=self.failed,
            lost_requests=self.lost,
            skipped=skipped,
            interrupted=interrupted,
        )
