"""Passes on both sides of the largest CUDA graph, against the Markov chain of their prompts."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import deploy
from rackline.passes.features import Array
from rackline.serving.closed_loop import engine_of
from rackline.serving.prompt_passes import GraphPasses, lumped
from rackline.serving.stack import stack


def _passes(sequences: float, spread: float = 0.0) -> GraphPasses:
    deployment = deploy("llama-3.1-8b", on="dgx-h100", label="native", calibration="vllm")
    return GraphPasses(
        engine=engine_of(deployment, stack("vllm")),
        applies=np.array([True]),
        decode_s=np.array([0.007]),
        kernels_s=np.array([0.009]),
        kernels_s_per_prompt=np.array([0.0035]),
        sequences=np.array([sequences]),
        new_tokens=200.0,
        spread=spread,
        room=np.array([1e5]),
    )


def _chain(passes: GraphPasses, rate: float) -> tuple[float, float]:
    """(E[T], mean wait) of the chain itself: prompts that arrive in a pass are in the next [s]."""
    size = 80
    counts = np.arange(size)
    seconds = np.empty(size)
    for k in counts:
        beyond = float(passes.beyond(float(k))[0])
        held_s, beyond_s = (float(passes.pass_s(np.array([float(k)]), held=held)[0]) for held in (True, False))
        seconds[k] = float(passes.decode_s[0]) if k == 0 else (1.0 - beyond) * held_s + beyond * beyond_s
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, size)))))
    mean = (rate * seconds)[:, None]
    chance: Array = np.exp(counts[None, :] * np.log(mean) - mean - logs[None, :])
    share = np.ones(size) / size
    for _ in range(2000):
        share = share @ chance
        share = share / share.sum()
    mean_s = float(share @ seconds)
    wait_s = float(share @ seconds**2) / (2.0 * mean_s) + float(share @ (counts * seconds)) / float(share @ counts)
    return mean_s, wait_s


@pytest.mark.parametrize(
    ("sequences", "rate"), [(1.0, 40.0), (1.0, 100.0), (50.0, 90.0), (150.0, 60.0), (250.0, 100.0)]
)
def test_three_kinds_of_passes_stand_for_the_chain(sequences: float, rate: float) -> None:
    """Equal prompts: a pass with k of them is held or is not. Within 5 % in the mean pass and 7 % in the wait."""
    passes = _passes(sequences)
    found = lumped(passes, np.array([rate]))
    mean_s, wait_s = _chain(passes, rate)
    assert float(found.pass_s[0]) == pytest.approx(mean_s, rel=0.05)
    assert float(found.wait_s[0]) == pytest.approx(wait_s, rel=0.07)


def test_prompts_of_unlike_sizes_pass_the_boundary_one_by_one() -> None:
    """Two prompts of 200 tokens beside 50 sequences fit 512 tokens; spread by a quarter, some pairs do not."""
    assert float(_passes(50.0).beyond(2.0)[0]) < 1e-6
    assert 0.1 < float(_passes(50.0, spread=0.25).beyond(2.0)[0]) < 0.3
    assert float(_passes(50.0, spread=0.25).beyond(4.0)[0]) > 0.99
