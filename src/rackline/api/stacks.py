"""The stacks that a question may be answered with: each is asked as if it were named, and they are weighed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from rackline.api.resolve import as_published, named

if TYPE_CHECKING:
    from rackline.api.groups import OnCluster
    from rackline.api.plan_parts import PlanInputs
    from rackline.api.watch import Watch
    from rackline.bands.stacks import StackCost, Stacks
    from rackline.passes import PassTime
    from rackline.search import Plan
    from rackline.search.choice import Choice
    from rackline.search.plan import Contenders
    from rackline.system import System

T = TypeVar("T")
_REQUESTS = 400  # of a run that measures a server


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


def answered_by(
    asked: Sequence[PlanInputs],
    solve: Callable[[PlanInputs, Contenders | None], T],
    plan_of: Callable[[T], Plan],
    *,
    bounded: bool = True,
) -> Taken[T]:
    """Ask every stack, and answer under the one that is taken.

    All are searched by their estimates. The cheapest of these is simulated first; another one only if its estimate and
    the bound of its passes leave it a chance: unless a stack that was simulated can be called cheaper than that.

    Args:
        asked: of each stack, that of which most is known first.
        solve: answers under one stack, with what its search found by estimates.
        plan_of: of such an answer.
        bounded: whether the answer is the simulation of what a search finds; else every stack is answered in full.
    """
    if len(asked) == 1:
        return Taken(asked=asked[0], found=solve(asked[0], None))
    from rackline.bands.stacks import Stacks
    from rackline.search.plan import contenders

    estimated: dict[str, Contenders] = {}
    for one in asked if bounded else ():
        estimated[_name(one)] = contenders(one.system, one.demand, one.space, prefill=one.prefill)
    found: dict[str, T] = {}
    costs: dict[str, StackCost] = {}
    for one in sorted(asked, key=lambda each: _promise(each, estimated.get(_name(each)))):
        known = estimated.get(_name(one))
        bound = None if known is None else _bound(one, known, [*costs.values()])
        if bound is None:
            found[_name(one)] = answer = solve(one, known)
            plan = plan_of(answer)
            best = plan.best
            bound = _cost(one, best, math.inf if best is None else plan.cost_of(best), plan.reason)
        costs[_name(one)] = bound
    by_name = {_name(one): one for one in asked}
    weighed = Stacks.of([costs[name] for name in by_name])
    if weighed is None:
        first = asked[0]
        return Taken(asked=first, found=found.get(_name(first)) or solve(first, estimated.get(_name(first))))
    if weighed.to_measure:
        measured = plan_of(found[weighed.to_measure])
        weighed = replace(weighed, measurement=_measured_like(measured) if measured.best else "")
    return Taken(asked=by_name[weighed.taken], found=found[weighed.taken], stacks=weighed)


def _name(asked: PlanInputs) -> str:
    return asked.system.calibration.name


def _promise(asked: PlanInputs, known: Contenders | None) -> tuple[bool, float]:
    """Those first that can be called cheaper, the cheapest by their estimates first."""
    best = None if known is None else known.best
    if best is None:
        return True, math.inf
    one = _cost(asked, best, best.usd_with_leftover)
    return not one.stands, one.cost


def _bound(asked: PlanInputs, known: Contenders, costs: Sequence[StackCost]) -> StackCost | None:
    """A lower bound of the cost under a stack where one that was simulated is cheaper than that; None where it is not.

    Without an answer by estimates there is none.
    """
    from rackline.search.finalists import least_usd
    from rackline.search.served import Service

    best = known.best
    if best is None:
        return _cost(asked, None, math.inf, known.engines.reason)
    estimate = _cost(asked, best, best.usd_with_leftover)
    if not any(other.beats(estimate) for other in costs):
        return None
    prefill = known.prefill.system if known.prefill is not None else None
    service = Service(system=asked.system, prefill_system=prefill or asked.system, demand=asked.demand)
    least = min(least_usd(choice, service) for choice in known.choices)
    bound = replace(estimate, cost=min(least, estimate.cost), basis="bound")
    return bound if any(other.beats(bound) for other in costs) else None


def _cost(asked: PlanInputs, best: Choice | None, cost: float, reason: str = "") -> StackCost:
    """The cost under the stack of a plan."""
    offer = reason if best is None else Offer(cost=cost, step=best.inside.decode, pools=best.prefill_pool is not None)
    found = stack_cost(asked.system, offer, version=asked.version)
    return replace(found, basis="simulated") if best is not None and best.sustained is not None else found


def _measured_like(plan: Plan) -> str:
    """The command line that measures a server like the answer of a plan."""
    best = plan.best
    if best is None:
        return ""
    work, load = plan.demand.workload, {"--rate": f"{best.requests_per_s:.3g}", "--requests": f"{_REQUESTS}"}
    return observe_line(plan.system.with_chips(best.num_chips), work.input_len, work.output_len, load)


def observe_line(system: System, input_len: float, output_len: float, load: Mapping[str, str]) -> str:
    """The command line that measures a server of a system.

    Args:
        input_len, output_len: of its requests [tokens].
        load: options of the traffic.
    """
    stack = system.calibration.name
    given = {
        "--input": f"{input_len:.0f}",
        "--output": f"{output_len:.0f}",
        **load,
        "--model": system.model.name,
        "--on": system.cluster.name,
        "--chips": f"{system.cluster.num_chips}",
        "--stack": stack,
        "-o": f"{stack}.jsonl",
    }
    return f"rackline observe http://HOST:8000 {' '.join(f'{key} {value}' for key, value in given.items())}"


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
    from rackline.report.stacks_report import unit_of

    if stacks is not None:
        line = _line(stacks, plan.system, question, watch, unit_of(plan))
        watch.takes(f"{of}: {line}" if of else line)


def _line(stacks: Stacks, system: System, question: OnCluster, watch: Watch, unit: str = "$") -> str:
    """Which stack is taken, and which one where none are compared if it is another."""
    from rackline.bands.stacks import default_stack
    from rackline.report.stacks_report import stacks_line

    return stacks_line(stacks, unit, default_stack(*as_published(question, system.model, system.cluster, watch)))
