"""What `plan` finds: the plan with all that was asked of it, how it is launched, layouts and policies over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rackline.api.answer import Watch
from rackline.api.plan_parts import PlanQuestion
from rackline.api.question import Option, options
from rackline.api.resolve import ANY_ENGINE
from rackline.api.traffic import Use
from rackline.late import late
from rackline.units import format_limit, format_seconds, format_usd

with late:
    from rackline import search, system as systems
    from rackline.api import scaled, scaling, simulate_options
    from rackline.bands import bands, engine_costs
    from rackline.display import column, wording
    from rackline.report import exports
    from rackline.search import (
        extensions,
        kept_prefixes,
        launch_commands,
        likelihood,
        misfit as search_misfit,
        served,
        starting as search_starting,
    )
    from rackline.serving import fleet as serving_fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded:
    """A way to serve, with the errors of measured servers of its kind.

    Args:
        found: the way.
        intervals: that held 90 % of measurements, by metric.
    """

    json_keys: ClassVar = ("*found", "intervals")

    found: search.Choice | search.Candidate
    intervals: dict[str, bands.Ends]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, with the further answers about its best deployment.

    Args:
        plan: the best of each kind, the front, what was rejected.
        use: what it is for, with the lengths and limits that this gave.
        fleet: for the traffic; None where none was asked for or nothing serves.
        speculation: when drafts pay; None where it was not asked for.
        attention_ffn: attention and experts on chips of their own; None where it does not pay or was not asked for.
        launch: command lines; None where they were not asked for.
        starting: what is needed to launch it; None where nothing was searched.
        power_caps: those that were tried for the least energy; None where dollars count.
        prefixes: that the best keeps and finds; None where prompts do not repeat.
        engines: that of the plan next to the others, by estimates; None where there is no choice.
        risk: how surely the best keeps its limits; None where nothing serves or no measured server is like it.
        misfit: why nothing fits and what would; None where something does.
        sample: what runs of few requests show of the best; None where it was not asked for or nothing serves.
    """

    json_keys: ClassVar = (
        "*plan",
        "best",
        "pareto",
        "use",
        "fleet",
        "speculation",
        "attention_ffn",
        "launch",
        "launch_script",
        "power_caps",
        "prefixes",
        "engines",
        "risk",
        "misfit",
        "sample",
    )

    plan: search.Plan
    use: Use
    fleet: serving_fleet.Fleet | None = None
    speculation: tuple[extensions.SpeculationRow, ...] | None = None
    attention_ffn: extensions.AttentionFfnSplit | None = None
    launch: tuple[launch_commands.LaunchCommand, ...] | None = None
    starting: search_starting.Starting | None = None
    power_caps: tuple[search.Tried, ...] | None = None
    prefixes: kept_prefixes.KeptPrefixes | None = None
    engines: engine_costs.ComparedEngines | None = None
    risk: systems.Risk | None = None
    misfit: search_misfit.Misfit | None = None
    sample: served.FewRequests | None = None

    @property
    def best(self) -> Banded | None:
        """The cheapest, with its intervals."""
        return None if self.plan.best is None else self._banded(self.plan.best)

    @property
    def launch_script(self) -> str | None:
        """The launch commands as a script of bash; None where they were not asked for."""
        return exports.commands_text(self.launch) if self.launch else None

    @property
    def pareto(self) -> tuple[Banded, ...]:
        """The front, with its intervals."""
        return tuple(self._banded(one) for one in self.plan.pareto)

    def _banded(self, one: search.Choice | search.Candidate) -> Banded:
        return Banded(found=one, intervals=bands.ends_of(likelihood.intervals_of(one, self.plan.system)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOverTime(Planned):
    """A plan whose load changes over time.

    Args:
        over_time: layouts and policies that follow it; None where nothing serves.
    """

    json_keys: ClassVar = (*Planned.json_keys, "over_time")

    over_time: Following | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The optimum while one quantity varies.

    Args:
        what_if: the quantity.
        points: its values, each with the plan there.
        answers: the whole answer at each value.
        engines: compared without a value, of which one is kept at every value; None where there was no choice.
    """

    json_keys: ClassVar = ("what_if", "engines", "points=rows")

    what_if: str
    points: tuple[search.WhatIfPoint, ...]
    answers: tuple[Planned, ...]
    engines: engine_costs.ComparedEngines | None = None

    @property
    def rows(self) -> tuple[AtValue, ...]:
        """Each value with its whole answer, as they are written."""
        return tuple(
            AtValue(point=point, answer=answer) for point, answer in zip(self.points, self.answers, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AtValue:
    """A value of a what-if as it is written: the best there, and everything else that was asked of it."""

    json_keys: ClassVar = (
        "value=point.value",
        "setting=point.setting",
        "best=answer.best",
        "aggregated=point.plan.aggregated",
        "pools=point.plan.pools",
        "reason=point.reason",
        "fleet=answer.fleet",
        "speculation=answer.speculation",
        "attention_ffn=answer.attention_ffn",
        "launch=answer.launch",
        "power_caps=answer.power_caps",
        "prefixes=answer.prefixes",
        "risk=answer.risk",
    )

    point: search.WhatIfPoint
    answer: Planned


MANIFEST_KINDS = ("compose", "kubernetes", "dynamo", "llm-d")
LAUNCH_AS = Option(
    kind="text",
    help="write the answer to a YAML file that starts it: compose FILE (containers of one host, with the router), "
    "kubernetes FILE (Deployment or LeaderWorkerSet, Service), dynamo FILE (DynamoGraphDeployment) or llm-d FILE "
    "(model servers with the labels of llm-d's router)",
    choices=MANIFEST_KINDS,
    before_file=True,
)


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
    outcome: scaled.Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A load over time under several layouts and policies.

    Args:
        runs: of each layout, by its label.
        reasons: why a layout has none, by its label.
    """

    json_keys: ClassVar = ("load=first.load", "slo=first.slo", "best", "tried", "perfect_chip_hours", "reasons")

    runs: dict[str, scaled.ScaledRuns]
    reasons: dict[str, str]

    @property
    def first(self) -> scaled.ScaledRuns:
        """The runs of the cheapest layout of the plan."""
        return next(iter(self.runs.values()))

    @property
    def tried(self) -> tuple[Tried, ...]:
        """Every layout under every policy, those that meet the limits first, then by chip-hours."""
        found = [Tried(layout=label, outcome=one.outcome) for label, runs in self.runs.items() for one in runs.ran]
        return tuple(sorted(found, key=lambda one: (not one.outcome.holds, one.outcome.chip_hours)))

    @property
    def best(self) -> Tried | None:
        """The fewest chip-hours that meet the limits, by a policy that one can run; None where none does."""
        return next((one for one in self.tried if one.outcome.holds and one.outcome.policy != scaling.ORACLE), None)

    @property
    def perfect_chip_hours(self) -> float:
        """Chip-hours of a perfect policy on the layout that needs least [chip h]."""
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
    runs: dict[str, scaled.ScaledRuns] = {}
    for label, types in list(layouts.items())[:_LAYOUTS]:
        runs[label] = scaling.scaled_runs(_simulated(question, plan, label, types), watch)
    return (
        Following(runs=runs, reasons={label: one.reason for label, one in runs.items() if one.reason}) if runs else None
    )


def _simulated(question: PlanQuestion, plan: search.Plan, layout: str, types: str) -> simulate_options.SimulateQuestion:
    """The question of one layout, with all options that both have."""
    both = (options(simulate_options.SimulateQuestion).keys() & options(PlanQuestion).keys()) - set(_NOT_SHARED)
    shared = question.given(*sorted(both))
    limits = plan.demand.limits
    slo = ",".join(
        f"{name.removesuffix('_s')}={format_limit(limit_s, percentile)}"
        for name, limit_s, percentile in limits.latencies()
    )
    workload = plan.demand.workload
    lengths: dict[str, Any] = {"mix": question.mix}
    if question.mix is None and question.trace is None:
        lengths = {"input": workload.input_len, "output": workload.output_len}
    known: dict[str, Any] = {**shared, **lengths, "model": question.model, "on": question.on}
    if question.engine == ANY_ENGINE:
        known["engine"] = plan.system.stack.name
    made = simulate_options.SimulateQuestion(**known)
    rate = None if question.requests is None else f"{question.requests!r}"
    made = replace(
        made, layout=layout, precision=types, slo=slo, load=question.load, load_time=question.load_time, rate=rate,
        autoscale=_POLICIES, cache_hit=question.cache_hit,
    )  # fmt: skip
    made.check_options()
    return made


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
            f"{scaled.share_text(one.attained)} of {one.requests:,.0f} requests within the limits"
        )
    columns: list[column.Column[Tried]] = [
        column.Column("layout", "layout"),
        column.Column("policy", "policy", "text", "outcome.policy"),
        column.Column("usd", "$", "USD", "outcome.usd"),
        column.Column("chip_hours", "chip-hours", "1", "outcome.chip_hours"),
        column.Column("attained", "within limits", "figures", lambda one: scaled.share_text(one.outcome.attained)),
        column.Column("holds", "met", "text", lambda one: "yes" if one.outcome.holds else "no"),
        column.Column("ttft_p99_s", "TTFT p99", "s", "outcome.ttft_p99_s", priority=1),
        column.Column("tpot_p99_s", "TPOT p99", "s", "outcome.tpot_p99_s", priority=1),
        column.Column("most_replicas", "most replicas", "whole", "outcome.most_replicas", priority=2),
    ]
    at = f"limits on {runs.slo.statistics} of the whole load"
    yield column.Sheet("over time", columns, found.tried, f"{load}, by layout and policy", at)
