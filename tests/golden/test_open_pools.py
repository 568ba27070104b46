"""The wait for a prefill pool against the simulator: Poisson arrivals at 0.3 to 0.9 of what the pool can serve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import relative_error
from rackline.arch import model
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving import Mode, Workload
from rackline.serving.closed_loop import engine_of, prompt_passes_s, prompt_time_s
from rackline.serving.stack import stack
from rackline.simulation import Handover, Lengths, open_arrivals, pool_of, simulate

# model, cluster, prefill layout and replicas, tokens of its passes, decode layout and replicas, tokens in and out,
# share by which lengths are spread, requests/s at a load of 0.3, 0.6, 0.9 of the prefill pool
CASES = {
    "short prompts": ("llama-3.1-8b", "dgx-h100", "tp=1", 1, 8192, "tp=1", 1, 1000, 200, 0.6, (12.48, 24.96)),
    "two in turn": ("llama-3.1-8b", "dgx-h100", "tp=1", 2, 8192, "tp=1", 1, 2000, 200, 0.6, (12.23, 24.46)),
    "three before two": ("llama-3.1-8b", "dgx-h100", "tp=1", 3, 8192, "tp=1", 2, 4000, 300, 0.6, (8.818, 17.64)),
    "tp=4": ("llama-3.1-70b", "dgx-h100", "tp=4", 1, 8192, "tp=4", 1, 4096, 128, 1.0, (0.961, 1.922)),
    "three passes a prompt": ("llama-3.1-70b", "dgx-h100", "tp=4", 1, 4096, "tp=4", 1, 12000, 200, 1.0, (0.304, 0.608)),
    "tp=4 before tp=8": ("llama-3.1-70b", "dgx-h100", "tp=4", 2, 8192, "tp=8", 1, 4096, 256, 0.6, (1.922, 3.843)),
    "mixture": ("gpt-oss-120b", "dgx-h100", "tp=2", 1, 16384, "tp=2", 1, 2000, 300, 0.6, (9.548, 19.10, 26.5)),
    "pp=2": ("llama-3.1-8b", "dgx-h100", "pp=2", 1, 8192, "tp=1", 1, 2000, 200, 1.0, (12.19, 24.38, 36.57)),
    "attention-dp": (
        "qwen3-235b-a22b", "dgx-h200", "attention_dp=8,ep=8", 1, 8192, "attention_dp=8,ep=8", 1, 2000, 400, 1.0,
        (9.581, 19.16, 28.74),
    ),
    "attention-dp, mla": (
        "deepseek-v3", "dgx-h200", "attention_dp=8,ep=8", 1, 16384, "attention_dp=8,ep=8", 1, 4000, 500, 1.0,
        (3.628, 7.257),
    ),
}  # fmt: skip
REQUESTS = (2_500, 8_000, 150_000)
TOKENS_PER_S = 1e6  # of the cache between the pools


def _points() -> list[object]:
    found: list[object] = []
    for name, case in CASES.items():
        for index, rate in enumerate(case[10]):
            found.append(pytest.param(name, rate, REQUESTS[index], id=f"{name} at {rate}"))
    return found


@pytest.mark.parametrize(("name", "rate", "count"), _points())
def test_prompts_wait_as_in_the_simulator(name: str, rate: float, count: int) -> None:
    """Within 10 % to the first token, with memory for all."""
    which, on, first_layout, first_replicas, tokens, then_layout, then_replicas, *lengths, low, _ = CASES[name]
    input_len, output_len = lengths
    found, of = (
        model(which),
        stack("vllm").with_values({"arrivals.first_token_s": 0.0, "arrivals.first_token_equal_s": None}),
    )

    def deployment(text: str) -> Deployment:
        layout = parse_layout(text, found)
        one = cluster(on).with_num_chips(layout.chips_per_replica)
        types = precision("native", found, one.chip)
        return Deployment(
            model=found, cluster=one, layout=layout, precision=types, calibration=calibration("vllm", one.chip)
        )

    first, then = deployment(first_layout), deployment(then_layout)
    front = pool_of(first, of.with_values({"scheduler.max_batched_tokens": tokens}), replicas=first_replicas)
    back = pool_of(then, of, replicas=then_replicas)
    room = {"pool_tokens": 10**9, "max_num_seqs": 10**6}
    spread = "fixed" if low == 1.0 else "uniform"
    result = simulate(
        open_arrivals(
            np.random.default_rng(7),
            count,
            rate,
            Lengths(input_len=input_len, output_len=output_len, spread=spread, low=min(low, 0.9)),
        ),
        replace(back, spec=replace(back.spec, **room)),
        prefill=Handover(pool=replace(front, spec=replace(front.spec, **room)), tokens_per_s=TOKENS_PER_S),
    )
    kept = slice(count // 10, -count // 20)
    ttft_s = result.ttft_s[kept]
    assert relative_error(ttft_s) < 0.03

    work = Workload(input_len=input_len, output_len=output_len)
    passes = prompt_passes_s(engine_of(first, of), work, Mode(max_batched_tokens=tokens))
    waited_s = prompt_time_s(passes, rate / first_replicas, first_replicas)
    assert waited_s + input_len / TOKENS_PER_S == pytest.approx(float(ttft_s.mean()), rel=0.10)


def test_one_prompt_a_pass_is_the_queue_of_pollaczek() -> None:
    for load in (0.1, 0.5, 0.9):
        assert prompt_time_s(np.array([2.0]), load / 2.0) == pytest.approx(2.0 + load / (1.0 - load), rel=1e-4)


def test_prompts_in_turn_wait_as_in_a_recursion_of_lindley() -> None:
    """k replicas in turn, one prompt per pass: the wait of a request follows from that of the one before."""
    gaps = np.random.default_rng(3).gamma(3.0, 1.0 / 3.0 / 0.8, 200_000)
    waits, wait = np.empty(gaps.size), 0.0
    for index, gap in enumerate(gaps.tolist()):
        wait = max(wait + 1.0 - gap, 0.0)
        waits[index] = wait
    assert prompt_time_s(np.array([1.0]), 0.8, 3) == pytest.approx(1.0 + waits.mean(), rel=0.02)


def test_an_overloaded_pool_has_no_mean() -> None:
    assert prompt_time_s(np.array([1.0, 1.5]), 1.4) == np.inf
