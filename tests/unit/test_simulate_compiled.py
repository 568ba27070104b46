"""The compiled loop gives what the plain one gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rackline.arch import model
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving.stack import stack
from rackline.simulation import CacheConfig, Lengths, Pool, open_arrivals, pool_of, simulate
from rackline.simulation.fast import is_plain_clock
from rackline.simulation.loop_arrays import MOST_SAMPLES

pytest.importorskip("numba")


def pool(name: str, on: str, layout: str, chips: int, *, seqs: int, tokens: int) -> Pool:
    found, where = model(name), cluster(on).with_num_chips(chips)
    deployment = Deployment(
        model=found,
        cluster=where,
        layout=parse_layout(layout, found),
        precision=precision("native", found, where.chip),
        calibration=calibration("vllm", where.chip),
    )
    around = replace(stack("vllm"), max_num_seqs=seqs, max_batched_tokens=2048)
    return pool_of(deployment, around, cache=CacheConfig(pool_tokens=tokens))


@pytest.mark.parametrize(
    ("server", "rate"),
    [
        (("llama-3.1-8b", "dgx-h100", "tp=1", 1, 64, 30_000), 12.0),
        (("deepseek-v3", "dgx-h200", "tp=8,ep=8", 8, 256, 20_000), 6.0),
        (("llama-3.1-8b", "dgx-h100", "tp=1", 1, 1024, 400_000), 12.0),
    ],
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_compiled_and_plain_loops_agree(
    server: tuple[str, str, str, int, int, int], rate: float, replicas: int
) -> None:
    name, on, layout, chips, seqs, tokens = server
    one = replace(pool(name, on, layout, chips, seqs=seqs, tokens=tokens), replicas=replicas)
    assert is_plain_clock(one.clock, one.spec)
    lengths = Lengths(input_len=1500, output_len=200, spread="lognormal")
    requests = open_arrivals(np.random.default_rng(3), 600, rate * replicas, lengths)
    plain = simulate(requests, one, skip_bad=True, beyond_s=0.01, compiled=False)
    fast = simulate(requests, one, skip_bad=True, beyond_s=0.01, compiled=True)
    for column in ("admitted_s", "first_s", "finish_s"):
        np.testing.assert_allclose(getattr(fast, column), getattr(plain, column), rtol=0.0, atol=1e-9)
    np.testing.assert_array_equal(fast.preempted, plain.preempted)
    assert (fast.steps, fast.gaps, fast.blocks_left) == (plain.steps, plain.gaps, 0)
    assert fast.summary()["kv_share"] == pytest.approx(plain.summary()["kv_share"], rel=0.02)


@pytest.mark.parametrize("compiled", [False, True])
def test_samples_that_become_too_many_are_thinned_evenly(compiled: bool) -> None:
    one = pool("llama-3.1-8b", "dgx-h100", "tp=1", 1, seqs=64, tokens=400_000)
    lengths = Lengths(input_len=300, output_len=20, spread="lognormal")
    result = simulate(open_arrivals(np.random.default_rng(3), 3000, 12.0, lengths), one, compiled=compiled)
    assert result.passes > MOST_SAMPLES > len(result.samples)
    at_s = result.samples[:, 1]
    assert at_s[-1] > 0.99 * result.finish_s.max()
    assert np.diff(at_s).max() < 0.01 * at_s[-1]
