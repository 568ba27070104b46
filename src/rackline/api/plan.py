"""`plan`: the cheapest way to serve a model on a cluster under latency limits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, SideFile, Verbatim, Watch, asks
from rackline.api.plan_parts import PlanInputs, PlanQuestion, plan_inputs
from rackline.api.resolve import named
from rackline.api.starting import KINDS, LAUNCH_AS, Starting, launch_options, manifests_of
from rackline.api.traffic import Use, use_lines, with_use
from rackline.api.verbs import Entry
from rackline.api.what_if import leading_number, read_sweep, setting
from rackline.errors import InputError
from rackline.files import write_text
from rackline.late import late
from rackline.plain import plain
from rackline.units import format_seconds, format_usd

with late:
    from rackline import search
    from rackline.bands import intervals as bands_intervals
    from rackline.report import (
        choice_report,
        figure,
        kept_report,
        launch_report,
        plan_figures,
        plan_report,
        plan_summary,
        wording,
    )
    from rackline.search import attention_ffn as search_attention_ffn
    from rackline.search import candidate, choice, kept_prefixes, least_energy
    from rackline.search import fleet as search_fleet
    from rackline.search import launch as search_launch
    from rackline.search import speculation as search_speculation
    from rackline.serving import fleet as serving_fleet

if TYPE_CHECKING:
    from rackline.search.plan import WhatIfPoint


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
    """

    plan: search.Plan
    use: Use
    fleet: serving_fleet.Fleet | None = None
    speculation: tuple[search_speculation.SpeculationRow, ...] | None = None
    attention_ffn: search_attention_ffn.AttentionFfnSplit | None = None
    launch: tuple[search_launch.LaunchCommand, ...] | None = None
    starting: Starting | None = None
    power_caps: tuple[least_energy.Tried, ...] | None = None
    prefixes: kept_prefixes.KeptPrefixes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The optimum while one quantity varies.

    Args:
        what_if: the quantity.
        points: its values, each with the plan there.
        answers: the whole answer at each value.
    """

    json_keys: ClassVar = ("what_if", "points=rows")

    what_if: str
    points: tuple[WhatIfPoint, ...]
    answers: tuple[Planned, ...]

    @property
    def rows(self) -> tuple[AtValue, ...]:
        """Each value with its whole answer, as they are written."""
        return tuple(
            AtValue(point=point, data=PlanData(answer=answer))
            for point, answer in zip(self.points, self.answers, strict=True)
        )


if TYPE_CHECKING:
    Answered = Answer[PlanQuestion, Planned | WhatIf]


def _text(answer: Answered, width: int) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, WhatIf):
        yield plan_report.what_if_report(found.what_if, found.points)
        for point, planned in zip(found.points, found.answers, strict=True):
            more = [*_prefixes_text(planned, full=answer.question.full), *_more_text(answer.question, planned)]
            if more and point.plan.best is not None:
                yield wording.Prose(f"\n{found.what_if} = {point.value}", style="bold")
                yield from more
        return
    report = plan_report.plan_report if answer.question.full else plan_summary.plan_summary
    yield report(found.plan, width=width, elapsed_s=answer.elapsed_s)
    yield from plan_report.lengths_lines(found.plan.demand.workload.mixture)
    yield from _prefixes_text(found, full=answer.question.full)
    yield from use_lines(found.use, full=answer.question.full)
    for line in _interval(answer).splitlines():
        yield wording.Prose(line, style="dim")
    yield from _more_text(answer.question, found)


def _prefixes_text(found: Planned, *, full: bool) -> Iterable[Any]:
    """Which prefixes the best keeps, where prompts repeat."""
    if found.prefixes is not None:
        yield kept_report.kept_report(found.prefixes, found.plan.demand.limits, full=full)


_PARTS = ("usd_per_mtok_input", "usd_per_mtok_output")


def _interval(answer: Answered) -> str:
    """What measured servers of the kind of the best deviate by, in time and energy, and what that may break."""
    found = answer.result
    if isinstance(found, WhatIf) or found.plan.best is None:
        return ""
    best = found.plan.best
    known = _intervals(found.plan, best)
    whole = [one for one in known if one.metric not in _PARTS]  # the parts follow from it
    lines = (
        bands_intervals.interval_line(whole),
        bands_intervals.risk_line(known, best, found.plan.demand.limits),
        bands_intervals.joules_line(known),
    )
    return "\n".join(line for line in lines if line)


def _intervals(plan: search.Plan, one: choice.Choice | candidate.Candidate) -> list[bands_intervals.Interval]:
    return bands_intervals.of_candidate(
        one, plan.system.model, plan.system.cluster.chip.name, plan.system.calibration.name
    )


def _more_text(question: PlanQuestion, found: Planned) -> Iterable[Any]:
    """What else was asked of the best."""
    if found.power_caps:
        yield ""
        yield plan_report.caps_report(found.power_caps)
    if found.speculation:
        yield ""
        yield plan_report.speculation_report(found.speculation, found.plan.demand.limits.tpot_s)
    if question.attention_ffn:
        yield ""
        yield plan_report.attention_ffn_report(found.plan, found.attention_ffn)
    if found.fleet is not None:
        yield ""
        yield choice_report.fleet_report(found.fleet)
    if found.launch:
        yield ""
        yield Verbatim(launch_report.commands_text(found.launch) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded:
    """One way to serve, with what measured servers of its kind deviate by.

    Args:
        found: the way.
        intervals: that held 90 % of measurements, by metric.
    """

    json_keys: ClassVar = ("*found", "intervals")

    found: choice.Choice | candidate.Candidate
    intervals: dict[str, bands_intervals.Ends]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanData:
    """A plan as it is written: the best and the front with their intervals."""

    json_keys: ClassVar = (
        "*answer.plan",
        "best",
        "pareto",
        "use=answer.use",
        "fleet=answer.fleet",
        "speculation=answer.speculation",
        "attention_ffn=answer.attention_ffn",
        "launch=answer.launch",
        "launch_script",
        "power_caps=answer.power_caps",
        "prefixes=answer.prefixes",
    )

    answer: Planned

    @property
    def best(self) -> Banded | None:
        """The cheapest."""
        return self._banded(self.answer.plan.best) if self.answer.plan.best is not None else None

    @property
    def launch_script(self) -> str | None:
        """The launch commands as a script of bash; None where they were not asked for."""
        return launch_report.commands_text(self.answer.launch) if self.answer.launch else None

    @property
    def pareto(self) -> tuple[Banded, ...]:
        """The front."""
        return tuple(self._banded(one) for one in self.answer.plan.pareto)

    def _banded(self, one: choice.Choice | candidate.Candidate) -> Banded:
        return Banded(found=one, intervals=bands_intervals.ends_of(_intervals(self.answer.plan, one)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AtValue:
    """A value of a what-if as it is written: the best there, and everything else that was asked of it."""

    json_keys: ClassVar = (
        "value=point.value",
        "setting=point.setting",
        "best=data.best",
        "reason=point.reason",
        "fleet=data.answer.fleet",
        "speculation=data.answer.speculation",
        "attention_ffn=data.answer.attention_ffn",
        "launch=data.answer.launch",
        "power_caps=data.answer.power_caps",
        "prefixes=data.answer.prefixes",
    )

    point: WhatIfPoint
    data: PlanData


def _data(answer: Answered) -> PlanData | WhatIf:
    found = answer.result
    return found if isinstance(found, WhatIf) else PlanData(answer=found)


def _summary(answer: Answered) -> str:
    found = answer.result
    if isinstance(found, WhatIf):
        return f"the optimum at {len(found.points)} values of {found.what_if}"
    plan = found.plan
    best = plan.best
    if best is None:
        return plan.reason
    cost = f"{format_usd(best.usd_per_mtok_output_all_in)} per M output tokens, all-in, " if plan.priced else ""
    return (
        f"{cost}TPOT {format_seconds(best.tpot_s)}, TTFT {format_seconds(best.ttft_s)}, "
        f"{best.output_tokens_per_s_per_chip:,.0f} output tokens/s per chip;\n  {plan.system.model.name} on "
        f"{best.num_chips} chips of {plan.system.cluster.name}, {best.serving}, batch {best.batch_size:.4g} with "
        f"{best.layout.label()}, {best.precision.short()}{choice_report.fleet_summary(found.fleet)}"
    )


def _rows(answer: Answered) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, WhatIf):
        return [plain(point) for point in found.rows]
    return found.plan.pareto


def _figure(answer: Answered) -> figure.Figure:
    found = answer.result
    return (
        plan_figures.what_if_figure(found.what_if, found.points)
        if isinstance(found, WhatIf)
        else plan_figures.pareto_figure(found.plan)
    )


def _rejected(answer: Answered) -> figure.Figure:
    return plan_figures.rejected_figure(_one(answer, "rejected"))


def _step(answer: Answered) -> figure.Figure:
    return plan_figures.step_figure(_one(answer, "step"))


def _one(answer: Answered, kind: str) -> search.Plan:
    """The plan of an answer.

    Raises:
        InputError: there are several.
    """
    if isinstance(answer.result, WhatIf):
        raise InputError(what="plot_kind", given=kind, allowed="front, for several plans", nearest="front")
    return answer.result.plan


def _write_manifests(answer: Answered, path: Path, kind: str) -> None:
    starting = answer.result.starting if isinstance(answer.result, Planned) else None
    if starting is not None:
        write_text(path, manifests_of(starting, kind), what="launch_as")


def _documents(answer: Answered) -> Mapping[str, str]:
    """How the answer is launched."""
    starting = answer.result.starting if isinstance(answer.result, Planned) else None
    if starting is None or starting.plan.best is None:
        return {}
    found: dict[str, str] = {}
    with contextlib.suppress(InputError):  # what cannot be expressed is said where it is asked for
        found["launch command"] = launch_report.commands_text(starting.commands())
    for kind in KINDS:
        with contextlib.suppress(InputError):
            found[f"{kind} manifest"] = manifests_of(starting, kind)
    return found


def _refuse(question: PlanQuestion, outputs: frozenset[str]) -> None:
    if question.what_if is not None and "launch_as" in outputs:
        raise InputError(what="launch_as", given=question.what_if, allowed="a single plan, without `what_if`")


@asks(
    PlanQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    data=_data,
    figures={"front": _figure, "rejected": _rejected, "step": _step},
    documents=_documents,
    interval=_interval,
    files={"launch_as": SideFile(option=LAUNCH_AS, write=_write_manifests)},
    refuse=_refuse,
    entry=Entry(
        group="Decide",
        place=0,
        line="The cheapest way to serve a model within latency limits.",
        usual=("on", "input", "output", "tpot", "ttft", "chips", "precision", "layout", "traffic", "launch", "set"),
        request={
            "model": "llama-3.1-8b",
            "on": "l40s-8",
            "input": "2k",
            "output": 500,
            "tpot": "50ms",
            "chips": 1,
            "layout": "tp=1",
            "precision": "fp8",
            "serving": "aggregated",
        },
        is_long=True,
        sweep_s=5.0,
        sweep_results="best.",
        view={
            "id": "plan",
            "place": 5,
            "title": "Plan",
            "question": "What is the cheapest way to serve this?",
            "claims": ["C51", "C73"],
            "figures": ["front", "step", "rejected"],
            "fields": {
                "model": "llama-3.1-70b",
                "on": "dgx-h100",
                "input": "2k",
                "output": "500",
                "tpot": "50ms",
                "ttft": "2s",
                "chips": "16",
            },
            "stop": "tpot",
            "stops": ["50ms", "25ms"],
        },
        examples="""
    rackline plan deepseek-v3 --on gb200-nvl72 \\
      --input 4k --output 1k --tpot 30ms --ttft 2s
    rackline plan llama-3.1-70b --on dgx-h100 \\
      --input 1k --output 500 --precision fp8 --layout tp=4
    rackline plan gpt-oss-120b --on dgx-b200 \\
      --input 8k --output 1k --set hbm_bytes_per_s=20TB/s
    rackline plan deepseek-v3 --on gb200-nvl72 --chips 16 \\
      --prefill-on h100-96 --input 4k --output 1k --precision fp8
    rackline plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k \\
      --tpot 30ms --traffic 50M --peak-over-mean 1.8 --launch auto
    rackline plan llama-3.1-70b --on dgx-h200 --input 2k --output 500 \\
      --what-if hbm_bandwidth=3TB/s:12TB/s:4 --plot what-if.svg
    rackline plan ./config.json --on dgx-h200 --input 4k --output 1k --json
