"""One step: what follows what, on which chips, and what the whole takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, assert_never

from rackline.errors import InputError
from rackline.parallel import Layout
from rackline.posttraining.job import Mode, RlJob
from rackline.posttraining.rollout import Rollout, RolloutEngine
from rackline.posttraining.updates import Updates, offload_s, transfer_s
from rackline.training.runs import TrainLayout

FIXED_S = 3.0
"""Between the phases of a step: engines woken and put to sleep, results gathered, logging (assumed:
9 % of the shortest published step, 34.5 s of NeMo RL, 3 % of the median one)."""
ANSWER_S = 0.001
"""Controller time of an answer: tokens to text, a rule's reward, its advantage, its place in a pack (assumed:
0.5 s of 512 answers, the samples of NeMo RL's steps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How rollouts and updates share chips and time.

    Args:
        mode: of MODES.
        colocated: whether both sides use the same chips in turn.
        staleness: steps by which a rollout may lag behind the weights that it trains; 0 for sync, 1 for one step off.
        in_flight: whether weights change while answers run; else the engines wait for their answers.
        partial: whether unfinished answers go on in the next step.
    """

    mode: Mode = "sync"
    colocated: bool = True
    staleness: int = 0
    in_flight: bool = False
    partial: bool = False

    def __post_init__(self) -> None:
        if self.colocated and self.staleness:
            raise InputError(
                what="mode", given=f"{self.mode} on shared chips", allowed="separate pools", nearest="`gen_chips` N"
            )
        if self.mode == "async" and self.staleness < 1:
            allowed = "at least 1 with `mode` async"
            raise InputError(what="staleness", given=self.staleness, allowed=allowed, nearest="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a step on one side.

    Args:
        name: what it does.
        side: rollout or training.
        start_s, seconds: when it starts and how long it takes [s].
    """

    name: str
    side: str
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RlStep:
    """One step with both layouts.

    Args:
        seconds: from the start of one step to that of the next [s].
        parts: on each side, in order.
        rollout: the batch of answers.
        updates: the training side.
        gen_chips, train_chips: of each side [count].
        gen_layout, train_layout: layouts.
        idle_s: time in which a side waits for the other, by side [s].
        binds: what decides the time.
    """

    json_keys: ClassVar = (
        "step_s=seconds",
        "binding=binds",
        "gen_chips",
        "train_chips",
        "gen_layout",
        "train_layout",
        "parts",
        "idle_s",
        "tail_s=rollout.tail_s",
        "generated_tokens=rollout.tokens",
        "running_at_once=rollout.slots",
        "train_memory_bytes=updates.total_bytes",
        "critic_bytes=updates.critic_bytes",
        "reward_bytes=updates.reward_bytes",
    )

    seconds: float
    parts: tuple[Part, ...]
    rollout: Rollout
    updates: Updates
    gen_chips: int
    train_chips: int
    gen_layout: Layout
    train_layout: TrainLayout
    idle_s: dict[str, float]
    binds: str

    def part_s(self, name: str) -> float:
        """Time of the parts of a name [s]."""
        return sum(part.seconds for part in self.parts if part.name == name)


def rl_step(
    job: RlJob, schedule: Schedule, engine: RolloutEngine, updates: Updates, *, speed_up: dict[str, float] | None = None
) -> RlStep:
    """Put a step together.

    Args:
        speed_up: factor by which a part is faster: rollouts, log-probabilities, updates, transfer, host.
    """
    faster = speed_up or {}
    rollout = engine.batch(job.answers, job.lengths)
    generate = rollout.seconds
    colocated = schedule.colocated
    match schedule.mode:
        case "sync" | "one-step-off":
            pass
        case "async":
            ahead = float(schedule.staleness)
            if schedule.partial or ahead > 1.0:
                generate = engine.steady_s(
                    job.answers,
                    job.lengths,
                    in_flight=ahead * job.answers,
                    whole_in=float("inf") if schedule.partial else ahead,
                )
        case _:
            assert_never(schedule.mode)
    if schedule.partial and schedule.mode != "async":
        generate = engine.steady_s(job.answers, job.lengths, in_flight=job.answers, whole_in=float("inf"))
    generate /= faster.get("rollouts", 1.0)
    slower = job.overheads.training
    forward = slower * updates.log_prob_s / faster.get("log-probabilities", 1.0)
    if job.reward is not None:
        reward = forward * job.reward.active_params / job.model.active_params * job.answers / job.trained_answers
    else:
        reward = 0.0
    train = slower * updates.train_s / faster.get("updates", 1.0)
    moved = transfer_s(job, updates.layout, colocated=colocated)
    moved /= faster.get("transfer", 1.0)
    states = updates.states_bytes + updates.critic_bytes + updates.reward_bytes
    kept = offload_s(job, states) / faster.get("transfer", 1.0) if colocated else 0.0
    host = (FIXED_S + ANSWER_S * job.answers) / faster.get("host", 1.0)
    learning = [
        ("old log-probabilities", forward),
        ("reference log-probabilities", forward if job.reference else 0.0),
        ("rewards", reward),
        ("critic", forward + train if job.algorithm == "ppo" else 0.0),
        ("updates", train),
    ]
    generating = [("rollouts", generate)]
    transfer = [("weights to engines", moved)]
    if schedule.mode == "sync":
        order = [*transfer, *generating, ("host", host), ("states to host and back", kept), *learning]
        parts = _in_a_row(order, {"rollouts": "rollout"})
        seconds = sum(part.seconds for part in parts)
        idle = {} if colocated else {"rollout": seconds - generate - moved, "training": generate}
        longest = max(parts, key=lambda part: part.seconds)
        binds = longest.name
        if longest.name == "rollouts" and rollout.tail_s > 0.5 * generate:
            binds = "the longest answers"
    else:
        ours = _in_a_row([*transfer, *generating], {"rollouts": "rollout", "weights to engines": "rollout"})
        theirs = _in_a_row([*transfer, ("host", host), *learning], {})
        own, other = sum(p.seconds for p in ours), sum(p.seconds for p in theirs)
        if schedule.in_flight:
            own = generate
        seconds = max(own, other)
        parts = (*ours, *theirs)
        idle = {"rollout": seconds - own, "training": seconds - other}
        binds = "rollouts" if own >= other else "training"
    return RlStep(
        seconds=seconds,
        parts=tuple(part for part in parts if part.seconds > 0.0),
        rollout=rollout if generate == rollout.seconds else replace(rollout, seconds=generate),
        updates=updates,
        gen_chips=engine.deployment.layout.num_chips,
        train_chips=updates.num_chips,
        gen_layout=engine.deployment.layout,
        train_layout=updates.layout,
        idle_s=idle,
        binds=binds,
    )


def _in_a_row(named: list[tuple[str, float]], side: dict[str, str]) -> tuple[Part, ...]:
    found: list[Part] = []
    clock = 0.0
    for name, seconds in named:
        found.append(Part(name=name, side=side.get(name, "training"), start_s=clock, seconds=seconds))
        clock += seconds
    return tuple(found)


FASTER = ("rollouts", "log-probabilities", "updates", "transfer", "host")


def what_twice_gives(job: RlJob, schedule: Schedule, engine: RolloutEngine, updates: Updates) -> dict[str, float]:
    """Step time over that with each part twice as fast [1]; 1 where a part is hidden."""
    whole = rl_step(job, schedule, engine, updates).seconds
    return {name: whole / rl_step(job, schedule, engine, updates, speed_up={name: 2.0}).seconds for name in FASTER}
