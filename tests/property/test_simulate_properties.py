"""The simulator: jumping between events equals stepping, and nothing is lost, for every policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rackline.passes.features import Array
from rackline.simulation import (
    POLICIES,
    Handover,
    PlainClock,
    Pool,
    RankSpec,
    Requests,
    Result,
    TierSpec,
    simulate,
)
from rackline.simulation.clock import Chunk, Line
from rackline.simulation.evictions import EVICTIONS
from rackline.simulation.prefix_cache import CacheRules
from rackline.simulation.rank import Rank
from rackline.simulation.replica import Replica

FAST = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
COLUMNS = ("admitted_s", "first_s", "finish_s")


WINDOW = 100


class WindowClock(PlainClock):
    """Attention that reads at most a window, and a slowest sequence: a straight line only once all have filled it."""

    __slots__ = ()

    @property
    def straight_from(self) -> float:
        return WINDOW

    def straight(self, sequences: int, kv_tokens: Any, longest: Any, group_tokens: float) -> Any:
        return self._step(sequences, sequences * WINDOW, group_tokens) + 1e-7 * longest

    def bends(self, sequences: int, group_tokens: float) -> Sequence[float] | None:
        return None if sequences % 3 == 0 else ()

    def line(self, sequences: int, group_tokens: float, kv_tokens: float = np.inf) -> Line | None:
        if sequences % 3 == 0:
            return None  # as with a pass that the host launches
        base_s = self._step(sequences, sequences * WINDOW, group_tokens)
        return Line(base_s, 0.0, 1e-7, from_kv=sequences * WINDOW, from_context=WINDOW)

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        grown = contexts[None, :] + advance[:, None]
        read = np.minimum(grown, WINDOW).sum(axis=1)
        return self._step(len(contexts), read, group_tokens) + 1e-7 * grown.max(axis=1)

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
        *,
        others_decode: bool = False,
    ) -> float:
        work = sum(chunk.tokens * (1.0 + 1e-3 * chunk.prefix) for chunk in chunks)
        base_s = alone_s or self.base_s
        return base_s + self.per_prompt_token_s * work

    def _step(self, sequences: int, read: Any, group_tokens: float) -> Any:
        return self.base_s + self.per_sequence_s * sequences + self.per_kv_s * read + 1e-5 * group_tokens


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Requests, Pool, dict[str, Any]]:
    """Random requests, servers and options; the policy is put in by the test."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([1, 5, 50, 50, 80]))
    prefixes = rng.integers(0, draw(st.sampled_from([3, 12])), count)
    inputs = rng.integers(1, 300, count)
    after = None
    if draw(st.booleans()):
        after = np.where(rng.random(count) < 0.4, np.arange(count) - rng.integers(1, 4, count), -1)
        after = np.maximum(after, -1)
    times = np.sort(rng.exponential(draw(st.sampled_from([0.002, 0.02, 0.1, 2.0])), count).cumsum())
    # prompts of a group begin alike, for three blocks or for as many as they have
    hashes = [
        tuple(int(which) * 100 + block for block in range(min(int(tokens) // 32, 8 if which % 2 else 3)))
        for which, tokens in zip(prefixes, inputs, strict=True)
    ]
    outputs = rng.integers(1, 120, count)
    answers = [  # every second answer to a group of prompts is the same
        tuple(int(which) * 100 + 50 + block for block in range(int(given + made) // 32 - int(given) // 32))
        if index % 2
        else ()
        for index, (which, given, made) in enumerate(zip(prefixes, inputs, outputs, strict=True))
    ]
    requests = Requests(
        arrival_s=times,
        input_len=inputs,
        output_len=outputs,
        priority=rng.integers(0, 3, count) if draw(st.booleans()) else None,
        after=after,
        hashes=hashes if draw(st.booleans()) else None,
        answer_hashes=answers if draw(st.booleans()) else None,
        hash_tokens=32,
    )
    tokens_per_step = draw(st.sampled_from([1.0, 1.0, 1.7]))
    spec = draw(_specs())
    timed = draw(st.sampled_from([PlainClock, PlainClock, WindowClock]))
    clock = timed(
        base_s=0.01,
        per_sequence_s=1e-4,
        per_kv_s=draw(st.sampled_from([0.0, 1e-6])),
        per_prompt_token_s=1e-4,
        tokens_per_step=tokens_per_step,
        verified=1 if tokens_per_step == 1.0 else 2,
    )
    pool = Pool(
        clock=clock,
        spec=spec,
        policy=POLICIES.find("chunked"),
        ranks=draw(st.sampled_from([1, 1, 2, 3])),
        micro_batches=draw(st.sampled_from([1, 1, 2, 3])),
        replicas=draw(st.sampled_from([1, 1, 2])),
    )
    options: dict[str, Any] = {
        "router": draw(st.sampled_from(["round-robin", "least-loaded", "prefix-aware"])),
        "beyond_s": draw(st.sampled_from([0.0, 0.03])),
    }
    if draw(st.booleans()):
        front = replace(pool, spec=draw(_specs()), ranks=draw(st.integers(1, 2)), replicas=draw(st.integers(1, 2)))
        options["prefill"] = Handover(pool=front, tokens_per_s=1e5, latency_s=0.001)
    return requests, pool, options


@st.composite
def _specs(draw: st.DrawFn) -> RankSpec:
    """What a rank holds: any length of request fits into the smallest."""
    caching = draw(st.booleans())
    host = TierSpec(name="host", tokens=320, tokens_per_s=1e5)
    flash = TierSpec(name="flash", tokens=2000, tokens_per_s=2e4, latency_s=0.002)
    return RankSpec(
        pool_tokens=draw(st.sampled_from([512, 600, 800, 1600])),
        block_size=draw(st.sampled_from([1, 8, 16, 32])),
        fixed_tokens=draw(st.sampled_from([0, 0, 40])),
        max_num_seqs=draw(st.sampled_from([1, 4, 20, 20])),
        max_batched_tokens=draw(st.integers(64, 400)),
        reserve=draw(st.sampled_from([None, "chunk", "prompt", "final"])),
        swap_tokens_per_s=draw(st.sampled_from([0.0, 1e4, 1e5])),
        prefix_caching=caching,
        hash_tokens=32,
        tiers=draw(st.sampled_from([(), (host,), (host, flash)])) if caching else (),
        cache_rules=CacheRules(
            eviction=EVICTIONS.find(draw(st.sampled_from([*EVICTIONS]))),
            ttl_s=draw(st.sampled_from([np.inf, 0.05, 0.4, 3.0])),
            ttl_from_use=draw(st.booleans()),
            recompute_s=(0.01, 0.001),
        ),
    )


def check(rank: Rank) -> None:
    """Blocks in use are those that the running requests hold, and never more than there are."""
    unit = rank.cache.unit_blocks if rank.cache is not None else 0
    blocks = rank.spec.blocks_of
    batch = rank.decoding
    assert set(rank.running) == set(batch.base) | set(rank.prefilling)
    assert batch.count == len(batch.base)
    assert set(batch.base) <= set(batch.together.end_at)
    assert batch.sum_base == sum(batch.base.values())
    assert len(rank.running) <= rank.spec.max_num_seqs
    mine = sum(rank.held.values())
    if not rank.final:
        assert sum(batch.phases) == batch.count
        mine += sum(
            blocks(base + batch.together.clock) - unit * len(rank.shared.get(request, ()))
            for request, base in batch.base.items()
        )
    shared = rank.cache.refs if rank.cache is not None else {}
    assert 0 <= mine + unit * len(shared) == rank.blocks.used <= rank.blocks.total
    assert all(held >= 0 for held in rank.held.values())
    if batch.base:
        assert (batch.longest, batch.shortest) == (
            max(batch.base.values()),
            min(batch.base.values()),
        )
    if rank.cache is not None:
        users = [block for blocks_of_one in rank.shared.values() for block in blocks_of_one]
        assert sum(shared.values()) == len(users)
        assert set(shared) == set(users)
        assert not set(shared) & set(rank.cache.idle)
        assert all(len(tier.blocks) <= tier.room for tier in rank.cache.tiers)
        known = {*shared, *rank.cache.idle, *(block for tier in rank.cache.tiers for block in tier.blocks)}
        assert set(rank.cache.stamps) <= known
    if rank.blocks.freed is not None:
        assert sum(part[1] for part in rank.blocks.freed) == rank.blocks.free


@contextmanager
def checked() -> Iterator[None]:
    """Look at all ranks before each pass."""
    take = Replica._take_arrivals

    def check_and_take(self: Replica) -> None:
        used = self.used_blocks
        for rank in self.ranks:
            assert rank.used_blocks >= rank.blocks.used
            rank.settle()
            check(rank)
        assert (used, self.together.unsettled) == (sum(rank.blocks.used for rank in self.ranks), 0)
        assert self.loads == [len(rank.waiting) + len(rank.running) for rank in self.ranks]
        assert self.together.count == sum(rank.decoding.count for rank in self.ranks) == len(self.together.end_at)
        take(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "_take_arrivals", check_and_take)
        yield


def run(case: tuple[Requests, Pool, dict[str, Any]], name: str, *, stepwise: bool) -> Result:
    requests, pool, options = case
    options = dict(options)
    if "prefill" in options:
        front = options["prefill"]
        options["prefill"] = replace(front, pool=replace(front.pool, policy=POLICIES.find(name)))
    return simulate(
        requests, replace(pool, policy=POLICIES.find(name)), stepwise=stepwise, keep_passes=stepwise, **options
    )


@pytest.mark.parametrize("name", [*POLICIES])
@given(case=workloads())
@FAST
def test_jumping_between_events_equals_stepping_and_nothing_is_lost(
    name: str, case: tuple[Requests, Pool, dict[str, Any]]
) -> None:
    jumped = run(case, name, stepwise=False)
    with checked():
        stepped = run(case, name, stepwise=True)
    assert jumped.finished.all()
    assert jumped.blocks_left == 0
    for column in COLUMNS:
        np.testing.assert_allclose(getattr(jumped, column), getattr(stepped, column), rtol=0.0, atol=1e-8)
    assert jumped.steps == stepped.steps
    assert jumped.passes <= stepped.passes
    np.testing.assert_array_equal(jumped.preempted, stepped.preempted)
    assert np.all(jumped.samples[:, 2:] >= 0)
    assert np.all(jumped.samples[:, 4] <= jumped.num_blocks)
    assert np.all(jumped.queue_s >= -1e-12)
    assert np.all(jumped.first_s >= jumped.admitted_s)
    assert np.all(jumped.finish_s >= jumped.first_s)
    if case[1].clock.tokens_per_step == 1.0 and "prefill" not in case[2]:
        assert sum(jumped.gaps.values()) == int((case[0].output_len - 1).sum())
    pools = [case[2]["prefill"].pool] * case[2]["prefill"].pool.replicas if "prefill" in case[2] else []
    pools += [case[1]] * case[1].replicas
    for pool, records in zip(pools, stepped.passes_run, strict=True):
        for record in records:
            assert record.sequences <= pool.ranks * pool.micro_batches * pool.spec.max_num_seqs


@given(seed=st.integers(0, 2**32 - 1), name=st.sampled_from([*POLICIES]))
@settings(max_examples=8, deadline=None)
def test_a_run_is_determined_by_its_requests(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    requests = Requests(
        arrival_s=np.sort(rng.exponential(1.0, 30)),
        input_len=rng.integers(1, 99, 30),
        output_len=rng.integers(1, 9, 30),
    )
    pool = Pool(clock=PlainClock(base_s=0.01), spec=RankSpec(pool_tokens=1000), policy=POLICIES.find(name), replicas=2)
    one, two = simulate(requests, pool), simulate(requests, pool)
    np.testing.assert_array_equal(one.finish_s, two.finish_s)


@pytest.mark.parametrize("seed", [0, 30])
def test_a_swap_counts_in_the_pass_of_its_preemption(seed: int) -> None:
    """Also where the rank that swaps has nothing else to do in that pass, or less than another."""
    rng = np.random.default_rng(seed)
    requests = Requests(
        arrival_s=rng.exponential(0.1, 80).cumsum(),
        input_len=rng.integers(1, 300, 80),
        output_len=rng.integers(1, 120, 80),
    )
    spec = RankSpec(pool_tokens=512, max_num_seqs=4, max_batched_tokens=400, reserve="prompt", swap_tokens_per_s=1e3)
    clock = PlainClock(base_s=0.01, per_sequence_s=1e-4, per_prompt_token_s=1e-4)
    pool = Pool(clock=clock, spec=spec, policy=POLICIES.find("chunked"), ranks=3)
    jumped, stepped = simulate(requests, pool), simulate(requests, pool, stepwise=True)
    assert jumped.preempted.sum() > 0
    np.testing.assert_allclose(jumped.finish_s, stepped.finish_s, rtol=0.0, atol=1e-8)
