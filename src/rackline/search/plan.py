"""`plan`: the cheapest way to serve a model on a cluster under latency limits, or that of the least energy.

At each power cap all engines of the space are ranked by the energy of an output token with every slot taken: idle power
and kernels of the mean step, at the machine's plug. The best of these, with the chips that they leave idle, the
cheapest engine and the cheapest pair of pools (whose search is by dollars: chip-seconds, of which joules are watts
times) are compared; the best of all caps is searched again and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.arch import AggregateModel
from rackline.errors import InputError
from rackline.hardware import Cluster, billing, checked_cap
from rackline.search.candidate import Candidate
from rackline.search.choice import Choice, simplest
from rackline.search.estimates import numbering
from rackline.search.finalists import better_refused, better_refused_pair, energy_of, serve_kinds, with_leftover
from rackline.search.misfit import ClusterNeed
from rackline.search.points import firsts
from rackline.search.pools import Disaggregated, PoolSearch
from rackline.search.served import Service
from rackline.search.single_engines import Engines, EngineSearch, Rejected
from rackline.search.space import ANY_POOL, PrefillPool, SearchSpace, Space
from rackline.system import Constraints, Demand, Objective, System

_NEXT = "that follows"  # why an estimate is not simulated yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer.

    Args:
        aggregated: the cheapest single engine that meets every limit; None if there is none, see `reason`.
        pareto: front of tokens/s/user against cost, of all that fit, fastest first.
        ranked: cheapest single engine of each tp, pp, moe_tp and precision that meets the limits, cheapest first.
        rejected: nearest candidate for each reason of rejection.
        candidates_evaluated: points whose times were computed.
        combinations: distinct layout × precision × mode among them.
        rules_name: engine and version whose launch rules every layout keeps; empty without rules.
        reason: why no single engine meets the limits; empty when one does.
        disaggregated: the search over separate prefill and decode pools; None if not requested.
        objective: what the best has the least of.
    """

    json_keys: ClassVar = (
        "model=system.model.name",
        "cluster=system.cluster.name",
        "engine=system.stack.name",
        "calibration=system.calibration.label",
        "evidence=system.calibration.evidence",
        "input_len=demand.workload.input_len",
        "output_len=demand.workload.output_len",
        "mix=demand.workload.mixture",
        "cache_hit=demand.workload.cache_hit",
        "tpot_limit_s=demand.limits.tpot_s",
        "ttft_limit_s=demand.limits.ttft_s",
        "tpot_limit_percentile=demand.limits.tpot_percentile",
        "ttft_limit_percentile=demand.limits.ttft_percentile",
        "candidates_evaluated",
        "combinations",
        "launch_rules=rules_name",
        "priced",
        "objective",
        "usd_per_chip_hour=system.cluster.usd_per_chip_hour",
        "rent=system.cluster.rent",
        "best",
        "runner_up",
        "disaggregated",
        "pareto",
        "ranked",
        "rejected",
        "reason",
        "need",
        "assumptions",
    )

    system: System
    demand: Demand
    aggregated: Choice | None
    pareto: tuple[Candidate, ...]
    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    candidates_evaluated: int
    combinations: int
    rules_name: str = ""
    reason: str = ""
    need: ClusterNeed | None = None
    assumptions: tuple[str, ...] = ()
    disaggregated: Disaggregated | None = None
    objective: Objective = "dollars"

    @property
    def priced(self) -> bool:
        """False when costs are chip-hours, because the cluster has no price."""
        return self.system.cluster.usd_per_chip_hour is not None

    @property
    def pools(self) -> Choice | None:
        """The cheapest pair of pools that meets every limit; None when there is none or none was asked for."""
        return self.disaggregated.best if self.disaggregated else None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The cheapest of each kind that meets the limits, cheapest first, or that of the least energy.

        What was simulated stands before what could not be, and of that an estimate with a known error stands last.
        """

        def last(choice: Choice) -> tuple[bool, bool, float]:
            marked = bool(choice.caveat and choice.not_simulated)
            return choice.sustained is None, marked, self.cost_of(choice)

        return tuple(sorted((one for one in (self.aggregated, self.pools) if one is not None), key=last))

    def cost_of(self, choice: Choice) -> float:
        """What the objective has least of [USD or chip-hours per million output tokens, all-in; J an output token]."""
        if self.objective == "joules" and choice.energy is not None:
            return choice.energy.joules_per_output_token
        return choice.usd_with_leftover

    @property
    def best(self) -> Choice | None:
        """The cheapest option that meets every limit, a single engine or two pools; None if there is none.

        The simpler of two is taken where their costs tie.
        """
        first, *others = [*self.choices, None]
        if first is None:
            return None
        alike = [choice for choice in others if choice is not None and _as_sure(choice, first)]
        return simplest([first, *alike], self.cost_of)

    @property
    def runner_up(self) -> Choice | None:
        """The best of the other kind; None when only one kind meets the limits."""
        return next((choice for choice in self.choices if choice is not self.best), None)

    def with_energy(self, service: Service, not_simulated: str = "") -> Plan:
        """The same with power and energy of the cheapest of each kind.

        Args:
            not_simulated: why none of them is simulated; empty where that is said already.
        """

        def known(one: Choice) -> Choice:
            why = not_simulated or one.not_simulated
            return replace(one, energy=energy_of(one, service), not_simulated=why)

        alone, both = self.aggregated, self.disaggregated
        if both is not None and both.best is not None:
            both = replace(both, best=known(both.best))
        return replace(self, aggregated=alone and known(alone), disaggregated=both)

    def served(self, service: Service, engines: Engines) -> Plan:
        """These ways with the cheapest of each kind simulated.

        Args:
            service: what they share.
            engines: what the search over single engines found.
        """
        both = self.disaggregated
        pairs = both.contenders if both else ()
        (alone, why), (apart, why_apart) = serve_kinds(service, (engines.contenders, pairs))
        if both is not None and pairs:
            both = replace(both, best=apart, reason=why_apart)
        return replace(self, aggregated=alone, reason=why if engines.contenders else self.reason, disaggregated=both)


def _as_sure(choice: Choice, other: Choice) -> bool:
    """Whether two choices are known alike: both simulated, or both estimates, with or without a known error."""
    if choice.sustained is not None or other.sustained is not None:
        return choice.sustained is not None and other.sustained is not None
    return bool(choice.caveat) == bool(other.caveat)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPoint:
    """The optimum at one value.

    Args:
        value: as given.
        number: of the value, without its unit.
        setting: what was set for it.
        plan: the answer there.
    """

    value: str
    number: float
    setting: str
    plan: Plan

    @property
    def cost(self) -> float:
        """What the plan's objective has least of [USD per million output tokens, or J a token]; infinite without."""
        return math.inf if self.plan.best is None else self.plan.cost_of(self.plan.best)

    @property
    def reason(self) -> str:
        """Why there is no answer; empty where there is one."""
        return self.plan.reason if self.plan.best is None else ""


