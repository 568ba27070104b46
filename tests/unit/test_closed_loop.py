"""Closed loops: Little's law, what bounds the decoding requests, static batches, peak throughput."""

from __future__ import annotations

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError
from rackline.serving import IDEAL, Mode, Workload, closed_loop, max_throughput, static_batch
from rackline.serving.closed_loop import ClosedLoop, closed_loops, engine_of
from rackline.serving.stack import stack
from rackline.serving.steady import steady_state
from rackline.simulation import Requests, pool_of, simulate

MODEL = rl.model("llama-3.1-8b")
NODE = rl.cluster("dgx-h100").with_num_chips(2)


def deployment(dp: int = 1, on=NODE) -> rl.Deployment:  # type: ignore[no-untyped-def]
    return rl.Deployment(
        model=MODEL,
        cluster=on,
        layout=rl.Layout(dp=dp),
        precision=rl.precision("bf16", MODEL, on.chip),
        calibration=rl.calibration("generic", on.chip),
    )


@pytest.mark.parametrize("concurrency", [1, 7, 64, 300])
def test_requests_in_flight_are_decoding_or_waiting(concurrency: int) -> None:
    """Little's law: requests in flight = completions per second × time of a request."""
    work = Workload(input_len=1000, output_len=200)
    found = closed_loop(deployment(), work, Mode(), concurrency)
    assert found.request_s == pytest.approx(found.ttft_s + 199 * found.tpot_s)
    completions = found.decoding / (199 * found.tpot_s)
    assert completions * found.request_s == pytest.approx(concurrency, rel=0.02)
    assert found.output_tokens_per_s == pytest.approx(found.decoding / found.tpot_s)


def test_replicas_share_the_requests() -> None:
    work = Workload(input_len=1000, output_len=200)
    one, two = (closed_loop(deployment(dp), work, Mode(), 32 * dp) for dp in (1, 2))
    assert two.tpot_s == pytest.approx(one.tpot_s)
    assert two.output_tokens_per_s == pytest.approx(2 * one.output_tokens_per_s)


