"""Chooses the serving engine of an answer, and compares what others would cost by estimates.

A search takes the default engine of `rackline.bands.defaults`, and simulates only that one. The others are searched by
their estimates, without a simulation, so that the answer can say which of them would cost less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rackline.bands import defaults
from rackline.bands.engine_costs import ComparedEngines, EngineCost, Phase, SuspectRow, cheapest_engine, suspects
from rackline.parallel import Layout, Precision
from rackline.passes import Batch, PassTime
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
        engines: the engine next to the others, by estimates; None if there was no choice.
        estimates: contenders by estimates; None where the hits of a cache or the least energy were searched with them.
    """

    asked: PlanInputs
    plan: Plan
    estimates: Contenders | None = None
    power_caps: tuple[Tried, ...] = ()
    prefixes: KeptPrefixes | None = None
    engines: ComparedEngines | None = None


def planned_under(
    asked: PlanInputs, estimates: Contenders | None = None, tell_estimate: Callable[[Plan], None] | None = None
) -> EngineAnswer:
    """Search a plan under one engine.

    Args:
        estimates: contenders by estimates, if they were searched before.
        tell_estimate: is given the plan by estimates, before the best is simulated.
    """
    caps: tuple[Tried, ...] = ()
    if estimates is None and asked.keeping is None and asked.demand.objective != "joules":
        estimates = asked.contenders()

    def planned(at: PlanInputs) -> Plan:
        nonlocal caps
        if at.demand.objective != "joules":
            return at.plan(found=estimates, tell_estimate=tell_estimate)
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
    return EngineAnswer(asked=asked, plan=plan, estimates=estimates, power_caps=caps, prefixes=prefixes)


_SAME_COST = 0.005
"""Difference of the cheapest estimates below which headroom changes nothing [1]."""


def cost_without_headroom(answer: EngineAnswer) -> float | None:
    """Return what the cheapest would cost if predictions might reach the limits [USD per million output tokens].

    It is searched and simulated only where a limit bounds the answer, or the cheapest estimate is another.

    Returns:
        None where predictions may reach them already, and where there is no answer.
    """
    looser, best, estimates = answer.asked.without_headroom(), answer.plan.best, None
    if looser is None or best is None:
        return None
    own = answer.estimates
    if own is not None and own.best is not None:
        estimates = looser.contenders()
        cheapest = estimates.best or own.best
        limited = best.sustained is None or best.sustained.is_limited
        if not limited and cheapest.usd_with_leftover >= (1.0 - _SAME_COST) * own.best.usd_with_leftover:
            return best.usd_with_leftover
    without = planned_under(looser, estimates).plan.best
    return None if without is None else min(without.usd_with_leftover, best.usd_with_leftover)


def choose_engine(
    asked: Sequence[PlanInputs], *, cheapest: bool = False, tell_estimate: Callable[[Plan], None] | None = None
) -> EngineAnswer:
    """Return the answer under one engine, next to the estimates of the others.

    The least energy has no estimates: it is searched under the first engine alone.

    Args:
        asked: inputs of each engine, the default one first.
        cheapest: take the engine of the cheapest estimate that is not suspect, instead of the first.
        tell_estimate: is given the plan by estimates, before its best is simulated.
    """
    first = asked[0]
    if len(asked) == 1 or first.demand.objective == "joules":
        return planned_under(first, tell_estimate=tell_estimate)
    if not cheapest:
        known = None if first.keeping else first.contenders()
        answer = planned_under(first, known, tell_estimate=tell_estimate)
        work = answer.plan.demand.workload  # with the hits that the answer's cache gives
        served = [replace(inputs, demand=replace(inputs.demand, workload=work)) for inputs in asked]
        return replace(answer, engines=_next_to(served, known or served[0].contenders(leftover=False), answer.plan))
    estimates = [inputs.contenders() for inputs in asked]
    by_name = {inputs.system.stack.name: (inputs, found) for inputs, found in zip(asked, estimates, strict=True)}
    systems = {name: inputs.system for name, (inputs, _) in by_name.items()}
    offers = {name: _offer(inputs, found.best, found.engines.reason) for name, (inputs, found) in by_name.items()}
    taken = cheapest_engine([engine_cost(systems[name], offer) for name, offer in offers.items()])
    inputs, found = by_name[taken]
    answer = planned_under(inputs, None if inputs.keeping else found, tell_estimate=tell_estimate)
    return replace(answer, engines=compared(systems, offers, taken, cheapest=True))