""",
    ),
)
def plan(question: PlanQuestion, watch: Watch) -> Planned | WhatIf:
    """The cheapest way to serve a model on a cluster under latency limits.

    Searches every layout × precision × scheduler × batch that fits, simulates the best with random arrivals,
    and lowers the request rate until the limits hold, and explains it: what binds, what it costs, how far it is from
    the floors, what else there is, and what was rejected by the least.

    Example:
        >>> import rackline as rl
        >>> found = rl.plan("llama-3.1-70b", on="dgx-h100", input="2k", output=500, tpot="50ms")
        >>> found.result.plan.best.tpot_s < 0.05
        True
    """
    question, use = with_use(question)
    if question.what_if is not None:
        return _what_if(question, question.what_if, use, watch)
    asked = plan_inputs(question, watch, again=True)
    with watch.moving("searching layouts, precisions, modes and batch sizes; simulating the best"):
        return _planned(question, asked, use, tell_estimate=lambda plan: watch.estimated(Planned(plan=plan, use=use)))


def _planned(
    question: PlanQuestion, asked: PlanInputs, use: Use, *, tell_estimate: Callable[[search.Plan], None] | None = None
) -> Planned:
    """The plan, and everything else that was asked of it.

    Args:
        asked: by the question.
        tell_estimate: as `searched`.
    """
    if question.launch is not None:
        search_launch.check_stack(asked.engine or asked.system.calibration.name)
    found, caps, prefixes = _found(asked, question.objective, tell_estimate)

    rows = None if asked.drafts is None else tuple(search_speculation.plan_speculation(found, asked.drafts or None))
    starting = Starting(
        plan=found,
        checkpoints=asked.checkpoints,
        options=launch_options(asked, found, rows, prefixes),
        kept_prefixes=prefixes is not None,
    )
    return Planned(
        plan=found,
        use=use,
        fleet=search_fleet.plan_fleet(asked.traffic, found, asked.prefill_cluster, asked.users, pue=question.pue),
        speculation=rows,
        attention_ffn=search_attention_ffn.plan_split(found) if question.attention_ffn else None,
        launch=None if question.launch is None else tuple(starting.commands()),
        starting=starting,
        power_caps=caps or None,
        prefixes=prefixes,
    )


def _found(
    asked: PlanInputs, objective: str, tell_estimate: Callable[[search.Plan], None] | None
) -> tuple[search.Plan, tuple[least_energy.Tried, ...], kept_prefixes.KeptPrefixes | None]:
    """The plan, the power caps that were tried, and the prefixes that the best keeps."""
    caps: tuple[least_energy.Tried, ...] = ()

    def planned(at: PlanInputs) -> search.Plan:
        nonlocal caps
        if objective != "joules":
            return searched(at, tell_estimate=tell_estimate)
        found, caps = least_energy.least_energy(at.system, at.demand, at.space, prefill=at.prefill)
        return found

    if asked.keeping is None:
        return planned(asked), caps, None

    found, prefixes = kept_prefixes.agreeing(
        asked.keeping,
        lambda hit: searched(asked.with_hits(hit), served=False),
        lambda hit: planned(asked.with_hits(hit)),
    )
    if prefixes is not None and found.best is not None:
        prefixes = kept_prefixes.with_served_sessions(prefixes, found, found.best, asked.keeping)
    return found, caps, prefixes


def searched(
    asked: PlanInputs, *, served: bool = True, tell_estimate: Callable[[search.Plan], None] | None = None
) -> search.Plan:
    """The plan of a question.

    Args:
        served: whether the best is simulated.
        tell_estimate: is given the plan by estimates, before the best is simulated.
    """
    return search.plan(
        asked.system, asked.demand, asked.space, prefill=asked.prefill, served=served, tell_estimate=tell_estimate
    )


def _what_if(question: PlanQuestion, text: str, use: Use, watch: Watch) -> WhatIf:
    """The same question with one more setting at each value.

    The stack is that of the question without a value, and no value changes it: a faster link never brings another.

    Raises:
        InputError: a bad quantity.
    """
    from rackline.search.plan import WhatIfPoint

    model, _ = named(question, watch)
    sweep = read_sweep(text)
    settings = [setting(sweep.name, value, model) for value in sweep.values]
    asked = replace(question, what_if=None)
    system = plan_inputs(asked, watch, again=True).system
    if question.calibration == "auto" and not system.cluster.calibration:
        asked = replace(asked, calibration=system.calibration.name)
    questions = [replace(asked, set=(*question.set, given)) for given in settings]
    inputs = [plan_inputs(one, watch) for one in questions]  # refuses before anything is searched
    points: list[WhatIfPoint] = []
    answers: list[Planned] = []
    with watch.counting("looking at the first value", "considered") as done:
        for value, given, one, parts in zip(sweep.values, settings, questions, inputs, strict=True):
            found = _planned(one, parts, use)
            answers.append(found)
            points.append(WhatIfPoint(value=value, number=leading_number(value), setting=given, plan=found.plan))
            done(value, len(points), len(settings))
    return WhatIf(what_if=sweep.name, points=tuple(points), answers=tuple(answers))
