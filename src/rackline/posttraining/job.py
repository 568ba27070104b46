"""What a step of reinforcement learning is asked to do, and what a framework adds to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

from rackline.arch import Model
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.passes import Calibration
from rackline.posttraining.lengths import AnswerLengths
from rackline.system import System
from rackline.training.precision import TrainPrecision
from rackline.training.stack import TrainingStack

Algorithm = Literal["grpo", "dapo", "ppo"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
"""GRPO (arXiv:2402.03300): a group of answers per prompt, a penalty to a reference. DAPO (arXiv:2503.14476): without
one. PPO (arXiv:1707.06347): a critic of the policy's size that is trained as well, and a reference."""
Mode = Literal["sync", "one-step-off", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlOverheads:
    """What a framework adds to the work of a step, three numbers for all models.

    The defaults are the optimum of a coarse grid over published steps of NeMo RL, rounded; with each model left out of
    the grid they hardly move (docs/reinforcement-learning.md).

    Args:
        decode_step_s: time of a decode step beside the engine's own: engines driven from a controller [s].
        training: time of updates and log-probabilities over that of the same work in pre-training [1].
        tensor_s: host time for each tensor of the checkpoint that goes to the engines: gathered, renamed, handed over
            [s].
    """

    decode_step_s: float = 0.010
    training: float = 1.5
    tensor_s: float = 0.00075


@dataclass(frozen=True, slots=True, kw_only=True)
class RlJob:
    """A step of reinforcement learning.

    Args:
        serving: the policy on all chips of both sides, as the generating side runs it.
        prompts, generations: prompts of a step and answers per prompt [count].
        prompt_len: mean prompt [tokens].
        lengths: of answers.
        algorithm: of ALGORITHMS.
        reference: whether a frozen reference gives log-probabilities too.
        reward: a reward model that reads every answer; None for rules.
        train_batch: answers of one update of the weights; all that are trained by default [count].
        trained: answers that are trained on, where others are generated and dropped; all by default [count].
        train_stack, train_calibration, train_precision: of the training side.
        overheads: of the framework.
        log_prob_batch: packed sequences of a micro-batch of log-probabilities [count].
    """

    serving: System
    prompts: int
    generations: int
    prompt_len: float
    lengths: AnswerLengths
    train_stack: TrainingStack
    train_calibration: Calibration
    train_precision: TrainPrecision
    algorithm: Algorithm = "grpo"
    reference: bool = True
    reward: Model | None = None
    train_batch: int | None = None
    trained: int | None = None
    overheads: RlOverheads = RlOverheads()
    log_prob_batch: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.serving.model, Model):
            raise InputError(what="model", given=self.serving.model.name, allowed="a model whose layers are known")
        if self.trained is not None and self.trained > self.answers:
            raise InputError(
                what="--trained",
                given=self.trained,
                allowed=f"at most the {self.answers} answers of a step",
                nearest=str(self.answers),
            )

    @property
    def model(self) -> Model:
        """The policy."""
        return cast("Model", self.serving.model)

    @property
    def cluster(self) -> Cluster:
        """All chips, both sides."""
        return self.serving.cluster

    @property
    def answers(self) -> int:
        """Answers of a step [count]."""
        return self.prompts * self.generations

    @property
    def trained_answers(self) -> int:
        """Answers that the weights are trained on [count]."""
        return self.answers if self.trained is None else self.trained

    @property
    def sequence_len(self) -> float:
        """Mean prompt and answer [tokens]."""
        return self.prompt_len + self.lengths.mean

    @property
    def pack_len(self) -> int:
        """Tokens of a packed sequence: the longest prompt and answer, in whole multiples of 64 [tokens]."""
        return max(64, math.ceil((self.prompt_len + self.lengths.longest) / 64.0) * 64)

    @property
    def updates(self) -> int:
        """Updates of the weights in a step [count]."""
        return max(1, round(self.trained_answers / (self.train_batch or self.trained_answers)))

    def packs(self, answers: float, replicas: int) -> int:
        """Packed sequences of some answers, in whole multiples of the replicas [count]."""
        each = max(1, math.ceil(answers * self.sequence_len / self.pack_len / replicas))
        return each * replicas
