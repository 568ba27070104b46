"""Efficiency of generating answers over that of training on them, in one step of reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rackline.ledger.world import World
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import AnswerLengths, RlJob
from rackline.posttraining.plan import Schedule, given_step, run_of
from rackline.search.stacks import usual_stack
from rackline.system import System
from rackline.training.runs import TrainLayout

CLUSTER, CHIPS = "h100-96", 64
_PROMPT_LEN, _LENGTHS = 200.0, AnswerLengths(mean=2000.0, spread=0.6, longest=8000.0)
_GENERATIONS = 16
_ENGINES, _TRAINING = Layout(tp=4, dp=16), TrainLayout(tp=8, pp=2, dp=4, micro_batch=1, recompute="full")


def grpo_job(world: World, name: str, answers: int) -> RlJob:
    """A step of GRPO: 16 answers a prompt, 2,000 tokens on average and 8,000 at most.

    Args:
        world: with the model and the cluster.
        name: of the policy.
        answers: of a step [count].

    Raises:
        InputError: a model whose layers are not known.
    """
    model, rack = world.model(name), world.cluster(CLUSTER).with_num_chips(CHIPS)
    numbers = calibration(usual_stack(model, rack).name, rack.chip)
    return RlJob.of(
        System.of(model, rack, calibration=numbers, precisions=[precision("bf16", model, rack.chip)]),
        prompts=answers // _GENERATIONS,
        generations=_GENERATIONS,
        prompt_len=_PROMPT_LEN,
        lengths=_LENGTHS,
    )


def rollout_efficiency(world: World, name: str, answers: int) -> float:
    """FLOP/s of rollouts, 2 · N a generated token, over those of updates, 6 · N a token [1]; see `grpo_job`."""
    step = given_step(grpo_job(world, name, answers), Schedule(), _ENGINES, _TRAINING)
    generating = 2.0 * _LENGTHS.mean / step.rollout.seconds
    return generating / (6.0 * (_PROMPT_LEN + _LENGTHS.mean) / step.updates.train_s)


def rl_flop(world: World, name: str, answers: int, shares: Sequence[float]) -> tuple[list[float], float]:
    """FLOP of a generated token for each active parameter, by the share of the answers that is trained on, and how
    much the whole step falls behind its updates.

    Args:
        world, name, answers: as in `grpo_job`.
        shares: trained on [1].

    Returns:
        (2 for the rollout, and for a trained token 2 for each of two passes of log-probabilities and 6 for the update
        [FLOP]; MFU of updates over that of a step in which all answers are trained on [1]).
    """
    job = grpo_job(world, name, answers)
    step = given_step(job, Schedule(), _ENGINES, _TRAINING)
    run = run_of(job, step, 1.0)
    counted = [run_of(replace(job, trained=round(share * answers)), step, 1.0).flop_per_param_token for share in shares]
    peak = CHIPS * job.cluster.chip.flop_per_s(job.training.precision.compute)
    updated = (
        6.0 * float(job.model.active_params) * job.trained_answers * job.sequence_len / step.updates.train_s / peak
    )
    return counted, updated / run.mfu
