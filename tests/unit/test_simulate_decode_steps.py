"""Decode steps between two events, of several ranks."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from rackline.simulation import POLICIES, PlainClock, Pool, RankSpec, Requests, simulate
from rackline.simulation.decode_steps import may_be_slowest, pace, steps_before
from rackline.simulation.decoding import DecodingBatch, Lockstep


def batch_of(together: Lockstep, contexts: list[int], index: int = 0) -> DecodingBatch:
    batch = DecodingBatch(together, index)
    for place, context in enumerate(contexts):
        batch.add(1000 * index + place, context, 1000)
    return batch


def test_a_rank_that_is_passed_over_twice_still_counts() -> None:
    """The first rank is slowest later on, the second is not at first, a third is slower than the first throughout."""
    together = Lockstep(16)
    clock = PlainClock(base_s=1.0, per_kv_s=0.001)
    ranks = [batch_of(together, [context] * count, index) for index, (count, context) in enumerate(CASES)]
    for order in permutations(ranks):
        batches = [(batch, 11.0) for batch in order]
        assert {batch.index for batch in may_be_slowest(order)} == {1, 2}
        few, many = pace(clock, batches, 3, np.inf, 0.0), pace(clock, batches, 100, np.inf, 0.0)
        assert (few.steps, few.first_s, few.slope_s) == (3, pytest.approx(1.14), pytest.approx(0.001))
        assert few.seconds == pytest.approx(3 * 1.14 + 3 * 0.001)
        assert many.durations[-1] == pytest.approx(1.12 + 0.005 * 99)
        assert many.seconds == pytest.approx(sum(max(1.14 + 0.001 * k, 1.12 + 0.005 * k) for k in range(100)))


CASES = ((5, 20), (1, 140), (5, 24))  # sequences, and the context of each


def test_steps_that_start_in_time() -> None:
    together = Lockstep(16)
    batches = [(batch_of(together, [100], 0), 1.0), (batch_of(together, [60, 60], 1), 2.0)]
    clock = PlainClock(base_s=1.0, per_kv_s=0.001)
    assert pace(clock, batches, 50, 1.12, 0.0).steps == 1  # the second would start just when the time is over
    assert pace(clock, batches, 50, 1.13, 0.0).steps == 2
    assert pace(clock, batches, 1, 99.0, 0.0).seconds == pytest.approx(1.12)
    assert pace(clock, batches, 2, 99.0, 0.5).durations == pytest.approx([1.5, 1.5])


def test_tokens_that_fit_into_free_blocks_are_the_most_that_do() -> None:
    rng = np.random.default_rng(5)
    for block_size in (1, 4, 16):
        together = Lockstep(block_size)
        together.clock = int(rng.integers(0, 40))
        batch = batch_of(together, rng.integers(1, 200, 7).tolist())
        for blocks in range(40):
            tokens = batch.tokens_in(blocks)
            assert batch.new_blocks(tokens) <= blocks < batch.new_blocks(tokens + 1)


def test_two_entries_of_one_end_are_one_end() -> None:
    """A sequence that was preempted and goes on at once ends when it would have."""
    together = Lockstep(16)
    batch = batch_of(together, [10])
    batch.remove(0)
    batch.add(0, 10, 1000)
    together.clock, together.steps = 1000, 1000
    assert together.ended() == [(0, 0)]


def test_prompts_without_room_let_decoding_go_on() -> None:
    """Two ranks whose prompts find no room for their second chunk, in turns: there is a prompt in every pass.

    Without a step of decoding in between, such a run never ended.
    """
    spec = RankSpec(pool_tokens=320, max_batched_tokens=64, max_num_seqs=4, reserve="chunk")
    pool = Pool(clock=PlainClock(base_s=0.01), spec=spec, policy=POLICIES.find("prefill-first"), ranks=2)
    requests = Requests(
        arrival_s=np.array([0.0, 0.01, 0.08, 0.16, 0.18, 0.22, 0.24, 0.27]),
        input_len=np.array([160, 140, 230, 80, 200, 170, 20, 110]),
        output_len=np.array([60, 40, 10, 50, 50, 60, 20, 10]),
    )
    result = simulate(requests, pool)
    assert result.finished.all()
    assert result.preempted.sum() > 0


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3])
def test_steps_that_start_in_time_are_counted_as_one_by_one(slope: float) -> None:
    first = 1.0
    starts = np.cumsum([0.0, *(first + slope * k for k in range(40))])  # step k takes first + k · slope
    for room_s in (0.5, 1.1, 1.2, 3.7, 7.05, 20.4, 1e6):
        for most in (1, 5, 30):
            wanted = int(np.clip((starts[: most + 1] < room_s).sum(), 1, most))
            assert steps_before(room_s, first, slope, most) == wanted, (room_s, most)
