"""The stacks that a question may be answered with: each is asked as if it were named, and they are weighed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rackline.api.resolve import as_published, named

if TYPE_CHECKING:
    from rackline.api.answer import Watch
    from rackline.api.groups import OnCluster
    from rackline.api.plan_parts import PlanInputs
    from rackline.bands.stacks import StackCost, Stacks
    from rackline.passes import PassTime
    from rackline.search import Plan
    from rackline.search.choice import Choice
    from rackline.search.plan import Contenders
    from rackline.system import System

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def stacks_of(question: OnCluster, watch: Watch) -> list[str]:
    """The stacks that `auto` asks in a search, that of which most is known first; none where there is no choice."""
    if question.calibration != "auto" or question.stack is not None:
        return []
    from rackline.bands.stacks import default_stacks

    model, cluster = named(question, watch)
    if cluster.calibration:
        return []
    found = default_stacks(*as_published(question, model, cluster, watch))
    return found if len(found) > 1 else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Generic[T]):
    """What is answered under the stack that is taken.

    Args:
        asked: of the plan.
        found: under it.
        stacks: all that were asked; None where there was one.
    """

    asked: PlanInputs
    found: T
    stacks: Stacks | None = None


class Solve(Protocol[T_co]):
    """Answers under one stack."""

    def __call__(self, asked: PlanInputs, found: Contenders | None = None, below: float = math.inf) -> T_co:
        """The answer.

        Args:
            found: by estimates, where they are known.
            below: cost from which on it need not be simulated to the end.
        """
        ...


def answered_by(
    asked: Sequence[PlanInputs], solve: Solve[T], plan_of: Callable[[T], Plan], *, bounded: bool = True
) -> Taken[T]:
    """Ask every stack, and answer under the one that is taken.

    All are searched by their estimates, and the cheapest of these is simulated. Another one whose estimate is so dear
    that the first can be called cheaper is simulated only at the rate at which it would still cost less than that, and
    to the end where its limits hold there.

    Args:
        asked: of each stack, that of which most is known first.
        plan_of: of an answer.
        bounded: whether the answer is the simulation of what a search finds; else every stack is answered in full.
    """
    if len(asked) == 1:
        return Taken(asked=asked[0], found=solve(asked[0]))
    from rackline.bands.stacks import Stacks
    from rackline.search.plan import contenders

    estimated: dict[str, Contenders] = {}
    for one in asked if bounded else ():
        estimated[_name(one)] = contenders(one.system, one.demand, one.space, prefill=one.prefill)
    found: dict[str, T] = {}
    costs: dict[str, StackCost] = {}
    for one in sorted(asked, key=lambda each: _promise(each, estimated.get(_name(each)))):
        name, known = _name(one), estimated.get(_name(one))
        cost = None if known is None else _settled(one, known, [*costs.values()], solve, plan_of)
        if cost is None:
            found[name] = answer = solve(one, known)
            plan = plan_of(answer)
            cost = _cost(one, plan.best, plan.reason, None if plan.best is None else plan.cost_of(plan.best))
        costs[name] = cost
    by_name = {_name(one): one for one in asked}
    weighed = Stacks.of([costs[name] for name in by_name])
    if weighed is None:
        first = asked[0]
        return Taken(asked=first, found=found.get(_name(first)) or solve(first, estimated.get(_name(first))))
    if weighed.to_measure:
        weighed = replace(weighed, measurement=_measured_like(plan_of(found[weighed.to_measure])))
    return Taken(asked=by_name[weighed.taken], found=found[weighed.taken], stacks=weighed)


def _name(asked: PlanInputs) -> str:
    return asked.system.calibration.name


def _promise(asked: PlanInputs, known: Contenders | None) -> tuple[bool, float]:
    """Those first that can be called cheaper, the cheapest by their estimates first."""
    one = _cost(asked, None if known is None else known.best)
    return not one.stands, one.cost


def _settled(
    asked: PlanInputs, known: Contenders, costs: Sequence[StackCost], solve: Solve[T], plan_of: Callable[[T], Plan]
) -> StackCost | None:
    """A lower bound of the cost under a stack, where one that was simulated can be called cheaper than that.

    Without an answer by estimates it is infinite; None where the stack could win.
    """
    from rackline.bands.stacks import errors_of

    estimate = _cost(asked, known.best, known.engines.reason)
    if known.best is None:
        return estimate
    chip = asked.system.cluster.chip
    kinds = [errors_of(estimate.stack, asked.system.model, chip, pools=pools) for pools in (False, True)]
    below = min((other.beats_from(estimate.stack, kinds) for other in costs), default=math.inf)
    if estimate.cost < below:
        return None
    best = plan_of(solve(asked, known, below)).best
    if best is not None and (best.sustained is not None or best.usd_with_leftover < below):
        return None
    return replace(estimate, cost=below, basis="bound")


def _cost(asked: PlanInputs, best: Choice | None, reason: str = "", cost: float | None = None) -> StackCost:
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


def _measured_like(plan: Plan) -> str:
    """The command line that measures a server like the answer of a plan."""
    best, work = plan.best, plan.demand.workload
    if best is None:
        return ""
    load = f"--rate {best.requests_per_s:.3g}"
    return observe_line(plan.system, work.input_len, work.output_len, load)


def observe_line(system: System, input_len: float, output_len: float, load: str) -> str:
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
    step: PassTime
    pools: bool
    measurement: str = ""


def stack_cost(system: System, offer: Offer | str, *, version: str = "") -> StackCost:
    """The cost under a stack, with what is known of it.

    Args:
        system: under the stack.
        offer: by estimates, or why there is none.
        version: that is launched; the stack's own by default.
    """
    from rackline.bands.stacks import StackCost, errors_of
    from rackline.search.launch_rules import rules_of
    from rackline.search.stacks import own_share

    stack, chip, found = system.calibration.name, system.cluster.chip, None if isinstance(offer, str) else offer
    rules = rules_of(system.calibration)
    return StackCost(
        stack=stack,
        version=version or system.calibration.version or (rules.version if rules else ""),
        cost=math.inf if found is None else found.cost,
        basis="estimate",
        own_share=0.0 if found is None else own_share(found.step, stack, chip),
        errors=errors_of(stack, system.model, chip, pools=found is not None and found.pools),
        reason=offer if isinstance(offer, str) else "",
    )


def estimated_by(
    question: OnCluster, systems: Sequence[System], offer: Callable[[System], Offer | str], watch: Watch
) -> tuple[System, Stacks | None]:
    """The system of the stack that a search by estimates takes, and all that were asked.

    Args:
        systems: of each stack, that of which most is known first.
        offer: what is found under one.
    """
    if len(systems) == 1:
        return systems[0], None
    from rackline.bands.stacks import Stacks

    offers = {one.calibration.name: offer(one) for one in systems}
    weighed = Stacks.of([stack_cost(one, offers[one.calibration.name]) for one in systems])
    if weighed is None:
        return systems[0], None
    measured = offers.get(weighed.to_measure)
    if isinstance(measured, Offer):
        weighed = replace(weighed, measurement=measured.measurement)
    taken = next(one for one in systems if one.calibration.name == weighed.taken)
    watch.takes(_line(weighed, taken, question, watch))
    return taken, weighed


def note_stacks(stacks: Stacks | None, plan: Plan, question: OnCluster, watch: Watch, of: str = "") -> None:
    """Note the stack that a plan takes.

    Args:
        of: name of what was planned, where there are several.
    """
    from rackline.bands.stacks import unit_of

    if stacks is not None:
        line = _line(stacks, plan.system, question, watch, unit_of(plan))
        watch.takes(f"{of}: {line}" if of else line)


def _line(stacks: Stacks, system: System, question: OnCluster, watch: Watch, unit: str = "$") -> str:
    """Which stack is taken, and which one where none are compared if it is another."""
    from rackline.bands.stacks import default_stack, stacks_line

    return stacks_line(stacks, unit, default_stack(*as_published(question, system.model, system.cluster, watch)))