def plan(
    system: System,
    demand: Demand,
    among: SearchSpace | None = None,
    *,
    prefill: PrefillPool | None = ANY_POOL,
    threads: int = 2,
    served: bool = True,
    found: Contenders | None = None,
    tell_estimate: Callable[[Plan], None] | None = None,
) -> Plan:
    """Evaluate every layout × precision × mode × batch and return the cheapest that meets the limits.

    In three steps: `contenders` ranks by estimates, `rackline.search.finalists` simulates the cheapest in turn, and
    `rackline.search.sustained_rate` finds the rate at which each still meets its limits.

    Args:
        system: model, cluster, kernels and engine.
        demand: the requests and their limits.
        among: restricts the space, which is exhaustive by default.
        prefill: of separate pools for prefill and decode; None to look at single engines only.
        served: whether to rank engines under random arrivals and simulate the cheapest to find the rate at which the
            limits hold; else engines are ranked in a closed loop, with every slot always taken.
        found: what `contenders` found for the same question, where it was asked before.
        tell_estimate: is given the plan by estimates, before the cheapest are simulated.

    Raises:
        InputError: the space is empty.
    """
    found = found or contenders(system, demand, among, prefill=prefill, threads=threads, open_loop=served)
    engines, pools, prefill, workload = found.engines, found.pools, found.prefill, demand.workload
    calibration = system.calibration
    answer = Plan(
        system=system,
        demand=demand,
        aggregated=engines.contenders[0] if engines.contenders else None,
        pareto=engines.pareto,
        ranked=engines.ranked,
        rejected=engines.rejected,
        candidates_evaluated=engines.candidates_evaluated,
        combinations=found.space.combinations,
        rules_name=f"{found.space.rules.engine} {found.space.rules.version}" if found.space.rules else "",
        reason=engines.reason,
        need=engines.need,
        assumptions=(
            f"{'one request length' if workload.mixture is None else 'several request lengths'}; random arrivals",
            "KV of every sequence reserved at its final context",
            billing(system.cluster),
            *((f"experts chosen by {system.routing.label()}",) if system.model.is_moe else ()),
            f"calibration {calibration.label} ({calibration.evidence})",
            *((calibration.of_versions,) if calibration.version else ()),
        ),
        disaggregated=pools,
    )
    service = Service(system=system, prefill_system=(prefill and prefill.system) or system, demand=demand)
    if served and tell_estimate is not None:
        tell_estimate(answer.with_energy(service, _NEXT))
    better = [better_refused(found.whole, demand.limits, answer.aggregated, open_loop=served)]
    if prefill is not None and pools is not None:
        launched = [*engines.contenders[:1], *pools.contenders[:1]]
        better.append(better_refused_pair(found.whole, demand.limits, prefill, launched))
    answer = replace(answer, rejected=(*(one for one in better if one is not None), *engines.rejected))
    return (answer.served(service, engines) if served else answer).with_energy(service)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contenders:
    """What a search finds before anything is simulated.

    Args:
        whole, space: all of the space, and what the engine launches of it.
        prefill: what the prefill pool may be; None where no pools are considered.
        engines, pools: with the engines on chips that they leave free.
    """

    whole: Space
    space: Space
    prefill: PrefillPool | None
    engines: Engines
    pools: Disaggregated | None

    @property
    def best(self) -> Choice | None:
        """The cheapest of both kinds by its estimate, of those that can be simulated if any can; None without one."""
        if not self.choices:
            return None
        simulated = [choice for choice in self.choices if not choice.estimate.shares_contexts]
        return simplest(simulated or self.choices, lambda choice: choice.usd_with_leftover)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices of both kinds, of which one is the answer."""
        return (*self.engines.contenders, *(self.pools.contenders if self.pools else ()))


def contenders(
    system: System,
    demand: Demand,
    among: SearchSpace | None = None,
    *,
    prefill: PrefillPool | None = ANY_POOL,
    threads: int = 2,
    open_loop: bool = True,
    leftover: bool = True,
) -> Contenders:
    """The cheapest engines and pairs of pools within the limits, by their estimates.

    Args:
        system, demand, among, prefill: as `plan`.
        open_loop: whether engines are ranked under random arrivals; else with every slot always taken.
        leftover: whether engines on chips that are left over are searched as well, which takes half of the time.

    Raises:
        InputError: the space is empty.
    """
    limits, cluster = demand.limits, system.cluster
    whole = Space.of(system, demand.workload, among or SearchSpace(), threads=threads)
    if not (open_loop or (among and among.modes)):  # with every slot taken, no estimate of held prompts is checked
        whole = replace(whole, modes=[mode for mode in whole.modes if mode.alignment is None])
    alone = cluster.num_chips == 1 and prefill is not None and prefill.system is None
    if alone or isinstance(system.model, AggregateModel):
        prefill = None
    space = whole.launchable(pools=prefill is not None)
    apart = None if prefill is None else PoolSearch.of(space, limits, prefill.space(space))
    engines = _looked_at(space, limits, apart, open_loop=open_loop)
    if leftover:
        filled = with_leftover(engines.contenders, space, limits, open_loop=open_loop)
        engines = replace(engines, contenders=tuple(filled))
    pools = None if apart is None else apart.answer()
    if leftover and pools is not None and pools.contenders and (prefill is None or prefill.system is None):
        pairs = tuple(with_leftover(pools.contenders, space, limits, open_loop=open_loop))
        pools = replace(pools, contenders=pairs, best=pairs[0])
    return Contenders(whole=whole, space=space, prefill=prefill, engines=engines, pools=pools)


def _looked_at(space: Space, limits: Constraints, apart: PoolSearch | None, *, open_loop: bool) -> Engines:
    """Every part of the space, given to both searches; where the engine starts none of it, points without an answer."""
    refused = space.starts_nothing
    search = EngineSearch.of(replace(space, rules=None) if refused else space, limits, open_loop=open_loop)
    for part in space.parts():
        search.look_at(replace(part, space=replace(part.space, rules=None)) if refused else part)
        if apart is not None:
            apart.look_at(part)
    return replace(search.answer(), contenders=(), pareto=(), ranked=(), reason=refused) if refused else search.answer()


MOST_RANKED = 4  # engines of the least energy that are compared with their idle chips, at each cap
CAPS = (1.0, 0.85, 0.7, 0.55, 0.4)  # power caps that are tried, as shares of the range between idle power and the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The least energy at a power cap.

    Args:
        cap_w: the cap; None is the limit [W].
        joules_per_output_token: of the best there; None where nothing meets the limits [J].
        layout: of the engine that decodes.
    """

    cap_w: float | None
    joules_per_output_token: float | None
    layout: str = ""


