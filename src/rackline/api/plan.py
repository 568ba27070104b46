"""`plan`: the cheapest way to serve a model on a cluster under latency limits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.plan_parts import PlanInputs, PlanQuestion, engine_of, plan_inputs
from rackline.api.resolve import named
from rackline.api.stacks import Taken, answered_by, note_stacks, stacks_of
from rackline.api.starting import KINDS, LAUNCH_AS, Starting, launch_options, manifests_of
from rackline.api.traffic import Use, use_lines, with_use
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.files import write_text

if TYPE_CHECKING:
    from rackline.bands.intervals import Ends, Interval
    from rackline.bands.stacks import Stacks
    from rackline.report.figure import Figure
    from rackline.search import Plan
    from rackline.search.attention_ffn import AttentionFfnSplit
    from rackline.search.candidate import Candidate
    from rackline.search.choice import Choice
    from rackline.search.kept_prefixes import KeptPrefixes
    from rackline.search.launch import LaunchCommand
    from rackline.search.least_energy import Tried
    from rackline.search.plan import Contenders, WhatIfPoint
    from rackline.search.speculation import SpeculationRow
    from rackline.serving.fleet import Fleet
    from rackline.system import Risk


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
        stacks: all that were asked, where none was named; None where there is no choice.
        risk: how surely the best keeps its limits; None where nothing serves or no measured server is like it.
    """

    plan: Plan
    use: Use
    fleet: Fleet | None = None
    speculation: tuple[SpeculationRow, ...] | None = None
    attention_ffn: AttentionFfnSplit | None = None
    launch: tuple[LaunchCommand, ...] | None = None
    starting: Starting | None = None
    power_caps: tuple[Tried, ...] | None = None
    prefixes: KeptPrefixes | None = None
    stacks: Stacks | None = None
    risk: Risk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The optimum while one quantity varies.

    Args:
        what_if: the quantity.
        points: its values, each with the plan there.
        answers: the whole answer at each value.
        stacks: all that were asked without a value, of which one is kept at every value; None where there is no choice.
    """

    json_keys: ClassVar = ("what_if", "stacks", "points=rows")

    what_if: str
    points: tuple[WhatIfPoint, ...]
    answers: tuple[Planned, ...]
    stacks: Stacks | None = None

    @property
    def rows(self) -> tuple[AtValue, ...]:
        """Each value with its whole answer, as they are written."""
        return tuple(
            AtValue(point=point, data=PlanData(answer=answer))
            for point, answer in zip(self.points, self.answers, strict=True)
        )


if TYPE_CHECKING:
    Answered = Answer[PlanQuestion, Planned | WhatIf]
    _Found = tuple[Plan, tuple[Tried, ...], KeptPrefixes | None]


def _text(answer: Answered, width: int) -> Iterable[Any]:
    from rackline.report.plan_report import lengths_lines, plan_report, what_if_report
    from rackline.report.plan_summary import plan_summary
    from rackline.report.wording import Prose

    found = answer.result
    if isinstance(found, WhatIf):
        yield what_if_report(found.what_if, found.points)
        for point, planned in zip(found.points, found.answers, strict=True):
            more = [*_prefixes_text(planned, full=answer.question.full), *_more_text(answer.question, planned)]
            if more and point.plan.best is not None:
                yield Prose(f"\n{found.what_if} = {point.value}", style="bold")
                yield from more
        return
    best = found.plan.best
    bands = () if best is None else _intervals(found.plan, best)
    if answer.question.full:
        yield plan_report(found.plan, found.risk, bands=bands, width=width, elapsed_s=answer.elapsed_s)
    else:
        yield plan_summary(found.plan, found.risk, bands=bands, elapsed_s=answer.elapsed_s)
    if answer.question.full and found.stacks is not None:
        from rackline.bands.stacks_report import stacks_table, unit_of

        yield ""
        yield stacks_table(found.stacks, unit_of(found.plan))
    yield from lengths_lines(found.plan.demand.workload.mixture)
    yield from _prefixes_text(found, full=answer.question.full)
    yield from use_lines(found.use, full=answer.question.full)
    if best is not None and bands:
        from rackline.bands.intervals import width_line

        line = width_line(best.layout, found.plan.system.cluster.chip.name)
        if line:
            yield Prose(line, style="dim")
    yield from _more_text(answer.question, found)


def _prefixes_text(found: Planned, *, full: bool) -> Iterable[Any]:
    """Which prefixes the best keeps, where prompts repeat."""
    if found.prefixes is not None:
        from rackline.report.prefix_report import kept_report

        yield kept_report(found.prefixes, found.plan.demand.limits, full=full)


_PARTS = ("usd_per_mtok_input", "usd_per_mtok_output")


def _interval(answer: Answered, *, boxed: bool = False) -> str:
    """What measured servers of the kind of the best deviate by, in time and energy, and how many meet the limits.

    Args:
        boxed: whether the limited times are drawn elsewhere.
    """
    from rackline.bands.intervals import chance_line, interval_line, joules_line, width_line

    found = answer.result
    if isinstance(found, WhatIf) or found.plan.best is None:
        return ""
    best = found.plan.best
    known = _intervals(found.plan, best)
    drawn = {one.metric for one in found.risk.limits} if boxed and found.risk is not None else set[str]()
    whole = [one for one in known if one.metric not in (*_PARTS, *drawn)]  # the parts follow from it
    chances = "" if boxed or found.risk is None else chance_line(found.risk)
    width = width_line(best.layout, found.plan.system.cluster.chip.name) if known else ""
    return "\n".join(line for line in (interval_line(whole), width, chances, joules_line(known)) if line)


def _intervals(plan: Plan, one: Choice | Candidate) -> list[Interval]:
    from rackline.bands.intervals import of_candidate

    return of_candidate(one, plan.system.model, plan.system.cluster.chip.name, plan.system.calibration.name)


def _more_text(question: PlanQuestion, found: Planned) -> Iterable[Any]:
    """What else was asked of the best."""
    if found.power_caps:
        from rackline.report.plan_report import caps_report

        yield ""
        yield caps_report(found.power_caps)
    if found.speculation:
        from rackline.report.plan_report import speculation_report

        yield ""
        yield speculation_report(found.speculation, found.plan.demand.limits.tpot_s)
    if question.attention_ffn:
        from rackline.report.plan_report import attention_ffn_report

        yield ""
        yield attention_ffn_report(found.plan, found.attention_ffn)
    if found.fleet is not None:
        from rackline.report.choice_report import fleet_report

        yield ""
        yield fleet_report(found.fleet)
    if found.launch:
        from rackline.api.answer import Verbatim
        from rackline.report.exports import commands_text

        yield ""
        yield Verbatim(commands_text(found.launch) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded:
    """One way to serve, with what measured servers of its kind deviate by.

    Args:
        found: the way.
        intervals: that held 90 % of measurements, by metric.
    """

    json_keys: ClassVar = ("*found", "intervals")

    found: Choice | Candidate
    intervals: dict[str, Ends]


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
        "stacks=answer.stacks",
        "risk=answer.risk",
    )

    answer: Planned

    @property
    def best(self) -> Banded | None:
        """The cheapest."""
        return self._banded(self.answer.plan.best) if self.answer.plan.best is not None else None

    @property
    def launch_script(self) -> str | None:
        """The launch commands as a script of bash; None where they were not asked for."""
        from rackline.report.exports import commands_text

        return commands_text(self.answer.launch) if self.answer.launch else None

    @property
    def pareto(self) -> tuple[Banded, ...]:
        """The front."""
        return tuple(self._banded(one) for one in self.answer.plan.pareto)

    def _banded(self, one: Choice | Candidate) -> Banded:
        from rackline.bands.intervals import ends_of

        return Banded(found=one, intervals=ends_of(_intervals(self.answer.plan, one)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AtValue:
    """A value of a what-if as it is written: the best there, and everything else that was asked of it."""

    json_keys: ClassVar = (
        "value=point.value",
        "setting=point.setting",
        "best=data.best",
        "aggregated=point.plan.aggregated",
        "pools=point.plan.pools",
        "reason=point.reason",
        "fleet=data.answer.fleet",
        "speculation=data.answer.speculation",
        "attention_ffn=data.answer.attention_ffn",
        "launch=data.answer.launch",
        "power_caps=data.answer.power_caps",
        "prefixes=data.answer.prefixes",
        "risk=data.answer.risk",
    )

    point: WhatIfPoint
    data: PlanData


def _data(answer: Answered) -> PlanData | WhatIf:
    found = answer.result
    return found if isinstance(found, WhatIf) else PlanData(answer=found)


def _summary(answer: Answered) -> str:
    from rackline.report.choice_report import fleet_summary
    from rackline.units import format_seconds, format_usd

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
        f"{best.layout.label()}, {best.precision.short()}{fleet_summary(found.fleet)}"
    )


def _rows(answer: Answered) -> Iterable[Any]:
    from rackline.plain import plain

    found = answer.result
    if isinstance(found, WhatIf):
        return [plain(point) for point in found.rows]
    written = PlanData(answer=found)
    best = [] if written.best is None else [{"chosen": True, **plain(written.best)}]
    return [*best, *({"chosen": False, **plain(one)} for one in written.pareto)]


def _figure(answer: Answered) -> Figure:
    from rackline.report.plan_figures import pareto_figure, what_if_figure

    found = answer.result
    return what_if_figure(found.what_if, found.points) if isinstance(found, WhatIf) else pareto_figure(found.plan)


def _rejected(answer: Answered) -> Figure:
    from rackline.report.plan_figures import rejected_figure

    return rejected_figure(_one(answer, "rejected"))


def _step(answer: Answered) -> Figure:
    from rackline.report.plan_figures import step_figure

    return step_figure(_one(answer, "step"))


def _one(answer: Answered, kind: str) -> Plan:
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
    from rackline.report.exports import commands_text

    starting = answer.result.starting if isinstance(answer.result, Planned) else None
    if starting is None or starting.plan.best is None:
        return {}
    found: dict[str, str] = {}
    with contextlib.suppress(InputError):  # what cannot be expressed is said where it is asked for
        found["launch command"] = commands_text(starting.commands())
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
            "place": 6,
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
    asked = stack_inputs(question, watch)
    with watch.moving("searching layouts, precisions, modes and batch sizes; simulating the best"):
        return _planned(question, asked, use, watch)


def stack_inputs(question: PlanQuestion, watch: Watch) -> list[PlanInputs]:
    """What a question says under every stack that it may be answered with; see `rackline.api.stacks.stacks_of`."""
    engine, _ = engine_of(question.launch or "auto")
    stacks = [] if engine else stacks_of(question, watch)
    return [plan_inputs(replace(question, calibration=one), watch) for one in stacks] or [plan_inputs(question, watch)]


def _planned(question: PlanQuestion, asked: Sequence[PlanInputs], use: Use, watch: Watch) -> Planned:
    """The plan, and everything else that was asked of it.

    Args:
        asked: by the question, under each stack.
    """
    return _completed(question, _taken(question, asked, use, watch), use)


def _taken(question: PlanQuestion, asked: Sequence[PlanInputs], use: Use, watch: Watch) -> Taken[_Found]:
    """The plan under the stack that is taken."""
    if question.launch is not None:
        from rackline.search.launch import check_stack

        check_stack(asked[0].engine or asked[0].system.calibration.name)
    told: list[Plan] = []

    def tell(plan: Plan) -> None:
        if not told:
            watch.estimated(Planned(plan=plan, use=use))
        told.append(plan)

    def solve(asked: PlanInputs, found: Contenders | None = None, below: float = math.inf) -> _Found:
        return _found(asked, question.objective, found, below, tell)

    taken = answered_by(
        asked,
        solve,
        lambda answer: answer[0],
        bounded=question.objective != "joules" and asked[0].keeping is None,
    )
    note_stacks(taken.stacks, taken.found[0], question, watch)
    return taken


def _completed(question: PlanQuestion, taken: Taken[_Found], use: Use) -> Planned:
    """A plan with everything else that was asked of it."""
    from rackline.bands.intervals import risk_of
    from rackline.search.attention_ffn import plan_split
    from rackline.search.fleet import plan_fleet
    from rackline.search.speculation import plan_speculation

    asked, (found, caps, prefixes) = taken.asked, taken.found
    looser = asked.without_headroom()
    without = None if looser is None else _found(looser, question.objective)[0].best
    rows = None if asked.drafts is None else tuple(plan_speculation(found, asked.drafts or None))
    starting = Starting(
        plan=found,
        checkpoints=asked.checkpoints,
        options=launch_options(asked, found, rows, prefixes),
        kept_prefixes=prefixes is not None,
    )
    return Planned(
        plan=found,
        use=use,
        fleet=plan_fleet(asked.traffic, found, asked.prefill_cluster, asked.users, pue=question.pue),
        speculation=rows,
        attention_ffn=plan_split(found) if question.attention_ffn else None,
        launch=None if question.launch is None else tuple(starting.commands()),
        starting=starting,
        power_caps=caps or None,
        prefixes=prefixes,
        stacks=taken.stacks,
        risk=found.best and risk_of(found.best, found.system, found.demand.limits, without),
    )


def _found(
    asked: PlanInputs,
    objective: str,
    known: Contenders | None = None,
    below: float = math.inf,
    tell_estimate: Callable[[Plan], None] | None = None,
) -> _Found:
    """The plan, the power caps that were tried, and the prefixes that the best keeps."""
    from rackline.search.least_energy import least_energy

    caps: tuple[Tried, ...] = ()

    def planned(at: PlanInputs) -> Plan:
        nonlocal caps
        if objective != "joules":
            return searched(at, found=known, below=below, tell_estimate=tell_estimate)
        found, caps = least_energy(at.system, at.demand, at.space, prefill=at.prefill)
        return found

    if asked.keeping is None:
        return planned(asked), caps, None
    from rackline.search.kept_prefixes import agreeing, with_served_sessions

    found, prefixes = agreeing(
        asked.keeping,
        lambda hit: searched(asked.with_hits(hit), served=False),
        lambda hit: planned(asked.with_hits(hit)),
    )
    if prefixes is not None and found.best is not None:
        prefixes = with_served_sessions(prefixes, found, found.best, asked.keeping)
    return found, caps, prefixes


def searched(
    asked: PlanInputs,
    *,
    served: bool = True,
    found: Contenders | None = None,
    below: float = math.inf,
    tell_estimate: Callable[[Plan], None] | None = None,
) -> Plan:
    """The plan of a question.

    Args:
        served: whether the best is simulated.
        found: by estimates, where they are known.
        below: cost from which on it need not be simulated to the end.
        tell_estimate: is given the plan by estimates, before the best is simulated.
    """
    from rackline.search import plan as search_plan

    return search_plan(
        asked.system,
        asked.demand,
        asked.space,
        prefill=asked.prefill,
        served=served,
        found=found,
        below=below,
        tell_estimate=tell_estimate,
    )


def _what_if(question: PlanQuestion, text: str, use: Use, watch: Watch) -> WhatIf:
    """The same question with one more setting at each value.

    The stack is that of the answer without a value, and no value changes it: a faster link never brings another.

    Raises:
        InputError: a bad quantity.
    """
    from rackline.api.what_if import leading_number, read_sweep, setting
    from rackline.search.plan import WhatIfPoint

    model, _ = named(question, watch)
    sweep = read_sweep(text)
    settings = [setting(sweep.name, value, model) for value in sweep.values]
    plain = replace(question, what_if=None)
    asked = stack_inputs(plain, watch)
    first = asked[0].system
    fixed = plain if len(asked) == 1 else replace(plain, calibration=first.calibration.name)
    for given in settings:  # refuses before anything is searched
        plan_inputs(replace(fixed, set=(*question.set, given)), watch)
    stacks: Stacks | None = None
    if len(asked) > 1:
        with watch.moving("searching every stack without a value"):
            stacks = _taken(plain, asked, use, watch).stacks
        fixed = plain if stacks is None else replace(plain, calibration=stacks.taken)
        watch.takes("the stack of the answer without a value is kept at every value")
    points: list[WhatIfPoint] = []
    answers: list[Planned] = []
    with watch.counting("looking at the first value", "considered") as done:
        for value, given in zip(sweep.values, settings, strict=True):
            one = replace(fixed, set=(*question.set, given))
            found = _planned(one, [plan_inputs(one, watch)], use, Watch())
            answers.append(found)
            points.append(WhatIfPoint(value=value, number=leading_number(value), setting=given, plan=found.plan))
            done(value, len(points), len(settings))
    return WhatIf(what_if=sweep.name, points=tuple(points), answers=tuple(answers), stacks=stacks)
