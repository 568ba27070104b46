"""A closed loop of two pools against the simulator's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rackline.arch import model
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving import Workload
from rackline.serving.closed_loop import TwoPools, engine_of
from rackline.serving.stack import Stack, stack
from rackline.simulation import Handover, Lengths, closed_loop_of, pool_of, simulate

TOKENS_PER_S = 1e6  # of the cache between the pools
# model, cluster, prefill layout and replicas, decode layout and replicas, users, tokens in and out, what bounds it
CASES = {
    "few users": ("llama-3.1-8b", "dgx-h100", "tp=1", 1, "tp=1", 1, 8, 1000, 200, "concurrency"),
    "decode bound": ("llama-3.1-8b", "dgx-h100", "tp=1", 1, "tp=1", 1, 64, 1000, 500, "concurrency"),
    "prefill bound": ("llama-3.1-8b", "dgx-h100", "tp=1", 1, "tp=1", 2, 256, 4000, 200, "prefill"),
    "three before two": ("llama-3.1-8b", "dgx-h100", "tp=1", 3, "tp=1", 2, 96, 4000, 300, "concurrency"),
    "tp=2 before tp=4": ("gpt-oss-120b", "dgx-h100", "tp=2", 1, "tp=4", 1, 32, 2000, 400, "concurrency"),
    "attention-dp": (
        "qwen3-235b-a22b", "dgx-h200", "attention_dp=8,ep=8", 1, "attention_dp=8,ep=8", 1, 256, 2000, 400,
        "concurrency",
    ),
}  # fmt: skip
ROUNDS = 24


def _deployment(name: str, on: str, layout: str, replicas: int) -> Deployment:
    found = model(name)
    parts = replace(parse_layout(layout, found), dp=replicas)
    one = cluster(on).with_num_chips(parts.num_chips)
    return Deployment(
        model=found,
        cluster=one,
        layout=parts,
        precision=precision("native", found, one.chip),
        calibration=calibration("vllm", one.chip),
    )


def _pools(name: str, of: Stack) -> TwoPools:
    which, on, first_layout, first_replicas, then_layout, then_replicas, *_ = CASES[name]
    first = _deployment(which, on, first_layout, first_replicas)
    then = _deployment(which, on, then_layout, then_replicas)
    return TwoPools(prefill=first, decode=then, first=engine_of(first, of), then=engine_of(then, of))


@pytest.mark.parametrize("name", CASES)
def test_a_closed_loop_of_pools_agrees_with_the_simulator(name: str) -> None:
    """Within 5 % between tokens and of a whole request, 15 % to the first token, with memory for all."""
    users, input_len, output_len, bound = CASES[name][6:]
    of = stack("vllm").with_values(
        {"arrivals.first_token_s": 0.0, "arrivals.first_token_equal_s": None, "arrivals.burst_share": 0.0}
    )
    pools = _pools(name, of)
    single = [replace(one, layout=replace(one.layout, dp=1)) for one in (pools.prefill, pools.decode)]
    replicas = [one.layout.dp for one in (pools.prefill, pools.decode)]
    front, back = (pool_of(one, of, replicas=n) for one, n in zip(single, replicas, strict=True))
    room = {"pool_tokens": 10**9, "max_num_seqs": 10**6}
    requests = closed_loop_of(
        np.random.default_rng(5),
        ROUNDS * users,
        users,
        Lengths(input_len=input_len, output_len=output_len, spread="uniform", low=0.8),
    )
    result = simulate(
        requests,
        replace(back, spec=replace(back.spec, **room)),
        prefill=Handover(pool=replace(front, spec=replace(front.spec, **room)), tokens_per_s=TOKENS_PER_S),
    )
    kept = slice(6 * users, (ROUNDS - 4) * users)
    ttft_s = float(result.ttft_s[kept].mean())
    decode_s = float((result.finish_s - result.first_s)[kept].mean())

    found = pools.closed_loop(Workload(input_len=input_len, output_len=output_len), users)
    moved = input_len / TOKENS_PER_S - found.transfer_s
    assert found.bound == bound
    assert found.tpot_s == pytest.approx(decode_s / (output_len - 1.0), rel=0.05)
    assert found.ttft_s + moved == pytest.approx(ttft_s, rel=0.15)
    assert found.request_s + moved == pytest.approx(ttft_s + decode_s, rel=0.05)


def test_littles_law_holds_at_every_number_of_users() -> None:
    pools = _pools("three before two", stack("vllm"))
    work = Workload(input_len=4000, output_len=300)
    before = 0.0
    for users in (1, 4, 16, 64, 256, 1024, 4096):
        found = pools.closed_loop(work, users)
        rate = found.output_tokens_per_s / work.output_len
        assert rate * (found.ttft_s + (work.output_len - 1.0) * found.tpot_s) == pytest.approx(users, rel=2e-3)
        assert found.output_tokens_per_s >= before * (1.0 - 1e-9)
        before = found.output_tokens_per_s


def test_a_full_decode_pool_bounds_the_batch() -> None:
    pools = _pools("few users", stack("vllm").with_values({"scheduler.max_num_seqs": 16}))
    found = pools.closed_loop(Workload(input_len=100, output_len=800), 64)
    assert found.bound == "max_num_seqs"
    assert found.decoding == pytest.approx(16.0)


def test_no_users_are_refused() -> None:
    with pytest.raises(InputError, match="concurrency"):
        _pools("few users", stack("vllm")).closed_loop(Workload(input_len=100, output_len=100), 0)


def test_waits_of_fuller_prefill_pools_go_on_along_their_last_line() -> None:
    """Beyond the highest load that is worked out (0.92) waits grow with 1 / (1 - load), as between the last two."""
    pools, work = _pools("decode bound", stack("vllm")), Workload(input_len=2000, output_len=200)
    free = np.array([1 / 0.15, 1 / 0.08, 20.0, 50.0])
    waits = pools._first_s(work, 1.0 - 1.0 / free)
    slopes = np.diff(waits) / np.diff(free)
    assert slopes[0] > 0.0
    assert slopes == pytest.approx(slopes[0])
