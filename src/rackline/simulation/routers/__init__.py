"""Routers, one file each: which replica gets a request; a new file with a ROUTER is registered by itself.

A router is asked by `rackline.simulation.gate`, request by request; it sees the replicas as of the last pass that began
(`Standing`). The tables of published scores that they quote are kept with their versions in each file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rackline.simulation.policies import found_in, names_in
from rackline.simulation.requests import Requests

if TYPE_CHECKING:
    from rackline.simulation.native import NativeLog, NativeReplica
    from rackline.simulation.replica import Replica
    from rackline.simulation.requests import RequestLog


class Standing:
    """What is known of the replicas that take requests, by their place.

    Args:
        replicas: themselves; they stay the same objects while others come and go.
        log: of the requests of the run.
    """

    loads: Sequence[int] = ()
    """Running and waiting requests [requests]."""
    queued: Sequence[int] = ()
    """Waiting requests [requests]."""
    blocks: Sequence[int] = ()
    """KV blocks in use [count]."""

    def __init__(self, replicas: Sequence[Replica | NativeReplica], log: RequestLog | NativeLog) -> None:
        self.replicas, self.log = replicas, log
        pool = replicas[0].pool
        self.block_size, self.room = pool.spec.block_size, pool.num_ranks * pool.spec.num_blocks
        self.seats = pool.num_ranks * pool.spec.max_num_seqs

    def look(self, time_s: float) -> None:
        """Read how the replicas stand at a time, up to which their passes run [s]."""
        raise NotImplementedError

    def put(self, place: int, request: int, time_s: float) -> None:
        """Give a request to a replica."""
        raise NotImplementedError

    def run(self, until: float) -> None:
        """Run all passes that begin before a time [s]."""
        raise NotImplementedError

    def known(self, request: int) -> list[int]:
        """Tokens of the prompt that each replica has in its caches [tokens]."""
        return [0] * len(self.replicas)

    @property
    def kv_use(self) -> list[float]:
        """Share of the KV blocks in use [1]."""
        return [blocks / self.room for blocks in self.blocks]

    def least(self) -> int:
        """The replica with the fewest requests, the first of equal ones."""
        return self.loads.index(min(self.loads))


class Router:
    """A rule during one run, with what it remembers.

    Args:
        requests: of the run.
    """

    follows_prefixes: bool = False
    """Whether it looks for what replicas have in their caches."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests

    def choose(self, request: int, standing: Standing) -> int:
        """Place of the replica that gets a request."""
        raise NotImplementedError


def router_names() -> tuple[str, ...]:
    """Names of all routers, with hyphens."""
    return names_in(__path__)


def router(name: str) -> Callable[[Requests], Router]:
    """Find a router by name.

    Raises:
        UnknownNameError: there is no such router; the message names the nearest.
    """
    return found_in(__name__, __path__, "router", name)
