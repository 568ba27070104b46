"""The serving engines that a search may take, and what its answer says of the choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rackline.api.answer import Watch
from rackline.api.groups import OnCluster
from rackline.api.plan_parts import PlanQuestion, plan_inputs
from rackline.api.resolve import ANY_ENGINE, as_published, named
from rackline.errors import require
from rackline.late import late

with late:
    from rackline import arch, hardware, search, system as systems
    from rackline.bands import defaults, engine_costs
    from rackline.report import engines_report
    from rackline.search import engine_choice, inputs


def engines_of(question: OnCluster, watch: Watch) -> list[str]:
    """Return the engines that a search considers, the default one first; "auto" alone where there is no choice.

    Raises:
        InputError: any engine with the kernel speeds of one.
    """
    any_engine = question.engine == ANY_ENGINE
    if any_engine:
        require(
            question.calibration == "auto",
            what="calibration",
            given=question.calibration,
            allowed="auto with `engine` any: each engine has its own",
        )
    elif question.engine != "auto" or question.calibration != "auto":
        return [question.engine]
    model, cluster = named(question, watch)
    if cluster.calibration:
        return ["auto"]
    known = defaults.engines_of(*as_published(question, model, cluster, watch))
    return known if any_engine and len(known) > 1 else ["auto", *known[1:]]


def engine_inputs(question: PlanQuestion, watch: Watch) -> list[inputs.PlanInputs]:
    """Return what a plan searches under every engine that it considers; see `engines_of`."""
    return [plan_inputs(replace(question, engine=engine), watch) for engine in engines_of(question, watch)]


def answered_by(
    question: PlanQuestion,
    asked: Sequence[inputs.PlanInputs],
    watch: Watch,
    estimated: Callable[[search.Plan], object] | None = None,
    of: str = "",
) -> engine_choice.EngineAnswer:
    """Return the answer under one engine, and note what others would cost.

    Args:
        asked: inputs of each engine, the default one first.
        estimated: what a watch is told of the first plan by estimates.
        of: name of what is planned, where there are several.
    """
    told = list[search.Plan]()

    def tell(plan: search.Plan) -> None:
        if estimated is not None and not told:
            watch.estimated(estimated(plan))
        told.append(plan)

    answer = engine_choice.choose_engine(asked, cheapest=question.engine == ANY_ENGINE, tell_estimate=tell)
    if answer.engines is not None:
        for line in engines_report.engines_lines(answer.engines, engines_report.unit_of(answer.plan)):
            watch.takes(f"{of}: {line}" if of else line)
    return answer


def estimated_by(
    question: OnCluster,
    systems: Sequence[systems.System],
    offer: Callable[[systems.System], engine_choice.Offer | str],
    watch: Watch,
) -> tuple[systems.System, engine_costs.ComparedEngines | None]:
    """Return the system of one engine, with the estimates of the others, and note them.

    Args:
        systems: one for each engine, the default one first.
        offer: finds the deployment under a system.
    """
    system, engines = engine_choice.choose_system(systems, offer, cheapest=question.engine == ANY_ENGINE)
    if engines is not None:
        for line in engines_report.engines_lines(engines):
            watch.takes(line)
    return system, engines


def common_engine(pairs: Sequence[tuple[arch.AnyModel, hardware.Cluster]]) -> str:
    """Return the engine that can serve all models on their clusters where none is named; empty if there is none.

    It is the default engine of all, if they have the same one. Otherwise it is the first default engine of the
    catalogue that runs everywhere, or the first that was measured on all chips.

    Args:
        pairs: of a model and the cluster that serves it.
    """
    usual = [defaults.default_engine(model, cluster) for model, cluster in pairs]
    chips = [cluster.chip for _, cluster in pairs]
    candidates = [usual[0]] if len(set(usual)) == 1 else defaults.known_engines(chips[0])
    return next((engine for engine in candidates if all(defaults.runs_on(engine, chip) for chip in chips)), "")
