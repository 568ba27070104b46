"""The search: split of the chips, layouts of both sides, what a run of many steps takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rackline.errors import InputError, RacklineError
from rackline.hardware import Cluster
from rackline.parallel import Layout, enumerate_layouts
from rackline.parallel.memory import weight_bytes
from rackline.posttraining.job import RlJob
from rackline.posttraining.rollout import RolloutEngine
from rackline.posttraining.step import RlStep, Schedule, rl_step, what_twice_gives
from rackline.posttraining.updates import Updates, best_updates, updates_of
from rackline.training.runs import TrainLayout

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
    if gen_chips is not None and not 0 < gen_chips < chips:
        allowed = f"1 to {chips - 1} of {chips}"
        raise InputError(what="gen_chips", given=gen_chips, allowed=allowed, nearest=str(max(1, chips // 2)))
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
            if split not in others or step.seconds < others[split]:
                others[split] = step.seconds
            if best is None or step.seconds < best[0].seconds:
                best = (step, engine, updates)
        if done is not None:
            done(index + 1, len(splits))
    if best is None:
        return RlPlan(
            job=job,
            schedule=schedule,
            best=None,
            twice={},
            run=None,
            others={},
            candidates_evaluated=timed,
            reason=reasons[-1] if reasons else "nothing fits",
        )
    step, engine, updates = best
    return RlPlan(
        job=job,
        schedule=schedule,
        best=step,
        twice=what_twice_gives(job, schedule, engine, updates),
        run=run_of(job, step, steps),
        others=others,
        candidates_evaluated=timed,
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
    given = layouts is not None
    options = list(layouts) if layouts is not None else _usual_layouts(job, chips)
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
            what="gen_layout" if given else f"rollouts of {job.model.name}",
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
    room = job.serving.stack.memory_fraction * job.cluster.chip.hbm_bytes
    least = {layout: float(sum(weight_bytes(job.model, layout, job.serving.precision).values())) for layout in able}
    fits = [layout for layout in able if least[layout] < room]
    if not fits:
        raise InputError(
            what=f"rollouts of {job.model.name} on {chips} chips of {job.cluster.name}",
            given=f"{min(least.values(), default=0.0) / 1e9:.0f} GB of weights on a chip at the least",
            allowed=f"below {room / 1e9:.0f} GB of it: more chips, a narrower precision or a larger memory fraction",
        )
    return sorted(fits, key=lambda layout: layout.chips_per_replica)[:MOST_ENGINES]


def run_of(job: RlJob, step: RlStep, steps: float) -> RlRun:
    """What many steps take."""
    cluster, active = job.cluster, float(job.model.active_params)
    share = job.trained_answers / job.answers * (job.sequence_len / job.lengths.mean)
    passes = 1.0 + (1.0 if job.reference else 0.0)
    each = 2.0 + share * (2.0 * passes + 6.0)
    if job.algorithm == "ppo":
        each += share * 8.0
    tokens = step.rollout.tokens
    peak = cluster.num_chips * cluster.chip.flop_per_s(job.training.precision.compute)
    hours = steps * step.seconds / 3600.0
    price = cluster.usd_per_chip_hour
    return RlRun(
        steps=steps,
        days=hours / 24.0,
        usd=None if price is None else hours * cluster.num_chips * price,
        generated_tokens=steps * tokens,
        trained_tokens=steps * job.trained_answers * job.sequence_len,
        flop_per_param_token=each,
        mfu=each * active * tokens / (step.seconds * peak),
    )


def given_step(job: RlJob, schedule: Schedule, gen: Layout, train: TrainLayout) -> RlStep:
    """A step with both layouts given; their chips are those of the two sides."""
    cluster = job.cluster
    engine = engines_of(job, cluster.with_num_chips(gen.num_chips), [replace(gen, dp=1)])[0]
    return rl_step(job, schedule, engine, updates_of(job, cluster.with_num_chips(train.num_chips), train))
