"""Decode steps between two events, of several ranks."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rackline.simulation import PlainClock, Pool, RankSpec, Requests, policy, simulate
from rackline.simulation.decode_steps import common_line, durations_of
from rackline.simulation.decoding import DecodingBatch


def test_a_rank_that_is_passed_over_twice_still_counts() -> None:
    """The first rank is slowest later on, the second is not at first, a third is slower than the first throughout."""

    def rank(count: int, context: int) -> Any:
        batch = DecodingBatch(16)
        for request in range(count):
            batch.add(request, context, 1000)
        return SimpleNamespace(decoding=batch)

    clock = PlainClock(base_s=1.0, per_kv_s=0.001)
    ranks = [rank(5, 20), rank(1, 140), rank(5, 24)]
    for order in permutations(ranks):
        assert common_line(clock, [[rank] for rank in order], 100) is None
        assert common_line(clock, [[rank] for rank in order], 3) == (pytest.approx(1.14), pytest.approx(0.001))
        assert durations_of(clock, [[rank] for rank in order], 100)[-1] == pytest.approx(1.12 + 0.005 * 99)


def test_prompts_without_room_let_decoding_go_on() -> None:
    """Two ranks whose prompts find no room for their second chunk, in turns: there is a prompt in every pass.

    Without a step of decoding in between, such a run never ended.
    """
    spec = RankSpec(pool_tokens=320, max_batched_tokens=64, max_num_seqs=4, reserve="chunk")
    pool = Pool(clock=PlainClock(base_s=0.01), spec=spec, policy=policy("prefill-first"), ranks=2)
    requests = Requests(
        arrival_s=np.array([0.0, 0.01, 0.08, 0.16, 0.18, 0.22, 0.24, 0.27]),
        input_len=np.array([160, 140, 230, 80, 200, 170, 20, 110]),
        output_len=np.array([60, 40, 10, 50, 50, 60, 20, 10]),
    )
    result = simulate(requests, pool)
    assert result.finished.all()
    assert result.preempted.sum() > 0
