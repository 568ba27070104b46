"""What `plan` finds: the plan with all that was asked of it, how it is launched, layouts and policies over time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rackline.api.answer import Watch
from rackline.api.plan_parts import PlanQuestion
from rackline.api.question import Option, options
from rackline.api.resolve import ANY_ENGINE
from rackline.api.traffic import Use
from rackline.late import late
from rackline.units import format_limit

with late:
    from rackline import search, system as systems
    from rackline.api import scaling, simulate_options
    from rackline.bands import bands, engine_costs
    from rackline.report import exports
    from rackline.search import (
        extensions,
        kept_prefixes,
        launch_commands,
        likelihood,
        misfit as search_misfit,
        scaled_fleet,
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
        engines: the engine of the plan and the estimates of the others; None where there is no choice.
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

    over_time: scaled_fleet.Following | None = None


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


def following(question: PlanQuestion, plan: search.Plan, watch: Watch) -> scaled_fleet.Following | None:
    """Serve the load with the cheapest layouts of a plan under each policy; None where nothing serves.

    Args:
        question: with a load; `requests` is the mean rate, where it is given.
        plan: its answer without the load.
    """
    layouts: dict[str, str] = {}
    for one in plan.ranked:
        layouts.setdefault(replace(one.layout, dp=1).label(), one.precision.label)
    runs: dict[str, scaled_fleet.ScaledFleet] = {}
    for label, types in list(layouts.items())[:_LAYOUTS]:
        runs[label] = scaling.scaled_runs(_simulated(question, plan, label, types), watch).fleet
    return (
        scaled_fleet.Following(runs=runs, reasons={label: one.reason for label, one in runs.items() if one.reason})
        if runs
        else None
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
