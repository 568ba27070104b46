"""Chooses the serving engine of an answer: each is searched as if it were named, and their costs are weighed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rackline.bands import defaults
from rackline.bands.stack_choice import StackCost, Stacks
from rackline.passes import PassTime
from rackline.search.choice import Choice
from rackline.search.inputs import PlanInputs
from rackline.search.kept_prefixes import KeptPrefixes, agreeing, with_served_sessions
from rackline.search.launch_rules import rules_of
from rackline.search.plan import Contenders, Plan, Tried, least_energy
from rackline.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """A plan under one engine.

    Args:
        asked: what was searched.
        plan: the best of each kind, the front, what was rejected.
        power_caps: those tried for the least energy; empty if the objective is dollars.
        prefixes: those that the best deployment caches; None where prompts do not repeat.
        stacks: all engines that were weighed; None if there was only one.
        to_measure: the plan of the engine for which one more measured server would help most; None without a doubt.
    """

    asked: PlanInputs
    plan: Plan
    power_caps: tuple[Tried, ...] = ()
    prefixes: KeptPrefixes | None = None
    stacks: Stacks | None = None
    to_measure: Plan | None = None


def planned_under(
    asked: PlanInputs,
    estimates: Contenders | None = None,
    below: float = math.inf,
    tell_estimate: Callable[[Plan], None] | None = None,
) -> EngineAnswer:
    """Search a plan under one engine.

    Args:
        estimates: contenders by estimates, if they were searched before.
        below: cost from which on the best need not be simulated to the end.
        tell_estimate: is given the plan by estimates, before the best is simulated.
    """
    caps: tuple[Tried, ...] = ()

    def planned(at: PlanInputs) -> Plan:
        nonlocal caps
        if at.demand.objective != "joules":
            return at.plan(found=estimates, below=below, tell_estimate=tell_estimate)
        plan, caps = least_energy(at.system, at.demand, at.space, prefill=at.prefill)
        return plan

    if asked.keeping is None:
        plan, prefixes = planned(asked), None
    else:
        plan, prefixes = agreeing(
            asked.keeping,
            lambda hit: asked.with_hits(hit).plan(served=False),
            lambda hit: planned(asked.with_hits(hit)),
        )
        if prefixes is not None and plan.best is not None:
            prefixes = with_served_sessions(prefixes, plan, plan.best, asked.keeping)
    return EngineAnswer(asked=asked, plan=plan, power_caps=caps, prefixes=prefixes)


def choose_engine(asked: Sequence[PlanInputs], tell_estimate: Callable[[Plan], None] | None = None) -> EngineAnswer:
    """Search under every engine, and return the answer under the chosen one.

    The rule is `Stacks.of` in `rackline.bands.stack_choice`, the order of the engines `rackline.bands.defaults`.

    All are searched by their estimates, and the cheapest of these is simulated. Another one whose estimate is so dear
    that the first can be called cheaper is simulated only at the rate at which it would still cost less than that, and
    to the end where its limits hold there. Where the answer is more than the simulation of what a search finds, every
    engine is answered in full.

    Args:
        asked: inputs of each engine, the best measured first.
        tell_estimate: is given each plan by estimates, before its best is simulated.
    """
    first = asked[0]
    if len(asked) == 1:
        return planned_under(first, tell_estimate=tell_estimate)
    by_name = {inputs.system.calibration.name: inputs for inputs in asked}
    bounded = first.demand.objective != "joules" and first.keeping is None
    estimates = {name: inputs.contenders() if bounded else None for name, inputs in by_name.items()}
    answers: dict[str, EngineAnswer] = {}
    costs: dict[str, StackCost] = {}
    for name, inputs in sorted(by_name.items(), key=lambda item: _promise(item[1], estimates[item[0]])):
        cost = _settled(inputs, estimates[name], costs.values())
        if cost is None:
            answers[name] = planned_under(inputs, estimates[name], tell_estimate=tell_estimate)
            plan = answers[name].plan
            cost = _cost(inputs, plan.best, plan.reason, None if plan.best is None else plan.cost_of(plan.best))
        costs[name] = cost
    weighed = Stacks.of([costs[name] for name in by_name])
    if weighed is None:
        name = next(iter(by_name))
        return answers.get(name) or planned_under(first, estimates[name], tell_estimate=tell_estimate)
    widest = answers[weighed.to_measure].plan if weighed.to_measure else None
    return replace(answers[weighed.taken], stacks=weighed, to_measure=widest)


def _promise(asked: PlanInputs, estimates: Contenders | None) -> tuple[bool, float]:
    """Return the sort key of an engine: those that can be called cheaper first, then by estimates."""
    cost = _cost(asked, None if estimates is None else estimates.best)
    return not cost.stands, cost.cost


def _settled(asked: PlanInputs, estimates: Contenders | None, costs: Iterable[StackCost]) -> StackCost | None:
    """Return a lower bound of the cost under an engine, if one that was simulated can be called cheaper than that.

    Returns:
        An infinite cost without an answer by estimates. None if the engine could win, or nothing is estimated.
    """
    if estimates is None:
        return None
    estimate = _cost(asked, estimates.best, estimates.engines.reason)
    if estimates.best is None:
        return estimate
    kinds = [
        defaults.errors_of(estimate.stack, asked.system.model, asked.system.cluster.chip, pools=pools)
        for pools in (False, True)
    ]
    below = min((other.beats_from(estimate.stack, kinds) for other in costs), default=math.inf)
    if estimate.cost < below:
        return None
    best = planned_under(asked, estimates, below).plan.best
    if best is not None and (best.sustained is not None or best.usd_with_leftover < below):
        return None
    return replace(estimate, cost=below, basis="bound")


def _cost(asked: PlanInputs, best: Choice | None, reason: str = "", cost: float | None = None) -> StackCost:
    """Return the cost under the engine of a plan.

    Args:
        cost: what the plan has least of; dollars by default.
    """
    if best is None:
        return stack_cost(asked.system, reason, version=asked.version)
    usd = best.usd_with_leftover if cost is None else cost
    offer = Offer(cost=usd, step=best.inside.decode, pools=best.prefill_pool is not None)
    stack = stack_cost(asked.system, offer, version=asked.version)
    return stack if best.sustained is None else replace(stack, basis="simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The deployment that a search by estimates finds under one engine.

    Args:
        cost: as of `StackCost`.
        step: the decode step.
        pools: whether prompts have chips of their own.
        measurement: command line that measures such a server.
    """

    cost: float
    step: PassTime
    pools: bool
    measurement: str = ""