def caps_of(cluster: Cluster) -> tuple[float | None, ...]:
    """Power caps to try on a cluster [W]; only its own where one is set.

    Raises:
        InputError: nothing is known of what its chips draw.
    """
    chip = cluster.chip
    if chip.power_cap_w is not None:
        return (chip.power_cap_w,)
    power = chip.power
    if power is None:
        raise InputError(what="objective", given="joules", allowed=f"dollars: nothing is known of {chip.name}'s power")
    spread = power.limit_w - power.idle_w
    return tuple(None if share == 1.0 else round(power.idle_w + share * spread) for share in CAPS)


def capped(cluster: Cluster, cap_w: float | None) -> Cluster:
    """The cluster with its chips set to keep below a power."""
    if cap_w is None or cap_w == cluster.chip.power_cap_w:
        return cluster
    return replace(cluster, chip=replace(cluster.chip, power_cap_w=checked_cap(cluster.chip, cap_w)))


def least_energy(
    system: System,
    demand: Demand,
    among: SearchSpace,
    *,
    prefill: PrefillPool | None = ANY_POOL,
    served: bool = True,
) -> tuple[Plan, tuple[Tried, ...]]:
    """The plan with the least energy of an output token, and what was tried.

    Args:
        system: with a power cap where only that one counts.
        demand, prefill: as `rackline.search.plan`.
        among: what the plan may choose from.
        served: whether the plan that is returned is simulated.

    Raises:
        InputError: nothing is known of what its chips draw.
    """
    found: list[tuple[float, System, SearchSpace]] = []
    tried: list[Tried] = []
    for cap_w in caps_of(system.cluster):
        on = replace(system, cluster=capped(system.cluster, cap_w))
        space = Space.of(on, demand.workload, among)
        best = [
            (joules, (one, kept), choice.layout.label())
            for one, kept in ((on, among), *ranked_by_energy(space, demand.limits, among))
            for choice in plan(one, demand, kept, prefill=prefill, served=False).choices
            if (joules := choice.energy and choice.energy.joules_per_output_token) is not None
        ]
        joules, chosen, layout = min(best, key=lambda one: one[0], default=(None, (on, among), ""))
        tried.append(Tried(cap_w=cap_w, joules_per_output_token=joules, layout=layout))
        if joules is not None:
            found.append((joules, *chosen))
    if not found:
        return plan(system, demand, among, prefill=prefill, served=served), tuple(tried)
    _, on, kept = min(found, key=lambda one: one[0])
    return replace(plan(on, demand, kept, prefill=prefill, served=served), objective="joules"), tuple(tried)


def ranked_by_energy(
    space: Space, limits: Constraints, among: SearchSpace, most: int = MOST_RANKED
) -> list[tuple[System, SearchSpace]]:
    """Engines that meet the limits with the least energy of an output token, all slots taken: the best of each layout
    and precision, the least first.

    Every layout × precision × mode × batch is compared, those apart that idle power alone makes worse than what is
    ranked already.

    Args:
        among: what each of the spaces is a part of.
        most: engines [count].
    """
    points = EngineSearch.through(space, limits, open_loop=False, objective="joules").shortlist.points()
    order = np.flatnonzero(points.serves & points.meets(limits) & np.isfinite(points.cost))
    order = order[np.argsort(points.cost[order], kind="stable")]
    numbers = numbering(space)
    best = order[firsts(numbers.deployed(points.engine[order]))][:most]
    places = [(*numbers.place(int(points.engine[at])), points.per_rank[at]) for at in best]
    return [
        (
            replace(space.system, precisions=(space.system.precisions[label],)),
            replace(
                among,
                layouts=[space.grid.layout(row)],
                modes=[space.modes[mode]],
                batches=space.batches[space.batches <= per_rank],
            ),
        )
        for label, mode, row, per_rank in places
    ]
