"""The training side: log-probabilities and updates of packed answers, and weights on their way to the engines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackline.arch import Model, MoeFfn
from rackline.errors import InputError, LayoutError
from rackline.hardware import Cluster
from rackline.hardware.chip import host_bytes_per_s
from rackline.parallel import Layout, Precision
from rackline.parallel.memory import weight_bytes
from rackline.passes.features import Array, as_array
from rackline.posttraining.job import RlJob
from rackline.search.train_space import evaluate_runs, timed_steps, train_space
from rackline.training.memory import TrainMemory, train_memory
from rackline.training.runs import Runs, TrainLayout
from rackline.training.system import MicroBatch, TrainingSystem

TENSORS_PER_LAYER = 9
"""Queries, keys, values, output, gate, up, down and two norms of a dense layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Times of the training side.

    Args:
        layout: of training.
        num_chips: it runs on [count].
        train_s: all updates of the policy [s].
        log_prob_s: one forward pass over all trained answers [s].
        states_bytes: weights, gradients and optimiser states of the fullest chip [bytes].
        critic_bytes, reward_bytes: of that chip, states of the critic and weights of the reward model [bytes].
        total_bytes: memory of that chip in an update, with both [bytes].
        packs: packed sequences of one update [count].
    """

    layout: TrainLayout
    num_chips: int
    train_s: float
    log_prob_s: float
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
    alone = step.forward + step.input + step.weight
    share = float(step.forward[0] / alone[0])
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
        packs = job.packs(each, replicas)
        system = job.training.on(cluster, packs)
        try:
            runs = train_space(
                system, fixed={**fixed, "dp": replicas}, schedules=system.stack.schedules, recompute=kept
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
        what=f"training of {names} on {cluster.num_chips} chips of {cluster.name}",
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


def model_bytes(job: RlJob, precision: Precision) -> float:
    """All weights as the engines hold them [bytes]."""
    return float(sum(weight_bytes(job.model, Layout(), precision).values()))


def num_tensors(model: Model) -> int:
    """Tensors of a checkpoint, about: those of a layer, three or two for each routed expert, both ends [count]."""
    return 3 + sum(
        group.count
        * (TENSORS_PER_LAYER + (group.ffn.num_experts * group.ffn.matrices if isinstance(group.ffn, MoeFfn) else 0))
        for group in model.layer_groups
    )


def transfer_s(job: RlJob, train: TrainLayout, *, colocated: bool) -> float:
    """Weights from the layout of training to that of the engines [s].

    Every tensor is put together over the ranks that share it, renamed and taken apart for the engines, so each chip
    receives the whole model once, and the host handles each tensor: over the links of a scale-up domain where a
    training replica lies in one and shares chips with the engines, or all chips do, else over the network. On separate
    chips tensors are packed into two buffers in turn, so that the host prepares one while the other is sent
    (github.com/NVIDIA-NeMo/RL, v0.6.0, nemo_rl/utils/packed_tensor.py).

    Args:
        colocated: whether engines and training share chips.
    """
    cluster = job.cluster
    inside = train.tp * train.pp * max(train.ep * train.expert_tp // train.tp, 1) <= cluster.scale_up.size
    near = inside if colocated else cluster.num_chips <= cluster.scale_up.size
    level = cluster.scale_up if near or cluster.scale_out is None else cluster.scale_out
    wire_s = model_bytes(job, job.serving.precision) / level.bytes_per_s_each_way
    host_s = job.overheads.tensor_s * num_tensors(job.model)
    return wire_s + host_s if colocated else max(wire_s, host_s)


def offload_s(job: RlJob, states_bytes: float) -> float:
    """States of training to the host before the rollouts, and back before the updates, where both share chips [s].

    Args:
        states_bytes: weights, gradients, master weights and moments of a chip [bytes].
    """
    return 2.0 * states_bytes / host_bytes_per_s(job.cluster.chip)
