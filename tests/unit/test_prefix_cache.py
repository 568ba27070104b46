"""The prefix cache: what is kept, in which order it is evicted, when it expires, and what a run finds of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError, UnknownNameError
from rackline.simulation import (
    POLICIES,
    Lengths,
    PlainClock,
    Pool,
    RankSpec,
    Requests,
    Sessions,
    read_trace,
    simulate,
)
from rackline.simulation.evictions import EVICTIONS
from rackline.simulation.prefix_cache import CacheRules, PrefixCache, TierSpec
from rackline.simulation.reuse import replay, reuse_of

SHARED = Path("../shared")
CLOCK = PlainClock(base_s=0.01, per_prompt_token_s=1e-5)


def cache_of(name: str, room: int, **rules: object) -> PrefixCache:
    host = TierSpec(name="host", tokens=room, tokens_per_s=1.0)
    return PrefixCache(1, 1, (host,), CacheRules(eviction=EVICTIONS.find(name), recompute_s=(1.0, 1.0), **rules))  # pyright: ignore[reportArgumentType]


def used(cache: PrefixCache, *prompts: list[int]) -> PrefixCache:
    for time_s, prompt in enumerate(prompts):
        found = cache.match(prompt, len(prompt), time_s)[0]
        cache.acquire(prompt[:found])
        cache.insert(prompt[found:], found, prompt[found - 1] if found else None, time_s)
        cache.release(prompt, time_s)
    return cache


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("lru", {3, 4}),  # used last
        ("lfu", {0, 4}),  # 0 used three times, the others once
        ("fifo", {3, 4}),  # written last
        ("cost-aware", {0, 1}),  # 0 used three times, 1 costs twice as much as a first block
    ],
)
def test_each_policy_keeps_what_it_says(name: str, left: set[int]) -> None:
    cache = used(cache_of(name, 0), [0, 1], [0], [0], [2], [3], [4])
    cache.trim(2)
    assert set(cache.idle) == left


@pytest.mark.parametrize("name", ["lru", "lfu", "cost-aware"])
def test_no_block_goes_before_those_that_follow_it(name: str) -> None:
    cache = used(cache_of(name, 0), list(range(10)), [20, 21])
    for room in range(11, 0, -1):
        cache.trim(room)
        rest = sorted(block for block in cache.idle if block < 20)
        assert rest == list(range(len(rest)))


def test_what_leaves_the_chip_is_found_in_the_tier_and_what_expires_nowhere() -> None:
    cache = used(cache_of("lru", 2, ttl_s=10.0), [0, 1], [2, 3])
    cache.trim(2)
    assert cache.match([0, 1], 2, 5.0) == (0, 0, [2])
    assert cache.match([2, 3], 2, 10.5) == (2, 2, [0])
    assert cache.match([0, 1], 2, 10.0) == (0, 0, [0])  # used at 0 s
    cache.expire(10.5)
    assert set(cache.idle) == {2, 3}
    assert not set(cache.tiers[0].blocks)
    assert set(cache.stamps) == {2, 3}


@pytest.mark.parametrize("name", ["lru", "lfu", "cost-aware"])
def test_a_block_in_use_outlives_its_copy_in_a_tier(name: str) -> None:
    cache = used(cache_of(name, 1, ttl_s=10.0), [0])
    cache.trim(0)  # to the tier
    cache.insert([0], 0, None, 1.0)  # loaded back, in use
    used(cache, [5])
    cache.trim(0)  # 5 pushes the copy of 0 out of the tier
    assert set(cache.tiers[0].blocks) == {5}
    assert cache.release([0], 2.0) == 1
    assert cache.match([0], 1, 3.0)[0] == 1


def test_use_begins_the_time_anew_or_not() -> None:
    for from_use, found in ((True, 1), (False, 0)):
        cache = used(PrefixCache(1, 1, rules=CacheRules(ttl_s=3.0, ttl_from_use=from_use)), [0], [0], [0])
        assert cache.match([0], 1, 4.0)[0] == found


def test_a_block_in_use_that_expired_is_computed_anew() -> None:
    cache = PrefixCache(1, 1, rules=CacheRules(ttl_s=3.0, ttl_from_use=False))
    cache.insert([0], 0, None, 0.0)
    cache.expire(5.0)
    assert cache.match([0], 1, 5.0)[0] == 0
    assert cache.insert([0], 0, None, 5.0) == 1  # another request still holds it
    assert cache.match([0], 1, 6.0)[0] == 1
    assert cache.release([0], 6.0) == 0
    assert cache.release([0], 9.0) == 1
    assert not len(cache.idle)


def talks(turns: float, think_s: float, answers: bool) -> Requests:
    rng = np.random.default_rng(5)
    lengths = Lengths(input_len=160, output_len=320)
    found = Sessions(turns=turns, think_s=think_s, hash_tokens=32).draw(rng, 300, 0.05, lengths)
    if answers:
        return found
    rest = [list[int]() for _ in range(len(found))]
    return Requests(
        arrival_s=found.arrival_s,
        input_len=found.input_len,
        output_len=found.output_len,
        after=found.after,
        hashes=found.hashes,
        answer_hashes=rest,
        hash_tokens=32,
    )


def test_the_next_turn_finds_the_answer() -> None:
    """All that was said before, but for the last block, which is not full."""
    spec = RankSpec(pool_tokens=1_000_000, prefix_caching=True, hash_tokens=32)
    pool = Pool(clock=CLOCK, spec=spec, policy=POLICIES.find("chunked"))
    requests = talks(4, 10, answers=True)
    result = simulate(requests, pool)
    assert requests.after is not None
    later = np.flatnonzero(requests.after >= 0)
    before = requests.after[later]
    said = requests.input_len[before] + requests.output_len[before] - 1  # the last token is not in the cache
    assert np.all(result.cached_tokens[later] == said // 32 * 32)
    without = simulate(talks(4, 10, answers=False), pool)
    assert np.all(without.cached_tokens[later] == requests.input_len[before] // 32 * 32)
    assert result.blocks_left == without.blocks_left == 0


def test_conversations_expire_in_a_run_as_they_do_alone() -> None:
    """Pauses are exponential: the share that comes back in time is known."""
    requests = talks(4, 100, answers=True)
    assert requests.after is not None
    later = requests.after >= 0
    for ttl_s in (30.0, 100.0):
        rules = CacheRules(ttl_s=ttl_s)
        spec = RankSpec(pool_tokens=1_000_000, prefix_caching=True, hash_tokens=32, cache_rules=rules)
        result = simulate(requests, Pool(clock=CLOCK, spec=spec, policy=POLICIES.find("chunked")))
        back = requests.arrival_s[later] < ttl_s
        assert np.mean((result.cached_tokens[later] > 0) == back) > 0.99  # but where it waits for a pass
        assert replay(requests, rules=rules).hit_share == pytest.approx(
            result.cached_tokens.sum() / requests.input_len.sum(), abs=0.003
        )


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="needs ../shared/traces")
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_recorded_traces_have_the_published_hit_rates(name: str) -> None:
    import csv

    with (SHARED / "measured/post_training/prefix/hit_rates.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["trace"] == f"Mooncake FAST25 {name}"]
    reuse = reuse_of(read_trace(SHARED / f"traces/mooncake_{name}_trace.jsonl"))
    assert reuse is not None
    for row in rows:
        capacity = float(row["capacity_blocks"] or np.inf)
        assert round(float(reuse.hit_share(capacity)), 4) == float(row["token_hit_rate"]), row
        assert reuse.num_blocks == int(row["unique_blocks"])
    if name == "conversation":
        assert len(rows) == 9
    shares = {500: 0.0418, 10_000: 0.4313, np.inf: 0.6512} if name == "synthetic" else {10_000: 0.2153}
    for capacity, share in shares.items():
        assert round(float(reuse.hit_share(capacity)), 4) == share


def test_what_a_server_finds_is_at_most_what_came_before() -> None:
    found = rl.simulate(
        "llama-3.1-8b", on="dgx-h100", chips=1, rate=2, turns=3, think_time="2s", requests=60, input=300, output=20,
        prefix_caching=True, cache_ttl="1min", eviction="cost-aware",
    ).to_dict()  # fmt: skip
    assert 0.3 < found["cache_hit_share"] <= found["cache_hit_share_unlimited"] < 1.0


def test_refused() -> None:
    ask = {"model": "llama-3.1-8b", "on": "dgx-h100", "rate": 1, "input": 100, "output": 10, "requests": 10}
    with pytest.raises(UnknownNameError, match="lru"):
        rl.simulate(**ask, eviction="lruu")
    with pytest.raises(InputError, match="use, write"):
        rl.simulate(**ask, cache_ttl_from="last")
    with pytest.raises(InputError, match="above 0"):
        CacheRules(ttl_s=0.0)


def test_a_tier_keeps_what_has_expired_on_the_chip() -> None:
    host = TierSpec(name="host", tokens=100, tokens_per_s=1.0, ttl_s=60.0)
    flash = TierSpec(name="flash", tokens=100, tokens_per_s=1.0, ttl_s=600.0)
    cache = used(PrefixCache(1, 1, (host, flash), CacheRules(ttl_s=10.0)), [0, 1])
    places = {9.0: (2, [0, 0]), 11.0: (0, [2, 0]), 59.0: (0, [2, 0]), 61.0: (0, [0, 2]), 599.0: (0, [0, 2])}
    for now, (on_chip, behind) in places.items():
        cache.expire(now)
        found = cache.match([0, 1], 2, now)
        assert (found[0], found[2]) == (on_chip, behind)
    cache.expire(601.0)
    assert cache.match([0, 1], 2, 601.0) == (0, 0, [0, 0])
    assert not cache.stamps
    assert cache.next_expiry_s == np.inf


def test_a_use_begins_the_time_anew_in_every_tier() -> None:
    host = TierSpec(name="host", tokens=100, tokens_per_s=1.0, ttl_s=60.0)
    cache = used(PrefixCache(1, 1, (host,), CacheRules(ttl_s=10.0)), [0, 1])
    cache.expire(50.0)
    assert cache.match([0, 1], 2, 50.0)[2] == [2]
    cache.insert([0, 1], 0, None, 50.0)
    cache.release([0, 1], 50.0)
    cache.expire(59.0)
    assert cache.match([0, 1], 2, 59.0)[0] == 2
    cache.expire(109.0)
    assert cache.match([0, 1], 2, 109.0)[2] == [2]
    cache.expire(110.0)
    assert cache.match([0, 1], 2, 110.0) == (0, 0, [0])


def test_a_tier_that_forgets_sooner_is_refused() -> None:
    host = TierSpec(name="host", tokens=100, tokens_per_s=1.0, ttl_s=5.0)
    with pytest.raises(InputError, match="tier host: got 'ttl=5s', allowed: at least 10 s"):
        PrefixCache(1, 1, (host,), CacheRules(ttl_s=10.0))
    asked = {"on": "dgx-h100", "chips": 1, "rate": 1, "input": 100, "output": 5, "turns": 2, "requests": 10}
    with pytest.raises(InputError, match=r"\[,ttl=TIME\]"):
        rl.simulate("llama-3.1-8b", **asked, tier=["host=1GB@1GB/s,lifetime=5"])  # pyright: ignore[reportArgumentType]


def test_hits_of_a_run_with_two_lifetimes_are_those_of_the_longer_one() -> None:
    """Without a limit of memory, five minutes on the chip and an hour behind find what an hour finds."""
    rng = np.random.default_rng(4)
    talks = Sessions(turns=6, think_s=400.0).draw(rng, 400, 0.05, Lengths(input_len=600, output_len=20))

    def found(ttl_s: float, behind_s: float | None) -> tuple[float, list[int]]:
        tier = (TierSpec(name="host", tokens=1e9, tokens_per_s=1e9, ttl_s=behind_s),) if behind_s else ()
        spec = RankSpec(
            pool_tokens=10_000_000,
            prefix_caching=True,
            hash_tokens=talks.hash_tokens,
            tiers=tier,
            cache_rules=CacheRules(ttl_s=ttl_s),
        )
        result = simulate(talks, Pool(clock=CLOCK, spec=spec, policy=POLICIES.find("chunked")))
        return float(result.cached_tokens.sum()), list(result.tier_tokens)

    short, hour, both = found(300.0, None), found(3600.0, None), found(300.0, 3600.0)
    assert short[0] < 0.8 * hour[0]
    assert both[0] == hour[0]
    assert both[1][0] == pytest.approx(short[0], rel=0.02)
    assert sum(both[1]) == both[0]
