"""Engines that compute only neighbouring slots together: how a batch is split, and what its passes cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rackline.lab.transformer import Shape, model_of
from rackline.parallel import Deployment, Layout
from rackline.passes import calibration
from rackline.serving.stack import IDEAL
from rackline.simulation import Requests, Result, TableClock, pool_of, simulate
from rackline.simulation.clock import Chunk
from rackline.simulation.decode_steps import equal_passes
from rackline.simulation.decoding import Slots
from rackline.simulation.native_replica import knows
from rackline.simulation.policies import POLICIES

NUMBER = 6


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), min_size=1, max_size=8, unique_by=lambda one: one[0]))
def test_passes_hold_every_token_once(entries: list[tuple[int, int]]) -> None:
    slots, tokens = [slot for slot, _ in entries], [new for _, new in entries]
    done = [0] * len(entries)
    for run, count in equal_passes(slots, tokens):
        assert count > 0
        assert [slots[place] - slots[run[0]] for place in run] == list(range(len(run)))
        for place in run:
            done[place] += count
    assert done == tokens


def test_a_request_takes_the_slot_that_is_free_for_longest() -> None:
    slots = Slots(3)
    for request in (10, 11):
        slots.take(request)
    slots.give(10)
    slots.take(12)
    slots.take(13)
    assert slots.of == {11: 1, 12: 2, 13: 0}


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    from rackline.hardware import cluster
    from rackline.parallel import precision

    machine = cluster("dgx-h100").with_num_chips(1)
    model = model_of(Shape(num_layers=8, d_model=1024, num_q_heads=16, num_kv_heads=4, head_dim=64, d_ff=4096))
    types = precision("bf16", model, machine.chip)
    return Deployment(
        model=model, cluster=machine, layout=Layout(), precision=types, calibration=calibration("vllm", machine.chip)
    )


def served(deployment: Deployment, requests: Requests, *, split: bool) -> Result:
    around = IDEAL.with_values(
        {"scheduler.max_num_seqs": NUMBER, "scheduler.max_batched_tokens": 512, "scheduler.neighbour_passes": split}
    )
    return simulate(requests, pool_of(deployment, around))


def all_at_once(output_len: list[int]) -> Requests:
    count = len(output_len)
    return Requests(
        arrival_s=np.zeros(count), input_len=np.full(count, 64), output_len=np.array(output_len), name="all at once"
    )


def test_neighbours_share_their_passes(deployment: Deployment) -> None:
    """Equal prompts and answers in slots 0 to 3: one pass after another, as without slots."""
    requests = all_at_once([32] * 4)
    together, split = (served(deployment, requests, split=one).e2e_s for one in (False, True))
    np.testing.assert_allclose(split, together, rtol=1e-9)


def test_others_do_not(deployment: Deployment) -> None:
    """Slots 1 and 3 end first: 0 and 2 need a pass each, and a step of this model is almost only its weights."""
    requests = all_at_once([42, 2, 42, 2])
    together, split = (served(deployment, requests, split=one) for one in (False, True))
    last = [float(one.e2e_s[0] - one.e2e_s[1]) for one in (together, split)]
    assert 1.8 < last[1] / last[0] < 2.1


def test_a_prompt_beside_a_decoding_sequence(deployment: Deployment) -> None:
    """One token of each, since the slots are neighbours, then the rest of the prompt."""
    around = IDEAL.with_values(
        {"scheduler.max_num_seqs": NUMBER, "scheduler.max_batched_tokens": 512, "scheduler.neighbour_passes": True}
    )
    clock = TableClock.of(deployment, around)
    first_s = clock.prompts(0, 0.0, 0.0, [Chunk(64, 0)], 64.0, 0.0)
    requests = Requests(
        arrival_s=np.array([0.0, 0.5 * first_s]), input_len=np.full(2, 64), output_len=np.array([8, 1]), name="two"
    )
    both = float(clock.steps(np.array([64.0, 1.0]), np.zeros(1), 2.0)[0])
    rest = clock.prompts(0, 0.0, 0.0, [Chunk(63, 1)], 63.0, 0.0)
    found = served(deployment, requests, split=True)
    assert float(found.e2e_s[1]) == pytest.approx(0.5 * first_s + both + rest)


def test_the_compiled_loop_leaves_them_alone(deployment: Deployment) -> None:
    pool = pool_of(deployment, IDEAL.with_values({"scheduler.max_num_seqs": NUMBER}))
    assert knows(replace(pool, policy=POLICIES.find("chunked")))
    assert not knows(replace(pool, policy=POLICIES.find("chunked"), spec=replace(pool.spec, neighbour_passes=True)))
