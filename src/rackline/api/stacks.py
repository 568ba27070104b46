"""The serving stacks that a question may be answered with, and what the answer says of the choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rackline.api.answer import Watch
from rackline.api.groups import OnCluster
from rackline.api.plan_parts import PlanQuestion, engine_of, plan_inputs
from rackline.api.resolve import as_published, named
from rackline.late import late

with late:
    from rackline import search, system as systems
    from rackline.bands import defaults, stack_choice
    from rackline.report import stacks_report
    from rackline.search import engine_choice, inputs, launch


def stacks_of(question: OnCluster, watch: Watch) -> list[str]:
    """The stacks that `auto` asks in a search, that of which most is known first; none where there is no choice."""
    if question.calibration != "auto" or question.stack is not None:
        return []
    model, cluster = named(question, watch)
    if cluster.calibration:
        return []
    found = defaults.default_stacks(*as_published(question, model, cluster, watch))
    return found if len(found) > 1 else []


def stack_inputs(question: PlanQuestion, watch: Watch) -> list[inputs.PlanInputs]:
    """What the question of a plan says under every stack that it may be answered with; see `stacks_of`."""
    engine, _ = engine_of(question.launch or "auto")
    stacks = [] if engine else stacks_of(question, watch)
    return [plan_inputs(replace(question, calibration=one), watch) for one in stacks] or [plan_inputs(question, watch)]


def answered_by(
    question: PlanQuestion,
    asked: Sequence[inputs.PlanInputs],
    watch: Watch,
    estimated: Callable[[search.Plan], object] | None = None,
    of: str = "",
) -> engine_choice.EngineAnswer:
    """Return the answer under the chosen engine, and note which one that is.

    Args:
        asked: inputs of each engine, the best measured first.
        estimated: what a watch is told of the first plan by estimates.
        of: name of what is planned, where there are several.
    """
    told = list[search.Plan]()
    if question.launch is not None:
        launch.check_stack(asked[0].engine or asked[0].system.calibration.name)

    def tell(plan: search.Plan) -> None:
        if estimated is not None and not told:
            watch.estimated(estimated(plan))
        told.append(plan)

    taken = engine_choice.choose_engine(asked, tell)
    stacks = taken.stacks
    if stacks is None:
        return taken
    if taken.to_measure is not None:
        stacks = replace(stacks, measurement=_measured_like(taken.to_measure))
    line = _line(stacks, taken.plan.system, question, watch, stacks_report.unit_of(taken.plan))
    watch.takes(f"{of}: {line}" if of else line)
    return replace(taken, stacks=stacks)


def _measured_like(plan: search.Plan) -> str:
    """The command line that measures a server like the answer of a plan."""
    best, work = plan.best, plan.demand.workload
    if best is None:
        return ""
    return observe_line(plan.system, work.input_len, work.output_len, f"--rate {best.requests_per_s:.3g}")


def observe_line(system: systems.System, input_len: float, output_len: float, load: str) -> str:
    """The command line that measures a server of a stack.

    Args:
        input_len, output_len: of its requests [tokens].
        load: option of the traffic.
    """
    lengths = f"--input {input_len:.0f} --output {output_len:.0f}"
    return f"rackline observe http://HOST:8000 {lengths} {load} --stack {system.calibration.name}"


def estimated_by(
    question: OnCluster,
    systems: Sequence[systems.System],
    offer: Callable[[systems.System], engine_choice.Offer | str],
    watch: Watch,
) -> tuple[systems.System, stack_choice.Stacks | None]:
    """Return the system of the engine that a search by estimates chooses, with all that were weighed, and note it.

    Args:
        systems: one for each engine, the best measured first.
        offer: finds the deployment under a system.
    """
    system, stacks = engine_choice.choose_system(systems, offer)
    if stacks is not None:
        watch.takes(_line(stacks, system, question, watch))
    return system, stacks


def _line(
    stacks: stack_choice.Stacks, system: systems.System, question: OnCluster, watch: Watch, unit: str = "$"
) -> str:
    """Which stack is taken, and which one where none are compared if it is another."""
    usual = defaults.default_stack(*as_published(question, system.model, system.cluster, watch))
    return stacks_report.stacks_line(stacks, unit, usual)
