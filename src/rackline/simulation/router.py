"""The request router: which replica serves a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rackline.errors import InputError, nearest_names
from rackline.simulation.prefix_cache import matched
from rackline.simulation.replica import Replica

Router = Callable[[int, Sequence[Replica]], Replica]

ROUTERS = ("round-robin", "least-loaded", "prefix-aware")


def router(name: str) -> Router:
    """A new router by name, with its own state.

    Raises:
        InputError: the name is unknown.
    """
    if name == "round-robin":
        return _round_robin()
    if name == "least-loaded":
        return _least_loaded
    if name == "prefix-aware":
        return _prefix_aware
    near = nearest_names(name, ROUTERS, 1)
    raise InputError(what="router", given=name, allowed=", ".join(ROUTERS), nearest=near[0] if near else None)


def _round_robin() -> Router:
    turn = 0

    def choose(request: int, replicas: Sequence[Replica]) -> Replica:
        nonlocal turn
        turn += 1
        return replicas[(turn - 1) % len(replicas)]

    return choose


def _least_loaded(request: int, replicas: Sequence[Replica]) -> Replica:
    return min(replicas, key=lambda replica: replica.load)


def _prefix_aware(request: int, replicas: Sequence[Replica]) -> Replica:
    hashes = replicas[0].log.hashes
    if hashes is not None:
        known = [replica.known_prefix(request) for replica in replicas]
        place = matched(known, [replica.load for replica in replicas], len(hashes[request]))
        if place is not None:
            return replicas[place]
    return _least_loaded(request, replicas)
