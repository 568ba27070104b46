"""The simulator: jumping between events equals stepping, and nothing is lost, for every policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackline.simulate import (
    Handover,
    PlainClock,
    Pool,
    RankSpec,
    Requests,
    Result,
    TierSpec,
    policy,
    policy_names,
    simulate,
)

FAST = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
COLUMNS = ("admitted_s", "first_s", "finish_s")


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Requests, Pool, dict[str, Any]]:
    """Random requests, servers and options; the policy is put in by the test."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 50))
    prefixes = rng.integers(0, 5, count)
    after = None
    if draw(st.booleans()):
        after = np.where(rng.random(count) < 0.4, np.arange(count) - rng.integers(1, 4, count), -1)
        after = np.maximum(after, -1)
    times = np.sort(rng.exponential(draw(st.sampled_from([0.02, 0.3, 2.0])), count).cumsum())
    requests = Requests(
        arrival_s=times,
        input_len=rng.integers(1, 300, count),
        output_len=rng.integers(1, 60, count),
        priority=rng.integers(0, 3, count),
        after=after,
        hashes=[tuple(int(which) * 100 + block for block in range(5)) for which in prefixes]
        if draw(st.booleans())
        else None,
        hash_tokens=32,
    )
    tokens_per_step = draw(st.sampled_from([1.0, 1.0, 1.7]))
    caching = draw(st.booleans())
    spec = RankSpec(
        pool_tokens=draw(st.integers(400, 1600)),
        max_num_seqs=draw(st.integers(1, 20)),
        max_batched_tokens=draw(st.integers(64, 400)),
        reserve=draw(st.sampled_from([None, "chunk", "prompt", "final"])),
        swap_tokens_per_s=draw(st.sampled_from([0.0, 1e5])),
        prefix_caching=caching,
        hash_tokens=32,
        tiers=(TierSpec(name="host", tokens=640, tokens_per_s=1e5),) if caching else (),
    )
    clock = PlainClock(
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
        policy=policy("chunked"),
        ranks=draw(st.integers(1, 3)),
        micro_batches=draw(st.integers(1, 2)),
        replicas=draw(st.integers(1, 2)),
    )
    options: dict[str, Any] = {"router": draw(st.sampled_from(["round-robin", "least-loaded", "prefix-aware"]))}
    if draw(st.booleans()) and not pool.spec.swap_tokens_per_s:
        front = Pool(clock=clock, spec=RankSpec(pool_tokens=800, max_batched_tokens=400), policy=policy("chunked"))
        options["prefill"] = Handover(pool=front, tokens_per_s=1e5, latency_s=0.001)
    return requests, pool, options


def run(case: tuple[Requests, Pool, dict[str, Any]], name: str, *, stepwise: bool) -> Result:
    requests, pool, options = case
    pool = Pool(
        clock=pool.clock,
        spec=pool.spec,
        policy=policy(name),
        ranks=pool.ranks,
        micro_batches=pool.micro_batches,
        replicas=pool.replicas,
    )
    return simulate(requests, pool, stepwise=stepwise, **options)


@pytest.mark.parametrize("name", policy_names())
@given(case=workloads())
@FAST
def test_jumping_between_events_equals_stepping_and_nothing_is_lost(
    name: str, case: tuple[Requests, Pool, dict[str, Any]]
) -> None:
    jumped, stepped = run(case, name, stepwise=False), run(case, name, stepwise=True)
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


@given(seed=st.integers(0, 2**32 - 1), name=st.sampled_from(policy_names()))
@settings(max_examples=8, deadline=None)
def test_a_run_is_determined_by_its_requests(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    requests = Requests(
        arrival_s=np.sort(rng.exponential(1.0, 30)),
        input_len=rng.integers(1, 99, 30),
        output_len=rng.integers(1, 9, 30),
    )
    pool = Pool(clock=PlainClock(base_s=0.01), spec=RankSpec(pool_tokens=1000), policy=policy(name), replicas=2)
    one, two = simulate(requests, pool), simulate(requests, pool)
    np.testing.assert_array_equal(one.finish_s, two.finish_s)
