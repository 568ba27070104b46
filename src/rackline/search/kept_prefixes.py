"""The prefixes that a planned deployment keeps: what it finds of prompts that repeat, where, and what that costs.

The hit rate decides which rate a deployment sustains, and the rate how long the memory that is left keeps a prefix. So
a plan is searched at an assumed hit rate, the rate that follows from its answer is computed, and the assumption moves
until both agree. Then the sessions themselves are served by one replica of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from rackline.errors import RacklineError
from rackline.parallel.memory import kv_size
from rackline.search.choice import Choice
from rackline.search.plan import Plan
from rackline.simulation import CacheConfig, CacheRules, Pool, TierSpec, pool_of, simulate
from rackline.simulation.hits_by_tier import HitsWithin, MemoryRoom, Repeating, RepeatingSessions, hits_within
from rackline.simulation.statistics import Latency, latency

MOST_SERVED = 30_000  # requests of the run that checks the hit rate
_BLOCK = 16  # tokens of a KV block
_CLOSE = 0.005  # of assumed and following hit rates
_MOST_ESTIMATES, _MOST_PLANS = 8, 4
_MOST_HIT = 0.9999
_HBM = "HBM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Traffic that repeats its prefixes, and for how long they are kept in which memory.

    Args:
        traffic: that repeats.
        rules: expiry in HBM, and which block leaves a memory first.
        tiers: behind HBM, fastest first, in bytes of a chip where they say tokens [bytes, bytes/s].
    """

    traffic: Repeating
    rules: CacheRules
    tiers: tuple[TierSpec, ...] = ()

    @property
    def most(self) -> float:
        """Share of prompt tokens found where memory is unlimited [1]."""
        last_s = max([self.rules.ttl_s, *(tier.ttl_s or self.rules.ttl_s for tier in self.tiers)])
        found = self.traffic.hits(inf, last_s, requests_per_s=1.0, answer_tokens=1.0, answer_s=0.0)
        return min(found.hit_share, _MOST_HIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIn:
    """One memory of a rank, with the prefixes in it.

    Args:
        name: of the memory.
        capacity_bytes: of HBM what weights and buffers leave [bytes].
        ttl_s: expiry; None if nothing expires [s].
        kept_s: after its last use a prefix is found in this memory or a faster one for so long; None forever, and
            where the eviction decides block by block [s].
        hit_share: share of prompt tokens found in this memory [1].
        held_bytes: mean bytes of prefixes in it, copies of what a slower one holds included [bytes].
        read_bytes_per_s: read back from it, on average; 0 for HBM [bytes/s].
        link_share: of its bandwidth that this takes [1].
        load_s: that a mean request waits for it [s].
        usd_per_hour: of what is held, where the catalogue has a price of this memory [USD/hour].
    """

    name: str
    capacity_bytes: float
    ttl_s: float | None
    kept_s: float | None
    hit_share: float
    held_bytes: float
    read_bytes_per_s: float
    link_share: float
    load_s: float
    usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSessions:
    """What one replica of the answer measured on the sessions themselves.

    Args:
        requests: measured [requests].
        hit_share: share of prompt tokens found [1].
        ttft_s, tpot_s: latencies [s].
    """

    requests: int
    hit_share: float
    ttft_s: Latency
    tpot_s: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrefixes:
    """What a planned deployment keeps and finds of the prefixes of its traffic.

    Args:
        name: of the traffic.
        assumed_hit_share: at which the plan was searched [1].
        hit_share: that follows from the rate and the memory of its answer [1].
        unlimited_share: that unlimited memory without expiry would find [1].
        requests_per_s: of one cache [requests/s].
        caches: of all replicas: one a rank and micro-batch [count].
        input_len: mean prompt [tokens].
        bytes_per_token: of the cache on a chip [bytes].
        tiers: memories of one cache, HBM first; bytes are those of a chip.
        eviction: which block leaves a memory first.
        is_estimated: whether the hit rates are those of a closed form; else requests were looked up one after another.
        simulated: the sessions served; None where they were not.
        not_simulated: why not.
    """

    json_keys: ClassVar = (
        "name",
        "assumed_hit_share",
        "hit_share",
        "unlimited_share",
        "requests_per_s",
        "caches",
        "input_len",
        "bytes_per_token",
        "tiers",
        "load_s",
        "eviction",
        "is_estimated",
        "simulated",
        "not_simulated",
    )

    name: str
    assumed_hit_share: float
    hit_share: float
    unlimited_share: float
    requests_per_s: float
    caches: int
    input_len: float
    bytes_per_token: float
    tiers: tuple[KeptIn, ...]
    eviction: str
    is_estimated: bool
    simulated: ServedSessions | None = None
    not_simulated: str = ""

    @property
    def apart(self) -> float:
        """The hit rate that follows, less the one that was assumed [1]."""
        return self.hit_share - self.assumed_hit_share

    @property
    def load_s(self) -> float:
        """Time that a mean request waits for slower memories [s]."""
        return sum(tier.load_s for tier in self.tiers)


def agreeing(
    keeping: Keeping, estimated: Callable[[float], Plan], planned: Callable[[float], Plan]
) -> tuple[Plan, KeptPrefixes | None]:
    """The plan whose answer finds what it was searched for; None beside a plan without an answer.

    More hits let a deployment serve more, and more requests leave each prefix less time: what follows falls with what
    is assumed, so there is one hit rate at which both agree. Plans by estimates find it, and the plan itself is
    searched there, and once more where its rate is another.

    Args:
        keeping: traffic and lifetimes.
        estimated: the plan by estimates at an assumed hit rate.
        planned: the plan at an assumed hit rate.
    """
    assumed = _agreed(keeping, estimated)
    tried: list[tuple[Plan, KeptPrefixes]] = []
    steps: list[tuple[float, float]] = []  # assumed hit rate, and how much more follows from it
    for _ in range(_MOST_PLANS):
        found = planned(assumed)
        if found.best is None:
            return tried[0] if tried else (found, None)
        kept = kept_by(found, found.best, keeping)
        tried.append((found, kept))
        steps.append((assumed, kept.apart))
        if abs(kept.apart) <= _CLOSE:
            break
        step = 0.5 * kept.apart
        if len(steps) > 1:  # where a line through the last two meets zero
            (before, more), (last, rest) = steps[-2:]
            step = rest * (last - before) / (more - rest) if more != rest else step
        assumed = min(max(assumed + step, 0.0), keeping.most)
    return min(tried, key=lambda one: abs(one[1].apart))


def _agreed(keeping: Keeping, estimated: Callable[[float], Plan]) -> float:
    """The hit rate that follows from the plan by estimates that assumes it [1]."""
    assumed = keeping.most
    ends: dict[bool, tuple[float, float]] = {}  # whether more follows: the last such hit rate, by how much
    for _ in range(_MOST_ESTIMATES):
        found = estimated(assumed)
        if found.best is None:
            break
        off = kept_by(found, found.best, keeping).apart
        if abs(off) <= 0.5 * _CLOSE:
            break
        ends[off > 0] = (assumed, off)
        if len(ends) == 2:
            (low, more), (high, less) = ends[True], ends[False]
            assumed = low + (high - low) * min(max(more / (more - less), 0.1), 0.9)
        else:
            assumed = min(max(assumed + off, 0.0), keeping.most)
    return assumed


def kept_by(plan: Plan, choice: Choice, keeping: Keeping) -> KeptPrefixes:
    """What the replicas of a choice find at its rate.

    Args:
        choice: a single engine.
    """
    pool = _pool(plan, choice, keeping)
    size, spec = _bytes_per_token(plan, choice), pool.spec
    caches = choice.layout.dp * pool.ranks * pool.micro_batches
    rate = choice.requests_per_s / caches
    last_s = keeping.rules.ttl_s
    rooms = [MemoryRoom(name=_HBM, capacity_tokens=float(spec.pool_tokens), ttl_s=last_s)]
    for tier in spec.tiers:
        last_s = last_s if tier.ttl_s is None else tier.ttl_s
        rooms.append(MemoryRoom(name=tier.name, capacity_tokens=tier.tokens, ttl_s=last_s))
    within = hits_within(
        keeping.traffic,
        rooms,
        spec.cache_rules,
        requests_per_s=rate,
        answer_tokens=choice.workload.output_len,
        answer_s=_answer_s(choice),
    )
    faster = zip(rooms, (None, *spec.tiers), (None, *within), within, strict=False)
    return KeptPrefixes(
        name=keeping.traffic.name,
        assumed_hit_share=plan.demand.workload.cache_hit,
        hit_share=min(within[-1].hit_share, _MOST_HIT),
        unlimited_share=keeping.traffic.unlimited_share,
        requests_per_s=rate,
        caches=caches,
        input_len=keeping.traffic.input_len,
        bytes_per_token=size,
        tiers=tuple(_kept_in(*memory, rate, keeping, size) for memory in faster),
        eviction=keeping.rules.eviction.name,
        is_estimated=isinstance(keeping.traffic, RepeatingSessions) and within[0].kept_s is not None,
    )


def _kept_in(
    room: MemoryRoom,
    tier: TierSpec | None,
    faster: HitsWithin | None,
    found: HitsWithin,
    rate: float,
    keeping: Keeping,
    size: float,
) -> KeptIn:
    """What one memory of a rank keeps.

    Args:
        tier: behind HBM; None for HBM.
        faster: what all faster ones hold; None for HBM.
        rate: requests of the cache [requests/s].
        size: of a token [bytes].
    """
    here = max(found.hit_share - (faster.hit_share if faster else 0.0), 0.0)
    held = min(max(found.held_tokens - (faster.held_tokens if faster else 0.0), 0.0), room.capacity_tokens) * size
    each = here * keeping.traffic.input_len if tier else 0.0
    price = tier.usd_per_byte_hour if tier else None
    return KeptIn(
        name=room.name,
        capacity_bytes=room.capacity_tokens * size,
        ttl_s=None if room.ttl_s == inf else room.ttl_s,
        kept_s=None if found.kept_s is None or found.kept_s == inf else found.kept_s,
        hit_share=here,
        held_bytes=held,
        read_bytes_per_s=each * rate * size,
        link_share=each * rate / tier.tokens_per_s if tier else 0.0,
        load_s=tier.latency_s + each / tier.tokens_per_s if tier and each else 0.0,
        usd_per_hour=None if price is None else price * held,
    )


def _answer_s(choice: Choice) -> float:
    """Mean time from a request to the end of its answer [s]."""
    return choice.ttft_s + (choice.workload.output_len - 1.0) * choice.tpot_s


def _bytes_per_token(plan: Plan, choice: Choice) -> float:
    """Cache bytes of a token on a chip, with windows and states spread over the blocks [bytes]."""
    return float(kv_size(plan.system.model, choice.layout, choice.precision).in_tokens(_BLOCK)[0])


def _pool(plan: Plan, choice: Choice, keeping: Keeping) -> Pool:
    """One replica of a choice that keeps prefixes."""
    size = _bytes_per_token(plan, choice) * choice.layout.pp  # all micro-batches share the memory behind a chip
    system = plan.system
    limits = {
        "scheduler.max_num_seqs": choice.max_num_seqs,
        "scheduler.max_batched_tokens": choice.mode.max_batched_tokens,
    }
    return pool_of(
        system.deployment(choice.layout, choice.precision),
        system.stack.with_values(limits),
        cache=CacheConfig(
            block_size=_BLOCK,
            prefix_caching=True,
            hash_tokens=keeping.traffic.hash_tokens,
            tiers=tuple(
                replace(one, tokens=one.tokens / size, tokens_per_s=one.tokens_per_s / size) for one in keeping.tiers
            ),
            cache_rules=keeping.rules,
        ),
        policy_name=choice.mode.admission,
        two_batch_overlap=choice.mode.two_batch_overlap,
        replicas=1,
    )


def with_served_sessions(
    kept: KeptPrefixes, plan: Plan, choice: Choice, keeping: Keeping, seed: int = 1
) -> KeptPrefixes:
    """The same with the sessions served by one replica of a choice, at its rate.

    Args:
        seed: of the sessions.
    """
    traffic = keeping.traffic
    if not isinstance(traffic, RepeatingSessions):
        return replace(kept, not_simulated="recorded requests are looked up in their order, without passes")
    rate = choice.requests_per_s / choice.layout.dp
    answer_s = _answer_s(choice)
    number = traffic.settled_number(rate, answer_s)
    if number > MOST_SERVED:
        why = f"{number:,} requests would have to be served until as many sessions end as begin, {MOST_SERVED:,} are"
        return replace(kept, not_simulated=why)
    requests = traffic.draw(number, rate, seed)
    try:
        result = simulate(
            requests,
            _pool(plan, choice, keeping),
            router="prefix-aware",
            beyond_s=plan.system.stack.arrivals.beyond_passes_s(choice.workload),
        )
    except RacklineError as error:
        return replace(kept, not_simulated=str(error))
    steady = traffic.is_steady(requests, result.arrival_s, answer_s)
    prompts = float(requests.input_len[steady].sum())
    return replace(
        kept,
        simulated=ServedSessions(
            requests=int(steady.sum()),
            hit_share=float(result.cached_tokens[steady].sum()) / prompts,
            ttft_s=latency(result.ttft_s[steady]),
            tpot_s=latency(result.tpot_s[steady]),
        ),
    )
