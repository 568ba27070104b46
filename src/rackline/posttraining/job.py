"""A step of reinforcement learning: what it is asked to do, what a framework adds to it, and its training side."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError, LayoutError, require
from rackline.hardware import Cluster
from rackline.passes.features import Array, as_array
from rackline.search.train_space import evaluate_runs, timed_steps, train_space
from rackline.serving.workload import PLAIN, Speculation
from rackline.system import System
from rackline.training.memory import TrainMemory, train_memory
from rackline.training.runs import Runs, TrainLayout
from rackline.training.stack import TrainingStack, default_training_stack
from rackline.training.system import MicroBatch, TrainingSystem
from rackline.units import several

Algorithm = Literal["grpo", "dapo", "ppo"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
"""GRPO (arXiv:2402.03300): a group of answers per prompt, a penalty to a reference. DAPO (arXiv:2503.14476): without
one. PPO (arXiv:1707.06347): a critic of the policy's size that is trained as well, and a reference."""
Mode = Literal["sync", "one-step-off", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlOverheads:
    """What a framework adds to the work of a step, three numbers for all models.

    The defaults have the least mean |log error| over published steps of NeMo RL on the grid of `bench/rl_overheads.py`,
    which also leaves out each model in turn (docs/reinforcement-learning.md).

    Args:
        decode_step_s: time of a decode step beside the engine's own: engines driven from a controller [s].
        training: time of updates and log-probabilities over that of the same work in pre-training [1].
        tensor_s: host time for each tensor of the checkpoint that goes to the engines: gathered, renamed, handed over
            [s].
    """

    decode_step_s: float = 0.00625
    training: float = 1.25
    tensor_s: float = 0.0006


_POINTS = 4096
"""Quantiles of answer lengths of which means are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLengths:
    """A distribution of answer lengths.

    Args:
        mean: after the cut [tokens].
        spread: standard deviation over the mean before the cut; 0 for equal lengths [1].
        longest: where generation is cut off [tokens].
        measured: answers whose quantiles stand in place of the distribution, in rising order [tokens].

    Raises:
        InputError: a mean below 1 token or above the longest answer.
    """

    mean: float
    spread: float
    longest: float
    measured: tuple[float, ...] = ()

    @classmethod
    def of(cls, measured: Array) -> AnswerLengths:
        """The lengths of measured answers, (n,) [tokens]."""
        mean = float(measured.mean())
        spread = float(measured.std() / mean) if mean else 0.0
        rising = tuple(np.sort(measured).tolist())
        return cls(mean=mean, spread=spread, longest=rising[-1], measured=rising)

    def __post_init__(self) -> None:
        require(self.mean >= 1.0, what="output", given=self.mean, allowed="at least 1 token", nearest="1")
        require(
            self.mean <= self.longest,
            what="output",
            given=f"{self.mean:g} tokens on average",
            allowed=f"at most the longest answer, {self.longest:g} tokens",
            nearest=f"{self.longest:g}",
        )

    def sorted_lengths(self, count: int) -> Array:
        """What `count` answers are expected to be, in rising order: the quantiles (i + 1/2) / count [tokens], (count,).

        >>> found = AnswerLengths(mean=1000.0, spread=0.6, longest=4096.0).sorted_lengths(2000)
        >>> round(float(found.mean())), round(float(found[-1]))
        (1000, 4096)
        """
        from scipy.special import ndtri

        places = (np.arange(count) + 0.5) / count
        if self.measured:
            return np.quantile(np.array(self.measured), places, method="inverted_cdf")
        deviation = math.sqrt(math.log1p(self.spread**2))
        return np.minimum(np.exp(self._centre(deviation) + deviation * np.asarray(ndtri(places))), self.longest)

    def _centre(self, deviation: float) -> float:
        """Mean of the logarithm with which the mean after the cut is the given one."""
        from scipy.special import ndtri

        noise = deviation * np.asarray(ndtri((np.arange(_POINTS) + 0.5) / _POINTS))
        low, high = math.log(self.mean) - 1.0, math.log(self.longest) + 12.0 * deviation + 1.0
        for _ in range(60):
            middle = (low + high) / 2.0
            short = float(np.minimum(np.exp(middle + noise), self.longest).mean()) < self.mean
            low, high = (middle, high) if short else (low, middle)
        return (low + high) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What an answer waits for between its turns: a compiler, a search, an environment.

    Args:
        pauses: of an answer, one fewer than its turns [count].
        seconds: mean time of a pause, whose times are exponential [s].
        returned: tokens that a tool gives back, which the model reads [tokens].
    """

    pauses: int = 0
    seconds: float = 0.0
    returned: float = 0.0

    @property
    def tokens(self) -> float:
        """What the tools of an answer return in all [tokens]."""
        return self.pauses * self.returned

    def drawn(self, answers: int, rng: np.random.Generator) -> Array:
        """Pauses of some answers, (answers, pauses) [s]."""
        return rng.exponential(self.seconds, (answers, self.pauses))


NO_TOOLS = Tools()


@dataclass(frozen=True, slots=True, kw_only=True)
class RlJob:
    """A step of reinforcement learning.

    Args:
        serving: the policy on all chips of both sides, as the generating side runs it.
        prompts, generations: prompts of a step and answers per prompt [count].
        prompt_len: mean prompt [tokens].
        lengths: of answers.
        tools: what answers wait for between their turns.
        speculation: drafts of the engines.
        algorithm: of ALGORITHMS.
        reference: whether a frozen reference gives log-probabilities too.
        reward: a reward model that reads every answer; None for rules.
        train_batch: answers of one update of the weights; all that are trained by default [count].
        trained: answers that are trained on, where others are generated and dropped; all by default [count].
        training: the policy on all chips as the training side runs it, in packed sequences that hold the longest prompt
            and answer.
        overheads: of the framework.
        log_prob_batch: packed sequences of a micro-batch of log-probabilities [count].
    """

    serving: System
    prompts: int
    generations: int
    prompt_len: float
    lengths: AnswerLengths
    training: TrainingSystem
    algorithm: Algorithm = "grpo"
    reference: bool = True
    reward: Model | None = None
    train_batch: int | None = None
    trained: int | None = None
    overheads: RlOverheads = RlOverheads()
    log_prob_batch: int = 1
    tools: Tools = NO_TOOLS
    speculation: Speculation = PLAIN

    @classmethod
    def of(
        cls,
        serving: System,
        *,
        prompt_len: float,
        lengths: AnswerLengths,
        train_stack: TrainingStack | str = "",
        train_precision: str = "bf16",
        tools: Tools = NO_TOOLS,
        **more: Any,
    ) -> RlJob:
        """Put a job together.

        Args:
            train_stack: framework of the training side, also by name; the default one where it is empty.
            train_precision: label of its data types.
            more: further fields.

        Raises:
            InputError: a policy of which only totals are known, or more trained answers than are generated.
            UnknownNameError, CatalogError, PrecisionError: as `TrainingSystem.of`.
        """
        given = prompt_len + tools.tokens
        samples = lengths.sorted_lengths(1024) + given
        training = TrainingSystem.of(
            serving.model,
            serving.cluster,
            stack=train_stack or default_training_stack(serving.cluster.chip.generation, rl=True),
            precision=train_precision,
            global_batch_sequences=1,
            seq_len=max(64, math.ceil((given + lengths.longest) / 64.0) * 64),
            mtp_layers=0,
            packed_len=float((samples**2).mean() / samples.mean()),
        )
        return cls(serving=serving, training=training, prompt_len=prompt_len, lengths=lengths, tools=tools, **more)

    def __post_init__(self) -> None:
        require(
            self.trained is None or self.trained <= self.answers,
            what="trained",
            given=self.trained,
            allowed=f"at most the {self.answers} answers of a step",
            nearest=str(self.answers),
        )

    @property
    def model(self) -> Model:
        """The policy."""
        return self.training.model

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
        """Mean prompt and answer, with what tools returned [tokens]."""
        return self.prompt_len + self.tools.tokens + self.lengths.mean

    @property
    def updates(self) -> int:
        """Updates of the weights in a step [count]."""
        return max(1, round(self.trained_answers / (self.train_batch or self.trained_answers)))

    def packs(self, answers: float, replicas: int) -> int:
        """Packed sequences of some answers, in whole multiples of the replicas [count].

        Each replica packs its own answers, the longest first, so that answers of half a sequence and more fill packs
        badly.
        """
        lengths = self.lengths.sorted_lengths(max(1, round(answers / replicas)))
        return first_fit(self.prompt_len + self.tools.tokens + lengths, float(self.training.seq_len)) * replicas


def first_fit(lengths: Array, room: float) -> int:
    """Packs of samples by first fit in falling order, as frameworks pack.

    Args:
        lengths: of the samples, (n,) [tokens].
        room: of a pack [tokens].

    Returns:
        How many packs there are [count].

    Sources: D. S. Johnson, Near-optimal bin packing algorithms, 1973 (here the fullest pack with room is taken, whose
        worst case is the same); NeMo RL packs by a variant of it (github.com/NVIDIA-NeMo/RL, v0.6.0,
        examples/configs/grpo_math_1B.yaml, `modified_first_fit_decreasing`).

    >>> first_fit(np.array([3000.0, 2600.0, 1400.0, 1000.0]), 4096.0)
    2
    """
    left: list[float] = []
    for length in np.sort(lengths)[::-1].tolist():
        place = bisect_left(left, length)
        insort(left, (left.pop(place) if place < len(left) else room) - length)
    return len(left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Times of the training side.

    Args:
        layout: of training.
        num_chips: it runs on [count].
        train_s: all updates of the policy [s].
        log_prob_s: one forward pass over all trained answers [s].
        weights_bytes, optimizer_bytes: of the policy on the fullest chip [bytes].
        states_bytes: both with gradients [bytes].
        critic_bytes, reward_bytes: of that chip, states of the critic and weights of the reward model [bytes].
        total_bytes: memory of that chip in an update, with both [bytes].
        packs: packed sequences of one update [count].
    """

    layout: TrainLayout
    num_chips: int
    train_s: float
    log_prob_s: float
    weights_bytes: float
    optimizer_bytes: float
    states_bytes: float
    total_bytes: float
    packs: int
    critic_bytes: float = 0.0
    reward_bytes: float = 0.0


def updates_of(job: RlJob, cluster: Cluster, layout: TrainLayout) -> Updates:
    """Times of a given layout."""
    each = job.trained_answers / job.updates
    packs = job.packs(each, layout.dp * layout.micro_batch)
    system, runs = job.training.on(cluster, packs), Runs.of([layout])
    step, memory = (
        timed_steps(_as_packed(job, system, layout, each), runs),
        train_memory(MicroBatch(system=system, runs=runs)),
    )
    critic, reward = (float(part[0]) for part in _beside(job, memory))
    return Updates(
        layout=layout,
        num_chips=layout.num_chips,
        train_s=job.updates * float(step.step[0]),
        log_prob_s=_forward_s(job, cluster, layout),
        weights_bytes=float(memory.weights[0]),
        optimizer_bytes=float(memory.optimizer[0]),
        states_bytes=float(memory.weights[0] + memory.gradients[0] + memory.optimizer[0]),
        total_bytes=float(memory.total[0]) + critic + reward,
        packs=packs,
        critic_bytes=critic,
        reward_bytes=reward,
    )


def _as_packed(job: RlJob, system: TrainingSystem, layout: TrainLayout, answers: float) -> TrainingSystem:
    """Packs are as long as what is in them, but for those of a pipeline, whose stages exchange one size.

    Source: github.com/NVIDIA-NeMo/RL, v0.6.0, nemo_rl/models/megatron/data.py, `pad_packed_seq_to`.
    """
    if layout.pp > 1:
        return system
    filled = answers * job.sequence_len / system.global_batch_sequences
    return replace(system, seq_len=min(system.seq_len, 64 * math.ceil(filled / 64.0)))


def _beside(job: RlJob, memory: TrainMemory) -> tuple[Array, Array]:
    """What other models take of the fullest chip: states of the critic, weights of the reward model [bytes].

    Assumes: both are spread as the policy is; the critic has its size and states; the reference waits in the memory of
        the host, from where it takes the policy's place (as in NeMo RL).
    """
    weights = as_array(memory.weights)
    states = weights + memory.gradients + memory.optimizer
    none = np.zeros_like(weights)
    critic = states if job.algorithm == "ppo" else none
    reward = none if job.reward is None else weights * (job.reward.total_params / job.model.total_params)
    return critic, reward


def _forward_s(job: RlJob, cluster: Cluster, layout: TrainLayout) -> float:
    """A forward pass over all trained answers: the forward share of a step without recomputation or exchange [s]."""
    again = replace(layout, recompute="none", micro_batch=job.log_prob_batch)
    packs = job.packs(job.trained_answers, layout.dp * job.log_prob_batch)
    runs = Runs.of([again])
    step = timed_steps(_as_packed(job, job.training.on(cluster, packs), layout, job.trained_answers), runs)
    share = float(step.forward[0] / (step.forward + step.input + step.weight)[0])
    micro_batches = float(as_array(runs.micro_batches(packs))[0])
    return share * float(micro_batches * step.stage[0] + step.bubble[0])


def best_updates(
    job: RlJob, cluster: Cluster, *, fixed: Mapping[str, int] | None = None, recompute: Sequence[str] = ("none", "full")
) -> Updates:
    """The layout with the fastest updates and log-probabilities on all chips of a cluster.

    Args:
        fixed: parts of the layout that are given.
        recompute: which kinds are considered.

    Raises:
        InputError: nothing fits, with what is missing.
        LayoutError: given parts that nothing satisfies.
    """
    each = job.trained_answers / job.updates
    fixed = dict(fixed or {})
    fixed.setdefault("zero", 1)
    kept = [name for name in recompute if name != "selective"]
    best: Updates | None = None
    least = np.inf
    for replicas in _replica_counts(job, cluster, fixed):
        system = job.training.on(cluster, job.packs(each, replicas))
        try:
            runs = train_space(
                system, fixed={**fixed, "dp": replicas}, schedules=system.stack.parallelism.schedules, recompute=kept
            )
        except LayoutError:
            continue
        found = evaluate_runs(system, runs, beside=lambda memory: sum(_beside(job, memory), np.zeros(())))
        least = min(least, float(found.total_bytes.min()))
        order = np.argsort(found.step_s, kind="stable")[:3]
        for index in order[np.isfinite(found.step_s[order])]:
            one = updates_of(job, cluster, runs.layout(int(index)))
            if best is None or one.train_s + one.log_prob_s < best.train_s + best.log_prob_s:
                best = one
    if best is not None:
        return best
    if not np.isfinite(least):
        raise LayoutError(
            what="train_layout",
            given=",".join(f"{name}={value}" for name, value in fixed.items()),
            allowed=f"a layout of {job.model.name} on {cluster.num_chips} chips",
        )
    others = {"its critic": job.algorithm == "ppo", "the reward model": job.reward is not None}
    names = " and ".join([job.model.name, *(name for name, held in others.items() if held)])
    less = ", a smaller reward model" if job.reward is not None else ""
    less += ", GRPO, which has no critic" if job.algorithm == "ppo" else ""
    raise InputError(
        what=f"training of {names} on {several(cluster.num_chips, 'chip')} of {cluster.name}",
        given=f"{least / 1e9:.0f} GB on a chip at the least",
        allowed=f"the {cluster.chip.hbm_bytes / 1e9:.0f} GB that it has: more chips, a shorter answer{less}, "
        "or adapters",
    )


def _replica_counts(job: RlJob, cluster: Cluster, fixed: Mapping[str, int]) -> list[int]:
    """Numbers of replicas that are considered: what the chips allow, as few as have work."""
    if "dp" in fixed:
        return [fixed["dp"]]
    chips = cluster.num_chips
    given = fixed.get("tp", 1) * fixed.get("pp", 1) * fixed.get("cp", 1)
    every = [n for n in range(1, chips // given + 1) if chips % (n * given) == 0]
    if all(name in fixed for name in ("tp", "pp", "cp")):
        return [chips // given]
    most = max(1.0, job.trained_answers / job.updates * job.sequence_len / job.training.seq_len)
    able = [n for n in every if n <= most] or every[:1]
    return able[-6:]
