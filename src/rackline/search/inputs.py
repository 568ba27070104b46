"""What a plan searches for one engine: the system and the demand, and what the answer adds to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rackline.hardware import Cluster
from rackline.parallel import Layout
from rackline.search.changes import Asked, Held, ServingChanges, decoding_cost
from rackline.search.choice import Choice
from rackline.search.kept_prefixes import Keeping
from rackline.search.launch_plan import Checkpoints
from rackline.search.misfit import Cost, Misfit
from rackline.search.plan import Contenders, Plan, contenders, plan
from rackline.search.space import PrefillPool, SearchSpace, aligned_modes, default_modes
from rackline.serving import Population
from rackline.serving.fleet import Traffic
from rackline.serving.workload import Mode, Speculation
from rackline.system import Demand, System


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What a plan searches for one engine: the system and the demand, and what the answer adds to them.

    Args:
        system: what serves.
        demand: the requests and their limits.
        prefill: pool of its own for prompts; None for single engines only.
        traffic: of a fleet; None without.
        users: whose traffic follows from the answer; None without.
        drafts: speculative decoding to look at; None without.
        keeping: prefixes that come again, and how long they are kept; None where a hit rate is given.
        checkpoints: of the model, that an engine can load.
        draft_id: Hugging Face id or path of the draft model; empty without.
        engine, version: what is launched; no version for the newest.
    """

    system: System
    demand: Demand
    space: SearchSpace
    prefill: PrefillPool | None
    traffic: Traffic | None
    users: Population | None
    drafts: Sequence[Speculation] | None
    keeping: Keeping | None
    checkpoints: Checkpoints
    draft_id: str
    engine: str
    version: str

    def contenders(self, *, leftover: bool = True) -> Contenders:
        """Return the cheapest engines and pairs of pools, by their estimates.

        Args:
            leftover: as `rackline.search.contenders`.
        """
        return contenders(self.system, self.demand, self.space, prefill=self.prefill, leftover=leftover)

    def like(self, choices: Sequence[Choice]) -> PlanInputs:
        """Return these inputs with only the layouts, schedulers and data types of some deployments of one kind.

        A search of these takes a fifth of the time of a whole one.

        Args:
            choices: single engines, or pairs of pools, in one precision; at least one.
        """
        precisions = (choices[0].precision,)
        aligned = any(choice.mode.alignment is not None for choice in choices)
        modes = list(dict.fromkeys(replace(choice.mode, alignment=None) for choice in choices))
        space = replace(
            self.space,
            layouts=_replicas(choice.layout for choice in choices),
            modes=[*modes, *(aligned_modes(self.system.stack) if aligned else ())],
        )
        ahead, pools = self.prefill, [choice.prefill_pool for choice in choices if choice.prefill_pool is not None]
        if ahead is not None:
            system = ahead.system and replace(ahead.system, precisions=precisions)
            ahead = PrefillPool(system=system, layouts=_replicas(pool.layout for pool in pools)) if pools else None
        return replace(self, system=replace(self.system, precisions=precisions), space=space, prefill=ahead)

    def plan(self, **how: Any) -> Plan:
        """Return the plan itself.

        Args:
            how: as `rackline.search.plan`: whether the best is simulated, what is known by estimates.
        """
        return plan(self.system, self.demand, self.space, prefill=self.prefill, **how)

    def with_hits(self, share: float) -> PlanInputs:
        """Return these inputs with a share of the prompts cached."""
        work = replace(self.demand.workload, cache_hit=share)
        return replace(self, demand=replace(self.demand, workload=work))

    def without_headroom(self) -> PlanInputs | None:
        """Return these inputs with predictions that may reach the limits; None where they may already."""
        limits = self.demand.limits
        if limits.headroom is None:
            return None
        return replace(self, demand=replace(self.demand, limits=replace(limits, headroom=None)))

    def misfit(self) -> Misfit | None:
        """Return why nothing fits, and what would make it fit; costs are estimates of single engines.

        Returns:
            None where no layout is left.
        """
        demand, work, budgets = self.demand, self.demand.workload, [mode.max_batched_tokens for mode in self.modes]

        def costing(held: Held) -> Cost:
            at = held.asked
            shorter = replace(work, input_len=work.input_len + at.context_len - work.final_context)
            found = contenders(
                at.system,
                replace(demand, workload=work if at.context_len == work.final_context else shorter),
                replace(self.space, layouts=at.layouts),
                prefill=None,
            )
            best = found.best
            if best is None:
                return replace(decoding_cost(held), reason=f"fits, but {found.engines.reason}")
            return Cost(
                layout=f"{best.layout.label()} · {best.precision.short()}",
                step_s=best.tpot_s,
                ttft_s=best.ttft_s,
                usd_per_mtok=best.usd_with_leftover,
            )

        return ServingChanges(
            asked=Asked(
                system=self.system,
                context_len=work.final_context,
                layouts=self.space.layouts,
                batched_tokens=float(min(budgets)),
            ),
            costing=costing,
            context=("--input", work.output_len) if work.mixture is None and self.keeping is None else None,
            tpot_s=demand.limits.tpot_s,
        ).misfit()

    @property
    def modes(self) -> Sequence[Mode]:
        """Schedulers that are searched."""
        return self.space.modes or default_modes(self.system.model, self.system.stack)

    @property
    def prefill_cluster(self) -> Cluster | None:
        """The cluster of the prefill pool where it is another one."""
        system = None if self.prefill is None else self.prefill.system
        return None if system is None else system.cluster


def _replicas(layouts: Iterable[Layout]) -> list[Layout]:
    """Return each layout of a replica once."""
    return list(dict.fromkeys(replace(layout, dp=1) for layout in layouts))
