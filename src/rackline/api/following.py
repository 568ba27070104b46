"""`plan` with a load over time: the layout and the policy that meet the limits for the fewest chip-hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rackline.api.answer import Watch
from rackline.api.plan_parts import PlanQuestion
from rackline.api.question import options
from rackline.api.scaled import Outcome, ScaledRuns
from rackline.api.scaling import ORACLE, scaled_runs
from rackline.api.scaling_text import share_text
from rackline.api.server import SimulateQuestion
from rackline.late import late
from rackline.units import format_seconds, format_usd

with late:
    from rackline import search
    from rackline.report import column, wording

_LAYOUTS = 3
_POLICIES = ("fixed", "hpa", "dynamo-planner")
_NOT_SHARED = ("users", "requests", "cache_hit", "trace", "mix", "prefill_layout", "speculate", "layout", "precision",
               "slo", "rate")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One layout under one policy.

    Args:
        layout: of a replica.
        outcome: what the policy did.
    """

    json_keys: ClassVar = ("layout", "*outcome")

    layout: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A load over time under several layouts and policies.

    Args:
        runs: of each layout, by its label.
        reasons: why a layout has none, by its label.
    """

    json_keys: ClassVar = ("load=first.load", "slo=first.slo", "best", "tried", "perfect_chip_hours", "reasons")

    runs: dict[str, ScaledRuns]
    reasons: dict[str, str]

    @property
    def first(self) -> ScaledRuns:
        """Those of the cheapest layout of the plan."""
        return next(iter(self.runs.values()))

    @property
    def tried(self) -> tuple[Tried, ...]:
        """Every layout under every policy, those that meet the limits first, then by chip-hours."""
        found = [Tried(layout=label, outcome=one.outcome) for label, runs in self.runs.items() for one in runs.ran]
        return tuple(sorted(found, key=lambda one: (not one.outcome.holds, one.outcome.chip_hours)))

    @property
    def best(self) -> Tried | None:
        """The fewest chip-hours that meet the limits, by a policy that one can run; None where none does."""
        return next((one for one in self.tried if one.outcome.holds and one.outcome.policy != ORACLE), None)

    @property
    def perfect_chip_hours(self) -> float:
        """Of the layout that needs least [chip h]."""
        return min((one.perfect_chip_hours for one in self.runs.values() if not one.reason), default=float("nan"))


def following(question: PlanQuestion, plan: search.Plan, watch: Watch) -> Following | None:
    """Serve the load with the cheapest layouts of a plan under each policy; None where nothing serves.

    Args:
        question: with a load; `requests` is the mean rate, where it is given.
        plan: its answer without the load.
    """
    layouts: dict[str, str] = {}
    for one in plan.ranked:
        layouts.setdefault(replace(one.layout, dp=1).label(), one.precision.label)
    runs: dict[str, ScaledRuns] = {}
    for label, types in list(layouts.items())[:_LAYOUTS]:
        runs[label] = scaled_runs(_simulated(question, plan, label, types), watch)
    return (
        Following(runs=runs, reasons={label: one.reason for label, one in runs.items() if one.reason}) if runs else None
    )


def _simulated(question: PlanQuestion, plan: search.Plan, layout: str, types: str) -> SimulateQuestion:
    """The question of one layout, with all options that both have."""
    both = (options(SimulateQuestion).keys() & options(PlanQuestion).keys()) - set(_NOT_SHARED)
    shared = question.given(*sorted(both))
    limits = plan.demand.limits
    each = {"ttft": limits.ttft_s, "tpot": limits.tpot_s}
    percentile = max(limits.ttft_percentile or 50.0, limits.tpot_percentile or 50.0)  # a mean is about the median
    slo = ",".join(f"{name}={value!r}s" for name, value in each.items() if value) + f"@p{percentile:g}"
    workload = plan.demand.workload
    lengths: dict[str, Any] = {"mix": question.mix}
    if question.mix is None and question.trace is None:
        lengths = {"input": workload.input_len, "output": workload.output_len}
    known: dict[str, Any] = {**shared, **lengths, "model": question.model, "on": question.on}
    made = SimulateQuestion(**known)
    rate = None if question.requests is None else f"{question.requests!r}"
    return replace(
        made, layout=layout, precision=types, slo=slo, load=question.load, load_time=question.load_time, rate=rate,
        autoscale=_POLICIES, cache_hit=question.cache_hit,
    )  # fmt: skip


def following_text(found: Following) -> Iterable[Any]:
    """The best, and what else was tried."""
    best, runs = found.best, found.first
    load = f"{runs.load.name}, {format_seconds(runs.load.seconds)}"
    if best is None:
        why = "; ".join(f"{label}: {reason}" for label, reason in found.reasons.items())
        yield wording.Prose(f"over {load}: no policy that was tried meets the limits{f' ({why})' if why else ''}")
    else:
        one = best.outcome
        usd = "" if one.usd is None else f"{format_usd(one.usd)}, "
        yield wording.Prose(
            f"over {load}: {usd}{one.chip_hours:,.0f} chip-hours with {best.layout} under {one.policy}, "
            f"{share_text(one.attained)} of {one.requests:,.0f} requests within the limits"
        )
    columns: list[column.Column[Tried]] = [
        column.Column("layout", "layout"),
        column.Column("policy", "policy", "text", "outcome.policy"),
        column.Column("usd", "$", "USD", "outcome.usd"),
        column.Column("chip_hours", "chip-hours", "1", "outcome.chip_hours"),
        column.Column("attained", "within limits", "figures", lambda one: share_text(one.outcome.attained)),
        column.Column("holds", "met", "text", lambda one: "yes" if one.outcome.holds else "no"),
        column.Column("ttft_p99_s", "TTFT p99", "s", "outcome.ttft_p99_s", priority=1),
        column.Column("tpot_p99_s", "TPOT p99", "s", "outcome.tpot_p99_s", priority=1),
        column.Column("most_replicas", "most replicas", "whole", "outcome.most_replicas", priority=2),
    ]
    at = f"each limit at p{runs.slo.percentile:g} of the whole load"
    yield column.Sheet("over time", columns, found.tried, f"{load}, by layout and policy", at)
