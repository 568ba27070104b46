"""The median time between tokens: which prompts the median step carries, and what the step then takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import deploy
from rackline.passes import Batch
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import IDEAL
from rackline.serving.steady import median_prompts, median_step_s, steady_state
from rackline.serving.workload import Mode, Workload

ENGINE = engine_of(deploy("llama-3.1-8b", "tp=1", on="dgx-h100"), IDEAL.with_values({"graphs.prefill_slowdown": 1.2}))


@pytest.mark.parametrize("arrivals", [0.3, 0.8, 1.5, 5.0, 20.0, 63.0, 65.0, 200.0])
def test_median_prompts_is_that_of_drawn_steps(arrivals: float) -> None:
    draws = np.random.default_rng(3)
    numbers = draws.poisson(arrivals, 200_000)
    drawn = np.where(numbers > 0, draws.gamma(np.maximum(numbers, 1)), 0.0)
    assert float(median_prompts(np.array(arrivals))) == pytest.approx(np.median(drawn), rel=0.02, abs=0.01)


def test_few_arrivals_leave_the_median_a_decode_step() -> None:
    """64 sequences of 400 tokens end 0.16 times per step: more than half of the steps carry no prompt."""
    work, b = Workload(input_len=2000, output_len=400), np.array([64.0])
    state = steady_state(ENGINE, work, Mode(), b)
    median = median_step_s(ENGINE, work, Mode(), b)
    assert median == pytest.approx(state.decode_s, rel=1e-12)
    assert median < 0.9 * state.tpot_s


@pytest.mark.parametrize("admission", ["chunked", "prefill_first"])
def test_many_arrivals_bring_the_median_near_the_mean(admission: str) -> None:
    work, b = Workload(input_len=50, output_len=40), np.array([256.0])
    mode = Mode(admission=admission)  # pyright: ignore[reportArgumentType]
    state = steady_state(ENGINE, work, mode, b)
    assert median_step_s(ENGINE, work, mode, b) == pytest.approx(state.tpot_s, rel=0.1)


def test_a_batch_that_ends_before_the_next_has_no_prompts_between_its_steps() -> None:
    work, b = Workload(input_len=50, output_len=40), np.array([256.0])
    found = median_step_s(ENGINE, work, Mode(admission="decode_first"), b)
    alone = ENGINE.decode_s(
        Batch(decode_sequences=b, context_len=work.mean_context), ENGINE.time_table(False), two_batch_overlap=False
    )
    assert found == pytest.approx(alone)


def test_spread_answers_are_longer_while_they_run() -> None:
    even = Workload(input_len=100, output_len=1000)
    assert even.mean_context == 600
    assert replace(even, output_spread=1.0).mean_context == 1100
    assert replace(even, output_spread=1.0).final_context == even.final_context
