"""Pipeline schedules: closed forms, activations in flight, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.passes.features import Array
from rackline.report.exports import schedule_trace
from rackline.report.pipeline_text import gantt_text
from rackline.training.kernels import Phase
from rackline.training.runs import Runs, TrainLayout
from rackline.training.schedules import (
    SCHEDULE_OF,
    Durations,
    Slot,
    equal_stages,
    execute,
    interleaved,
    one_f_one_b,
    ring,
    schedule,
    token_s,
)
from rackline.training.schedules.schedule import in_turn
from rackline.training.step import bubble_seconds

EXACT = ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2")
TIMES = [(1.0, 1.0, 1.0), (1.0, 1.3, 0.8)]


@pytest.mark.parametrize(("forward", "backward", "weight"), TIMES)
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 12), (8, 24)])
@pytest.mark.parametrize("name", EXACT)
def test_running_a_table_gives_the_published_bubble(
    name: str, pp: int, m: int, forward: float, backward: float, weight: float
) -> None:
    kind = schedule(name)
    v = 3 if name == "interleaved" else 1
    line = kind.run(pp, m, equal_stages(kind, pp, forward, backward, weight, virtual_pp=v), v)
    assert line.bubble_s == pytest.approx(kind.bubble(pp, m, v, forward, backward + weight, weight))
    assert line.step_s == pytest.approx(m * (forward + backward + weight) + line.bubble_s)


@pytest.mark.parametrize("name", [*EXACT, "zb-v", "dualpipe"])
@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 24)])
def test_activations_in_flight_are_those_of_the_formula(name: str, pp: int, m: int) -> None:
    kind = schedule(name)
    v = 3 if name == "interleaved" else 1
    line = kind.run(pp, m, equal_stages(kind, pp, 1.0, 1.0, 1.0, virtual_pp=v), v)
    parts = kind.num_chunks(v) // kind.copies
    peak = max(line.peak_in_flight(device) for device in range(pp)) / parts
    assert peak == pytest.approx(kind.in_flight(pp, m, v))


def test_dualpipe_waits_no_longer_than_published_and_zb_v_half_of_1f1b_or_less() -> None:
    dual, folded, plain = schedule("dualpipe"), schedule("zb-v"), schedule("1f1b")
    for pp, m in ((4, 8), (8, 16)):
        both = dual.run(pp, m, equal_stages(dual, pp, 1.0, 1.0, 0.7))
        assert 0.0 < both.bubble_s <= dual.bubble(pp, m, 1, 1.0, 1.7, 0.7) + 1e-9
        bent = folded.run(pp, m, equal_stages(folded, pp, 1.0, 1.0, 1.0))
        assert bent.bubble_s == pytest.approx(folded.bubble(pp, m, 2, 1.0, 2.0, 1.0))
        bent = folded.run(pp, m, equal_stages(folded, pp, 1.0, 1.0, 0.7))
        straight = plain.run(pp, m, equal_stages(plain, pp, 1.0, 1.0, 0.7))
        assert bent.bubble_s < straight.bubble_s / 2


def test_slower_last_stage_sets_the_pace() -> None:
    kind = schedule("1f1b")
    even = equal_stages(kind, 4, 1.0, 1.0, 1.0)
    slow = Durations(forward=[1.0, 1.0, 1.0, 1.5], backward=[2.0, 2.0, 2.0, 3.0], weight=[1.0] * 4)
    assert kind.run(4, 16, slow).step_s >= 16 * 4.5
    assert kind.run(4, 16, even).step_s < 16 * 4.5


def test_hops_make_a_step_longer() -> None:
    for name, kind in SCHEDULE_OF.items():
        v = 2 if name == "interleaved" else 1
        quick = kind.run(4, 8, equal_stages(kind, 4, 1.0, 1.0, 1.0, virtual_pp=v), v)
        late = kind.run(4, 8, equal_stages(kind, 4, 1.0, 1.0, 1.0, virtual_pp=v, hop_s=0.2), v)
        assert late.step_s > quick.step_s


def test_ring_has_no_bubble_with_as_many_groups_as_stages() -> None:
    line = ring([1.0] * 4, groups=4, passes=5)
    assert line.step_s == pytest.approx(5 * 4 + 3)
    assert token_s([1.0] * 4, 4) == 4.0
    assert token_s([1.0, 2.0], 2, 0.5) == 4.0
    assert token_s([1.0] * 4, 8) == 8.0
    with pytest.raises(InputError, match="1 or more"):
        ring([], 1, 1)


def test_bad_input_is_one_line() -> None:
    with pytest.raises(InputError, match="nearest: dualpipe"):
        schedule("dualpip")
    with pytest.raises(InputError, match="a multiple of the 4 stages"):
        SCHEDULE_OF["interleaved"].run(4, 6, Durations.equal(8, 1.0, 1.0, 1.0), 2)
    with pytest.raises(InputError, match="4, one per part"):
        SCHEDULE_OF["1f1b"].run(4, 8, Durations.equal(3, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="even number"):
        SCHEDULE_OF["dualpipe"].run(3, 8, Durations.equal(3, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="1 or more"):
        SCHEDULE_OF["1f1b"].run(4, 0, Durations.equal(4, 1.0, 1.0, 1.0))


def test_table_that_waits_for_itself_is_named() -> None:
    with pytest.raises(InputError, match="waits for B0 forever"):
        execute(((Slot("B", 0), Slot("F", 0)),), Durations.equal(1, 1.0, 1.0, 1.0), in_turn(1, 1), num_parts=1)


def test_gantt_and_trace_show_every_slot() -> None:
    kind = schedule("zb-h1")
    line = kind.run(4, 8, equal_stages(kind, 4, 1.0, 1.0, 1.0))
    events = schedule_trace(line, "t")["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(line.events) == 4 * 8 * 3
    assert events[-1]["args"]["micro-batches"] == 0.0
    text = gantt_text(line, 80).plain
    assert text.count("\n") == 4
    assert "waits (bubble)" in text


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (8, 24)])
def test_interleaving_one_chunk_is_1f1b(pp: int, m: int) -> None:
    assert interleaved.table(pp, m, 1) == one_f_one_b.table(pp, m, 1)


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v"])
def test_steps_wait_as_long_as_their_schedule_says(name: str, pp: int) -> None:
    """The closed forms over many layouts are those of the schedules, where nothing waits for the host or a hop."""
    phases: dict[Phase, Array] = {"forward": np.array([1.0]), "input": np.array([1.3]), "weight": np.array([0.8])}
    runs = Runs.of([TrainLayout(pp=pp, schedule=name)])
    zero = np.zeros(1)
    found = bubble_seconds(runs, phases, zero, np.array([3.1]), zero, pair=np.array([3.1]))
    assert float(found[0]) == pytest.approx(schedule(name).bubble(pp, 4 * pp, 1, 1.0, 2.1, 0.8))
