"""The simulator against queueing theory, trains' closed form, `serving`, and an independent SimPy program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy

from rackline.arch import model
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving import ClosedLoop, Workload, closed_loop
from rackline.serving.blackboard import train_latency
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import Stack, stack
from rackline.simulation import (
    POLICIES,
    Lengths,
    PlainClock,
    Pool,
    RankSpec,
    Requests,
    closed_loop_of,
    open_arrivals,
    pool_of,
    simulate,
)

ROOMY = RankSpec(pool_tokens=10_000_000, max_num_seqs=4096, max_batched_tokens=1 << 20)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_place_and_equal_service_is_m_d_1(load: float) -> None:
    rng = np.random.default_rng(1)
    requests = open_arrivals(rng, 60_000, load / 0.01, Lengths(input_len=1, output_len=1))
    pool = Pool(clock=PlainClock(base_s=0.01), spec=replace(ROOMY, max_num_seqs=1), policy=POLICIES.find("chunked"))
    result = simulate(requests, pool)
    expected = load / (2.0 * (1.0 - load)) * 0.01
    assert float(result.queue_s.mean()) == pytest.approx(expected, rel=0.05)


def test_one_place_and_exponential_service_is_m_m_1() -> None:
    rng = np.random.default_rng(2)
    count, load, service_s = 40_000, 0.6, 1.0
    outputs = np.maximum(np.rint(rng.exponential(1000.0, count)), 1).astype(int)
    requests = Requests(
        arrival_s=rng.exponential(service_s / load, count).cumsum(), input_len=np.ones(count, int), output_len=outputs
    )
    pool = Pool(
        clock=PlainClock(base_s=service_s / 1000.0), spec=replace(ROOMY, max_num_seqs=1), policy=POLICIES.find("fcfs")
    )
    result = simulate(requests, pool)
    assert float(result.e2e_s.mean()) == pytest.approx(service_s / (1.0 - load), rel=0.06)
    assert result.passes < 5 * count  # a request costs a few pieces, not a thousand steps


def test_littles_law_in_a_closed_loop() -> None:
    requests = closed_loop_of(
        np.random.default_rng(3), 5000, 40, Lengths(input_len=100, output_len=50, spread="uniform")
    )
    pool = Pool(clock=PlainClock(base_s=0.01, per_prompt_token_s=1e-5), spec=ROOMY, policy=POLICIES.find("chunked"))
    result = simulate(requests, pool)
    in_flight = len(requests) / result.makespan_s * float(result.e2e_s.mean())
    assert in_flight == pytest.approx(40, rel=0.02)


def test_trains_that_never_fill_take_one_and_a_half_intervals() -> None:
    trains = replace(POLICIES.find("trains"), interval_s=0.1)
    requests = open_arrivals(np.random.default_rng(4), 20_000, 50.0, Lengths(input_len=1, output_len=1))
    result = simulate(requests, Pool(clock=PlainClock(base_s=0.05), spec=ROOMY, policy=trains))
    line = train_latency(0.1)
    assert float(result.e2e_s.mean()) == pytest.approx(float(line.mean_s), rel=0.02)
    assert float(result.e2e_s.max()) <= float(line.worst_s) + 1e-9


SERVED = [
    ("llama-3.1-8b", "dgx-h100", "tp=1", "vllm", (8, 64, 256), (1000, 200)),
    ("llama-3.1-8b", "dgx-h100", "tp=4", "vllm", (64, 256), (1000, 200)),
    ("llama-3.1-8b", "dgx-h100", "pp=2", "vllm", (8, 64, 256), (1000, 200)),
    ("llama-3.1-8b", "dgx-h100", "pp=4", "vllm", (8, 64, 256), (1000, 200)),
    ("llama-3.1-8b", "dgx-h100", "pp=4", "vllm", (64,), (4000, 500)),
    ("llama-3.1-8b", "dgx-h100", "pp=4", "sglang", (16, 128), (1000, 200)),
    ("llama-3.1-70b", "dgx-h100", "tp=4,pp=2", "vllm", (16, 256), (1000, 200)),
    ("gpt-oss-120b", "dgx-h100", "pp=8", "trtllm", (32, 256), (1000, 200)),
    ("deepseek-v3", "dgx-h200", "tp=8,ep=8", "vllm", (8, 256), (1000, 200)),
    ("deepseek-v3", "dgx-h200", "attention_dp=8,ep=8", "vllm", (64, 256), (1000, 200)),
    ("deepseek-v3", "dgx-h200", "attention_dp=8,ep=8", "vllm", (256,), (4000, 500)),
    ("deepseek-v3", "dgx-h200", "attention_dp=4,ep=4,pp=2", "vllm", (32, 256), (1000, 200)),
    ("deepseek-v3", "gb200-nvl72", "attention_dp=8,ep=8", "sglang", (64, 256), (1000, 200)),
    ("qwen3-235b-a22b", "dgx-h200", "attention_dp=8,ep=8", "vllm", (16, 128), (1000, 200)),
]


def _both_loops(
    name: str, on: str, layout: str, of: Stack, users: int, tokens: tuple[int, int]
) -> tuple[ClosedLoop, float, float]:
    """The steady state, and (tpot, whole request) of the simulator in the middle of a run [s]."""
    found = model(name)
    split = parse_layout(layout, found)
    one = cluster(on).with_num_chips(split.chips_per_replica)
    deployment = Deployment(
        model=found,
        cluster=one,
        layout=split,
        precision=precision("native", found, one.chip),
        calibration=calibration(of.name, one.chip),
    )
    input_len, output_len = tokens
    workload = Workload(input_len=float(input_len), output_len=float(output_len))
    steady = closed_loop(deployment, workload, of.scheduler.mode(), users, engine=engine_of(deployment, of))
    lengths = Lengths(input_len=input_len, output_len=output_len, spread="uniform", low=0.6)
    rounds = 25 if users > 64 else 50
    requests = closed_loop_of(np.random.default_rng(5), rounds * users, users, lengths)
    result = simulate(requests, pool_of(deployment, of), beyond_s=of.arrivals.first_token_s)
    middle = slice(5 * users, (rounds - 5) * users)
    return steady, float(np.mean(result.tpot_s[middle])), float(np.mean(result.e2e_s[middle]))


@pytest.mark.parametrize(
    ("name", "on", "layout", "of_stack", "users", "tokens"),
    [(*row[:4], users, row[5]) for row in SERVED for users in row[4]],
)
def test_a_closed_loop_agrees_with_serving(
    name: str, on: str, layout: str, of_stack: str, users: int, tokens: tuple[int, int]
) -> None:
    """Without the numbers of a stack that stand for what the simulator does by itself, or for what it does not do."""
    of = stack(of_stack).with_values(
        {"arrivals.burst_share": 0.0, "arrivals.synchrony": 0.0, "arrivals.first_token_s": 0.0}
    )
    steady, tpot_s, request_s = _both_loops(name, on, layout, of, users, tokens)
    assert tpot_s == pytest.approx(steady.tpot_s, rel=0.05)
    assert request_s == pytest.approx(steady.request_s, rel=0.05)


@pytest.mark.parametrize(
    ("name", "on", "layout", "users", "tokens", "away_s"),
    [
        ("llama-3.1-8b", "dgx-h100", "tp=1", 8, (1000, 200), None),
        ("llama-3.1-8b", "dgx-h100", "tp=1", 64, (1000, 200), None),
        ("llama-3.1-8b", "dgx-h100", "tp=1", 256, (1000, 200), None),
        ("llama-3.1-8b", "dgx-h100", "pp=4", 8, (1000, 200), None),
        ("llama-3.1-8b", "dgx-h100", "pp=4", 64, (1000, 200), None),
        ("llama-3.1-8b", "dgx-h100", "pp=4", 256, (1000, 200), None),
        ("qwen3-235b-a22b", "dgx-h200", "attention_dp=8,ep=8", 160, (4000, 500), 0.11),
    ],
)
def test_it_does_so_with_the_time_outside_of_the_passes(
    name: str, on: str, layout: str, users: int, tokens: tuple[int, int], away_s: float | None
) -> None:
    """Steps with prompts collect requests that are away, as long as they are away and as far as a pass holds them."""
    of = stack("vllm").with_values({"arrivals.burst_share": 0.0})
    of = of.with_values({"arrivals.first_token_s": of.arrivals.first_token_s if away_s is None else away_s})
    assert of.arrivals.first_token_s > 0.01
    steady, tpot_s, request_s = _both_loops(name, on, layout, of, users, tokens)
    assert tpot_s == pytest.approx(steady.tpot_s, rel=0.05)
    assert request_s == pytest.approx(steady.request_s, rel=0.05)


def _by_simpy(requests: Requests, clock: PlainClock, places: int, budget: int, *, prompts_first: bool) -> Any:
    """Continuous batching written again, one process that steps and one that brings requests."""
    env = simpy.Environment()
    count = len(requests)
    first, finish = np.full(count, np.nan), np.full(count, np.nan)
    waiting: list[int] = []
    todo = {i: int(requests.input_len[i]) for i in range(count)}
    left = {i: int(requests.output_len[i]) for i in range(count)}
    wake = [env.event()]

    def bring() -> Any:
        for index in range(count):
            yield env.timeout(float(requests.arrival_s[index]) - env.now)
            waiting.append(index)
            if not wake[0].triggered:
                wake[0].succeed()

    def serve() -> Any:
        running: list[int] = []
        while np.isnan(finish).any():
            while waiting and len(running) < places:
                running.append(waiting.pop(0))
            if not running:
                wake[0] = env.event()
                yield wake[0]
                continue
            decoding = [i for i in running if not todo[i]]
            room = budget - (0 if prompts_first else len(decoding))
            pieces: dict[int, int] = {}
            for index in running:
                if todo[index] and room > 0:
                    pieces[index] = min(todo[index], room)
                    room -= pieces[index]
            late = [i for i in running if todo[i] and i not in pieces]
            for index in reversed(late):  # did not start yet: no place was taken
                running.remove(index)
                waiting.insert(0, index)
            if prompts_first and pieces:
                decoding = []
            kv = sum(int(requests.input_len[i]) + int(requests.output_len[i]) - left[i] - 1 for i in decoding)
            yield env.timeout(
                clock.base_s
                + clock.per_sequence_s * len(decoding)
                + clock.per_kv_s * kv
                + clock.per_prompt_token_s * sum(pieces.values())
            )
            for index in decoding:
                left[index] -= 1
            for index, tokens in pieces.items():
                todo[index] -= tokens
                if not todo[index]:
                    first[index] = env.now
                    left[index] -= 1
            for index in [i for i in running if not todo[i] and not left[i]]:
                finish[index] = env.now
                running.remove(index)

    env.process(bring())
    env.process(serve())
    env.run()
    return first, finish


@pytest.mark.parametrize("name", ["chunked", "prefill-first"])
@pytest.mark.parametrize("seed", range(4))
def test_an_independent_program_finds_the_same_times(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 120
    requests = Requests(
        arrival_s=rng.exponential(0.05, count).cumsum(),
        input_len=rng.integers(1, 300, count),
        output_len=rng.integers(1, 60, count),
    )
    clock = PlainClock(base_s=0.004, per_sequence_s=1e-4, per_kv_s=1e-6, per_prompt_token_s=1e-4)
    budget = 256 if name == "chunked" else 100_000
    spec = RankSpec(pool_tokens=1_000_000, max_num_seqs=12, max_batched_tokens=budget)
    result = simulate(requests, Pool(clock=clock, spec=spec, policy=POLICIES.find(name)))
    first, finish = _by_simpy(requests, clock, 12, budget, prompts_first=name == "prefill-first")
    np.testing.assert_allclose(result.first_s, first, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(result.finish_s, finish, rtol=0.0, atol=1e-9)
