"""Hit rates from stack distances equal those of the simulator's cache, for every size, expiry and order of use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rackline.simulation import Requests
from rackline.simulation.evictions import EVICTIONS
from rackline.simulation.prefix_cache import CacheRules
from rackline.simulation.reuse import replay, reuse_of

UNIT = 16


@st.composite
def prompts(draw: st.DrawFn) -> Requests:
    """Prompts that are paths in a tree, some with a last block that is not full, some continued after an answer."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 60))
    branches = draw(st.integers(1, 4))
    longest = draw(st.integers(1, 8))
    names: dict[tuple[int, ...], int] = {}
    hashes: list[list[int]] = []
    answers: list[list[int]] = []
    for _ in range(count):
        path = rng.integers(0, branches, rng.integers(0, longest + 1)).tolist()
        blocks = [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]
        cut = int(rng.integers(0, len(blocks) + 1)) if draw(st.booleans()) else len(blocks)
        hashes.append(blocks[:cut])
        answers.append(blocks[cut:])
    tokens = [max(1, len(row) * UNIT - int(rng.integers(0, UNIT))) for row in hashes]
    return Requests(
        arrival_s=np.sort(rng.exponential(1.0, count).cumsum()),
        input_len=np.array(tokens),
        output_len=np.full(count, 1 + longest * UNIT),
        hashes=hashes,
        answer_hashes=answers if draw(st.booleans()) else None,
        hash_tokens=UNIT,
    )


@given(
    requests=prompts(),
    capacity=st.sampled_from([1, 2, 5, 10, 40, np.inf]),
    ttl_s=st.sampled_from([0.5, 3.0, 20.0, np.inf]),
    ends_first=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_distances_and_cache_agree(requests: Requests, capacity: float, ttl_s: float, ends_first: bool) -> None:
    reuse = reuse_of(requests, ends_first=ends_first)
    assert reuse is not None
    replayed = replay(requests, capacity, CacheRules(ttl_s=ttl_s, ends_first=ends_first))
    assert float(reuse.hit_share(capacity, ttl_s)) == pytest.approx(replayed.hit_share, abs=1e-12)


@given(requests=prompts(), name=st.sampled_from([*EVICTIONS]), from_use=st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_unlimited_cache_needs_no_eviction_and_none_beats_it(requests: Requests, name: str, from_use: bool) -> None:
    rules = CacheRules(eviction=EVICTIONS.find(name), recompute_s=(1.0, 0.1))
    whole = replay(requests).hit_share
    assert replay(requests, rules=rules).hit_share == whole
    for capacity in (1, 4, 16):
        assert replay(requests, capacity, rules).hit_share <= whole
    short = CacheRules(ttl_s=2.0, ttl_from_use=from_use)
    assert replay(requests, rules=short).hit_share <= whole
    # what is kept from its last use is kept at least as long as from its writing
    fixed, sliding = (CacheRules(ttl_s=2.0, ttl_from_use=sliding) for sliding in (False, True))
    assert replay(requests, rules=fixed).hit_share <= replay(requests, rules=sliding).hit_share
