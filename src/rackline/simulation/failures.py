"""Hosts that fail and come back, and where on them replicas stand.

A failed chip takes its host out of service, as operators drain it for repair; a failed switch takes a rack.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from rackline.errors import InputError

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
        if not 0.0 < self.per_host_day < inf:
            raise InputError(what="failures", given=self.per_host_day, allowed="a rate above 0 a day and host")

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
