"""Continuous batching in steady state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import deploy
from rackline.errors import InputError
from rackline.passes import Batch
from rackline.serving.prompt_queue import busiest_share
from rackline.serving.steady import Engine, SteadyState, steady_state
from rackline.serving.workload import Mode, Workload

WORK = Workload(input_len=4000, output_len=1000)
MODES = [
    Mode(admission="chunked", max_batched_tokens=2048),
    Mode(admission="chunked", max_batched_tokens=8192),
    Mode(admission="prefill_first", max_batched_tokens=16384),
]
BATCHES = np.array([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0])


def engine(name: str = "llama-3.1-70b", layout: str = "tp=8", on: str = "dgx-h200") -> Engine:
    d = deploy(name, layout, on=on, label="fp8")
    return Engine(table=d.table(), attention_dp=float(d.layout.attention_dp), stage_imbalance=d.stage_imbalance)


ENGINE = engine()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.label())
def test_a_token_takes_at_least_a_decode_step(mode: Mode) -> None:
    state = steady_state(ENGINE, WORK, mode, BATCHES)
    assert np.all(state.tpot_s >= state.decode_s)
    assert np.all((state.prefill_cost_share >= 0) & (state.prefill_cost_share < 1))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.label())
def test_prompt_tokens_in_and_out_balance(mode: Mode) -> None:
    """Share of steps with prompts times the prompt tokens of such a step = arrivals a step times prompt length."""
    seen: list[Batch] = []

    class Spy(Engine):
        __slots__ = ()

        def seconds(self, batch: Batch, times, *, two_batch_overlap: bool, threads: int = 1):  # type: ignore[no-untyped-def]
            seen.append(batch)
            return super().seconds(batch, times, two_batch_overlap=two_batch_overlap, threads=threads)

    spy = Spy(table=ENGINE.table, attention_dp=1.0)
    state = steady_state(spy, WORK, mode, BATCHES)
    mixed = seen[-2]  # the last pass is one full of prompts
    kept = state.prefill_utilisation < 1
    carried = state.prefill_share * np.asarray(mixed.prefill_sequences) * np.asarray(mixed.chunk_tokens)
    arrivals = BATCHES / (WORK.output_len - 1.0)
    np.testing.assert_allclose(carried[kept], (arrivals * WORK.new_tokens)[kept], rtol=1e-12)
    assert kept[:4].all()
    room = mode.max_batched_tokens - (BATCHES if mode.admission == "chunked" else 0.0)
    tokens = np.asarray(mixed.prefill_sequences) * np.asarray(mixed.chunk_tokens)
    assert np.all(tokens <= room * (1 + 1e-12))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.label())
def test_more_load_waits_longer(mode: Mode) -> None:
    state = steady_state(ENGINE, WORK, mode, BATCHES)
    assert np.all(np.diff(state.ttft_s[np.isfinite(state.ttft_s)]) > 0)
    assert np.all(np.diff(state.tpot_s) > 0)
    assert np.all(np.diff(state.prefill_utilisation) > 0)


def test_a_prefill_path_that_is_full_never_answers() -> None:
    """1024 sequences of 20,000 new tokens and 100 answers: prompts need far more than the room of 2048."""
    work = Workload(input_len=20000, output_len=100)
    state = steady_state(ENGINE, work, MODES[0], np.array([1.0, 2.0, 64.0, 1024.0]))
    over = state.prefill_utilisation >= 1.0
    assert over.tolist() == [False, False, True, True]
    assert np.isinf(state.ttft_s[over]).all()
    assert np.isfinite(state.ttft_s[~over]).all()
    assert state.prefill_share.max() == 1.0


def test_prefill_first_slows_down_but_never_breaks() -> None:
    work = Workload(input_len=20000, output_len=100)
    state = steady_state(ENGINE, work, MODES[2], np.array([1024.0]))
    assert state.prefill_utilisation[0] == state.prefill_cost_share[0] < 1
    assert state.prefill_share[0] > 1


def test_the_limit_of_no_prompts_is_pure_decoding() -> None:
    """A prompt of one token and an endless answer."""
    work = Workload(input_len=1, output_len=10_000_000)
    state = steady_state(ENGINE, work, MODES[1], np.array([8.0]))
    assert state.tpot_s[0] == pytest.approx(state.decode_s[0], rel=1e-4)
    assert state.prefill_cost_share[0] < 1e-4


def test_by_hand_for_prefill_first() -> None:
    b, mode = 32.0, MODES[2]
    state = steady_state(ENGINE, WORK, mode, b)
    table = ENGINE.table
    decode = float(table.seconds(Batch(decode_sequences=b, context_len=4500.0)))
    arrivals = b / 999.0
    share = 1 - np.exp(-arrivals)
    carried = arrivals * 4000.0 / share
    prefill = float(table.seconds(Batch(prefill_sequences=carried / 4000.0, chunk_tokens=4000.0)))
    assert float(state.decode_s) == pytest.approx(decode)
    assert float(state.mixed_s) == pytest.approx(prefill)
    assert float(state.tpot_s) == pytest.approx(decode + share * prefill)
    rho = share * prefill / float(state.tpot_s)
    assert float(state.ttft_s) == pytest.approx(0.5 * float(state.tpot_s) + prefill * (1 + rho / (2 * (1 - rho))))


def test_a_cached_prompt_costs_less() -> None:
    cold, warm = (
        steady_state(ENGINE, Workload(input_len=8000, output_len=500, cache_hit=hit), MODES[1], 64.0)
        for hit in (0.0, 0.9)
    )
    assert float(warm.ttft_s) < float(cold.ttft_s)
    assert float(warm.tpot_s) < float(cold.tpot_s)
    assert float(warm.decode_s) == float(cold.decode_s)


@pytest.mark.parametrize("overlap", [False, True])
def test_shapes_agree_with_points(overlap: bool) -> None:
    moe = engine("deepseek-v3", "attention_dp=16,ep=16", "gb200-nvl72")
    mode = Mode(two_batch_overlap=overlap)
    together = steady_state(moe, WORK, mode, BATCHES)
    for index, batch in enumerate(BATCHES):
        alone = steady_state(moe, WORK, mode, batch)
        for name in SteadyState.__slots__:
            assert float(getattr(alone, name)) == pytest.approx(
                float(np.broadcast_to(getattr(together, name), BATCHES.shape)[index]), rel=1e-9
            )


def test_two_half_batches_read_the_weights_twice() -> None:
    moe = engine("deepseek-v3", "attention_dp=16,ep=16", "gb200-nvl72")
    batch = Batch(decode_sequences=64.0, context_len=4000.0)
    whole = moe.seconds(batch, moe.time_table(False), two_batch_overlap=False)
    half = Batch(decode_sequences=32.0, context_len=4000.0, group_tokens=32.0 * 16)
    split = moe.seconds(batch, moe.time_table(True), two_batch_overlap=True)
    assert float(split) == pytest.approx(2 * float(moe.table.seconds(half, "overlap")))
    full = Batch(decode_sequences=64.0, context_len=4000.0, group_tokens=64.0 * 16)
    assert float(whole) == pytest.approx(float(moe.table.seconds(full)))


def test_a_pipeline_waits_for_its_fullest_stage() -> None:
    staged = engine("llama-3.1-70b", "tp=2,pp=3", "dgx-h200")
    plain = Engine(table=staged.table, attention_dp=1.0)
    batch = Batch(decode_sequences=8.0, context_len=100.0)
    slow, mean = (float(e.seconds(batch, e.time_table(False), two_batch_overlap=False)) for e in (staged, plain))
    assert slow / mean == pytest.approx(81 / 80)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"input_len": 0, "output_len": 10}, "input_len: got 0, allowed: at least 1 token; nearest: 1"),
        ({"input_len": 10, "output_len": 1}, "output_len: got 1, allowed: at least 2 tokens; nearest: 2"),
        ({"input_len": float("nan"), "output_len": 9}, "input_len: got nan"),
        ({"input_len": 10, "output_len": -5}, "output_len: got -5"),
        ({"input_len": 10, "output_len": 9, "cache_hit": 1.0}, "cache_hit: got 1.0, allowed: 0 to below 1"),
    ],
)
def test_bad_workloads(kept: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Workload(**kept)


def test_workload_lengths() -> None:
    work = Workload(input_len=4000, output_len=1000, cache_hit=0.75)
    assert (work.new_tokens, work.cached_tokens) == (1000.0, 3000.0)
    assert (work.mean_context, work.final_context) == (4500.0, 5000.0)


@pytest.mark.parametrize("mean", [0.01, 0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("peers", [1, 2, 8, 64])
def test_the_busiest_of_peers_is_that_of_drawn_arrivals(mean: float, peers: int) -> None:
    drawn = np.random.default_rng(0).poisson(mean, (40_000, peers))
    most = drawn.max(axis=1)
    expected = most[most > 0].mean() / drawn[drawn > 0].mean()
    assert float(busiest_share(mean, peers)) == pytest.approx(expected, rel=0.02)


def test_the_busiest_is_found_for_layouts_and_points_alike() -> None:
    means, peers = np.array([[0.1, 1.0, 5.0], [0.2, 2.0, 7.0]]), np.array([[1.0], [8.0]])
    found = busiest_share(means, peers)
    one_by_one = [
        [float(busiest_share(mean, count)) for mean in row] for row, (count,) in zip(means, peers, strict=True)
    ]
    np.testing.assert_array_equal(found, one_by_one)
    np.testing.assert_array_equal(busiest_share(means[1], 8.0), found[1])


def test_micro_batches_wait_for_the_one_with_prompts() -> None:
    """Of four micro-batches one with a prompt holds up all, so prompts cost more; without prompts nothing changes."""
    one, four = ENGINE, replace(ENGINE, micro_batches=4.0)
    alone, together = steady_state(one, WORK, MODES[1], BATCHES), steady_state(four, WORK, MODES[1], BATCHES)
    np.testing.assert_array_equal(together.decode_s, alone.decode_s)
    rare = BATCHES / WORK.output_len < 0.01
    extra = (together.tpot_s - together.decode_s) / (alone.tpot_s - alone.decode_s)
    np.testing.assert_allclose(extra[rare], 4.0, rtol=0.03)
    assert np.all(np.diff(extra) < 0)
    assert np.all(extra > 1)
