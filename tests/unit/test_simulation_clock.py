"""The clock of a table: a pass without prompts takes what a decode step takes, below a window and above it."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import deploy
from rackline.simulation.clock import TableClock


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