_ALIKE = 4
"""Cheapest deployments of the answer's kind whose layouts and schedulers other engines are searched with [count].

Engines are cheapest with nearly the same layouts. With the two cheapest, a search of everything found at most 12 % less
in 12 of 14 cases, and took two to five times as long (docs/findings.md, 2026-11-29).
"""


def _next_to(asked: Sequence[PlanInputs], known: Contenders, plan: Plan) -> ComparedEngines:
    """Return the engine of a plan next to the estimates of others.

    Others are searched among the deployments that are cheapest under the engine of the plan, and among all where they
    start none of these, or where their cost is suspect.

    Args:
        asked: inputs of each engine, the engine of the plan first.
        known: contenders under the engine of the plan.
        plan: the answer.
    """
    own, *others = asked
    names = [inputs.system.stack.name for inputs in asked]
    near = _alike(known, plan)
    offers = {names[0]: _offer(own, near[0] if near else None, known.engines.reason)}

    def search(inputs: PlanInputs) -> Offer | str:
        found = inputs.contenders(leftover=False)
        return _offer(inputs, found.best, found.engines.reason)

    for name, inputs in zip(names[1:], others, strict=True):
        offers[name] = search(inputs.like(near)) if near else search(inputs)
        if near and isinstance(offers[name], str):
            offers[name] = search(inputs)
    systems = dict(zip(names, (inputs.system for inputs in asked), strict=True))
    if near:
        wrong = suspects({name: offer.cost for name, offer in offers.items() if isinstance(offer, Offer)})
        offers |= {name: search(inputs) for name, inputs in zip(names[1:], others, strict=True) if name in wrong}
    return compared(systems, offers, names[0])


