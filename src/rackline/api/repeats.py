"""How traffic repeats its prefixes: a recorded trace with hashes, or conversations and agents in closed form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rackline.api.traffic import sessions_of
from rackline.errors import InputError
from rackline.units import parse_per_second

if TYPE_CHECKING:
    from rackline.api.tiers_question import TiersQuestion
    from rackline.pricing import TokenCosts
    from rackline.pricing.prefixes import Repeats
    from rackline.simulation.reuse import Reuse

_OF_SESSIONS = ("rate", "input", "output", "tool_calls", "tool_output")


def repeats_of(question: TiersQuestion) -> tuple[str, Repeats] | None:
    """Name and repeats of the traffic of a question; None without traffic.

    Raises:
        InputError: a trace without hashes, options of conversations without `turns`, or the other way round.
    """
    if question.trace is not None:
        question.refuse("turns", *_OF_SESSIONS, allowed="only without `trace`")
        return _recorded(question.trace)
    if question.turns is None:
        question.refuse(*_OF_SESSIONS, allowed="only with `turns`")
        return None
    return _sessions(question)


def evicting(question: TiersQuestion, repeats: Repeats, costs: TokenCosts) -> Repeats:
    """The same in devices that another block leaves first than the least recently used.

    Args:
        costs: of the deployment that recomputes a block.

    Raises:
        UnknownNameError: an unknown eviction policy.
    """
    from dataclasses import replace
    from pathlib import Path

    from rackline.simulation import CacheConfig, CacheRules, pool_of, read_trace
    from rackline.simulation.evictions import eviction
    from rackline.simulation.hits_by_tier import MemoryRoom, Repeating, RepeatingSessions, RepeatingTrace, hits_within

    traffic: Repeating
    if question.trace is not None:
        recorded = RepeatingTrace.of(Path(question.trace).name, read_trace(question.trace), reuse_in(question.trace))
        traffic, rate = recorded, recorded.requests_per_s
    else:
        traffic = RepeatingSessions(
            sessions=sessions_of(question),
            message_tokens=question.input or 1.0,
            answer_tokens=question.output or 1.0,
        )
        rate = parse_per_second(str(question.rate), name="rate", maximum=1e9) * traffic.requests_of_one
    policy = eviction(question.eviction)
    cache = CacheConfig(prefix_caching=True, hash_tokens=traffic.hash_tokens, cache_rules=CacheRules(eviction=policy))
    rules = pool_of(costs.deployment, costs.system.stack, cache=cache).spec.cache_rules

    def looked_up(tokens: float) -> float:
        room = MemoryRoom(name="device", capacity_tokens=tokens)
        within = hits_within(traffic, [room], rules, requests_per_s=rate, answer_tokens=0.0, answer_s=0.0)
        return within[0].hit_share

    most, enough = looked_up(math.inf), math.inf

    def found_in(tokens: float) -> float:
        nonlocal enough
        share = most if tokens >= enough else looked_up(tokens)
        enough = min(enough, tokens) if share >= most else enough
        return share

    return replace(repeats, found_in=found_in, eviction=policy.name)


def reuse_in(trace: str) -> Reuse:
    """How the prompts of a trace repeat.

    Raises:
        InputError: a trace without hashes.
    """
    from rackline.simulation import read_trace
    from rackline.simulation.reuse import reuse_of

    found = reuse_of(read_trace(trace), ends_first=True)
    if found is None:
        raise InputError(
            what="trace", given=trace, allowed="one with hash_ids, which say what repeats, such as Mooncake's"
        )
    return found


def _recorded(trace: str) -> tuple[str, Repeats]:
    from pathlib import Path

    from rackline.pricing.prefixes import Repeats

    reuse = reuse_in(trace)
    return Path(trace).name, Repeats(
        found=lambda ttl_s: float(reuse.hit_share(ttl_s=ttl_s)),
        held_s=reuse.held_s,
        found_in=lambda tokens: float(reuse.hit_share(tokens // reuse.block_tokens)),
        input_len=reuse.input_len,
    )


def _sessions(question: TiersQuestion) -> tuple[str, Repeats]:
    from rackline.pricing.prefixes import Repeats
    from rackline.simulation.characteristic_time import SessionHits, session_hits

    given = question.given(*_SUCH_AS)
    for name in _SUCH_AS:
        if name not in given:
            raise InputError(what=name, given="nothing", allowed=f"with `turns`, such as `{name}` {_SUCH_AS[name]}")
    sessions = sessions_of(question)
    rate = parse_per_second(str(question.rate), name="rate", maximum=1e9)
    message, answer = question.input or 1.0, question.output or 1.0

    def hits(*, ttl_s: float = math.inf, capacity_tokens: float = math.inf) -> SessionHits:
        return session_hits(
            sessions,
            rate_per_s=rate,
            message_tokens=message,
            answer_tokens=answer,
            ttl_s=ttl_s,
            capacity_tokens=capacity_tokens,
        )

    return sessions.name, Repeats(
        found=lambda ttl_s: hits(ttl_s=ttl_s).hit_share,
        held_s=lambda ttl_s: hits(ttl_s=ttl_s).held_s,
        found_in=lambda tokens: hits(capacity_tokens=tokens).hit_share,
        input_len=hits().input_len,
    )


_SUCH_AS = {"rate": "2", "input": "300", "output": "500"}
