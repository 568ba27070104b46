"""Rollouts with turns, tools, drafts and measured lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rackline as rl
from rackline import arch
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import NO_TOOLS, AnswerLengths, RlJob, RlOverheads, Tools
from rackline.posttraining.rollout import RolloutEngine, emptying, turn_by_turn, under_ray
from rackline.serving.workload import PLAIN, Speculation
from rackline.system import System

RACK = cluster("dgx-h100").with_num_chips(8)
LENGTHS = AnswerLengths(mean=500.0, spread=0.6, longest=2000.0)


def engine(
    tools: Tools = NO_TOOLS, speculation: Speculation = PLAIN, lengths: AnswerLengths = LENGTHS
) -> RolloutEngine:
    model = arch.model("llama-3.1-8b")
    types = [precision("bf16", model, RACK.chip)]
    system = System.of(model, RACK, calibration=calibration("vllm", RACK.chip), precisions=types)
    job = RlJob.of(
        system, prompts=16, generations=32, prompt_len=100.0, lengths=lengths, tools=tools, speculation=speculation,
        overheads=RlOverheads(decode_step_s=0.0),
    )  # fmt: skip
    return RolloutEngine.of(RACK, Layout(tp=1, dp=8), job)


def ticking(lengths: list[float], pauses: list[list[float]], token_s: list[float], tick: float) -> float:
    """When the last answer ends, in small steps of time: a second hand without events [s]."""
    left = [[length / (len(pauses[0]) + 1)] * (len(pauses[0]) + 1) for length in lengths]
    away = [0.0] * len(lengths)
    now = 0.0
    while any(left):
        at_work = [i for i, turns in enumerate(left) if turns and away[i] <= now]
        for i in at_work:
            left[i][0] -= tick / token_s[len(at_work) - 1]
            if left[i][0] <= 1e-12:
                left[i].pop(0)
                if left[i]:
                    away[i] = now + tick + pauses[i][len(pauses[i]) - len(left[i])]
        now += tick
    return now


def test_turns_end_when_a_clock_of_small_ticks_says() -> None:
    rng = np.random.default_rng(3)
    lengths, pauses = rng.uniform(2.0, 20.0, 5), rng.exponential(1.5, (5, 3))
    token_s = np.array([0.10, 0.11, 0.13, 0.16, 0.20])
    times, running = turn_by_turn(lengths, pauses, 5, token_s)
    expected = ticking(lengths.tolist(), pauses.tolist(), token_s.tolist(), 0.0005)
    assert times[-1] == pytest.approx(expected, rel=2e-3)
    gained = np.diff(times) * running / np.append(1.0, token_s)[running.astype(int)]
    assert gained.sum() == pytest.approx(lengths.sum())


@pytest.mark.parametrize("slots", [1, 3, 9])
def test_tools_that_take_no_time_change_nothing(slots: int) -> None:
    lengths = np.random.default_rng(5).uniform(1.0, 50.0, 9)
    times, running = turn_by_turn(lengths, np.zeros((9, 3)), slots, np.full(slots, 0.5))
    assert float((np.diff(times) / 0.5 * running).sum()) == pytest.approx(lengths.sum())
    if slots == 9:
        assert times[-1] == pytest.approx(emptying(lengths, 9)[0][-1] * 0.5)


def test_pauses_lengthen_a_batch_by_no_more_than_the_longest_of_them() -> None:
    plain, tools = engine(), Tools(pauses=4, seconds=5.0)
    paused = engine(tools)
    longest = tools.drawn(64, np.random.default_rng(0)).sum(axis=1).max()
    first, second = plain.batch(512, LENGTHS).seconds, paused.batch(512, LENGTHS).seconds
    assert first < second < first + longest + 1.0
    assert second > longest
    tokens = engine(Tools(pauses=4, seconds=5.0, returned=400.0))
    assert tokens.prefill_s(64) == pytest.approx(plain.prefill_s(64) * (100 / 32 + 1600) / (100 / 32), rel=1e-6)


def test_without_a_pause_between_batches_answers_that_wait_take_slots() -> None:
    few = {"in_flight": 64.0, "whole_in": float("inf")}
    waits = engine(Tools(pauses=4, seconds=60.0))
    assert waits.steady_s(512, LENGTHS, **few) > 2.0 * engine().steady_s(512, LENGTHS, **few)
    # Little's law: 8 of a rank's 64 answers in flight, each at least 240 s away
    assert waits.steady_s(512, LENGTHS, **few) >= 64 / 8 * 240.0


def test_drafts_shorten_rollouts_by_what_a_step_yields_less_its_cost() -> None:
    drafted = engine(speculation=Speculation(draft_tokens=2, tokens_per_step=2.2))
    ratio = engine().batch(64, LENGTHS).seconds / drafted.batch(64, LENGTHS).seconds
    assert 1.3 < ratio < 2.2


def test_measured_lengths_are_drawn_as_they_are() -> None:
    measured = np.concatenate([np.full(90, 100.0), np.full(10, 5000.0)])
    lengths = AnswerLengths.of(measured)
    assert (lengths.mean, lengths.longest) == (590.0, 5000.0)
    drawn = lengths.sorted_lengths(1000)
    assert drawn.mean() == pytest.approx(590.0, rel=0.01)
    assert np.median(drawn) == 100.0
    even = AnswerLengths(mean=590.0, spread=0.0, longest=5000.0)
    assert engine(lengths=lengths).batch(64, lengths).seconds > 4.0 * engine(lengths=even).batch(64, even).seconds


def test_files_of_lengths_are_read(tmp_path: Path) -> None:
    plain, table = tmp_path / "lengths.txt", tmp_path / "trace.csv"
    plain.write_text("100\n300\n\n800\n")
    table.write_text("timestamp,input_tokens,output_tokens\n0,50,100\n1,150,300\n2,100,800\n")
    asked = {"on": "dgx-h100", "chips": 8, "prompts": 8, "generations": 4}
    one = rl.rl("llama-3.1-8b", trace=str(plain), input="100", **asked).result.job
    other = rl.rl("llama-3.1-8b", trace=str(table), **asked).result.job
    assert one.lengths == other.lengths
    assert (one.prompt_len, other.prompt_len) == (100.0, 100.0)
    assert replace(one.lengths, measured=()) == AnswerLengths(
        mean=400.0, spread=float(np.std([100, 300, 800]) / 400.0), longest=800.0
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tool-time", "3s"], "only with --turns"),
        (["--speculate", "3=9"], "1 to 4"),
        (["--trace", "LENGTHS", "--output", "3k"], "only without --trace"),
        (["--trace", "BAD"], "answers of 1 to"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "LENGTHS").write_text("100\n")
    (tmp_path / "BAD").write_text("100\n-3\n")
    words = [str(tmp_path / word) if word in ("LENGTHS", "BAD") else word for word in options]
    assert run(["rl", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "8", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_mean_of_measured_lengths_below_a_token_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 token"):
        AnswerLengths.of(np.array([0.0, 0.5]))


@pytest.mark.parametrize(
    ("stack", "step_s", "each_s"), [("vllm=0.17.1", 1.47e-3, 38e-6), ("vllm=0.11.2", 0.0, 0.0), ("sglang", 0.0, 0.0)]
)
def test_an_engine_under_ray_prepares_no_step_ahead(stack: str, step_s: float, each_s: float) -> None:
    """The host takes what it took in each step before steps were prepared ahead, and only where Ray drives engines."""
    model = arch.model("llama-3.1-8b")
    types = [precision("bf16", model, RACK.chip)]
    system = System.of(model, RACK, calibration=calibration(stack, RACK.chip), precisions=types)
    driven = under_ray(system)
    found = driven.calibration.host_s_per_step - system.calibration.host_s_per_step
    assert found == pytest.approx(step_s)
    assert driven.stack.host.s_per_sequence - system.stack.host.s_per_sequence == pytest.approx(each_s)
    job = RlJob.of(system, prompts=16, generations=32, prompt_len=100.0, lengths=LENGTHS)
    alone, several = (RolloutEngine.of(RACK, Layout(tp=tp, dp=8 // tp), job) for tp in (1, 2))
    assert alone.system.stack == system.stack
    assert several.system.stack == driven.stack
    one, context = np.array([1.0]), np.array([500.0])
    before = replace(several, engine=system.engine(Layout(tp=2, dp=4)))
    longer_s = float((several.token_s(one, context) - before.token_s(one, context))[0])
    assert step_s <= longer_s <= step_s + each_s
