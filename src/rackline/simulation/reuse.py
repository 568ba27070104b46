"""Hit rates of prefixes: how far back prompts find them in recorded requests, and in closed form for sessions."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import ceil, inf, log
from typing import Any

import numpy as np

from rackline.errors import InputError, require
from rackline.passes.features import Array, FloatLike, as_array
from rackline.simulation.prefix_cache import CacheRules, PrefixCache, TierSpec
from rackline.simulation.requests import BlockRuns, Requests
from rackline.simulation.traces import read_trace
from rackline.simulation.workloads import Sessions

_BUCKET = 512  # uses that are counted together


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Prefix blocks that requests share with earlier ones.

    Args:
        request: to which a block belongs, (n,).
        distance: least capacity with which a block and all before it in its prompt are found [blocks], (n,).
        idle_s: longest time since the last use of the block and all before it [s], (n,).
        tokens: prompt tokens that are found with it [tokens], (n,).
        pause_s: time from each use of a block to the next, or to the end of the requests [s], (uses,).
        prompt_tokens: tokens of all prompts [tokens].
        input_len: mean prompt [tokens].
        num_blocks: different blocks [count].
        block_tokens: tokens of a block [tokens].
    """

    request: Array
    distance: Array
    idle_s: Array
    tokens: Array
    pause_s: Array
    prompt_tokens: int
    input_len: float
    num_blocks: int
    block_tokens: int

    def hit_share(self, capacity_blocks: FloatLike = inf, ttl_s: FloatLike = inf) -> Array:
        """Share of prompt tokens that a least recently used cache holds [1].

        Args:
            capacity_blocks: its capacity [blocks].
            ttl_s: sliding expiry [s]; broadcast with the capacities.
        """
        capacities, times = np.broadcast_arrays(as_array(capacity_blocks), as_array(ttl_s))
        found = [
            float(self.tokens[(self.distance <= most) & (self.idle_s < ttl)].sum())
            for most, ttl in zip(capacities.ravel().tolist(), times.ravel().tolist(), strict=True)
        ]
        return np.reshape(np.array(found) / self.prompt_tokens, capacities.shape)

    def held_s(self, ttl_s: float) -> float:
        """Seconds for which a token is held, over prompt tokens, without a limit of memory [s].

        Args:
            ttl_s: sliding expiry [s].
        """
        return self.block_tokens * float(np.minimum(self.pause_s, ttl_s).sum()) / self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a cache held of prompts that came one after another.

    Args:
        hit_tokens: of each prompt within a memory and all faster ones, HBM first [tokens], (n, memories).
        held_blocks: in each memory when the prompt came [blocks], (n, memories).
        prompt_tokens: of all prompts [tokens].
    """

    hit_tokens: Array
    held_blocks: Array
    prompt_tokens: int

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens that the cache held [1]."""
        return float(self.hit_tokens[:, -1].sum()) / self.prompt_tokens


def arrivals(requests: Requests) -> tuple[list[int], Array]:
    """(requests in the order of arrival, their times [s]), (n,) each, where answers take no time."""
    times = requests.arrival_s.astype(float)
    for index, before, pause_s in sorted(requests.waits()):
        times[index] = max(times[index], times[before] + pause_s)
    order = np.argsort(times, kind="stable")
    return order.tolist(), times[order]


