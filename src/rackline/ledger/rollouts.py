"""Efficiency of generating answers over that of training on them, in one step of reinforcement learning."""

from __future__ import annotations

from rackline.arch import Model
from rackline.errors import InputError
from rackline.ledger.world import World
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import RlJob
from rackline.posttraining.lengths import AnswerLengths
from rackline.posttraining.plan import given_step
from rackline.posttraining.step import Schedule
from rackline.search.stacks import usual_stack
from rackline.serving.stack import stack_named
from rackline.training.precision import train_precision
from rackline.training.runs import TrainLayout
from rackline.training.stack import default_training_stack, training_stack

CLUSTER, CHIPS = "h100-96", 64
_PROMPT_LEN, _LENGTHS = 200.0, AnswerLengths(mean=2000.0, spread=0.6, longest=8000.0)
_GENERATIONS = 16
_ENGINES, _TRAINING = Layout(tp=4, dp=16), TrainLayout(tp=8, pp=2, dp=4, micro_batch=1, recompute="full")


def rollout_efficiency(world: World, name: str, answers: int) -> float:
    """FLOP/s of rollouts, 2 · N a generated token, over those of updates, 6 · N a token [1].

    Args:
        world: with the model and the cluster.
        name: of the policy.
        answers: of a step, 16 to a prompt, 2,000 tokens on average and 8,000 at most [count].

    Raises:
        InputError: a model whose layers are not known.
    """
    model, rack = world.model(name), world.cluster(CLUSTER).with_num_chips(CHIPS)
    if not isinstance(model, Model):
        raise InputError(what="model", given=name, allowed="a model whose layers are known")
    chip, stack = rack.chip, training_stack(default_training_stack())
    usual = usual_stack(model, rack)
    numbers = calibration(usual.name, chip)
    engine = stack_named(usual.name, numbers, chip.hbm_bytes)
    job = RlJob(
        model=model,
        cluster=rack,
        prompts=answers // _GENERATIONS,
        generations=_GENERATIONS,
        prompt_len=_PROMPT_LEN,
        lengths=_LENGTHS,
        stack=engine,
        calibration=engine.calibrated(numbers, chip.generation),
        precision=precision("bf16", model, chip),
        train_stack=stack,
        train_calibration=calibration(stack.kernels, chip),
        train_precision=train_precision("bf16", chip, None, stack),
    )
    step = given_step(job, Schedule(), _ENGINES, _TRAINING)
    generating = 2.0 * _LENGTHS.mean / step.rollout.seconds
    return generating / (6.0 * (_PROMPT_LEN + _LENGTHS.mean) / step.updates.train_s)
