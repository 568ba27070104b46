"""A step put together: weights to engines, what follows what on which chips; its search over splits and layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import ClassVar, assert_never

from rackline.arch import Model, MoeFfn
from rackline.errors import InputError, RacklineError, require
from rackline.hardware import Cluster
from rackline.hardware.chip import host_bytes_per_s
from rackline.parallel import Layout, enumerate_layouts
from rackline.parallel.memory import weight_bytes
from rackline.posttraining.job import Mode, RlJob, Updates, best_updates, updates_of
from rackline.posttraining.rollout import Rollout, RolloutEngine
from rackline.training.runs import TrainLayout

FIXED_S = 3.0
"""Between the phases of a step: engines woken and put to sleep, results gathered, logging (assumed:
9 % of the shortest published step, 34.5 s of NeMo RL, 3 % of the median one)."""
ANSWER_S = 0.001
"""Controller time of an answer: tokens to text, a rule's reward, its advantage, its place in a pack (assumed:
0.5 s of 512 answers, the samples of NeMo RL's steps)."""


TENSORS_PER_LAYER = 9
"""Queries, keys, values, output, gate, up, down and two norms of a dense layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How rollouts and updates share chips and time.

    Args:
        mode: of MODES.
        colocated: whether both sides use the same chips in turn.
        staleness: steps by which a rollout may lag behind the weights that it trains; 0 for sync, 1 for one step off.
        partial: whether unfinished answers go on in the next step.
    """

    mode: Mode = "sync"
    colocated: bool = True
    staleness: int = 0
    partial: bool = False

    def __post_init__(self) -> None:
        require(
            not (self.colocated and self.staleness),
            what="mode",
            given=f"{self.mode} on shared chips",
            allowed="separate pools",
            nearest="`gen_chips` N",
        )
        require(
            self.mode != "async" or self.staleness >= 1,
            what="staleness",
            given=self.staleness,
            allowed="at least 1 with `mode` async",
            nearest="1",
        )


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
    whole = float(sum(weight_bytes(job.model, Layout(), job.serving.precision).values()))
    wire_s = whole / level.bytes_per_s_each_way
    host_s = job.overheads.tensor_s * num_tensors(job.model)
    return wire_s + host_s if colocated else max(wire_s, host_s)


PAGEABLE_OUT, PAGEABLE_IN = 1.8e9, 16.1e9
"""Bytes a second between a chip and memory of its host that is not pinned: newly allocated in each step on the way out,
there already on the way back (github.com/NVIDIA-NeMo/RL, issue 3976, a run on H100: 4.94 GB in 2.75 s; 1 GiB to memory
that is there, 16.1 GB/s)."""


def offload_s(job: RlJob, updates: Updates) -> float:
    """What training keeps goes to the host before the rollouts and comes back before the updates, on shared chips [s].

    Weights have pinned memory there, optimiser states have not, gradients are dropped (github.com/NVIDIA-NeMo/RL,
    v0.6.0, nemo_rl/models/policy/workers/megatron_policy_worker.py, `move_optimizer`; NVIDIA/Megatron-LM,
    megatron/core/distributed/param_and_grad_buffer.py, `offload_to_cpu`). A critic goes as the policy does.

    Assumes: memory of a Grace host, which the chip addresses itself (arXiv:2408.11556), takes either at the rate of
        the link.
    """
    chip = job.cluster.chip
    link = host_bytes_per_s(chip)
    models = 2.0 if job.algorithm == "ppo" else 1.0
    pinned_s = 2.0 * (models * updates.weights_bytes + updates.reward_bytes) / link
    out, back = (link, link) if chip.grace else (min(link, PAGEABLE_OUT), min(link, PAGEABLE_IN))
    return pinned_s + models * updates.optimizer_bytes * (1.0 / out + 1.0 / back)


