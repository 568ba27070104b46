"""Routers: which replica gets a request.

A router is asked by `rackline.simulation.gate`, request by request; it sees the replicas as of the last pass that began
(`Standing`). Each quotes its published score with the version; a new one is an entry of `ROUTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from itertools import count
from math import isnan
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.policies import Family
from rackline.simulation.prefix_cache import matched
from rackline.simulation.requests import Requests

if TYPE_CHECKING:
    from rackline.simulation.native_replica import NativeLog, NativeReplica
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


class Numbers:
    """Numbers of replicas in the order in which they were met; none is given twice, also where its owner is gone."""

    def __init__(self) -> None:
        self._known: MutableMapping[object, int] = WeakKeyDictionary()
        self._next = count()

    def of(self, replicas: Sequence[object]) -> list[int]:
        """The number of each."""
        for one in replicas:
            if one not in self._known:
                self._known[one] = next(self._next)
        return [self._known[one] for one in replicas]


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


class RoundRobin(Router):
    """Each replica in turn.

    Source: the default of nginx, of vLLM's production-stack (vllm-project/production-stack, routing_logic.py) and of
    most load balancers.
    """

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.turn = 0

    def choose(self, request: int, standing: Standing) -> int:
        """The next."""
        self.turn += 1
        return (self.turn - 1) % len(standing.replicas)


class LeastLoaded(Router):
    """The replica with the fewest requests, running and waiting; the first of equal ones.

    Source: join the shortest queue (Haight 1958, "Two queues in parallel", Biometrika 45); least_conn of nginx.
    """

    def choose(self, request: int, standing: Standing) -> int:
        """The first of those with the fewest."""
        return standing.least()


class PrefixAware(Router):
    """SGLang's gateway, cache_aware: the replica with the longest cached prefix, while loads are in balance.

        max load - min load > 32 and max load > 1.1 · min load: the fewest requests
        else matched / prompt > 0.5: the longest match; else the fewest requests

    Source: sgl-project/sglang, sgl-model-gateway/src/policies/mod.rs (defaults of CacheAwareConfig) and cache_aware.rs,
    read 2026-11-23. The gateway matches characters in a tree of its own, of what it sent where; here what is in the
    caches counts.
    """

    follows_prefixes = True

    def choose(self, request: int, standing: Standing) -> int:
        """The longest match, else the fewest requests."""
        hashes = self.requests.hashes
        if hashes is None:
            return standing.least()
        unit = self.requests.hash_tokens
        place = matched([tokens // unit for tokens in standing.known(request)], standing.loads, len(hashes[request]))
        return standing.least() if place is None else place


class DynamoKv(Router):
    """NVIDIA Dynamo's KV router: the lowest cost in blocks.

        cost = max(0, active prefill + prompt - credit) + decode
        active prefill = prompts that it sent there and that have no first token yet, without what was cached of them
        credit = tokens of the prompt in the cache of the replica, weight 1
        decode = tokens in KV blocks there, with the prompts that wait

    all over the tokens of a block, which changes no order; temperature 0.

    Source: ai-dynamo/dynamo, docs/components/router/router-concepts.md and router-configuration.md (scale 1, credit of
    the device 1.0, temperature 0; the queue is off), read 2026-11-23. Credits for tiers behind HBM (0.75, 0.25) are
    taken as 1.
    """

    follows_prefixes = True

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.sent: MutableMapping[object, dict[int, int]] = WeakKeyDictionary()  # replica → request → tokens to compute

    def choose(self, request: int, standing: Standing) -> int:
        """The lowest cost, of equal ones the fewest requests."""
        log, lengths = standing.log, self.requests.input_len
        prompt, loads = int(lengths[request]), standing.loads
        costs: list[float] = []
        known = standing.known(request)
        for place, replica in enumerate(standing.replicas):
            books = self.sent.setdefault(replica, {})
            for one in [one for one in books if not isnan(log.first_s[one])]:
                del books[one]
            waiting = sum(int(lengths[one]) for one in books if isnan(log.admitted_s[one]))
            active = sum(books.values()) + prompt - known[place]
            costs.append(max(active, 0) + standing.blocks[place] * standing.block_size + waiting)
        found = min(range(len(costs)), key=lambda place: (costs[place], loads[place]))
        self.sent[standing.replicas[found]][request] = prompt - known[found]
        return found


class LlmD(Router):
    """llm-d's inference scheduler with its default scorers: the highest weighted sum.

        score = 2 · queue + 2 · (1 - kv) + 3 · prefix
        queue = (max waiting - waiting) / (max waiting - min waiting), 1 where all are equal
        kv = share of the KV blocks in use
        prefix = matched blocks / blocks of the prompt

    Source: llm-d/llm-d-router @ ebab6879, pkg/epp/config/loader/defaults.go (weights) and
    pkg/epp/framework/plugins/scheduling/scorer/{queuedepth,kvcacheutilization,prefix}, read 2026-11-23. Among equal
    scores the scheduler draws; here the replica with the fewest requests is taken. Its metrics are up to 50 ms old;
    here they are those of the last pass that began.
    """

    follows_prefixes = True
    queue, kv, prefix = 2.0, 2.0, 3.0

    def choose(self, request: int, standing: Standing) -> int:
        """The highest score, of equal ones the fewest requests."""
        queued, loads, hashes = standing.queued, standing.loads, self.requests.hashes
        # what a replica lacks of the highest score: a sum as well, and quicker
        span = max(queued) - min(queued)
        each, block = self.queue / span if span else 0.0, self.kv / standing.room
        lacks = [each * waiting + block * used for waiting, used in zip(queued, standing.blocks, strict=True)]
        if hashes is not None:
            token = self.prefix / (max(len(hashes[request]), 1) * self.requests.hash_tokens)
            lacks = [lack - token * known for lack, known in zip(lacks, standing.known(request), strict=True)]
        least = min(lacks)
        first = lacks.index(least)
        if lacks.count(least) == 1:
            return first
        return min((place for place, lack in enumerate(lacks) if lack == least), key=loads.__getitem__)


_MIX, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1  # of SplitMix64 (Steele, Lea, Flood 2014)


class SessionAffinity(Router):
    """All requests of a conversation to one replica; requests that belong to none to that with the fewest.

    A replica is found by rendezvous hashing (the highest hash of session and replica), so that only the sessions of a
    replica that goes move, as on a ring of hashes.

    Sources: vllm-project/production-stack, src/vllm_router/routers/routing_logic.py, SessionRouter (ring of hashes by
    the session key, else the lowest request rate), read 2026-11-23; Thaler and Ravishankar 1998, "Using name-based
    mappings to increase hit rates", IEEE/ACM Transactions on Networking 6, for the hash.
    """

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.session = sessions_of(requests)
        self.numbers = Numbers()

    def choose(self, request: int, standing: Standing) -> int:
        """The replica of the session."""
        session = -1 if self.session is None else int(self.session[request])
        if session < 0:
            return standing.least()
        keys = [_hash(session, number) for number in self.numbers.of(standing.replicas)]
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


ROUTERS = Family[Callable[[Requests], Router]](
    "router",
    {
        "dynamo_kv": DynamoKv,
        "least_loaded": LeastLoaded,
        "llm_d": LlmD,
        "prefix_aware": PrefixAware,
        "round_robin": RoundRobin,
        "session_affinity": SessionAffinity,
    },
)
