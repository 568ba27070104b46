"""All requests of a conversation to one replica; requests that belong to none to that with the fewest.

A replica is found by rendezvous hashing (the highest hash of session and replica), so that only the sessions of a
replica that goes move, as on a ring of hashes.

Sources: vllm-project/production-stack, src/vllm_router/routers/routing_logic.py, SessionRouter (ring of hashes by the
session key, else the lowest request rate), read 2026-11-23; Thaler and Ravishankar 1998, "Using name-based mappings
to increase hit rates", IEEE/ACM Transactions on Networking 6, for the hash.
"""

from collections.abc import MutableMapping
from weakref import WeakKeyDictionary

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.requests import Requests
from rackline.simulation.routers import Router, Standing

_MIX, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1  # of SplitMix64 (Steele, Lea, Flood 2014)


class SessionAffinity(Router):
    """One replica for a session."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.session = sessions_of(requests)
        self.numbers: MutableMapping[object, int] = WeakKeyDictionary()

    def choose(self, request: int, standing: Standing) -> int:
        """The replica of the session."""
        session = -1 if self.session is None else int(self.session[request])
        if session < 0:
            return standing.least()
        keys = [_hash(session, self.numbers.setdefault(one, len(self.numbers))) for one in standing.replicas]
        return keys.index(max(keys))


def sessions_of(requests: Requests) -> Array | None:
    """The first request of each request's conversation, -1 for those that stand alone, (n,); None without any."""
    if requests.after is None or requests.process == "closed":  # the next user who is free goes on there
        return None
    first = np.arange(len(requests))
    for index in np.flatnonzero(requests.after >= 0).tolist():
        first[index] = first[requests.after[index]]
    alone = np.bincount(first, minlength=len(first))[first] == 1
    return np.where(alone, -1, first)


def _hash(session: int, number: int) -> int:
    value = (session * 1_000_003 + number + 1) * _MIX & _WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    return value ^ value >> 31


ROUTER = SessionAffinity
