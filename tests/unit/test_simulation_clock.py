"""The clock of a table: a pass without prompts takes what a decode step takes, below a window and above it."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import deploy
from rackline.serving.stack import IDEAL, stack
from rackline.serving.workload import PLAIN, Speculation
from rackline.simulation.clock import Line, PlainClock, TableClock
from rackline.simulation.server import pool_of


@pytest.mark.parametrize("context", [100.0, 600.0, 1023.0, 1024.0, 1025.0, 9000.0])
@pytest.mark.parametrize("name", ["gemma-3-27b", "gpt-oss-120b", "llama-3.1-8b", "lecture-frontier"])
def test_a_pass_without_new_tokens_is_a_decode_step(name: str, context: float) -> None:
    """Eight sequences whose mean is below a window read their contexts, not the window."""
    clock = TableClock.of(deploy(name, "tp=8", on="gb200-nvl72"))
    contexts = np.full(8, context)
    (step,) = clock.steps(contexts, np.zeros(1), 8.0)
    assert clock.prompts(8, 8 * context, context, [], 8.0, 0.0) == pytest.approx(float(step), rel=1e-9)


def test_more_context_below_the_window_takes_longer() -> None:
    clock = TableClock.of(deploy("gemma-3-27b", "tp=2", on="dgx-h100"))
    times = [clock.prompts(8, 8 * context, context, [], 8.0, 0.0) for context in (100.0, 500.0, 1000.0)]
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize(
    ("name", "stack_name", "drafts"),
    [("gemma-3-27b", "vllm", 0), ("deepseek-v3", "sglang", 2), ("llama-3.1-8b", "vllm", 0)],
)
def test_a_step_from_its_sums_is_the_step_from_every_context(name: str, stack_name: str, drafts: int) -> None:
    """As scalars, as arrays, and as the line between two bends on both sides of each."""
    speculation = Speculation(draft_tokens=drafts, tokens_per_step=1.7) if drafts else PLAIN
    clock = TableClock.of(
        deploy(name, "tp=8,ep=8" if name == "deepseek-v3" else "tp=8"), stack(stack_name), speculation
    )
    rng = np.random.default_rng(2)
    for count in (1, 7, 200):
        group = float(count * clock.verified)
        bends = clock.bends(count, group)
        means = [2000.0, 50_000.0, *((bend / count) * side for bend in bends or () for side in (0.9, 1.1))]
        for mean in means:
            contexts = np.maximum(mean * rng.uniform(0.9, 1.1, count), clock.straight_from).round()
            kv, longest = float(contexts.sum()), float(contexts.max())
            expected = clock.steps(contexts, np.arange(3.0), group)
            found = [clock.straight(count, kv + count * more, longest + more, group) for more in range(3)]
            assert found == pytest.approx(expected.tolist(), rel=1e-12)
            gained = np.arange(3.0)
            assert clock.straight(count, kv + count * gained, longest + gained, group) == pytest.approx(expected)
            line = clock.line(count, group, kv)
            if line is not None and line.to_kv >= kv + 2 * count:
                assert line.from_kv <= kv
                lines = [
                    line.base_s + line.per_kv_s * (kv + count * k) + line.per_longest_s * (longest + k)
                    for k in range(3)
                ]
                assert lines == pytest.approx(expected.tolist(), rel=1e-9)
    assert clock.line(200, 200.0 * clock.verified) is not None or clock.engine.host_s(200, 200, prompts=False)


def test_a_plain_clock_takes_no_time_until_it_is_told() -> None:
    clock = PlainClock()
    assert clock.line(3, 3.0) == Line(0.0, 0.0, 0.0)
    assert clock.straight(3, 100.0, 50.0, 3.0) == 0.0
    assert (clock.verified, clock.tokens_per_step, clock.straight_from, clock.bends(3, 3.0)) == (1, 1.0, 0.0, ())
    told = PlainClock(base_s=1.0, per_sequence_s=0.5, per_kv_s=0.01)
    assert told.line(4, 4.0) == Line(3.0, 0.01, 0.0)
    assert told.straight(4, 100.0, 50.0, 4.0) == 4.0


@pytest.mark.parametrize(
    ("budget", "most", "verified", "expected"),
    [(100, 1000, 4, 25), (99, 1000, 4, 24), (3, 1000, 4, 1), (100, 10, 4, 10), (100, 1000, 1, 100)],
)
def test_a_pass_has_room_for_the_verified_tokens_of_each_sequence(
    budget: int, most: int, verified: int, expected: int
) -> None:
    limits = IDEAL.with_values({"scheduler.max_batched_tokens": budget, "scheduler.max_num_seqs": most})
    drafts = Speculation(draft_tokens=verified - 1, tokens_per_step=1.5) if verified > 1 else PLAIN
    assert pool_of(deploy("llama-3.1-8b", "tp=1"), limits, speculation=drafts).spec.max_num_seqs == expected