def test_memory_bounds_the_decoding_requests_and_the_rest_wait() -> None:
    work = Workload(input_len=30000, output_len=2000)
    d = deployment()
    held = d.max_sequences(context_len=work.mean_context, server=IDEAL.server_memory(8192))
    roomy, tight = (closed_loop(d, work, Mode(), c) for c in (held // 2, held * 4))
    assert roomy.bound == "concurrency"
    assert tight.bound in ("memory", "prefill")
    assert tight.decoding <= held
    assert tight.ttft_s > 10 * roomy.ttft_s


def test_the_engine_runs_no_more_than_max_num_seqs() -> None:
    d = deployment()
    engine = engine_of(d, IDEAL.with_values({"scheduler.max_num_seqs": 16}))
    found = closed_loop(d, Workload(input_len=100, output_len=500), Mode(), 200, engine=engine)
    assert found.bound == "max_num_seqs"
    assert found.decoding == pytest.approx(16)


def test_long_prompts_bound_a_chunked_engine_by_its_prefill_path() -> None:
    found = closed_loop(deployment(), Workload(input_len=16000, output_len=20), Mode(), 60)
    assert found.bound == "prefill"


def test_effects_of_a_stack_each_cost_time() -> None:
    work = Workload(input_len=2000, output_len=200)
    on = rl.cluster("dgx-h100")
    d = rl.Deployment(
        model=MODEL,
        cluster=on,
        layout=rl.Layout(tp=8),
        precision=rl.precision("bf16", MODEL, on.chip),
        calibration=rl.calibration("generic", on.chip),
    )
    plain = closed_loop(d, work, Mode(), 64)
    for change in (
        {"kernels.rank_skew_s": 2e-6},
        {"graphs.prefill_slowdown": 1.3},
        {"graphs.eager_s_per_layer": 1e-3},
        {"graphs.eager_s_per_layer": 1e-3, "graphs.eager_decode": True},
    ):
        slower = closed_loop(d, work, Mode(), 64, engine=engine_of(d, IDEAL.with_values(change)))
        assert slower.tpot_s > plain.tpot_s, change
    late = closed_loop(
        d,
        work,
        Mode(),
        64,
        engine=engine_of(d, IDEAL.with_values({"arrivals.first_token_s": 0.5, "arrivals.burst_share": 0.1})),
    )
    assert late.ttft_s > plain.ttft_s + 0.4


def test_static_batch_adds_up_and_grows() -> None:
    small, large = (static_batch(deployment(), b, 512, 32) for b in (1, 64))
    assert small.total_s == pytest.approx(small.prefill_s + 31 * small.token_s)
    assert large.prefill_s > 10 * small.prefill_s
    assert large.token_s > small.token_s
    assert static_batch(deployment(), 1, 512, 1).total_s == small.prefill_s


def test_peak_throughput_is_the_loop_without_end() -> None:
    work = Workload(input_len=500, output_len=500)
    peak = max_throughput(deployment(), work, Mode())
    loop = closed_loop(deployment(), work, Mode(), 400)
    assert peak.output_tokens_per_s > loop.output_tokens_per_s
    assert peak.bound in ("memory", "prefill", "max_num_seqs")


def test_bad_input() -> None:
    with pytest.raises(InputError, match="concurrency"):
        closed_loop(deployment(), Workload(input_len=10, output_len=10), Mode(), 0)
    large = rl.model("llama-3.1-405b")
    small = rl.cluster("dgx-h100").with_num_chips(1)
    d = rl.Deployment(
        model=large,
        cluster=small,
        layout=rl.Layout(),
        precision=rl.precision("bf16", large, small.chip),
        calibration=rl.calibration("unit"),
    )
    with pytest.raises(InputError, match="no memory for one request"):
        closed_loop(d, Workload(input_len=10, output_len=10), Mode(), 1)


def test_decode_first_never_disturbs_decoding_and_keeps_littles_law() -> None:
    """The whole batch is prefilled, then decodes alone: the fastest tokens, the longest wait for the first one."""
    work = Workload(input_len=2000, output_len=200)
    chunked, alone = (closed_loop(deployment(), work, Mode(admission=name), 64) for name in ("chunked", "decode_first"))
    assert alone.tpot_s == pytest.approx(alone.decode_s)
    assert alone.tpot_s < chunked.tpot_s
    assert alone.ttft_s > chunked.ttft_s
    assert alone.decoding == pytest.approx(64, rel=0.02)
    completions = alone.output_tokens_per_s / 199
    assert completions * alone.request_s == pytest.approx(64, rel=0.02)


def test_decode_first_in_an_open_loop_waits_for_half_a_cycle() -> None:
    work = Workload(input_len=2000, output_len=200)
    engine = engine_of(deployment())
    state = steady_state(engine, work, Mode(admission="decode_first"), np.array([16.0, 64.0]))
    cycle = state.hold_s + 199 * state.tpot_s
    assert state.ttft_s == pytest.approx(0.5 * cycle + state.hold_s)
    assert state.hold_s[1] == pytest.approx(4 * state.hold_s[0])
    assert np.all(state.prefill_utilisation < 1)


def test_first_token_depends_on_how_lengths_are_drawn() -> None:
    stack = IDEAL.with_values({"arrivals.first_token_s": 0.1, "arrivals.first_token_equal_s": 0.3})
    spread, equal = (Workload(input_len=500, output_len=100, equal_lengths=e) for e in (False, True))
    found = [closed_loop(deployment(), w, Mode(), 8, engine=engine_of(deployment(), stack)) for w in (spread, equal)]
    assert found[1].ttft_s - found[0].ttft_s == pytest.approx(0.2, abs=0.01)
    alone = IDEAL.with_values({"arrivals.first_token_s": 0.1})
    assert alone.arrivals.beyond_passes_s(equal) == alone.arrivals.beyond_passes_s(spread) == 0.1


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_first_burst_adds_prompts_of_the_others(share: float) -> None:
    users, work = 32, Workload(input_len=1000, output_len=200)
    engine = engine_of(deployment(), IDEAL.with_values({"arrivals.burst_share": share}))
    found = closed_loop(deployment(), work, Mode(), users, engine=engine)
    state = steady_state(engine, work, Mode(), np.array([found.decoding]))
    expected = state.ttft_s + share * (users - 1) * state.prompt_s
    assert found.ttft_s == pytest.approx(float(expected[0]), rel=0.01)


def test_only_requests_of_one_length_keep_in_step() -> None:
    """Under SGLang 0.5 the others' prompts are waited for by equal requests; varied ones wait as under vLLM."""
    around, users = stack("sglang"), 32
    engine = engine_of(deployment(), around)
    for equal, share in ((True, around.arrivals.burst_equal_share), (False, stack("vllm").arrivals.burst_share)):
        work = Workload(input_len=4000, output_len=400, equal_lengths=equal)
        found = closed_loop(deployment(), work, around.scheduler.mode(), users, engine=engine)
        state = steady_state(engine, work, around.scheduler.mode(), np.array([found.decoding]))
        assert share is not None
        waited = (found.ttft_s - float(state.ttft_s[0])) / ((users - 1) * float(state.prompt_s[0]))
        assert waited == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize(("users", "input_len"), [(4, 1000), (32, 1000), (8, 6000)])
def test_a_first_burst_waits_as_long_as_in_the_simulator(users: int, input_len: int) -> None:
    """One request a user, all at once: the mean time to first token is that of the burst."""
    d, work = deployment(), Workload(input_len=input_len, output_len=200)
    found = closed_loops(d, [work], Mode(), np.array([float(users)]), rounds=np.array([1.0]))[0]
    assert isinstance(found, ClosedLoop)
    sizes = (np.full(users, length, dtype=np.int64) for length in (input_len, 200))
    run = simulate(Requests(arrival_s=np.zeros(users), **dict(zip(("input_len", "output_len"), sizes, strict=True))),
                   pool_of(d, IDEAL))  # fmt: skip
    assert found.ttft_s == pytest.approx(float(np.mean(run.ttft_s)), rel=0.15)


def test_the_first_burst_counts_by_its_share_of_the_requests() -> None:
    d, work = deployment(), Workload(input_len=2000, output_len=200)
    users = np.array([32.0])

    def ttft(rounds: float | None) -> float:
        found = closed_loops(d, [work], Mode(), users, rounds=None if rounds is None else np.array([rounds]))[0]
        assert isinstance(found, ClosedLoop)
        return found.ttft_s

    endless, first = ttft(None), ttft(1.0)
    assert first > 3.0 * endless
    assert ttft(10.0) == pytest.approx(0.9 * endless + 0.1 * first)
    assert ttft(float("inf")) == pytest.approx(endless)


def test_prompts_wait_for_others_to_join_their_pass() -> None:
    """At little load a prompt waits all of the steps; where others join, they wait less on average."""
    d, work, steps = deployment(), Workload(input_len=1000, output_len=1000), 20
    patient = engine_of(d, IDEAL.with_values({"scheduler.batch_wait_steps": steps}))
    for users, least, most in ((1, 0.95, 1.0), (150, 0.5, 0.75)):
        alone, waits = (closed_loop(d, work, Mode(), users, engine=engine) for engine in (engine_of(d), patient))
        assert least < (waits.ttft_s - alone.ttft_s) / (steps * waits.tpot_s) < most
