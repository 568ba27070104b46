"""Hit rates of prefixes in several memories after each other: of sessions in closed form, of recorded requests exactly.

What a fast memory drops goes to the next one, so all that is in the first k memories is a least recently used cache of
what the first k - 1 hold and the room of the k-th, with the expiry of the k-th. A block that was loaded back stays in
the slower memory as well: of what the fast one holds, the share that came from the slower one takes no room anew.

That holds where what was not used for the longest time goes first, and where each use renews the expiry. Under other
rules the requests are put through the cache of the simulator, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.prefix_cache import CacheRules, TierSpec
from rackline.simulation.requests import Requests
from rackline.simulation.reuse import HitsWithin, Reuse, arrivals, replay, session_hits
from rackline.simulation.workloads import Lengths, Sessions

_ROUNDS = 8  # in which the share of copies settles
_LONGEST_S = 1e9
_SESSIONS_LONG = 4.0  # times the mean session: from then on, about as many sessions end as begin
_MEASURED = 3000  # requests after that
_MOST_REPLAYED = 60_000  # requests that are put through a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """Room for unused prefixes in one memory, for the cache of one rank.

    Args:
        name: of the memory.
        capacity_tokens: that fit, those of running requests included [tokens].
        ttl_s: sliding expiry [s].
    """

    name: str
    capacity_tokens: float
    ttl_s: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeating:
    """Traffic that repeats its prefixes, of any rate.

    Args:
        name: short description.
        input_len: mean prompt [tokens].
        unlimited_share: share of prompt tokens that an unlimited cache finds [1].
        hash_tokens: tokens of a hashed block of a prefix [tokens].
    """

    name: str
    input_len: float
    unlimited_share: float
    hash_tokens: int

    def hits(
        self, capacity_tokens: float, ttl_s: float, *, requests_per_s: float, answer_tokens: float, answer_s: float
    ) -> HitsWithin:
        """Found in one least recently used cache; see `hits_within`."""
        raise NotImplementedError

    def replayed(self, requests_per_s: float, answer_s: float) -> ReplayedTraffic:
        """Requests to put through the cache of a rank with this rate; see `hits_within`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTraffic:
    """Requests that are put through a cache, one after another.

    Args:
        requests: in the order of arrival.
        counted: whether its hits count, (n,).
        ranks: how many ranks at the rate that was asked for they would keep busy [count].
    """

    requests: Requests
    counted: Array
    ranks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatingSessions(Repeating):
    """Sessions that begin at random.

    Args:
        sessions: how they go on.
        message_tokens, answer_tokens: mean lengths [tokens].
        requests_of_one: mean requests of a session [requests].
    """

    sessions: Sessions
    message_tokens: float
    answer_tokens: float
    requests_of_one: float

    @classmethod
    def of(cls, sessions: Sessions, *, message_tokens: float, answer_tokens: float) -> RepeatingSessions:
        """Sessions with messages and answers of these mean lengths [tokens]."""
        found = session_hits(sessions, rate_per_s=1.0, message_tokens=message_tokens, answer_tokens=answer_tokens)
        return cls(
            name=sessions.name,
            input_len=found.input_len,
            unlimited_share=found.unlimited_share,
            hash_tokens=sessions.hash_tokens,
            sessions=sessions,
            message_tokens=message_tokens,
            answer_tokens=answer_tokens,
            requests_of_one=found.requests_per_s,
        )

    def hits(
        self, capacity_tokens: float, ttl_s: float, *, requests_per_s: float, answer_tokens: float, answer_s: float
    ) -> HitsWithin:
        """Found in one cache, by Che's approximation."""
        return session_hits(
            self.sessions,
            rate_per_s=requests_per_s / self.requests_of_one,
            message_tokens=self.message_tokens,
            answer_tokens=self.answer_tokens,
            capacity_tokens=capacity_tokens,
            ttl_s=ttl_s,
            answer_s=answer_s,
        )

    def draw(self, count: int, requests_per_s: float, seed: int = 1) -> Requests:
        """Requests of sessions that begin at random, all messages of one length."""
        lengths = Lengths(input_len=self.message_tokens, output_len=self.answer_tokens)
        return self.sessions.draw(np.random.default_rng(seed), count, requests_per_s / self.requests_of_one, lengths)

    def settled_s(self, answer_s: float) -> float:
        """Time from which on about as many sessions end as begin [s].

        Args:
            answer_s: mean time from a request to the end of its answer [s].
        """
        one = self.sessions
        pauses_s = (one.turns - 1.0) * one.think_s + one.turns * one.tool_calls * one.tool_s
        return _SESSIONS_LONG * (pauses_s + self.requests_of_one * answer_s)

    def settled_number(self, requests_per_s: float, answer_s: float) -> int:
        """Requests of a run that measures the steady state [requests]."""
        return ceil(requests_per_s * self.settled_s(answer_s)) + _MEASURED

    def is_steady(self, requests: Requests, arrival_s: Array, answer_s: float) -> Array:
        """Which requests came while about as many sessions ended as began, (n,).

        Args:
            requests: drawn.
            arrival_s: of each of them [s], (n,).
            answer_s: as above [s].
        """
        first = np.ones(len(requests), dtype=bool) if requests.after is None else requests.after < 0
        last_s = float(arrival_s[first].max())
        return (arrival_s > min(self.settled_s(answer_s), 0.5 * last_s)) & (arrival_s < last_s)

    def replayed(self, requests_per_s: float, answer_s: float) -> ReplayedTraffic:
        """Sessions of one rank, with the time that answers take in their pauses."""
        drawn = self.draw(min(self.settled_number(requests_per_s, answer_s), _MOST_REPLAYED), requests_per_s)
        follows = 0.0 if drawn.after is None else drawn.after >= 0
        requests = replace(drawn, arrival_s=drawn.arrival_s + answer_s * follows)
        order, times = arrivals(requests)
        arrival_s = np.empty(len(requests))
        arrival_s[order] = times
        return ReplayedTraffic(requests=requests, counted=self.is_steady(drawn, arrival_s, answer_s), ranks=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatingTrace(Repeating):
    """Recorded requests, spread over ranks so that those with a common prefix come together.

    A rank that serves a tenth of the recorded rate sees a tenth of the prefixes: its memory holds what a memory of ten
    times the size would hold of all requests.

    Args:
        requests: as recorded.
        reuse: how far back their prompts find their prefixes.
        requests_per_s: mean rate as recorded [requests/s].
    """

    requests: Requests
    reuse: Reuse
    requests_per_s: float

    @classmethod
    def of(cls, name: str, requests: Requests, reuse: Reuse) -> RepeatingTrace:
        """The requests of a trace with what was found of it."""
        _, times = arrivals(requests)
        rate = len(times) / max(float(times[-1] - times[0]), 1e-9)
        return cls(
            name=name,
            input_len=reuse.input_len,
            unlimited_share=float(reuse.hit_share()),
            hash_tokens=requests.hash_tokens,
            requests=requests,
            reuse=reuse,
            requests_per_s=rate,
        )

    def hits(
        self, capacity_tokens: float, ttl_s: float, *, requests_per_s: float, answer_tokens: float, answer_s: float
    ) -> HitsWithin:
        """Found in one cache, by stack distances. Running requests are the ones used last; their answers take room."""
        ranks = self.requests_per_s / requests_per_s
        room = max(capacity_tokens - 0.5 * answer_tokens * requests_per_s * answer_s, 0.0) * ranks
        found = self.reuse.hit_share(room // self.reuse.block_tokens if room < inf else inf, ttl_s)
        per_s = self.requests_per_s * self.reuse.input_len
        held = self.reuse.held_s(min(ttl_s, _LONGEST_S)) * per_s
        kept_s = ttl_s
        if held > room:
            low, kept_s = 0.0, min(ttl_s, _LONGEST_S)
            while kept_s - low > 1e-3 * kept_s:
                middle = 0.5 * (low + kept_s)
                low, kept_s = (low, middle) if self.reuse.held_s(middle) * per_s > room else (middle, kept_s)
        return HitsWithin(hit_share=float(found), kept_s=kept_s, held_tokens=min(held, room) / ranks)

    def replayed(self, requests_per_s: float, answer_s: float) -> ReplayedTraffic:
        """All recorded requests, as those of several ranks."""
        counted = np.ones(len(self.requests), dtype=bool)
        return ReplayedTraffic(requests=self.requests, counted=counted, ranks=self.requests_per_s / requests_per_s)


def hits_within(
    traffic: Repeating,
    rooms: Sequence[MemoryRoom],
    rules: CacheRules | None = None,
    *,
    requests_per_s: float,
    answer_tokens: float,
    answer_s: float,
) -> tuple[HitsWithin, ...]:
    """What the first k memories hold together, for each k.

    Args:
        traffic: that repeats.
        rooms: of a rank, the fastest first; none expires before the one before it.
        rules: which block goes first, and when its time begins; by default the least recently used, and its last use.
        requests_per_s: that the rank serves [requests/s].
        answer_tokens: of an answer [tokens].
        answer_s: mean time from a request to the end of its answer [s].

    Assumes: what has a common prefix comes to one rank.

    >>> chat = RepeatingSessions.of(Sessions(turns=5, think_s=60.0), message_tokens=200, answer_tokens=300)
    >>> rooms = (MemoryRoom(name="HBM", capacity_tokens=1e5), MemoryRoom(name="host", capacity_tokens=2e6))
    >>> found = hits_within(chat, rooms, requests_per_s=5.0, answer_tokens=300, answer_s=5.0)
    >>> [round(one.hit_share, 2) for one in found]
    [0.05, 0.9]
    """
    if rules is not None and (rules.eviction.key is not None or not rules.ttl_from_use):
        half = 0.5 * answer_tokens * requests_per_s * answer_s
        return _replayed_within(traffic.replayed(requests_per_s, answer_s), rooms, rules, half)
    found: list[HitsWithin] = []
    for place, room in enumerate(rooms):
        before = found[-1] if found else None
        held = 0.0 if before is None else before.held_tokens
        copied = 0.0
        one: HitsWithin | None = None
        for _ in range(_ROUNDS if place and held < inf else 1):
            one = traffic.hits(
                held * (1.0 - copied) + room.capacity_tokens,
                room.ttl_s,
                requests_per_s=requests_per_s,
                answer_tokens=answer_tokens,
                answer_s=answer_s,
            )
            if before is None:
                break
            loaded = (one.hit_share - before.hit_share) * traffic.input_len
            fresh = (1.0 - one.hit_share) * traffic.input_len + answer_tokens
            copied = 0.5 * (copied + max(loaded, 0.0) / (max(loaded, 0.0) + fresh))
        if one is not None:
            found.append(one)
    return tuple(found)


def _replayed_within(
    replayed: ReplayedTraffic, rooms: Sequence[MemoryRoom], rules: CacheRules, half_answers: float
) -> tuple[HitsWithin, ...]:
    """The same for the cache of the simulator, without passes.

    Args:
        half_answers: tokens of unfinished answers: without hashes they take room beside the requests, with hashes the
            whole answer is in the cache from the arrival on [tokens].
    """
    requests, counted = replayed.requests, replayed.counted
    unit = requests.hash_tokens
    first, *behind = rooms
    more = -half_answers if requests.answer_hashes is None else half_answers
    room = max(first.capacity_tokens + more, 0.0) * replayed.ranks
    result = replay(
        requests,
        room // unit if room < inf else inf,
        replace(rules, ttl_s=first.ttl_s),
        [
            TierSpec(
                name=one.name,
                tokens=one.capacity_tokens * replayed.ranks,
                tokens_per_s=1.0,
                ttl_s=None if one.ttl_s == inf else one.ttl_s,
            )
            for one in behind
        ],
    )
    shares = result.hit_tokens[counted].sum(axis=0) / float(requests.input_len[counted].sum())
    held = np.cumsum(result.held_blocks[counted].mean(axis=0)) * unit / replayed.ranks
    return tuple(
        HitsWithin(hit_share=share, kept_s=None, held_tokens=tokens)
        for share, tokens in zip(shares.tolist(), held.tolist(), strict=True)
    )
