"""A step of reinforcement learning: lengths, the batch that empties, both sides, modes, the search, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import call, call_json
from rackline import arch
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.hardware.chip import host_bytes_per_s
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import AnswerLengths, RlJob, RlOverheads, first_fit, updates_of
from rackline.posttraining.plan import (
    RlStep,
    Schedule,
    engines_of,
    given_step,
    num_tensors,
    offload_s,
    rl_plan,
    run_of,
    transfer_s,
    what_twice_gives,
)
from rackline.posttraining.rollout import RolloutEngine, emptying
from rackline.simulation.requests import Requests
from rackline.simulation.run import simulate
from rackline.simulation.server import pool_of
from rackline.system import System
from rackline.training.runs import TrainLayout

PLAIN = RlOverheads(decode_step_s=0.0, training=1.0, tensor_s=0.0)
RACK = replace(cluster("dgx-h100"), num_chips=8)
GEN, TRAIN = Layout(tp=1, dp=8), TrainLayout(dp=8, micro_batch=1, zero=1)


def job(**changes: object) -> RlJob:
    model = arch.model("llama-3.1-8b")
    assert isinstance(model, arch.Model)
    numbers = calibration("vllm", RACK.chip)
    types = [precision("bf16", model, RACK.chip)]
    plain = {
        "prompts": 16,
        "generations": 32,
        "prompt_len": 100.0,
        "lengths": AnswerLengths(mean=500.0, spread=0.6, longest=2000.0),
        "train_stack": "megatron-bridge",
        "overheads": PLAIN,
    }
    serving = System.of(model, RACK, calibration=numbers, precisions=types)
    return RlJob.of(**{"serving": serving, **plain, **changes})  # type: ignore[arg-type]


def engine_of(one: RlJob, layout: Layout = GEN) -> RolloutEngine:
    return RolloutEngine.of(one.cluster.with_num_chips(layout.num_chips), layout, one)


@pytest.mark.parametrize(("mean", "spread", "longest"), [(1000, 0.6, 4096), (3000, 0.8, 4000), (10, 0.0, 10)])
def test_lengths_have_the_mean_after_the_cut(mean: float, spread: float, longest: float) -> None:
    lengths = AnswerLengths(mean=mean, spread=spread, longest=longest)
    found = lengths.sorted_lengths(4096)
    assert found.mean() == pytest.approx(mean, rel=0.01)
    assert found.max() <= longest
    assert np.all(np.diff(found) >= 0)


def test_a_mean_above_the_cut_is_refused() -> None:
    with pytest.raises(InputError, match="longest answer"):
        AnswerLengths(mean=5000.0, spread=0.5, longest=4000.0)


@pytest.mark.parametrize("slots", [1, 3, 8, 20])
def test_an_emptying_batch_generates_every_token_once(slots: int) -> None:
    lengths = np.random.default_rng(1).integers(1, 500, 17).astype(float)
    clock, running, age = emptying(lengths, slots)
    assert float((np.diff(clock) * running).sum()) == pytest.approx(lengths.sum())
    assert running.max() <= slots
    assert running[-1] == 1.0
    assert np.all(age <= clock[:-1] + 1e-9)
    if slots >= lengths.size:
        assert clock[-1] == lengths.max()
    if slots == 1:
        assert clock[-1] == pytest.approx(lengths.sum())


def test_a_batch_takes_what_the_simulator_takes() -> None:
    """The closed form against discrete events, with the lengths of the fullest rank."""
    one = job()
    engine = engine_of(one, Layout(tp=1))
    found = engine.batch(96, one.lengths)
    lengths = np.round(one.lengths.sorted_lengths(96)).astype(np.int64)
    requests = Requests(arrival_s=np.zeros(96), input_len=np.full(96, 100, dtype=np.int64), output_len=lengths)
    done = simulate(requests, pool_of(engine.deployment, one.serving.stack))
    assert found.seconds == pytest.approx(float(np.nanmax(done.finish_s)), rel=0.05)


def test_parts_add_up_and_overlap_is_the_longer_side() -> None:
    one = job()
    together = given_step(one, Schedule(), GEN, TRAIN)
    assert together.seconds == pytest.approx(sum(part.seconds for part in together.parts))
    apart = Schedule(mode="one-step-off", colocated=False, staleness=1)
    halves = given_step(one, apart, Layout(tp=1, dp=4), replace(TRAIN, dp=4))
    sides = [sum(part.seconds for part in halves.parts if part.side == side) for side in ("rollout", "training")]
    assert halves.seconds <= sum(sides)
    assert min(halves.idle_s.values()) == pytest.approx(0.0, abs=1e-9)
    assert (halves.gen_chips, halves.train_chips) == (4, 4)


def step(one: RlJob, schedule: Schedule) -> RlStep:
    return given_step(one, schedule, Layout(tp=1, dp=4), replace(TRAIN, dp=4))


def test_staleness_and_partial_rollouts_hide_the_tail() -> None:
    one = job(lengths=AnswerLengths(mean=500.0, spread=0.6, longest=8000.0), prompts=4)
    times = [
        step(one, Schedule(mode="async", colocated=False, staleness=lag)).part_s("rollouts") for lag in (1, 2, 4, 16)
    ]
    assert times[0] > times[1] > times[2] >= times[3]
    whole = step(one, Schedule(mode="async", colocated=False, staleness=1, partial=True)).part_s("rollouts")
    assert whole < times[0]


def test_models_of_an_algorithm_are_parts_of_the_step() -> None:
    one = job()
    plain = given_step(one, Schedule(), GEN, TRAIN)
    for change, part in ((replace(one, algorithm="ppo"), "critic"), (replace(one, reward=one.model), "rewards")):
        found = given_step(change, Schedule(), GEN, TRAIN)
        assert found.part_s(part) > 0
        more_states = found.part_s("states to host and back") - plain.part_s("states to host and back")
        assert more_states > 0
        assert found.seconds == pytest.approx(plain.seconds + found.part_s(part) + more_states)
    alone = given_step(replace(one, reference=False), Schedule(), GEN, TRAIN)
    assert alone.seconds == pytest.approx(plain.seconds - plain.part_s("reference log-probabilities"))


def test_log_probabilities_are_the_forward_third_of_an_update() -> None:
    found = updates_of(job(), RACK, TRAIN)
    assert 0.22 < found.log_prob_s / found.train_s < 0.4


def test_what_twice_gives_is_amdahls_law_for_shared_chips() -> None:
    one = job()
    engine = engine_of(one)
    updates = updates_of(one, RACK, TRAIN)
    whole = given_step(one, Schedule(), GEN, TRAIN)
    found = what_twice_gives(one, Schedule(), engine, updates)
    expected = whole.seconds / (whole.seconds - whole.part_s("updates") / 2.0)
    assert found["updates"] == pytest.approx(expected)
    assert all(1.0 <= ratio < 2.0 for ratio in found.values())


def test_transfers_count_bytes_and_tensors() -> None:
    one = job(overheads=replace(PLAIN, tensor_s=0.001))
    wire = transfer_s(job(), TRAIN, colocated=False)
    names = 0.001 * num_tensors(one.model)
    assert transfer_s(one, TRAIN, colocated=True) == pytest.approx(transfer_s(job(), TRAIN, colocated=True) + names)
    assert transfer_s(one, TRAIN, colocated=False) == pytest.approx(max(wire, names))  # two buffers in turn
    assert num_tensors(one.model) == pytest.approx(291, abs=3)  # of the checkpoint's index


def test_states_go_to_the_host_by_the_kind_of_its_memory() -> None:
    """Weights to pinned memory, moments to memory that is allocated anew, a Grace host's at the rate of the link."""
    one, updates = job(), updates_of(job(), RACK, TRAIN)
    params = float(one.model.total_params)
    assert updates.weights_bytes == pytest.approx(2.0 * params, rel=0.01)  # bf16, whole on each chip
    assert updates.optimizer_bytes == pytest.approx(12.0 * params / 8.0, rel=0.01)  # fp32 weight and moments, cut by 8
    link = host_bytes_per_s(RACK.chip)
    expected = 2.0 * updates.weights_bytes / link + updates.optimizer_bytes * (1.0 / 1.8e9 + 1.0 / 16.1e9)
    assert offload_s(one, updates) == pytest.approx(expected)
    assert offload_s(job(algorithm="ppo"), updates) == pytest.approx(2.0 * expected)
    grace = cluster("gb200-nvl72").with_num_chips(8)
    moved = updates.weights_bytes + updates.optimizer_bytes
    on_grace = replace(one, serving=replace(one.serving, cluster=grace))
    assert offload_s(on_grace, updates) == pytest.approx(2.0 * moved / host_bytes_per_s(grace.chip))


