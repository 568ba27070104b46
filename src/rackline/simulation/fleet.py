"""A fleet whose replicas come and go: they start, take requests, drain or fail, while policies look at what they do.

Between two events (a question to a policy, a replica that becomes ready, a failure) the set of replicas that take
requests is constant, and each runs on its own in the loop of `replica` or `native`. So a day of a million requests is
as many passes as before, and a few thousand events.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from math import inf

import numpy as np

from rackline.errors import require
from rackline.simulation.entrance import Entrance, Frontend
from rackline.simulation.fleet_pool import NO_REQUESTS, GrowingPool, Handed, Member, Outage, Places, Scaled
from rackline.simulation.fleet_run import FleetRun, PoolRun
from rackline.simulation.gate import FEED_S, Backlog, Gate
from rackline.simulation.requests import Requests
from rackline.simulation.run import Progress, ended_early, replica_makers, that_fit, times_of
from rackline.simulation.server import Handover

_TAIL_S = 6 * 3600.0  # after the load has ended, for what still waits
_EVENTS_A_REPORT = 64


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
    return run.result(seconds, skipped=skipped, interrupted=ended_early(partial(run.go, seconds, progress)))


class _Fleet:
    """A run of a fleet in progress."""

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
        sides = [main] if front is None else [main, front]
        self.log, makers = replica_makers(
            requests,
            [one.pool for one in sides],
            follows_prefixes=gates[0].router.follows_prefixes,
            compiled=compiled,
        )
        of_sides = list(zip(sides, makers, strict=True))[::-1]
        self.groups = [
            GrowingPool(scaled, self.log, make, gate, places)
            for (scaled, make), gate in zip(of_sides, gates, strict=True)
        ]
        self.first, self.main = self.groups[0], self.groups[-1]
        self.frontend, self.gate = Frontend(entrance.frontend, requests), gates[0]
        require(front is None or not len(self.backlog), what="offline class", given="requests", allowed="one pool")
        at_s = self.frontend.pass_all(requests.arrival_s, self.backlog.mine) + entrance.beyond_s
        order = np.argsort(at_s, kind="stable")
        self.order = order[~self.backlog.mine[order]]
        self.times = at_s[self.order]
        self.log.arrival_s[:] = requests.arrival_s.tolist()
        self.events: list[tuple[float, int, GrowingPool | None, Member | None]] = []
        self.serial = self.cursor = self.lost = self.failed = 0
        self.moving = Handed(NO_REQUESTS, np.zeros(0))
        self.retries = np.zeros(len(requests), dtype=np.int32)
        self.now = 0.0

    def go(self, seconds: float, progress: Progress | None) -> None:
        """Events in the order of time until every request has its answer, or too long after the load has ended."""
        for group in self.groups:
            group.begin()
        for outage in self.outages:
            self._event(outage.time_s)
            self._event(outage.until_s)
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
                _, _, group, member = heapq.heappop(self.events)
                if group is not None and member is not None and member in group.starting:
                    group.make_ready(member)
            self._fail()

    @property
    def finished(self) -> int:
        """Requests that have all their tokens, or were refused [requests]."""
        kept = int(self.gate.refused.sum()) if self.gate.admission is not None else 0
        return self.main.finished + self.of_one_token + kept

    of_one_token = 0

    def _event(self, time_s: float, group: GrowingPool | None = None, member: Member | None = None) -> None:
        self.serial += 1
        heapq.heappush(self.events, (time_s, self.serial, group, member))

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
            self.moving = Handed(requests[order], times_s[order])
        there = int(np.searchsorted(self.moving.times_s, until, side="left"))
        ready = self.moving.requests[:there]
        self.log.make_ready(ready)
        self.main.serve(ready, np.maximum(self.moving.times_s[:there], self.now), self.now, until)
        self.moving = Handed(self.moving.requests[there:], self.moving.times_s[there:])

    def _fail(self) -> None:
        """Hosts that fail now, and the requests that are sent again."""
        while self.outages and self.outages[0].time_s <= self.now:
            hosts = self.places.fail(self.outages.pop(0))
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
        pools = [
            PoolRun(
                chips=group.scaled.chips,
                spans_s=group.spans_s,
                samples=np.array(group.samples, dtype=float).reshape(-1, 7),
            )
            for group in self.groups
        ]
        return FleetRun(
            requests=requests.pick(came) if interrupted else requests,
            **{name: times[came] for name, times in times_of(log).items()},
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
