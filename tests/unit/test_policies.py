"""Policies own their order: what the file says is what the engine does, whatever the order is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rackline.simulation import POLICIES, PlainClock, Policy, Pool, RankSpec, Requests, simulate
from rackline.simulation.requests import RequestLog

LENGTHS = np.array([50, 400, 10, 200, 30])
PRIORITY = np.array([2, 0, 1, 0, 2])
"""Requests that arrive together; the first is served at once, the others wait."""


def served(by: Policy) -> list[int]:
    """Requests in the order of their first tokens."""
    requests = Requests(
        arrival_s=np.array([0.0, 1e-6, 2e-6, 3e-6, 4e-6]),
        input_len=LENGTHS,
        output_len=np.full(5, 2),
        priority=PRIORITY,
    )
    spec = RankSpec(pool_tokens=10_000, max_num_seqs=1, max_batched_tokens=1000)
    result = simulate(requests, Pool(clock=PlainClock(base_s=0.01), spec=spec, policy=by))
    return np.argsort(result.first_s).tolist()


def longest_first(requests: RequestLog, request: int) -> float:
    return -float(requests.input_len[request])


def test_each_published_order() -> None:
    assert served(POLICIES.find("chunked")) == [0, 1, 2, 3, 4]
    assert served(POLICIES.find("shortest-job")) == [0, 2, 4, 3, 1]
    assert served(POLICIES.find("priority")) == [0, 1, 3, 2, 4]


def test_a_new_order_is_obeyed_and_does_not_fall_through_to_another() -> None:
    mine = replace(POLICIES.find("chunked"), name="longest", order=longest_first)
    assert served(mine) == [0, 1, 3, 4, 2]


@pytest.mark.parametrize("last_of_order", [False, True])
def test_who_is_stopped_when_memory_runs_out(last_of_order: bool) -> None:
    """Two requests grow until one has to go: the later one, or the one that is last in the order."""
    requests = Requests(
        arrival_s=np.array([0.0, 0.001]),
        input_len=np.array([64, 64]),
        output_len=np.full(2, 200),
        priority=np.array([1, 0]),
    )
    by = replace(POLICIES.find("priority"), preempts_last_of_order=last_of_order)
    spec = RankSpec(pool_tokens=320, max_num_seqs=2, max_batched_tokens=1000, block_size=16)
    result = simulate(requests, Pool(clock=PlainClock(base_s=0.01), spec=spec, policy=by))
    stopped = np.asarray(result.preempted) > 0
    assert stopped.tolist() == ([True, False] if last_of_order else [False, True])