def _alike(known: Contenders, plan: Plan) -> list[Choice]:
    """Return the cheapest contenders of the kind and precision of a plan, without engines on chips left over."""
    best = plan.best
    if best is None:
        return []
    alike = [
        replace(choice, leftover=None)
        for choice in known.choices
        if choice.precision == best.precision and choice.serving == best.serving
    ]
    return sorted(alike, key=lambda choice: choice.usd_with_leftover)[:_ALIKE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Passes of one deployment that can be timed under any engine.

    Args:
        layout, precision: of the deployment.
        batches: of a decode step and of a pass of prompts.
    """

    layout: Layout
    precision: Precision
    batches: Mapping[Phase, Batch]


def steps_of(
    layout: Layout, precision: Precision, *, batch_size: float, context_len: float, prompt_tokens: float
) -> Steps:
    """Return a decode step and a pass of one prompt of a deployment.

    Args:
        layout: of a replica.
        batch_size: sequences in flight on it [sequences].
        context_len: mean tokens of a decoding sequence [tokens].
        prompt_tokens: new tokens of the pass of a prompt on a rank [tokens].
    """
    per_rank = max(batch_size / (layout.attention_dp * layout.pp), 1.0)
    return Steps(
        layout=replace(layout, dp=1),
        precision=precision,
        batches={
            "decode": Batch(
                decode_sequences=per_rank, context_len=context_len, group_tokens=per_rank * layout.attention_dp
            ),
            "prefill": Batch(
                prefill_sequences=1.0, chunk_tokens=prompt_tokens, group_tokens=prompt_tokens * layout.attention_dp
            ),
        },
    )


def _steps_of(best: Choice, system: System) -> Steps:
    """Return the steps of the cheapest deployment under an engine."""
    chunk = min(best.workload.new_tokens, float(system.stack.scheduler.max_batched_tokens))
    return steps_of(
        best.layout,
        best.precision,
        batch_size=best.batch_size,
        context_len=best.workload.mean_context,
        prompt_tokens=chunk,
    )


def compared(
    systems: Mapping[str, System], offers: Mapping[str, Offer | str], taken: str, *, cheapest: bool = False
) -> ComparedEngines:
    """Return engines next to each other, with the operation that makes each suspect cost differ.

    Args:
        systems: by engine.
        offers: what a search by estimates finds, by engine.
        taken: engine that answers.
        cheapest: whether it was taken for its estimate.
    """
    costs = [engine_cost(system, offers[name]) for name, system in systems.items()]
    engines = ComparedEngines.of(costs, taken, cheapest=cheapest)
    steps = {name: offer.steps for name, offer in offers.items() if isinstance(offer, Offer)}
    rows = [
        replace(row, row=suspect_row(row.estimate.engine, steps[row.estimate.engine], systems)) if row.suspect else row
        for row in engines.rows
    ]
    return replace(engines, rows=tuple(rows))


def suspect_row(engine: str, steps: Steps, systems: Mapping[str, System]) -> SuspectRow:
    """Return the operation whose share of a step differs most between an engine and the others.

    All engines run the same passes of the same deployment.

    Args:
        steps: of the deployment of the engine.
        systems: of all engines, by name.
    """
    found: list[tuple[float, SuspectRow]] = []
    for phase, batch in steps.batches.items():
        times = {
            name: system.deployment(steps.layout, steps.precision).table().time(batch)
            for name, system in systems.items()
        }
        seconds = {name: _seconds_by_row(time) for name, time in times.items()}
        whole = sum(seconds[engine].values()) or 1.0
        for row, own_s in seconds[engine].items():
            others_s = median(seconds[name].get(row, 0.0) for name in seconds if name != engine)
            suspect = SuspectRow(phase=phase, row=row, seconds=own_s, others_s=others_s)
            found.append((abs(own_s - others_s) / whole, suspect))
    return max(found, key=lambda pair: pair[0])[1]


def _seconds_by_row(time: PassTime) -> dict[str, float]:
    return {row.name: float(row.seconds) for row in time.rows if row.used}


def _offer(asked: PlanInputs, best: Choice | None, reason: str) -> Offer | str:
    """Return what the cheapest deployment under the engine of some inputs costs, or why there is none."""
    if best is None:
        return reason
    return Offer(
        cost=best.usd_with_leftover,
        step=best.inside.decode,
        pools=best.prefill_pool is not None,
        steps=_steps_of(best, asked.system),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The deployment that a search by estimates finds under one engine.

    Args:
        cost: as of `EngineCost`.
        step: the decode step.
        pools: whether prompts have chips of their own.
        steps: of the deployment, to be timed under other engines.
    """

    cost: float
    step: PassTime
    pools: bool
    steps: Steps


def engine_cost(system: System, offer: Offer | str) -> EngineCost:
    """Return the cost under an engine, with the errors of its measured servers.

    Args:
        system: under the engine.
        offer: by estimates, or why there is none.
    """
    engine, chip = system.stack.name, system.cluster.chip
    deployment = None if isinstance(offer, str) else offer
    rules = rules_of(system.calibration)
    return EngineCost(
        engine=engine,
        version=system.calibration.version or (rules.version if rules else ""),
        cost=math.inf if deployment is None else deployment.cost,
        own_share=0.0 if deployment is None else defaults.own_share(deployment.step, engine, chip),
        errors=defaults.errors_of(engine, system.model, chip, pools=deployment is not None and deployment.pools),
        reason=offer if isinstance(offer, str) else "",
    )


def choose_system(
    systems: Sequence[System], offer: Callable[[System], Offer | str], *, cheapest: bool = False
) -> tuple[System, ComparedEngines | None]:
    """Return the system of one engine, next to the estimates of the others.

    Args:
        systems: one for each engine, the default one first.
        offer: finds the deployment under a system.
        cheapest: take the engine of the cheapest estimate that is not suspect, instead of the first.

    Returns:
        The first system, and None, where there is no choice.
    """
    if len(systems) == 1:
        return systems[0], None
    offers = {system.stack.name: offer(system) for system in systems}
    by_name = {system.stack.name: system for system in systems}
    taken = systems[0].stack.name
    if cheapest:
        taken = cheapest_engine([engine_cost(system, offers[name]) for name, system in by_name.items()])
    return by_name[taken], compared(by_name, offers, taken, cheapest=cheapest)
