"""Engines that compute only neighbouring slots together: the runs of random slots, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from rackline.lab.this_machine import model_of
from rackline.lab.transformer import Shape
from rackline.parallel import Deployment, Layout
from rackline.passes import calibration
from rackline.serving.stack import Stack
from rackline.simulation import Requests, TableClock, pool_of, simulate
from rackline.simulation.clock import Chunk
from rackline.simulation.fast import is_plain_clock
from rackline.simulation.neighbours import NeighbourClock, mean_runs

SLOTS = 6


def runs_of(slots: tuple[int, ...]) -> list[int]:
    """Lengths of the runs of neighbours."""
    found: list[int] = []
    for place, slot in enumerate(slots):
        if place and slot == slots[place - 1] + 1:
            found[-1] += 1
        else:
            found.append(1)
    return found


@pytest.mark.parametrize("sequences", range(1, SLOTS + 1))
def test_runs_are_those_of_all_sets_of_slots(sequences: int) -> None:
    every = [runs_of(slots) for slots in combinations(range(SLOTS), sequences)]
    counted = {length: sum(runs.count(length) for runs in every) / len(every) for length in range(1, sequences + 1)}
    assert dict(mean_runs(sequences, SLOTS)) == pytest.approx({k: often for k, often in counted.items() if often})


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


@pytest.fixture(scope="module")
def clocks(deployment: Deployment) -> tuple[TableClock, NeighbourClock]:
    around = Stack(max_num_seqs=SLOTS, neighbour_passes=True)
    return TableClock.of(deployment, around), NeighbourClock.of(deployment, around)


def test_a_step_is_the_sum_of_its_runs(clocks: tuple[TableClock, NeighbourClock]) -> None:
    plain, split = clocks
    contexts, now = np.full(3, 100.0), np.zeros(1)
    wanted = sum(often * float(plain.steps(contexts[:length], now, length)[0]) for length, often in mean_runs(3, SLOTS))
    assert float(split.steps(contexts, now, 3.0)[0]) == pytest.approx(wanted)
    line = split.line(3, 3.0)
    assert line is not None
    assert line.base_s + line.per_kv_s * 300.0 + line.per_longest_s * 100.0 == pytest.approx(wanted)
    full = np.full(SLOTS, 100.0)
    assert float(split.steps(full, now, SLOTS)[0]) == pytest.approx(float(plain.steps(full, now, SLOTS)[0]))


def test_each_prompt_has_a_pass_of_its_own(clocks: tuple[TableClock, NeighbourClock]) -> None:
    plain, split = clocks
    chunks = [Chunk(128, 0), Chunk(64, 32)]
    alone = sum(plain.prompts(0, 0.0, 0.0, [one], one.tokens, 0.0) for one in chunks)
    assert split.prompts(2, 200.0, 100.0, chunks, 194.0, 0.25) == pytest.approx(0.25 + alone)


def test_the_simulator_takes_the_clock_of_the_stack(deployment: Deployment) -> None:
    around = Stack(max_num_seqs=SLOTS, max_batched_tokens=512)
    requests = Requests(arrival_s=np.zeros(4), input_len=np.full(4, 64), output_len=np.full(4, 32), name="all at once")
    pools = [pool_of(deployment, replace(around, neighbour_passes=split)) for split in (False, True)]
    together, split = (simulate(requests, pool).makespan_s for pool in pools)
    assert isinstance(pools[1].clock, NeighbourClock)
    assert not is_plain_clock(pools[1].clock, pools[1].spec)
    # four of six slots lie in 2 runs on average, and a step of this model is almost only its weights
    assert sum(often for _, often in mean_runs(4, SLOTS)) == pytest.approx(2.0)
    assert 1.7 < split / together < 2.3