def test_training_of_a_step_has_no_graphs_and_shows_its_tensor_parallelism() -> None:
    """Unlike the pre-training whose fitted numbers it takes otherwise; a stack that is named is taken."""
    found, named = job(train_stack="").training.stack, job().training.stack
    assert (found.communication.tensor_exposed, found.host.grace_over_x86) == (1.0, 1.0)
    assert named.communication.tensor_exposed < 1.0
    alike = found.with_values(
        {
            "communication.tensor_exposed": named.communication.tensor_exposed,
            "host.grace_over_x86": named.host.grace_over_x86,
            "host.graphed_mixtures": named.host.graphed_mixtures,
            "evidence.stated": named.evidence.stated,
            "evidence.numbers_of": named.evidence.numbers_of,
            "evidence.family": named.evidence.family,
            "evidence.own": named.evidence.own,
        }
    )
    chosen = {"is_default": named.is_default, "is_rl_default": named.is_rl_default}
    assert replace(alike, name=named.name, **chosen) == named


def test_answers_over_half_a_pack_have_one_each() -> None:
    assert first_fit(np.full(10, 2100.0), 4096.0) == 10
    assert first_fit(np.full(10, 1300.0), 4096.0) == 4
    assert first_fit(np.array([4096.0]), 4096.0) == 1
    even = job(lengths=AnswerLengths(mean=2100.0, spread=0.0, longest=4096.0))
    assert even.packs(10, 1) == 10
    assert even.packs(10, 5) == 10