def rl_step(
    job: RlJob, schedule: Schedule, engine: RolloutEngine, updates: Updates, *, speed_up: dict[str, float] | None = None
) -> RlStep:
    """Put a step together.

    Args:
        speed_up: factor by which a part is faster: rollouts, log-probabilities, updates, transfer, host.
    """
    faster = speed_up or {}
    rollout = engine.batch(job.answers, job.lengths)
    generate, colocated = rollout.seconds, schedule.colocated
    match schedule.mode:
        case "sync" | "one-step-off":
            ahead = 1.0
        case "async":
            ahead = float(schedule.staleness)
        case _:
            assert_never(schedule.mode)
    if schedule.partial or ahead > 1.0:
        whole_in = inf if schedule.partial else ahead
        generate = engine.steady_s(job.answers, job.lengths, in_flight=ahead * job.answers, whole_in=whole_in)
    generate /= faster.get("rollouts", 1.0)
    slower = job.overheads.training
    forward = slower * updates.log_prob_s / faster.get("log-probabilities", 1.0)
    reward = 0.0
    if job.reward is not None:
        reward = forward * job.reward.active_params / job.model.active_params * job.answers / job.trained_answers
    train = slower * updates.train_s / faster.get("updates", 1.0)
    moved = transfer_s(job, updates.layout, colocated=colocated) / faster.get("transfer", 1.0)
    kept = offload_s(job, updates) / faster.get("transfer", 1.0) if colocated else 0.0
    host = (FIXED_S + ANSWER_S * job.answers) / faster.get("host", 1.0)
    learning = [
        ("old log-probabilities", forward),
        ("reference log-probabilities", forward if job.reference else 0.0),
        ("rewards", reward),
        ("critic", forward + train if job.algorithm == "ppo" else 0.0),
        ("updates", train),
    ]
    rollouts, transfer = ("rollouts", generate), ("weights to engines", moved)
    if schedule.mode == "sync":
        order = [transfer, rollouts, ("host", host), ("states to host and back", kept), *learning]
        parts = _in_a_row(order, {"rollouts": "rollout"})
        seconds = sum(part.seconds for part in parts)
        idle = {} if colocated else {"rollout": seconds - generate - moved, "training": generate}
        binds = max(parts, key=lambda part: part.seconds).name
        if binds == "rollouts" and rollout.tail_s > 0.5 * generate:
            binds = "the longest answers"
    else:
        ours = _in_a_row([transfer, rollouts], {"rollouts": "rollout", "weights to engines": "rollout"})
        theirs = _in_a_row([transfer, ("host", host), *learning], {})
        # engines stand still while weights arrive, also where these change under answers that run
        own, other = (sum(part.seconds for part in side) for side in (ours, theirs))
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
    starts = accumulate((seconds for _, seconds in named), initial=0.0)
    return tuple(
        Part(name=name, side=side.get(name, "training"), start_s=start_s, seconds=seconds)
        for (name, seconds), start_s in zip(named, starts, strict=False)
    )


FASTER = ("rollouts", "log-probabilities", "updates", "transfer", "host")


def what_twice_gives(job: RlJob, schedule: Schedule, engine: RolloutEngine, updates: Updates) -> dict[str, float]:
    """Step time over that with each part twice as fast [1]; 1 where a part is hidden."""
    whole = rl_step(job, schedule, engine, updates).seconds
    return {name: whole / rl_step(job, schedule, engine, updates, speed_up={name: 2.0}).seconds for name in FASTER}