def stack_cost(system: System, offer: Offer | str, *, version: str = "") -> StackCost:
    """Return the cost under an engine, with the errors of its measured servers.

    Args:
        system: under the stack.
        offer: by estimates, or why there is none.
        version: that is launched; the stack's own by default.
    """
    stack, chip = system.calibration.name, system.cluster.chip
    deployment = None if isinstance(offer, str) else offer
    rules = rules_of(system.calibration)
    return StackCost(
        stack=stack,
        version=version or system.calibration.version or (rules.version if rules else ""),
        cost=math.inf if deployment is None else deployment.cost,
        basis="estimate",
        own_share=0.0 if deployment is None else defaults.own_share(deployment.step, stack, chip),
        errors=defaults.errors_of(stack, system.model, chip, pools=deployment is not None and deployment.pools),
        reason=offer if isinstance(offer, str) else "",
    )


def choose_system(systems: Sequence[System], offer: Callable[[System], Offer | str]) -> tuple[System, Stacks | None]:
    """Return the system of the engine that a search by estimates chooses, and all that were weighed.

    Args:
        systems: one for each engine, the best measured first.
        offer: finds the deployment under a system.

    Returns:
        The first system, and None, where there is no choice or nothing fits under any.
    """
    if len(systems) == 1:
        return systems[0], None
    offers = {system.calibration.name: offer(system) for system in systems}
    weighed = Stacks.of([stack_cost(system, offers[system.calibration.name]) for system in systems])
    if weighed is None:
        return systems[0], None
    widest = offers.get(weighed.to_measure)
    if isinstance(widest, Offer):
        weighed = replace(weighed, measurement=widest.measurement)
    return next(system for system in systems if system.calibration.name == weighed.taken), weighed