def reuse_of(requests: Requests, *, ends_first: bool = False) -> Reuse | None:
    """Measure how far back each prompt finds its prefix; None where no request has hashes.

    Each prompt is looked up, then its blocks and those of its answer are used in their order.

    Args:
        requests: with hashes; a last block of a prompt that is not full counts with the tokens that it has.
        ends_first: whether blocks of a request are used from its end to its start, so that a full cache evicts the
            end of a prefix first, as engines do.
    """
    if requests.hashes is None:
        return None
    order, times = arrivals(requests)
    unit = requests.hash_tokens
    rows: list[Sequence[int]] = [requests.hashes[index] for index in order]
    more = requests.answer_hashes
    whole: list[Sequence[int]] = (
        rows if more is None else [[*row, *more[i]] for row, i in zip(rows, order, strict=True)]
    )
    num_uses = sum(map(len, whole))
    flags = np.zeros(-(-max(num_uses, 1) // _BUCKET) * _BUCKET, dtype=bool)  # uses that are the last of their block
    table = flags.reshape(-1, _BUCKET)
    counts = np.zeros(len(table), dtype=np.int64)
    last: dict[int, int] = {}
    when = np.zeros(num_uses)
    owners, distances, ages, tokens, pauses = (list[Array]([np.zeros(0, dtype=np.int64)]) for _ in range(5))
    used = 0
    lengths: list[int] = requests.input_len[order].tolist()
    for index, row, blocks, length, now in zip(order, rows, whole, lengths, times.tolist(), strict=True):
        # last uses of the blocks of a prompt, up to the first that is new
        places = np.array(list(takewhile(lambda place: place is not None, map(last.get, row))), dtype=np.int64)
        if len(places):
            after = counts.sum() - np.cumsum(counts)
            bucket, inside = places // _BUCKET, places % _BUCKET
            within = np.cumsum(table[bucket][:, ::-1], axis=1)[np.arange(len(places)), _BUCKET - 1 - inside]
            owners.append(np.full(len(places), index))
            distances.append(np.maximum.accumulate(after[bucket] + within))
            ages.append(np.maximum.accumulate(now - when[places]))
            begin = np.arange(len(places)) * unit
            tokens.append(np.clip(length - begin, 0, unit))
        again = np.unique(np.array([last[block] for block in blocks if block in last], dtype=np.int64))
        pauses.append(now - when[again])
        flags[again] = False
        np.subtract.at(counts, again // _BUCKET, 1)
        ordered = list(dict.fromkeys(reversed(blocks) if ends_first else blocks))
        new = np.arange(used, used + len(ordered))
        last.update(zip(ordered, new.tolist(), strict=True))
        flags[new] = True
        np.add.at(counts, new // _BUCKET, 1)
        when[new] = now
        used += len(ordered)
    return Reuse(
        request=np.concatenate(owners),
        distance=np.concatenate(distances),
        idle_s=np.concatenate(ages),
        tokens=np.concatenate(tokens),
        pause_s=np.concatenate([*pauses, times[-1] - when[np.flatnonzero(flags)]]),
        prompt_tokens=int(requests.input_len.sum()),
        input_len=float(requests.input_len.mean()),
        num_blocks=len(last),
        block_tokens=unit,
    )


def unlimited_hit_share(requests: Requests) -> float | None:
    """Share of prompt tokens that an earlier prompt or answer begins with [1]; None where no request has hashes."""
    if requests.hashes is None:
        return None
    order, _ = arrivals(requests)
    unit, more = requests.hash_tokens, requests.answer_hashes
    lengths: list[int] = requests.input_len.tolist()
    found = 0
    if isinstance(requests.hashes, BlockRuns):
        answers = more if isinstance(more, BlockRuns) else None
        there = bytearray(max(requests.hashes.size, answers.size if answers else 0))  # 1 where a block has been seen
        prompts = list(requests.hashes.runs())
        after = None if answers is None else list(answers.runs())
        for index in order:
            hit = 0
            for first, end in prompts[index]:
                missing = there.find(0, first, end)
                hit += (end if missing < 0 else missing) - first
                if missing >= 0:
                    break
            found += min(hit * unit, lengths[index])
            for first, end in (*prompts[index], *(after[index] if after is not None else ())):
                there[first:end] = b"\1" * (end - first)
        return found / int(requests.input_len.sum())
    seen: set[int] = set()
    for index in order:
        row = requests.hashes[index]
        hit = next((place for place, block in enumerate(row) if block not in seen), len(row))
        found += min(hit * unit, lengths[index])
        seen.update(row if more is None else (*row, *more[index]))
    return found / int(requests.input_len.sum())


def replay(
    requests: Requests,
    capacity_blocks: float = inf,
    rules: CacheRules | None = None,
    tiers: Sequence[TierSpec] = (),
) -> Replayed:
    """What a cache of any rules holds of prompts that come one after another; the cache of the simulator runs it.

    Args:
        requests: with hashes.
        capacity_blocks: capacity of the cache [blocks].
        rules: eviction and expiry.
        tiers: behind it, fastest first.
    """
    order, times = arrivals(requests)
    unit, rules = requests.hash_tokens, rules or CacheRules()
    cache = PrefixCache(unit, 1, tiers, rules)
    found = np.zeros((len(requests), 1 + len(tiers)), dtype=np.int64)
    held = np.zeros_like(found)
    hashes, more = requests.hashes or (), requests.answer_hashes
    lengths: list[int] = requests.input_len.tolist()
    for index, now in zip(order if len(hashes) else (), times.tolist(), strict=False):
        prompt = list(dict.fromkeys(hashes[index]))
        cache.expire(now)
        held[index] = [len(cache.idle), *(len(tier.blocks) for tier in cache.tiers)]
        hit, _, behind = cache.match(prompt, len(prompt), now)
        within = np.cumsum([hit, *behind])
        found[index] = np.minimum(within * unit, lengths[index])
        blocks = prompt if more is None else [*prompt, *more[index]]
        cache.acquire(blocks[:hit])
        cache.touch(blocks[hit : int(within[-1])])
        cache.insert(blocks[hit:], hit, blocks[hit - 1] if hit else None, now)
        cache.release(blocks, now)
        if capacity_blocks < inf:
            cache.trim(int(capacity_blocks))
    return Replayed(hit_tokens=found, held_blocks=held, prompt_tokens=int(requests.input_len.sum()))


_MOST_STEPS = 100_000
_LEAST_REACHED = 1e-9  # share of sessions with more requests that is left out
_POINTS = 100  # pauses over which a mean is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class HitsWithin:
    """What is found in a memory and in all faster ones.

    Args:
        hit_share: share of prompt tokens found [1].
        kept_s: time for which an unused block stays in one of them; None where it differs from block to block [s].
        held_tokens: mean number of tokens in them, copies once; infinite if nothing ever leaves [tokens].
    """

    hit_share: float
    kept_s: float | None
    held_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHits(HitsWithin):
    """What one prefix cache finds of the prompts of sessions.

    Args:
        input_len: mean prompt [tokens].
        requests_per_s: of all sessions [requests/s].
        unlimited_share: share that an unlimited cache without expiry finds [1].
    """

    kept_s: float
    input_len: float
    requests_per_s: float
    unlimited_share: float

    @property
    def held_s(self) -> float:
        """Seconds for which a token is held, over prompt tokens [s]."""
        return self.held_tokens / (self.requests_per_s * self.input_len)


def session_hits(
    sessions: Sessions,
    *,
    rate_per_s: float,
    message_tokens: float,
    answer_tokens: float,
    capacity_tokens: float = inf,
    ttl_s: float = inf,
    answer_s: float = 0.0,
) -> SessionHits:
    """Hit rate of a least recently used cache with a sliding expiry.

    Args:
        sessions: how sessions go on.
        rate_per_s: sessions started per second, at random [1/s].
        message_tokens, answer_tokens: mean lengths [tokens].
        capacity_tokens: of the cache [tokens].
        ttl_s: expiry [s].
        answer_s: mean time from a request to the end of its answer [s].

    Raises:
        InputError: the rate is not above 0.

    Assumes: many sessions at a time; the mean context for all sessions at the same request.

    Sources: Che, Tung and Wang 2002 (IEEE JSAC 20, 1305); how far it holds: Fricker, Robert and Roberts 2012
    (arXiv:1202.3974).

    >>> chat = Sessions(turns=4, think_s=60.0)
    >>> kept = session_hits(chat, rate_per_s=1.0, message_tokens=200, answer_tokens=300, ttl_s=300.0)
    >>> round(kept.hit_share, 2), round(kept.unlimited_share, 2)
    (0.86, 0.87)
    """
    require(rate_per_s > 0, what="rate", given=rate_per_s, allowed="above 0 sessions/s", nearest="1")
    steps = _Steps.of(sessions, message_tokens, answer_tokens)
    kept_s, least = ttl_s, steps.held(0.0, rate_per_s, answer_s)
    if capacity_tokens < inf and steps.held(min(ttl_s, 1e12), rate_per_s, answer_s) > capacity_tokens:
        kept_s = 0.0
        if least < capacity_tokens:
            brentq: Any = importlib.import_module("scipy.optimize").brentq  # takes a tenth of a second to import

            def excess(kept_s: float) -> float:
                return steps.held(kept_s, rate_per_s, answer_s) - capacity_tokens

            kept_s = float(brentq(excess, 0.0, min(ttl_s, 1e12)))
    return SessionHits(
        hit_share=steps.hit_share(kept_s, rate_per_s, ttl_s, capacity_tokens, answer_s),
        kept_s=kept_s,
        held_tokens=min(steps.held(kept_s, rate_per_s, answer_s) if kept_s < inf else inf, capacity_tokens),
        input_len=float((steps.reached * steps.prompt_len).sum() / steps.reached.sum()),
        requests_per_s=rate_per_s * float(steps.reached.sum()),
        unlimited_share=steps.hit_share(inf, rate_per_s, inf, inf, answer_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Requests of a session by their place, (k,) each.

    Args:
        reached: probability that a session has it.
        prompt_len: mean prompt [tokens].
        cached_len: mean context that stays after the answer, in whole blocks [tokens].
        running_len: mean context while the answer is written: the prompt and half of it [tokens].
        tool: probability that it follows a tool.
        shared_len: system prompt in whole blocks [tokens].
        sessions: their pauses.
    """

    reached: Array
    prompt_len: Array
    cached_len: Array
    running_len: Array
    tool: Array
    shared_len: float
    sessions: Sessions

    @classmethod
    def of(cls, sessions: Sessions, message_tokens: float, answer_tokens: float) -> _Steps:
        most = sessions.requests
        if not sessions.same_length and most > 1:
            most = ceil(log(_LEAST_REACHED) / log(1.0 - 1.0 / most))
        places = np.arange(max(1, min(int(most), _MOST_STEPS)))
        tool = sessions.after_tool(places)
        added = tool * sessions.tool_tokens + (1.0 - tool) * message_tokens
        prompt_len = sessions.system_tokens + np.cumsum(added) + answer_tokens * places
        fits = prompt_len + answer_tokens <= sessions.max_tokens
        fits[0] = True
        unit = sessions.hash_tokens
        shared_len = sessions.system_tokens // unit * unit
        # the last token is not in the cache; the last block is on average half full
        cached_len = np.maximum(prompt_len + answer_tokens - 1.0 - 0.5 * (unit - 1), shared_len)
        return cls(
            reached=sessions.reached(places)[fits],
            prompt_len=prompt_len[fits],
            cached_len=cached_len[fits],
            running_len=(prompt_len + 0.5 * answer_tokens)[fits],
            tool=tool[fits],
            shared_len=float(shared_len),
            sessions=sessions,
        )

    def _shared_kept(self, kept_s: float, rate_per_s: float) -> float:
        """Probability that the system prompt is there."""
        if kept_s == inf:
            return 1.0
        return -float(np.expm1(-rate_per_s * self.reached.sum() * kept_s))

    def held(self, kept_s: float, rate_per_s: float, answer_s: float) -> float:
        """Mean tokens in the cache if unused blocks stay for a time [tokens]."""
        own, _ = self._contexts(np.array([kept_s]), rate_per_s, answer_s)
        return float(own[0]) + self.shared_len * self._shared_kept(kept_s, rate_per_s)

    def _contexts(self, kept_s: Array, rate_per_s: float, answer_s: float = 0.0) -> tuple[Array, Array]:
        """Mean and variance of the tokens of contexts if they stay for some times [tokens, tokens²], (t,) each."""
        goes_on = np.append(self.reached[1:] / self.reached[:-1], 0.0)[:, None]
        tool = np.append(self.tool[1:], 0.0)[:, None]
        of_tool, of_user = self.sessions.tool_s, self.sessions.think_s
        pause = tool * of_tool * _within(of_tool, kept_s) + (1.0 - tool) * of_user * _within(of_user, kept_s)
        often = rate_per_s * self.reached[:, None]
        resting, running = often * (goes_on * pause + (1.0 - goes_on) * kept_s), often * answer_s
        idle_len, busy_len = ((own - self.shared_len)[:, None] for own in (self.cached_len, self.running_len))
        mean = resting * idle_len + running * busy_len
        return mean.sum(axis=0), (resting * idle_len**2 + running * busy_len**2).sum(axis=0)

    def hit_share(
        self, kept_s: float, rate_per_s: float, ttl_s: float, capacity_tokens: float, answer_s: float
    ) -> float:
        """Share of prompt tokens that is found [1].

        Args:
            kept_s: time for which the cache keeps unused blocks [s].
            ttl_s: expiry [s].
            capacity_tokens: of the cache [tokens].
            answer_s: for which a running request keeps its context in use [s].
        """
        before = np.append(0.0, self.cached_len[:-1])
        in_time = np.zeros(len(before))
        for share, mean_s in ((self.tool, self.sessions.tool_s), (1.0 - self.tool, self.sessions.think_s)):
            in_time += share * self._in_time(mean_s, before, rate_per_s, ttl_s, capacity_tokens, answer_s)
        in_time[0] = 0.0
        shared = self.shared_len * self._shared_kept(kept_s, rate_per_s)
        found = in_time * before + (1.0 - in_time) * shared
        return float((self.reached * found).sum() / (self.reached * self.prompt_len).sum())

    def _in_time(
        self, mean_s: float, own_len: Array, rate_per_s: float, ttl_s: float, capacity_tokens: float, answer_s: float
    ) -> Array:
        """Probability that contexts are still there after an exponential pause [1], (k,)."""
        expires = float(_within(mean_s, np.array([ttl_s]))[0])
        if capacity_tokens == inf:
            return np.full(len(own_len), expires)
        from scipy.special import ndtr

        share = (np.arange(_POINTS) + 0.5) / _POINTS
        mean, variance = self._contexts(-mean_s * np.log1p(-share * expires), rate_per_s, answer_s)
        room = capacity_tokens - self.shared_len - (own_len[:, None] - self.shared_len) - mean
        return expires * ndtr(room / np.sqrt(np.maximum(variance, 1e-9))).mean(axis=1)


def _within(mean_s: float, kept_s: Array) -> Array:
    """Probability that an exponential time is shorter than others."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(kept_s == inf, 1.0, -np.expm1(-kept_s / mean_s) if mean_s > 0 else (kept_s > 0) * 1.0)


def reuse_in(trace: str) -> Reuse:
    """How the prompts of a trace repeat.

    Raises:
        InputError: a trace without hashes.
    """
    found = reuse_of(read_trace(trace), ends_first=True)
    if found is None:
        raise InputError(
            what="trace", given=trace, allowed="one with hash_ids, which say what repeats, such as Mooncake's"
        )
    return found
