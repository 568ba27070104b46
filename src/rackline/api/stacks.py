"""The stacks that a question may be answered with: each is asked as if it were named, and they are weighed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rackline.api.answer import Watch
from rackline.api.groups import OnCluster
from rackline.api.plan_parts import PlanInputs, PlanQuestion, engine_of, plan_inputs
from rackline.api.resolve import as_published, named
from rackline.late import late

with late:
    from rackline import passes, search, system as systems
    from rackline.bands import defaults, stacks as weighing
    from rackline.search import kept_prefixes, launch, stacks as search_stacks


def stacks_of(question: OnCluster, watch: Watch) -> list[str]:
    """The stacks that `auto` asks in a search, that of which most is known first; none where there is no choice."""
    if question.calibration != "auto" or question.stack is not None:
        return []
    model, cluster = named(question, watch)
    if cluster.calibration:
        return []
    found = defaults.default_stacks(*as_published(question, model, cluster, watch))
    return found if len(found) > 1 else []


def stack_inputs(question: PlanQuestion, watch: Watch) -> list[PlanInputs]:
    """What the question of a plan says under every stack that it may be answered with; see `stacks_of`."""
    engine, _ = engine_of(question.launch or "auto")
    stacks = [] if engine else stacks_of(question, watch)
    return [plan_inputs(replace(question, calibration=one), watch) for one in stacks] or [plan_inputs(question, watch)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The plan under one stack.

    Args:
        asked: of it.
        plan: the best of each kind, the front, what was rejected.
        power_caps: those that were tried for the least energy; empty where dollars count.
        prefixes: that the best keeps and finds; None where prompts do not repeat.
        stacks: all that were asked, of which this one is taken; None where there was one.
    """

    asked: PlanInputs
    plan: search.Plan
    power_caps: tuple[search.Tried, ...] = ()
    prefixes: kept_prefixes.KeptPrefixes | None = None
    stacks: weighing.Stacks | None = None


def planned_under(
    asked: PlanInputs,
    known: search.Contenders | None = None,
    below: float = math.inf,
    tell_estimate: Callable[[search.Plan], None] | None = None,
) -> Found:
    """The plan under one stack.

    Args:
        known: contenders by estimates, where they are known.
        below: cost from which on the best need not be simulated to the end.
        tell_estimate: is given the plan by estimates, before the best is simulated.
    """
    caps: tuple[search.Tried, ...] = ()

    def planned(at: PlanInputs) -> search.Plan:
        nonlocal caps
        if at.demand.objective != "joules":
            return at.plan(found=known, below=below, tell_estimate=tell_estimate)
        found, caps = search.least_energy(at.system, at.demand, at.space, prefill=at.prefill)
        return found

    if asked.keeping is None:
        plan, prefixes = planned(asked), None
    else:
        plan, prefixes = kept_prefixes.agreeing(
            asked.keeping,
            lambda hit: asked.with_hits(hit).plan(served=False),
            lambda hit: planned(asked.with_hits(hit)),
        )
        if prefixes is not None and plan.best is not None:
            prefixes = kept_prefixes.with_served_sessions(prefixes, plan, plan.best, asked.keeping)
    return Found(asked=asked, plan=plan, power_caps=caps, prefixes=prefixes)


def answered_by(
    question: PlanQuestion,
    asked: Sequence[PlanInputs],
    watch: Watch,
    estimated: Callable[[search.Plan], object] | None = None,
    of: str = "",
) -> Found:
    """Ask every stack, and answer under the one that is taken, which is noted.

    All are searched by their estimates, and the cheapest of these is simulated. Another one whose estimate is so dear
    that the first can be called cheaper is simulated only at the rate at which it would still cost less than that, and
    to the end where its limits hold there. Where the answer is more than the simulation of what a search finds, every
    stack is answered in full.

    Args:
        asked: of each stack, that of which most is known first.
        estimated: what a watch is told of the first plan by estimates.
        of: name of what is planned, where there are several.
    """
    first, told = asked[0], list[search.Plan]()
    if question.launch is not None:
        launch.check_stack(first.engine or first.system.calibration.name)

    def tell(plan: search.Plan) -> None:
        if estimated is not None and not told:
            watch.estimated(estimated(plan))
        told.append(plan)

    if len(asked) == 1:
        return planned_under(first, tell_estimate=tell)
    by_name = {one.system.calibration.name: one for one in asked}
    bounded = first.demand.objective != "joules" and first.keeping is None
    known = {name: one.contenders() if bounded else None for name, one in by_name.items()}
    found: dict[str, Found] = {}
    costs: dict[str, weighing.StackCost] = {}
    for name, one in sorted(by_name.items(), key=lambda item: _promise(item[1], known[item[0]])):
        cost = _settled(one, known[name], costs.values())
        if cost is None:
            found[name] = planned_under(one, known[name], tell_estimate=tell)
            plan = found[name].plan
            cost = _cost(one, plan.best, plan.reason, None if plan.best is None else plan.cost_of(plan.best))
        costs[name] = cost
    weighed = weighing.Stacks.of([costs[name] for name in by_name])
    if weighed is None:
        name = next(iter(by_name))
        return found.get(name) or planned_under(first, known[name], tell_estimate=tell)
    if weighed.to_measure:
        weighed = replace(weighed, measurement=_measured_like(found[weighed.to_measure].plan))
    taken = replace(found[weighed.taken], stacks=weighed)
    line = _line(weighed, taken.plan.system, question, watch, weighing.unit_of(taken.plan))
    watch.takes(f"{of}: {line}" if of else line)
    return taken