def test_the_search_is_at_least_as_fast_as_given_layouts() -> None:
    one = job()
    given = given_step(one, Schedule(), GEN, TRAIN)
    found = rl_plan(one, Schedule(), steps=100.0)
    assert found.best is not None
    assert found.best.seconds <= given.seconds * 1.0001
    assert found.run is not None
    assert found.run.days == pytest.approx(100.0 * found.best.seconds / 86400.0)
    apart = rl_plan(one, Schedule(mode="one-step-off", colocated=False, staleness=1))
    assert apart.best is not None
    assert apart.best.seconds == min(apart.others.values())
    assert apart.best.gen_chips + apart.best.train_chips == 8


def test_what_does_not_fit_is_an_answer_that_names_the_side() -> None:
    big = arch.model("llama-3.1-405b")
    assert isinstance(big, arch.Model)
    found = rl_plan(job(serving=replace(job().serving, model=big)), Schedule())
    assert found.best is None
    assert "training of llama-3.1-405b" in found.reason
    with pytest.raises(InputError, match=r"rollouts of llama-3\.1-405b"):
        engines_of(job(serving=replace(job().serving, model=big)), RACK)


def test_flop_of_a_token_are_those_of_its_passes() -> None:
    one = job(prompt_len=1e-9)
    run = run_of(one, given_step(job(), Schedule(), GEN, TRAIN), 1.0)
    assert run.flop_per_param_token == pytest.approx(2.0 + 2.0 + 2.0 + 6.0)
    assert 0.0 < run.mfu < 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--staleness", "3"], "only with --mode async"),
        (["--gen-chips", "8"], "1 to 7 of 8"),
        (["--output", "9k"], "longest answer"),
        (["--trained", "5000"], "answers of a step"),
        (["--algorithm", "sac"], "grpo"),
        (["--gen-layout", "tp=3"], "query heads"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert run(["rl", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "8", *options]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""


def test_report_and_json_of_a_small_run(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["rl", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "4", "--prompts", "8", "--generations", "8"]
    asked += ["--output", "200", "--longest", "600", "--gen-layout", "tp=1", "--train-layout", "tp=1,pp=1,cp=1"]
    text = call(capsys, *asked)
    for words in (
        "bound by",
        "rollouts",
        "updates",
        "what a part twice as fast gives",
        "Half of the answers",
        "budget",
    ):
        assert words in text
    found = call_json(capsys, *asked)
    assert found["best"]["step_s"] == pytest.approx(sum(part["seconds"] for part in found["best"]["parts"]))
    assert found["run"]["days"] > 0


def test_a_critic_and_a_reward_model_take_memory() -> None:
    small = arch.model("llama-3.2-3b")
    assert isinstance(small, arch.Model)
    plain, critic = updates_of(job(), RACK, TRAIN), updates_of(job(algorithm="ppo"), RACK, TRAIN)
    judged = updates_of(job(reward=small), RACK, TRAIN)
    assert (plain.critic_bytes, plain.reward_bytes) == (0.0, 0.0)
    assert critic.critic_bytes == plain.states_bytes
    assert critic.total_bytes == pytest.approx(plain.total_bytes + plain.states_bytes)
    weights = 2.0 * job().model.total_params  # bf16, whole on each chip
    assert judged.reward_bytes == pytest.approx(weights * small.total_params / job().model.total_params, rel=0.01)
    engine = engine_of(job())
    one = given_step(job(), Schedule(), GEN, TRAIN)
    both = given_step(job(algorithm="ppo"), Schedule(), GEN, TRAIN)
    assert both.part_s("states to host and back") == pytest.approx(2.0 * one.part_s("states to host and back"))
    assert engine.deployment.layout == GEN


def test_what_does_not_fit_names_the_models() -> None:
    wide = arch.model("llama-3.1-70b")
    assert isinstance(wide, arch.Model)
    from rackline.posttraining.job import best_updates

    asked = job(serving=replace(job().serving, model=wide), algorithm="ppo", reward=wide)
    with pytest.raises(InputError) as error:
        best_updates(asked, RACK)
    assert "llama-3.1-70b and its critic and the reward model" in str(error.value)
    assert "GRPO, which has no critic" in str(error.value)


def test_layouts_that_leave_chips_over_are_refused_by_the_name_of_the_option() -> None:
    asked = [Layout(tp=16), Layout(tp=5)]
    with pytest.raises(InputError) as given:
        engines_of(job(), RACK, asked)
    chips = RACK.num_chips
    assert str(given.value).startswith(f"gen_layout: got 'tp=16, tp=5', allowed: a layout that fills {chips} chips")