SPLITS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
"""Shares of the chips that generate, of which the best is taken where none is given."""
MOST_ENGINES = 24
"""Layouts of a replica that are timed, the smallest replicas first."""
MOST_PER_REPLICA = 64
"""Chips of the largest replica that is considered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlRun:
    """What many steps take.

    Args:
        steps: of the run [count].
        days, usd: of the run; dollars None where no price is known.
        generated_tokens, trained_tokens: of the run [tokens].
        flop_per_param_token: FLOP per active parameter and generated token: rollouts 2, each pass of log-probabilities
            2 and updates 6 on what is trained [FLOP].
        mfu: those FLOP over the peak of all chips in the time of a step [1].
    """

    steps: float
    days: float
    usd: float | None
    generated_tokens: float
    trained_tokens: float
    flop_per_param_token: float
    mfu: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RlPlan:
    """The answer: the fastest step, and what it means for a run.

    Args:
        job: what was asked.
        schedule: how rollouts and updates share chips and time.
        best: the fastest step; None where nothing fits.
        twice: step time over that with a part twice as fast [1].
        run: of `steps` steps.
        others: step time by number of generating chips, where splits were compared [s].
        reason: why nothing fits.
        candidates_evaluated: engines and training layouts that were timed [count].
    """

    json_keys: ClassVar = (
        "model=job.model.name",
        "cluster=job.cluster.name",
        "num_chips=job.cluster.num_chips",
        "algorithm=job.algorithm",
        "prompts=job.prompts",
        "generations=job.generations",
        "schedule",
        "best",
        "speed_up_of_twice=twice",
        "run",
        "splits=others",
        "candidates_evaluated",
        "reason",
    )

    job: RlJob
    schedule: Schedule
    best: RlStep | None
    twice: Mapping[str, float]
    run: RlRun | None
    others: Mapping[int, float]
    candidates_evaluated: int
    reason: str = ""


def rl_plan(
    job: RlJob,
    schedule: Schedule,
    *,
    steps: float = 1.0,
    gen_chips: int | None = None,
    gen_layouts: Sequence[Layout] | None = None,
    train_fixed: Mapping[str, int] | None = None,
    recompute: Sequence[str] = ("none", "full"),
    done: Callable[[int, int], None] | None = None,
) -> RlPlan:
    """Find the fastest step.

    Args:
        steps: of the run [count].
        gen_chips: chips that generate; all where they are shared, else searched by default [count].
        gen_layouts: layouts of one replica that are considered; all that fit by default.
        train_fixed: parts of the training layout that are given.
        recompute: kinds of recomputation that are considered.
        done: called with (finished splits, all).

    Raises:
        InputError: a split that leaves a side without chips.
    """
    chips = job.cluster.num_chips
    require(
        gen_chips is None or 0 < gen_chips < chips,
        what="gen_chips",
        given=gen_chips,
        allowed=f"1 to {chips - 1} of {chips}" if chips > 1 else "on a cluster of two chips or more",
        nearest=str(chips // 2) if chips > 1 else None,
    )
    splits = [chips] if schedule.colocated else [gen_chips] if gen_chips else _splits(job.cluster)
    best: tuple[RlStep, RolloutEngine, Updates] | None = None
    others: dict[int, float] = {}
    reasons: list[str] = []
    timed = 0
    for index, split in enumerate(splits):
        learners = chips if schedule.colocated else chips - split
        try:
            updates = best_updates(job, job.cluster.with_num_chips(learners), fixed=train_fixed, recompute=recompute)
            engines = engines_of(job, job.cluster.with_num_chips(split), gen_layouts)
        except RacklineError as error:
            reasons.append(str(error))
            continue
        for engine in engines:
            timed += 1
            step = rl_step(job, schedule, engine, updates)
            others[split] = min(step.seconds, others.get(split, inf))
            if best is None or step.seconds < best[0].seconds:
                best = (step, engine, updates)
        if done is not None:
            done(index + 1, len(splits))
    return RlPlan(
        job=job,
        schedule=schedule,
        best=best[0] if best else None,
        twice=what_twice_gives(job, schedule, *best[1:]) if best else {},
        run=run_of(job, best[0], steps) if best else None,
        others=others,
        candidates_evaluated=timed,
        reason="" if best else reasons[-1] if reasons else "nothing fits",
    )


def _splits(cluster: Cluster) -> list[int]:
    """Numbers of generating chips, in whole hosts where there are several."""
    chips = cluster.num_chips
    unit = min(cluster.scale_up.size, 8) if chips > min(cluster.scale_up.size, 8) else 1
    found = {max(unit, round(chips * share / unit) * unit) for share in SPLITS}
    return sorted(split for split in found if 0 < split < chips)


def engines_of(job: RlJob, cluster: Cluster, layouts: Sequence[Layout] | None = None) -> list[RolloutEngine]:
    """Engines on all chips of a cluster, with the largest number of replicas that each layout allows.

    Raises:
        InputError: no layout has memory for the weights and one answer, with the least that is missing.
    """
    chips = cluster.num_chips
    options = _usual_layouts(job, chips) if layouts is None else list(layouts)
    found: list[RolloutEngine] = []
    refusal: InputError | None = None
    for layout in options:
        if chips % layout.chips_per_replica:
            continue
        engine = RolloutEngine.of(cluster, replace(layout, dp=chips // layout.chips_per_replica), job)
        try:
            engine.slots(job.lengths)
        except InputError as error:
            refusal = refusal or error
            continue
        found.append(engine)
    if not found:
        if refusal is not None:
            raise refusal
        raise InputError(
            what="gen_layout" if layouts is not None else f"rollouts of {job.model.name}",
            given=", ".join(layout.label() for layout in options[:4]) or f"{chips} chips",
            allowed=f"a layout that fills {chips} chips with whole replicas",
        )
    return found


def _usual_layouts(job: RlJob, chips: int) -> list[Layout]:
    """Layouts of one replica without a pipeline: tp within a domain, experts cut by tp or spread."""
    most = job.cluster.scale_up.size
    able = [
        layout
        for layout in enumerate_layouts(job.model, min(chips, MOST_PER_REPLICA), max_pp=1)
        if layout.tp <= most and chips % layout.chips_per_replica == 0 and layout.ep in (1, layout.chips_per_replica)
    ]
    room = job.serving.stack.memory.memory_fraction * job.cluster.chip.hbm_bytes
    least = {layout: float(sum(weight_bytes(job.model, layout, job.serving.precision).values())) for layout in able}
    fits = [layout for layout in able if least[layout] < room]
    require(
        fits,
        what=f"rollouts of {job.model.name} on {chips} chips of {job.cluster.name}",
        given=f"{min(least.values(), default=0.0) / 1e9:.0f} GB of weights on a chip at the least",
        allowed=f"below {room / 1e9:.0f} GB of it: more chips, a narrower precision or a larger memory fraction",
    )
    return sorted(fits, key=lambda layout: layout.chips_per_replica)[:MOST_ENGINES]


def run_of(job: RlJob, step: RlStep, steps: float) -> RlRun:
    """What many steps take."""
    cluster, active = job.cluster, float(job.model.active_params)
    share = job.trained_answers / job.answers * (job.sequence_len / job.lengths.mean)
    passes = 2.0 if job.reference else 1.0
    each = 2.0 + share * (2.0 * passes + (14.0 if job.algorithm == "ppo" else 6.0))
    tokens, price = step.rollout.tokens, cluster.usd_per_chip_hour
    peak = cluster.num_chips * cluster.chip.flop_per_s(job.training.precision.compute)
    hours = steps * step.seconds / 3600.0
    return RlRun(
        steps=steps,
        days=hours / 24.0,
        usd=None if price is None else hours * cluster.num_chips * price,
        generated_tokens=steps * tokens,
        trained_tokens=steps * job.trained_answers * job.sequence_len,
        flop_per_param_token=each,
        mfu=each * active * tokens / (step.seconds * peak),
    )


def given_sides(job: RlJob, gen: Layout, train: TrainLayout) -> tuple[RolloutEngine, Updates]:
    """Both sides with their layouts given; their chips are those of the layouts."""
    cluster = job.cluster
    engine = engines_of(job, cluster.with_num_chips(gen.num_chips), [replace(gen, dp=1)])[0]
    return engine, updates_of(job, cluster.with_num_chips(train.num_chips), train)


def given_step(job: RlJob, schedule: Schedule, gen: Layout, train: TrainLayout) -> RlStep:
    """A step with both layouts given."""
    return rl_step(job, schedule, *given_sides(job, gen, train))
