"""Deployments side by side: a plan of each MODEL@CLUSTER under each engine, and today's deployment as it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rackline.api.plan import searched
from rackline.api.plan_parts import PlanInputs, PlanQuestion, plan_inputs, plan_question_of
from rackline.api.uses import with_use
from rackline.api.watch import Watch
from rackline.errors import InputError, nearest_names
from rackline.units import parse_whole

if TYPE_CHECKING:
    from rackline.api.compare import CompareQuestion
    from rackline.api.uses import Use
    from rackline.parallel import Layout
    from rackline.report.compare_report import Side
    from rackline.search import Plan

_LAYOUT = ("tp", "pp", "ep", "moe_tp", "attention_dp", "attention-dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Today's deployment as it was written.

    Args:
        layout: parallel degrees as text.
        batch_size: sequences in flight on one replica [sequences].
        precision, mode: as options of a plan; None for the checkpoint's own, and the engine's own.
    """

    layout: str
    batch_size: int
    precision: str | None = None
    mode: str | None = None


def parse_now(text: str) -> Now:
    """Read "tp=8,batch=64", with precision= and mode= where they are not the usual ones.

    Raises:
        InputError: an unknown part, or no batch.

    >>> parse_now("tp=4,pp=2,batch=64,precision=fp8")
    Now(layout='tp=4,pp=2', batch_size=64, precision='fp8', mode=None)
    """
    known = (*_LAYOUT, "batch", "precision", "mode")
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known or not (equals and value) or key in found:
            near = nearest_names(key, known, 1)
            raise InputError(
                what="now",
                given=part,
                allowed="a layout, batch, precision and mode, each once, such as tp=8,batch=64,precision=fp8",
                nearest=f"{near[0]}={value or 1}" if near else None,
            )
        found[key] = value
    if "batch" not in found:
        allowed = "with the sequences in flight on a replica"
        raise InputError(what="now", given=text, allowed=allowed, nearest=f"{text},batch=64")
    degrees = ",".join(f"{key}={value}" for key, value in found.items() if key in _LAYOUT)
    return Now(
        layout=degrees or "tp=1",
        batch_size=parse_whole(found["batch"], name="now batch"),
        precision=found.get("precision"),
        mode=found.get("mode"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One deployment of a comparison: its name, its question, and what runs where it is not a plan."""

    name: str
    engine: str
    question: PlanQuestion
    now: Now | None = None


def engines_of(question: CompareQuestion) -> list[str]:
    """Engines that are named, one by one."""
    return [one.strip() for text in question.stack for one in text.split(",") if one.strip()]


def asked_of(question: CompareQuestion, rent: str | None) -> list[Asked]:
    """Every name under every engine, today's deployment before the plan of the first.

    Raises:
        InputError: a name that is not MODEL@CLUSTER; an engine beside a calibration.
    """
    engines = engines_of(question)
    if engines and question.calibration != "auto":
        raise InputError(what="stack", given=engines[0], allowed="either engines or `calibration`")
    now = None if question.now is None else parse_now(question.now)
    found: list[Asked] = []
    for name in question.names:
        model, separator, on = name.rpartition("@")
        if not (separator and model and on):
            raise InputError(what="deployment", given=name, allowed="MODEL@CLUSTER, for all names")
        for engine in engines or ("",):
            one = _plan_question(question, model, on, rent, engine)
            label = f"{name} {engine}".strip()
            if now is not None and not found:
                found.append(Asked(name=f"{label} today", engine=engine, question=one, now=now))
            found.append(Asked(name=label, engine=engine, question=one))
    return found


def _plan_question(question: CompareQuestion, model: str, on: str, rent: str | None, engine: str) -> PlanQuestion:
    """The question of one plan, under an engine if one is named."""
    of_engine = {"calibration": engine.partition("=")[0].strip(), "launch": engine} if engine else {}
    return plan_question_of(question, model=model, on=on, rent=rent, **of_engine)


def sides_of(asked: Sequence[Asked], watch: Watch) -> tuple[list[Side], Use]:
    """Plans, and today's deployment; with what the use of the first added to the question.

    Raises:
        RacklineError: as `plan`.
    """
    from rackline.bands.intervals import of_candidate
    from rackline.report.compare_report import deployment_side
    from rackline.report.deployments_report import Band
    from rackline.search.fleet import plan_fleet

    uses: list[Use] = []
    inputs: list[PlanInputs] = []
    for one in asked:
        full, use = with_use(one.question)
        uses.append(use)
        inputs.append(plan_inputs(full if one.now is None else _as_it_runs(full, one.now), watch, again=True))
    sides: list[Side] = []
    for one, given in zip(asked, inputs, strict=True):
        with watch.moving(f"planning {one.name}"):
            found = searched(given) if one.now is None else _running(given, one.now)
        engine = one.engine or given.system.calibration.name
        known = (
            of_candidate(found.best, found.system.model, found.system.cluster.chip.name, found.system.calibration.name)
            if found.best
            else []
        )
        bands = {each.metric: Band(low=each.low, high=each.high) for each in known}
        fleet = plan_fleet(given.traffic, found, given.prefill_cluster, given.users)
        today = one.now is not None
        sides.append(deployment_side(one.name, found, engine=engine, bands=bands, fleet=fleet, today=today))
    return sides, uses[0]


def _as_it_runs(question: PlanQuestion, now: Now) -> PlanQuestion:
    return replace(
        question,
        layout=now.layout,
        precision=(now.precision or "native",),
        mode=None if now.mode is None else (now.mode,),
        serving="aggregated",
        any_layout=True,
        tpot=None,
        ttft=None,
    )


def _running(given: PlanInputs, now: Now) -> Plan:
    """Today's deployment with its sequences always in flight.

    Raises:
        InputError: sequences that do not spread evenly over ranks and stages.
    """
    import numpy as np

    from rackline.parallel import parse_layout
    from rackline.parallel.layout import check
    from rackline.search import plan

    model, cluster = given.system.model, given.system.cluster
    layout: Layout = parse_layout(now.layout, model)
    check(layout, model, cluster.num_chips)
    ranks = layout.attention_dp * layout.pp
    if now.batch_size % ranks:
        near = max(round(now.batch_size / ranks), 1) * ranks
        allowed = f"a multiple of {ranks}, its attention-dp ranks and pipeline stages"
        raise InputError(what="now batch", given=now.batch_size, allowed=allowed, nearest=str(near))
    space = replace(
        given.space,
        layouts=[layout],
        batches=np.array([now.batch_size // ranks], dtype=float),
        modes=given.space.modes or [given.system.stack.mode()],
    )
    return plan(given.system, given.demand, space, prefill=None, served=False)
