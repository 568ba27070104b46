"""Servers of deployments: what a sequence takes of the pool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rackline.arch import model
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.parallel import Deployment, Layout, precision
from rackline.parallel.memory import kv_bytes_per_sequence, kv_size
from rackline.passes import calibration
from rackline.serving.stack import stack
from rackline.simulation import Handover, Lengths, RankSpec, open_arrivals, pool_of, simulate


def deployed(name: str, on: str = "dgx-h100", chips: int = 1) -> Deployment:
    of, rack = model(name), cluster(on).with_num_chips(chips)
    return Deployment(
        model=of,
        cluster=rack,
        layout=Layout(),
        precision=precision("native", of, rack.chip),
        calibration=calibration("vllm", rack.chip),
    )


@pytest.mark.parametrize("name", ["llama-3.1-8b", "phi-mini-moe", "gpt-oss-20b"])
def test_blocks_hold_what_a_sequence_has_cached(name: str) -> None:
    """Full attention, windows alone, and both."""
    found = deployed(name)
    size = kv_size(found.model, found.layout, found.precision)
    unit, fixed = size.in_tokens(16)
    spec = pool_of(found, stack("vllm")).spec
    assert spec.fixed_tokens == fixed
    for tokens in (4096, 32768):
        cached = float(kv_bytes_per_sequence(found.model, found.layout, found.precision, float(tokens)))
        assert spec.blocks_of(tokens) * 16 * unit == pytest.approx(cached, rel=0.01)


def test_sequences_with_windows_alone_do_not_grow() -> None:
    """Long answers run side by side as far as the windows fit, and are never preempted."""
    pool = pool_of(deployed("phi-mini-moe"), stack("vllm"))
    assert not pool.spec.grows
    assert pool.spec.reserve == "final"
    assert pool.spec.blocks_of(100) == pool.spec.blocks_of(100_000)
    requests = open_arrivals(np.random.default_rng(1), 60, 50.0, Lengths(input_len=3000, output_len=2000))
    result = simulate(requests, pool)
    assert (result.finish_s > 0).all()
    assert result.preempted.sum() == 0
    assert result.blocks_left == 0


def test_what_does_not_grow_is_reserved_whole() -> None:
    with pytest.raises(InputError, match="final"):
        RankSpec(pool_tokens=1000, fixed_tokens=100, grows=False, reserve="chunk")


def test_several_streams_and_windows_step_by_step() -> None:
    """On the blackboard a pass is the longest of its resources, and windows bend it: no line, all steps as arrays."""
    found = replace(deployed("gpt-oss-20b"), calibration=calibration("unit"))
    pool = pool_of(found, stack("vllm"))
    requests = open_arrivals(np.random.default_rng(1), 20, 5.0, Lengths(input_len=50, output_len=200))
    jumped, stepped = simulate(requests, pool), simulate(requests, pool, stepwise=True)
    assert jumped.finish_s == pytest.approx(stepped.finish_s, rel=1e-9)


def test_a_cache_takes_its_way_to_the_other_pool() -> None:
    """Latency and bytes of the link come between the end of a prompt and its first token."""
    pool = pool_of(deployed("llama-3.1-8b"), stack("vllm"))
    requests = open_arrivals(np.random.default_rng(1), 20, 0.1, Lengths(input_len=3000, output_len=20))
    at_once, late = (
        simulate(requests, pool, prefill=Handover(pool=pool, tokens_per_s=rate, latency_s=latency_s)).ttft_s
        for rate, latency_s in ((np.inf, 0.0), (10_000.0, 0.5))
    )
    np.testing.assert_allclose(late - at_once, 0.5 + 3000 / 10_000.0, rtol=1e-6)