def _promise(asked: PlanInputs, known: search.Contenders | None) -> tuple[bool, float]:
    """Sort key of a stack: those first that can be called cheaper, then the cheapest by their estimates."""
    one = _cost(asked, None if known is None else known.best)
    return not one.stands, one.cost


def _settled(
    asked: PlanInputs, known: search.Contenders | None, costs: Iterable[weighing.StackCost]
) -> weighing.StackCost | None:
    """A lower bound of the cost under a stack, where one that was simulated can be called cheaper than that.

    Without an answer by estimates it is infinite; None where the stack could win, or nothing is known by estimates.
    """
    if known is None:
        return None
    estimate = _cost(asked, known.best, known.engines.reason)
    if known.best is None:
        return estimate
    kinds = [
        defaults.errors_of(estimate.stack, asked.system.model, asked.system.cluster.chip, pools=pools)
        for pools in (False, True)
    ]
    below = min((other.beats_from(estimate.stack, kinds) for other in costs), default=math.inf)
    if estimate.cost < below:
        return None
    best = planned_under(asked, known, below).plan.best
    if best is not None and (best.sustained is not None or best.usd_with_leftover < below):
        return None
    return replace(estimate, cost=below, basis="bound")


def _cost(
    asked: PlanInputs, best: search.Choice | None, reason: str = "", cost: float | None = None
) -> weighing.StackCost:
    """The cost under the stack of a plan.

    Args:
        cost: what the plan has least of; dollars by default.
    """
    if best is None:
        return stack_cost(asked.system, reason, version=asked.version)
    usd = best.usd_with_leftover if cost is None else cost
    offer = Offer(cost=usd, step=best.inside.decode, pools=best.prefill_pool is not None)
    found = stack_cost(asked.system, offer, version=asked.version)
    return found if best.sustained is None else replace(found, basis="simulated")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a search finds under one stack.

    Args:
        cost: as of `StackCost`.
        step: the decode step.
        pools: whether prompts have chips of their own.
        measurement: command line that measures such a server.
    """

    cost: float
    step: passes.PassTime
    pools: bool
    measurement: str = ""


def stack_cost(system: systems.System, offer: Offer | str, *, version: str = "") -> weighing.StackCost:
    """The cost under a stack, with what is known of it.

    Args:
        system: under the stack.
        offer: by estimates, or why there is none.
        version: that is launched; the stack's own by default.
    """
    stack, chip, found = system.calibration.name, system.cluster.chip, None if isinstance(offer, str) else offer
    rules = search_stacks.rules_of(system.calibration)
    return weighing.StackCost(
        stack=stack,
        version=version or system.calibration.version or (rules.version if rules else ""),
        cost=math.inf if found is None else found.cost,
        basis="estimate",
        own_share=0.0 if found is None else defaults.own_share(found.step, stack, chip),
        errors=defaults.errors_of(stack, system.model, chip, pools=found is not None and found.pools),
        reason=offer if isinstance(offer, str) else "",
    )


def estimated_by(
    question: OnCluster, systems: Sequence[systems.System], offer: Callable[[systems.System], Offer | str], watch: Watch
) -> tuple[systems.System, weighing.Stacks | None]:
    """The system of the stack that a search by estimates takes, and all that were asked.

    Args:
        systems: of each stack, that of which most is known first.
        offer: what is found under one.
    """
    if len(systems) == 1:
        return systems[0], None
    offers = {one.calibration.name: offer(one) for one in systems}
    weighed = weighing.Stacks.of([stack_cost(one, offers[one.calibration.name]) for one in systems])
    if weighed is None:
        return systems[0], None
    measured = offers.get(weighed.to_measure)
    if isinstance(measured, Offer):
        weighed = replace(weighed, measurement=measured.measurement)
    taken = next(one for one in systems if one.calibration.name == weighed.taken)
    watch.takes(_line(weighed, taken, question, watch))
    return taken, weighed


def _line(stacks: weighing.Stacks, system: systems.System, question: OnCluster, watch: Watch, unit: str = "$") -> str:
    """Which stack is taken, and which one where none are compared if it is another."""
    usual = defaults.default_stack(*as_published(question, system.model, system.cluster, watch))
    return weighing.stacks_line(stacks, unit, usual)
