"""Predicted time of a step of reinforcement learning, for cases with both layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from rackline.arch import Model
from rackline.errors import InputError, RacklineError
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import ALGORITHMS, MODES, AnswerLengths, RlJob, RlOverheads
from rackline.posttraining.plan import RlStep, Schedule, given_step, rl_plan
from rackline.search.stacks import usual_stack
from rackline.system import System
from rackline.training.runs import TrainLayout
from rackline.validation.cases import Case, Unsupported
from rackline.validation.resolve import Resolver

Name = TypeVar("Name", bound=str)


def predict_rl(resolver: Resolver, cases: Sequence[Case]) -> Iterator[tuple[Case, dict[str, float] | Unsupported]]:
    """Time of a step of each case and of its parts [s]."""
    for case in cases:
        try:
            yield case, times_of(rl_step_of(resolver, case))
        except RacklineError as error:
            yield case, Unsupported.of(case, str(error), bad_input=True)


def times_of(step: RlStep) -> dict[str, float]:
    """Measured key → time of that part of a step [s]."""
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


def rl_step_of(resolver: Resolver, case: Case, overheads: RlOverheads | None = None) -> RlStep:
    """The step of a case with its parts; in the fastest layouts where it states none.

    Args:
        overheads: of the framework, instead of the defaults.

    Raises:
        RacklineError: the case cannot be predicted, with the reason.
    """
    model = resolver.model(case)
    if not isinstance(model, Model):
        raise InputError(what="model", given=case.model, allowed="a model whose layers are known")
    chip = resolver.chip(case.chip)
    rack = resolver.cluster(chip, case.num_chips)
    name = case.text("engine") or usual_stack(model, rack).name
    serving = System.of(
        model,
        rack,
        calibration=calibration(name, chip),
        precisions=[precision(case.precision, model, chip)],
        memory_fraction=case.number("memory_fraction") if case.values.get("memory_fraction") else None,
    )
    gen_chips = int(case.number("gen_chips")) if case.values.get("gen_chips") else None
    learners = case.num_chips - (gen_chips or 0)
    lag = int(case.number("staleness")) if case.values.get("staleness") else 0
    job = RlJob.of(
        serving,
        prompts=int(case.number("prompts")),
        generations=int(case.number("generations")),
        prompt_len=case.number("input_len"),
        lengths=AnswerLengths(
            mean=case.number("output_len"),
            spread=case.number("output_spread") if case.values.get("output_spread") else 0.0,
            longest=case.number("longest"),
        ),
        train_precision=case.precision,
        algorithm=_one_of(case, "algorithm", ALGORITHMS, "grpo"),
        reference=case.text("algorithm", "grpo") != "dapo",
        train_batch=int(case.number("train_batch")) if case.values.get("train_batch") else None,
        trained=int(case.number("trained")) if case.values.get("trained") else None,
        log_prob_batch=int(case.number("log_prob_batch")) if case.values.get("log_prob_batch") else 1,
    )
    if overheads is not None:
        job = replace(job, overheads=overheads)
    schedule = Schedule(
        mode=_one_of(case, "mode", MODES, "sync"),
        colocated=gen_chips is None,
        staleness=lag,
        in_flight=bool(case.values.get("in_flight")),
        partial=bool(case.values.get("partial")),
    )
    if not case.values.get("gen_layout"):
        found = rl_plan(job, schedule, gen_chips=gen_chips)
        if found.best is None:
            raise InputError(what="layouts", given="none", allowed=found.reason)
        return found.best
    return given_step(job, schedule, _gen_layout(case, model, gen_chips), _train_layout(case, model, learners))


def _one_of(case: Case, key: str, allowed: Sequence[Name], otherwise: Name) -> Name:
    given = case.text(key, otherwise)
    for name in allowed:
        if name == given:
            return name
    raise InputError(what=key, given=given, allowed=", ".join(allowed))


def _gen_layout(case: Case, model: Model, gen_chips: int | None) -> Layout:
    parts = _counts(case, "gen_layout")
    tp, pp, ep = parts.get("tp", 1), parts.get("pp", 1), parts.get("ep", 1)
    chips = gen_chips or case.num_chips
    if chips % (tp * pp) or tp % ep:
        given = f"tp={tp},pp={pp},ep={ep}"
        raise InputError(what="gen_layout", given=given, allowed=f"parts that divide {chips} chips")
    return Layout(tp=tp, pp=pp, ep=ep, moe_tp=tp // ep if model.is_moe else 1, dp=chips // (tp * pp))


def _train_layout(case: Case, model: Model, chips: int) -> TrainLayout:
    parts = {key: int(value) for key, value in case.layout.items() if not isinstance(value, str)}
    tp, pp, cp = parts.get("tp", 1), parts.get("pp", 1), parts.get("cp", 1)
    if chips % (tp * pp * cp):
        raise InputError(what="layout", given=f"tp={tp},pp={pp},cp={cp}", allowed=f"parts that divide {chips} chips")
    return TrainLayout(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=parts.get("ep", 1) if model.is_moe else 1,
        dp=chips // (tp * pp * cp),
        micro_batch=int(case.number("micro_batch")) if case.values.get("micro_batch") else 1,
        recompute=case.text("recompute", "none"),
    )


def _counts(case: Case, key: str) -> dict[str, int]:
    given = cast("Mapping[str, int]", case.values.get(key) or {})
    return {name: int(value) for name, value in given.items()}
