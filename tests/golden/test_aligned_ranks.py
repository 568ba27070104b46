"""Attention-dp ranks with prompts: the estimates of the search against the simulator, over ranks, loads and prompts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from rackline.arch import model
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving import Mode, Workload, open_loop
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import Stack, stack
from rackline.simulation import Lengths, Pool, open_arrivals, pool_of, simulate
from rackline.simulation.policies import POLICIES, alignments

STACKS = {
    "prefill_first": "sglang",
    "prefill_delayer": "sglang",
    "prefill_decode_interval": "sglang",
    "prefill_schedule_interval": "vllm",
    "adp_balance": "trtllm",
}
MODELS = {4: ("qwen3-235b-a22b", "dgx-h200"), 8: ("deepseek-v3", "dgx-h200"), 16: ("deepseek-v3", "gb200-nvl72")}
PROMPTS = (500, 4000)
LOADS = (0.2, 0.5, 0.8)
OUTPUT = 500
TPOT, TTFT = 0.25, 0.35  # error at any point; medians over the points of a policy are below 0.08 and 0.15
SLOWEST_S = 0.1  # a token: beyond, a few per cent of rate are tens of per cent of time
LEAST, REQUESTS = 2000, 60_000


def server(name: str, ranks: int) -> tuple[Pool, Deployment, Stack, Mode]:
    which, on = MODELS[ranks]
    found = model(which)
    split = parse_layout(f"attention_dp={ranks},ep={ranks}", found)
    one = cluster(on).with_num_chips(split.chips_per_replica)
    first = POLICIES.find(name).passes == "prompts_first"
    budget = 16384 if first else 8192
    of = stack(STACKS[name]).with_values(
        {
            "arrivals.burst_share": 0.0,
            "arrivals.synchrony": 0.0,
            "arrivals.first_token_s": 0.0,
            "arrivals.first_token_equal_s": None,
            "scheduler.max_batched_tokens": budget,
        }
    )
    deployment = Deployment(
        model=found,
        cluster=one,
        layout=split,
        precision=precision("native", found, one.chip),
        calibration=calibration(STACKS[name], one.chip),
    )
    pool = pool_of(deployment, of, policy_name=name)
    mode = Mode(
        admission="prefill_first" if first else "chunked",
        max_batched_tokens=budget,
        alignment=alignments()[name][1] if name in alignments() else None,
    )
    return replace(pool, spec=replace(pool.spec, pool_tokens=10**9, max_num_seqs=10**6)), deployment, of, mode


@pytest.mark.parametrize("ranks", MODELS)
@pytest.mark.parametrize("name", STACKS)
def test_estimates_of_ranks_with_prompts_follow_the_simulator(name: str, ranks: int) -> None:
    """Within 25 % between tokens and 35 % to the first token, medians within 8 and 15 %."""
    pool, deployment, of, mode = server(name, ranks)
    errors: list[tuple[float, float]] = []
    for prompt, load in product(PROMPTS, LOADS):
        workload = Workload(input_len=prompt, output_len=OUTPUT)
        state = open_loop(engine_of(deployment, of), workload, mode, np.geomspace(0.5, 400.0, 40))
        serves = np.isfinite(state.ttft_s) & (state.prefill_utilisation < 0.97) & (state.tpot_s < SLOWEST_S)
        serves &= np.maximum.accumulate(state.requests_per_s) == state.requests_per_s
        rate = load * float(np.max(state.requests_per_s[serves]))
        estimate = [
            float(np.interp(rate, state.requests_per_s[serves], column[serves]))
            for column in (state.tpot_s, state.ttft_s)
        ]
        count = int(np.clip(8.0 * rate * OUTPUT * estimate[0], LEAST, REQUESTS))
        lengths = Lengths(input_len=prompt, output_len=OUTPUT, spread="fixed")
        result = simulate(open_arrivals(np.random.default_rng(7), count, rate, lengths), pool)
        kept = slice(count // 4, -count // 8)
        tpot_s = float((result.finish_s - result.first_s)[kept].mean()) / (OUTPUT - 1.0)
        errors.append((estimate[0] / tpot_s - 1.0, estimate[1] / float(result.ttft_s[kept].mean()) - 1.0))
    off = np.abs(errors)
    assert np.all(off < [TPOT, TTFT]), errors
    assert np.all(np.median(off, axis=0) < [0.08, 0.15]), errors


def test_alignment_serves_more_within_a_limit_where_ranks_are_many() -> None:
    """Both by the estimate and by the simulator: more requests/s at 30 ms a token on 16 ranks."""
    found: dict[str, tuple[float, float]] = {}
    for name in ("prefill_first", "prefill_decode_interval"):
        pool, deployment, of, mode = server(name, 16)
        workload = Workload(input_len=4000, output_len=OUTPUT)
        state = open_loop(engine_of(deployment, of), workload, mode, np.geomspace(0.5, 100.0, 40))
        rate = float(np.interp(0.03, state.tpot_s, state.requests_per_s))
        lengths = Lengths(input_len=4000, output_len=OUTPUT, spread="fixed")
        result = simulate(open_arrivals(np.random.default_rng(7), 6000, rate, lengths), pool)
        tpot_s = float((result.finish_s - result.first_s)[1500:-750].mean()) / (OUTPUT - 1.0)
        assert tpot_s == pytest.approx(0.03, rel=0.25)
        found[name] = rate, tpot_s
    assert found["prefill_decode_interval"][0] > 1.5 * found["prefill_first"][0]
