"""The closed form of a prefix cache under sessions against the simulator's cache, within three points."""

from __future__ import annotations

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.simulation import POLICIES, Lengths, PlainClock, Pool, RankSpec, Sessions, simulate
from rackline.simulation.prefix_cache import CacheRules
from rackline.simulation.reuse import arrivals, reuse_of, session_hits

CHAT = Sessions(turns=4, think_s=40.0, system_tokens=1024, hash_tokens=128)
AGENT = Sessions(turns=2, tool_calls=4, think_s=60.0, tool_s=5.0, tool_tokens=1500, system_tokens=8192, hash_tokens=512)
FIXED = Sessions(
    turns=3, tool_calls=5, think_s=60.0, tool_s=5.0, tool_tokens=800, system_tokens=2048, hash_tokens=512,
    same_length=True,
)  # fmt: skip
CUT = Sessions(turns=15, think_s=20.0, max_tokens=8192, hash_tokens=256)
MESSAGE, ANSWER = 300.0, 400.0


def measured(sessions: Sessions, rate: float, spread: str) -> tuple[Array, Array, Array, float]:
    """(distance [tokens], idle time, tokens) of found blocks and all prompt tokens, once as many end as begin."""
    lengths = Lengths(input_len=MESSAGE, output_len=ANSWER, spread=spread)  # pyright: ignore[reportArgumentType]
    requests = sessions.draw(np.random.default_rng(7), 12_000, rate, lengths)
    reuse = reuse_of(requests, ends_first=True)
    assert reuse is not None
    assert requests.after is not None
    order, times = arrivals(requests)
    arrival_s = np.empty(len(requests))
    arrival_s[order] = times
    last = arrival_s[requests.after < 0].max()
    steady = (arrival_s > 0.3 * last) & (arrival_s < last)
    mine = steady[reuse.request]
    tokens = float(requests.input_len[steady].sum())
    return reuse.distance[mine] * reuse.block_tokens, reuse.idle_s[mine], reuse.tokens[mine], tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sessions", "rate", "spread"),
    [(CHAT, 1.0, "fixed"), (CHAT, 1.0, "exponential"), (AGENT, 0.5, "fixed"), (FIXED, 0.5, "fixed"),
     (FIXED, 0.5, "uniform"), (CUT, 0.5, "fixed")],
    ids=["chat", "chat spread", "agent", "agent of one length", "the same spread", "cut"],
)  # fmt: skip
def test_within_three_points(sessions: Sessions, rate: float, spread: str) -> None:
    distance, idle_s, found, tokens = measured(sessions, rate, spread)
    size = session_hits(sessions, rate_per_s=rate, message_tokens=MESSAGE, answer_tokens=ANSWER).input_len + ANSWER
    shares: list[float] = []
    for sessions_held in (20, 60, 200, np.inf):
        capacity = sessions_held * size
        for ttl_s in (20.0, 120.0, np.inf):
            expected = session_hits(
                sessions,
                rate_per_s=rate,
                message_tokens=MESSAGE,
                answer_tokens=ANSWER,
                capacity_tokens=capacity,
                ttl_s=ttl_s,
            ).hit_share
            share = float(found[(distance <= capacity) & (idle_s < ttl_s)].sum()) / tokens
            assert expected == pytest.approx(share, abs=0.03), (sessions_held, ttl_s)
            shares.append(share)
    assert max(shares) - min(shares) > 0.1  # sizes and expiries matter


def test_a_server_finds_what_the_closed_form_says() -> None:
    """With time: passes, waiting and blocks of running requests, which a large cache hardly notices."""
    requests = CHAT.draw(np.random.default_rng(3), 3000, 1.0, Lengths(input_len=MESSAGE, output_len=ANSWER))
    spec = RankSpec(pool_tokens=20_000_000, prefix_caching=True, hash_tokens=128, cache_rules=CacheRules(ttl_s=30.0))
    clock = PlainClock(base_s=0.005, per_prompt_token_s=1e-6)
    result = simulate(requests, Pool(clock=clock, spec=spec, policy=POLICIES.find("chunked")))
    late = result.arrival_s > 200.0
    share = result.cached_tokens[late].sum() / requests.input_len[late].sum()
    expected = session_hits(CHAT, rate_per_s=1.0, message_tokens=MESSAGE, answer_tokens=ANSWER, ttl_s=30.0)
    assert expected.hit_share == pytest.approx(share, abs=0.03)


def test_codex_sessions_find_what_was_published() -> None:
    """610 recorded sessions of Codex on SWE-bench Pro: a median of 33 turns, 80 thousand tokens by turn 30, 131 prompt
    tokens per output token, and 94.2 % of prompt tokens found (vLLM and Mooncake, 2026-05-06)."""
    first, turn_30, ratio = 8_000.0, 80_000.0, 131.0
    growth = (turn_30 - first) / 29
    answer = (first + 16 * growth) / ratio
    codex = Sessions(
        turns=1, tool_calls=32, tool_s=5.0, tool_tokens=growth - answer, same_length=True, max_tokens=200_000
    )
    found = session_hits(codex, rate_per_s=0.1, message_tokens=first, answer_tokens=answer)
    assert found.input_len / answer == pytest.approx(ratio, rel=0.02)
    assert found.unlimited_share == pytest.approx(0.942, abs=0.015)


def test_limits() -> None:
    def of(**more: float) -> float:
        return session_hits(CHAT, rate_per_s=1.0, message_tokens=MESSAGE, answer_tokens=ANSWER, **more).hit_share

    whole = of()
    assert whole == of(ttl_s=1e9) == pytest.approx(of(capacity_tokens=1e12), abs=1e-6)
    assert 0.0 < of(ttl_s=1e-9) + of(capacity_tokens=100.0) < 0.05
    grown = [of(capacity_tokens=c) for c in (1e4, 1e5, 1e6, 1e7)]
    assert grown == sorted(grown)
    with pytest.raises(InputError, match="above 0"):
        session_hits(CHAT, rate_per_s=0.0, message_tokens=1.0, answer_tokens=1.0)
