"""Hits of prefixes in several memories: the closed form against the cache of the simulator, within four points."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from rackline.simulation import Sessions
from rackline.simulation.evictions import EVICTIONS
from rackline.simulation.hits_by_tier import MemoryRoom, RepeatingSessions, RepeatingTrace, hits_within
from rackline.simulation.prefix_cache import CacheRules, TierSpec
from rackline.simulation.requests import Requests
from rackline.simulation.reuse import arrivals, replay, reuse_of

CHAT = RepeatingSessions.of(
    Sessions(turns=8, think_s=60.0, system_tokens=1024, same_length=True),
    message_tokens=300,
    answer_tokens=400,
)
AGENT = RepeatingSessions.of(
    Sessions(
        turns=2,
        tool_calls=5,
        think_s=90.0,
        tool_s=5.0,
        tool_tokens=1200,
        system_tokens=4096,
        hash_tokens=256,
        same_length=True,
    ),
    message_tokens=300,
    answer_tokens=200,
)
ANSWER_S = 3.0


def measured(traffic: RepeatingSessions, rooms: tuple[MemoryRoom, ...], rate: float) -> list[float]:
    """Shares found within the first k memories of the simulator's cache, least recently used.

    All sessions are of one length: in samples of this size the mean of others would move the shares by some points.
    """
    drawn = traffic.draw(4500, rate)
    assert drawn.after is not None
    requests = replace(drawn, arrival_s=drawn.arrival_s + ANSWER_S * (drawn.after >= 0))
    order, times = arrivals(requests)
    arrival_s = np.empty(len(requests))
    arrival_s[order] = times
    counted = traffic.is_steady(requests, arrival_s, ANSWER_S)
    tiers = [
        TierSpec(name=one.name, tokens=one.capacity_tokens, tokens_per_s=1.0, ttl_s=one.ttl_s) for one in rooms[1:]
    ]
    more = 0.5 * traffic.answer_tokens * rate * ANSWER_S  # of running answers, which are whole in this cache
    room, rules = (rooms[0].capacity_tokens + more) // drawn.hash_tokens, CacheRules(ttl_s=rooms[0].ttl_s)
    found = replay(requests, room, rules, tiers).hit_tokens[counted]
    return (found.sum(axis=0) / requests.input_len[counted].sum()).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("traffic", "rate", "contexts", "lives"),
    [
        (CHAT, 5.0, (60, 200), (inf, inf)),
        (CHAT, 5.0, (40, 2000), (30.0, 300.0)),
        (CHAT, 5.0, (60, 100, 300), (20.0, inf, inf)),
        (AGENT, 4.0, (40, 120), (inf, inf)),
    ],
    ids=["two", "expiries", "three", "agents"],
)
def test_each_memory_finds_what_the_cache_finds(
    traffic: RepeatingSessions, rate: float, contexts: tuple[int, ...], lives: tuple[float, ...]
) -> None:
    size = traffic.input_len + traffic.answer_tokens
    rooms = tuple(
        MemoryRoom(name=f"memory {place}", capacity_tokens=many * size, ttl_s=life)
        for place, (many, life) in enumerate(zip(contexts, lives, strict=True))
    )
    closed = hits_within(traffic, rooms, requests_per_s=rate, answer_tokens=traffic.answer_tokens, answer_s=ANSWER_S)
    assert [one.hit_share for one in closed] == pytest.approx(measured(traffic, rooms, rate), abs=0.04)


def talks(count: int = 2500) -> RepeatingTrace:
    """Conversations as if they had been recorded: times are fixed, no request waits for another."""
    drawn = CHAT.draw(count, 4.0)
    arrival_s = drawn.arrival_s.copy()
    assert drawn.after is not None
    for index, before in enumerate(drawn.after.tolist()):
        if before >= 0:
            arrival_s[index] += arrival_s[before]
    order = np.argsort(arrival_s, kind="stable").tolist()
    assert drawn.hashes is not None
    requests = Requests(
        arrival_s=arrival_s[order],
        input_len=drawn.input_len[order],
        output_len=drawn.output_len[order],
        hashes=[drawn.hashes[index] for index in order],
        hash_tokens=drawn.hash_tokens,
    )
    reuse = reuse_of(requests, ends_first=True)
    assert reuse is not None
    return RepeatingTrace.of("talks", requests, reuse)


def test_a_recorded_trace_is_looked_up_exactly() -> None:
    """Stack distances for one memory, and the cache of the simulator under other rules, say the same."""
    trace = talks()
    lru, first_in = (CacheRules(eviction=EVICTIONS.find(name)) for name in ("lru", "fifo"))
    for tokens in (30_000.0, 100_000.0, inf):
        rooms = (MemoryRoom(name="HBM", capacity_tokens=tokens),)
        rate = {"requests_per_s": trace.requests_per_s, "answer_tokens": 0.0, "answer_s": 0.0}
        exact, written_first = (hits_within(trace, rooms, rules, **rate)[0] for rules in (lru, first_in))
        room = tokens // trace.hash_tokens if tokens < inf else inf
        assert exact.hit_share == pytest.approx(replay(trace.requests, room).hit_share, abs=1e-9)
        assert written_first.kept_s is None
        assert written_first.hit_share == pytest.approx(exact.hit_share, abs=0.2 if tokens < inf else 1e-9)


def test_a_rank_with_half_the_rate_needs_half_the_memory() -> None:
    trace = talks()
    rooms = (MemoryRoom(name="HBM", capacity_tokens=40_000), MemoryRoom(name="host", capacity_tokens=60_000))
    half = tuple(replace(room, capacity_tokens=room.capacity_tokens / 2) for room in rooms)
    for rules in (None, CacheRules(eviction=EVICTIONS.find("cost-aware"), recompute_s=(1.0, 0.01))):
        whole, part = (
            hits_within(trace, given, rules, requests_per_s=rate, answer_tokens=0.0, answer_s=0.0)
            for given, rate in ((rooms, trace.requests_per_s), (half, trace.requests_per_s / 2))
        )
        for one, other in zip(whole, part, strict=True):
            assert one.hit_share == pytest.approx(other.hit_share, abs=1e-9)
            assert one.held_tokens == pytest.approx(2 * other.held_tokens)


def test_time_from_the_writing_finds_less_and_unlimited_memories_the_same() -> None:
    rooms = (MemoryRoom(name="HBM", capacity_tokens=inf, ttl_s=120.0),)
    given = {"requests_per_s": 2.0, "answer_tokens": 400.0, "answer_s": 1.0}
    sliding = hits_within(CHAT, rooms, **given)[0]
    written = hits_within(CHAT, rooms, CacheRules(ttl_s=120.0, ttl_from_use=False), **given)[0]
    worth = hits_within(CHAT, rooms, CacheRules(ttl_s=120.0, eviction=EVICTIONS.find("cost-aware")), **given)[0]
    assert 0.2 < written.hit_share < sliding.hit_share - 0.03
    assert worth.hit_share == pytest.approx(sliding.hit_share, abs=0.03)
