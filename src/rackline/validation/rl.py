"""Steps of reinforcement learning: the predicted time of published ones and their parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from rackline.arch import Model
from rackline.bands.stacks import default_stack
from rackline.errors import InputError
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import ALGORITHMS, MODES, AnswerLengths, RlJob, Updates
from rackline.posttraining.plan import RlStep, Schedule, given_sides, rl_plan, rl_step
from rackline.posttraining.rollout import RolloutEngine
from rackline.serving.stack import stack_named
from rackline.system import System
from rackline.training.runs import TrainLayout
from rackline.validation.cases import Case
from rackline.validation.resolve import Resolver

Name = TypeVar("Name", bound=str)


def predict_rl(resolver: Resolver, case: Case) -> dict[str, float]:
    """Time of a step of a case and of its parts [s]; in the fastest layouts where the case states none.

    Raises:
        RacklineError: the case cannot be predicted, with the reason.
    """
    step = _step_of(resolver, case)
    old, reference = (step.part_s(f"{whose} log-probabilities") for whose in ("old", "reference"))
    return {
        "rl_step_s": step.seconds,
        "rollouts_s": step.part_s("rollouts"),
        "old_log_probs_s": old,
        "reference_log_probs_s": reference,
        "log_probs_s": old + reference,
        "updates_s": step.part_s("updates"),
        "transfer_s": step.part_s("weights to engines"),
    }


def _step_of(resolver: Resolver, case: Case) -> RlStep:
    job, schedule = _asked(resolver, case)
    if case.values.get("gen_layout"):
        return rl_step(job, schedule, *_sides(job, case))
    found = rl_plan(job, schedule, gen_chips=case.whole("gen_chips") or None)
    if found.best is None:
        raise InputError(what="layouts", given="none", allowed=found.reason)
    return found.best


def sides_of(resolver: Resolver, case: Case) -> tuple[RlJob, Schedule, RolloutEngine, Updates]:
    """What a case that states its layouts runs, and both of its sides.

    Raises:
        RacklineError: the case cannot be predicted, with the reason.
    """
    job, schedule = _asked(resolver, case)
    return job, schedule, *_sides(job, case)


def _asked(resolver: Resolver, case: Case) -> tuple[RlJob, Schedule]:
    model = resolver.model(case)
    if not isinstance(model, Model):
        raise InputError(what="model", given=case.model, allowed="a model whose layers are known")
    chip = resolver.chip(case.chip)
    rack = resolver.cluster(chip, case.num_chips)
    numbers = calibration(case.text("engine") or default_stack(model, rack), chip)
    around = stack_named(case.text("engine"), numbers, chip)
    if case.values.get("eager"):
        around = replace(around, eager_decode=True, graph_tokens=0, prompt_graph_tokens=0)
    serving = System.of(
        model,
        rack,
        calibration=numbers,
        stack=around,
        precisions=[precision(case.precision, model, chip)],
        memory_fraction=case.number("memory_fraction") if case.values.get("memory_fraction") else None,
    )
    gen_chips = case.whole("gen_chips") or None
    job = RlJob.of(
        serving,
        prompts=case.whole("prompts"),
        generations=case.whole("generations"),
        prompt_len=case.number("input_len"),
        lengths=AnswerLengths(
            mean=case.number("output_len"), spread=case.number("output_spread", 0.0), longest=case.number("longest")
        ),
        train_precision=case.precision,
        algorithm=_one_of(case, "algorithm", ALGORITHMS, "grpo"),
        reference=case.text("algorithm", "grpo") != "dapo",
        train_batch=case.whole("train_batch") or None,
        trained=case.whole("trained") or None,
        log_prob_batch=case.whole("log_prob_batch", 1),
    )
    schedule = Schedule(
        mode=_one_of(case, "mode", MODES, "sync"),
        colocated=gen_chips is None,
        staleness=case.whole("staleness"),
        partial=bool(case.values.get("partial")),
    )
    return job, schedule


def _sides(job: RlJob, case: Case) -> tuple[RolloutEngine, Updates]:
    gen_chips, is_moe = case.whole("gen_chips"), job.model.is_moe
    gen, replicas = _degrees(case, "gen_layout", gen_chips or case.num_chips, ("tp", "pp", "ep"))
    train, ranks = _degrees(case, "layout", case.num_chips - gen_chips, ("tp", "pp", "cp"))
    tp, pp, ep = gen["tp"], gen["pp"], gen["ep"]
    return given_sides(
        job,
        Layout(tp=tp, pp=pp, ep=ep, moe_tp=tp // ep if is_moe else 1, dp=replicas),
        TrainLayout(
            tp=train["tp"],
            pp=train["pp"],
            cp=train["cp"],
            ep=train.get("ep", 1) if is_moe else 1,
            dp=ranks,
            micro_batch=case.whole("micro_batch", 1),
            recompute=case.text("recompute", "none"),
        ),
    )


def _one_of(case: Case, key: str, allowed: Sequence[Name], otherwise: Name) -> Name:
    given = case.text(key, otherwise)
    for name in allowed:
        if name == given:
            return name
    raise InputError(what=key, given=given, allowed=", ".join(allowed))


def _degrees(case: Case, key: str, chips: int, named: Sequence[str]) -> tuple[dict[str, int], int]:
    """Parallel degrees of a layout, 1 where the case states none, and how often it stands on its chips."""
    given = cast("Mapping[str, int | str]", (case.layout if key == "layout" else case.values.get(key)) or {})
    parts = dict.fromkeys(named, 1) | {name: int(value) for name, value in given.items() if not isinstance(value, str)}
    dp, left = divmod(chips, math.prod(parts[name] for name in named if name != "ep"))
    if left or ("ep" in named and parts["tp"] % parts["ep"]):
        shown = ",".join(f"{name}={parts[name]}" for name in named)
        raise InputError(what=key, given=shown, allowed=f"parts that divide {chips} chips")
    return parts, dp
