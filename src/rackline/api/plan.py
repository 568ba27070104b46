"""`plan`: the cheapest way to serve a model on a cluster under latency limits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from rackline.api.answer import Answer, SideFile, Verbatim, Watch, asks
from rackline.api.engines import answered_by, engine_inputs
from rackline.api.plan_parts import PlanQuestion, plan_inputs
from rackline.api.planned import (
    LAUNCH_AS,
    MANIFEST_KINDS,
    Planned,
    PlannedOverTime,
    WhatIf,
    following,
)
from rackline.api.question import folded_command
from rackline.api.resolve import ANY_ENGINE, named
from rackline.api.traffic import Use, limits_lines, use_lines, with_use
from rackline.api.verbs import Entry
from rackline.api.what_if import leading_number, read_sweep, setting
from rackline.errors import InputError, require
from rackline.files import write_text
from rackline.late import late
from rackline.plain import plain
from rackline.units import format_seconds, format_usd, several

with late:
    from rackline import catalog, search, simulation
    from rackline.api import planned_server
    from rackline.bands import bands
    from rackline.display import axes, figure, wording
    from rackline.report import (
        choice_report,
        deployments_report,
        engines_report,
        exports,
        manifests,
        memory_report,
        plan_figures,
        plan_report,
        prefix_report,
        scaled_report,
    )
    from rackline.search import (
        engine_choice,
        extensions,
        inputs,
        likelihood,
        misfit as search_misfit,
        served,
        starting as search_starting,
    )
    from rackline.simulation import load


Answered: TypeAlias = "Answer[PlanQuestion, Planned | WhatIf]"


def _text(answer: Answered, width: int) -> Iterable[Any]:
    question, found = answer.question, answer.result
    if isinstance(found, WhatIf):
        yield plan_report.what_if_report(found.what_if, found.points)
        for point, planned in zip(found.points, found.answers, strict=True):
            more = [*_prefixes_text(planned, full=question.full), *_more_text(question, planned)]
            if more and point.plan.best is not None:
                yield wording.Prose(f"\n{found.what_if} = {point.value}", style="bold")
                yield from more
        return
    plan, best = found.plan, found.plan.best
    yield from limits_lines(found.use)
    known, took_s = [] if best is None else likelihood.intervals_of(best, plan.system), answer.elapsed_s
    if question.full:
        yield plan_report.plan_report(plan, found.risk, bands=known, width=width, elapsed_s=took_s, misfit=found.misfit)
        if found.engines is not None:
            yield ""
            yield engines_report.engines_table(found.engines, engines_report.unit_of(plan))
    else:
        yield deployments_report.plan_summary(
            plan, found.risk, bands=known, elapsed_s=took_s, misfit=found.misfit, fleet=found.fleet
        )
    yield from plan_report.lengths_lines(plan.demand.workload.mixture)
    yield from _prefixes_text(found, full=question.full)
    yield from use_lines(found.use, full=question.full)
    if best is not None and known and (line := bands.width_line(best.layout, plan.system.cluster.chip.name)):
        yield wording.Prose(line, style="dim")
    yield from _more_text(question, found)
    yield from _repeat_text(answer, width)
    if isinstance(found, PlannedOverTime) and found.over_time is not None:
        yield ""
        yield from scaled_report.following_text(found.over_time)


def _repeat_text(answer: Answered, width: int) -> Iterable[Any]:
    """The command that simulates the answer again; nothing where it cannot be."""
    if not isinstance(answer.question.model, str) or not isinstance(answer.question.on, str):
        return
    try:
        repeated = planned_server.repeat_plan(planned_server.Reader(answer.to_dict(), "the plan"), Watch())
    except InputError:
        return
    yield Verbatim(f"\nTo simulate it again:\n{folded_command(repeated, width)}\n")


def _prefixes_text(found: Planned, *, full: bool) -> Iterable[Any]:
    """Which prefixes the best keeps, where prompts repeat."""
    if found.prefixes is not None:
        yield prefix_report.kept_report(found.prefixes, found.plan.demand.limits, full=full)


def _more_text(question: PlanQuestion, found: Planned) -> Iterable[Any]:
    """What else was asked of the best."""
    plan = found.plan
    parts = (
        found.power_caps and plan_report.caps_report(found.power_caps),
        found.speculation and plan_report.speculation_report(found.speculation, plan.demand.limits.tpot_s),
        question.attention_ffn and plan_report.attention_ffn_report(plan, found.attention_ffn),
        found.fleet and choice_report.fleet_report(found.fleet),
        found.sample and choice_report.sample_report(found.sample),
        found.launch and Verbatim(exports.commands_text(found.launch) + "\n"),
    )
    for part in filter(None, parts):
        yield ""
        yield part


_PARTS = ("usd_per_mtok_input", "usd_per_mtok_output")


def _interval(answer: Answered) -> str:
    """What measured servers of the kind of the best deviate by, in time and energy, and how many meet the limits."""
    found = answer.result
    if isinstance(found, WhatIf) or found.plan.best is None:
        return ""
    best, system = found.plan.best, found.plan.system
    known = likelihood.intervals_of(best, system)
    lines = (
        bands.interval_line([one for one in known if one.metric not in _PARTS]),  # the parts follow from the whole
        bands.width_line(best.layout, system.cluster.chip.name) if known else "",
        "" if found.risk is None else bands.chance_line(found.risk),
        bands.joules_line(known),
    )
    return "\n".join(filter(None, lines))


def _summary(answer: Answered) -> str:
    found = answer.result
    if isinstance(found, WhatIf):
        return f"the optimum at {len(found.points)} values of {found.what_if}"
    plan, best = found.plan, found.plan.best
    if best is None:
        return plan.reason
    whole = best.whole
    cost = f"{format_usd(whole.usd_per_mtok_output_all_in)} per M output tokens, all-in, " if plan.priced else ""
    return (
        f"{cost}TPOT {format_seconds(best.tpot_s)}, TTFT {format_seconds(best.ttft_s)}, "
        f"{whole.output_tokens_per_s_per_chip:,.0f} output tokens/s per chip;\n  {plan.system.model.name} on "
        f"{several(whole.num_chips, 'chip')} of {plan.system.cluster.name}, {best.serving}, "
        f"batch {best.batch_size:.4g} with {best.layout.label()}, {best.precision.short()}"
        f"{choice_report.fleet_summary(found.fleet)}"
    )


def _card(answer: Answered) -> Mapping[str, Any]:
    """Cost, speed, first token, chips and dollars of a month, with their bands and limits."""
    found = answer.result
    if isinstance(found, WhatIf) or found.plan.best is None:
        return {}
    known = likelihood.intervals_of(found.plan.best, found.plan.system)
    return deployments_report.decision_card(found.plan, found.plan.best, found.risk, known)


def _rows(answer: Answered) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, WhatIf):
        return [plain(point) for point in found.rows]
    best = [] if found.best is None else [{"chosen": True, **plain(found.best)}]
    return [*best, *({"chosen": False, **plain(one)} for one in found.pareto)]


def _figure(answer: Answered) -> figure.Figure:
    found = answer.result
    if isinstance(found, WhatIf):
        return plan_figures.what_if_figure(found.what_if, found.points)
    return plan_figures.pareto_figure(found.plan)


def _memory_figure(answer: Answered) -> figure.Figure:
    """Memory of the fullest chip: of the best, or as asked for and with each change where nothing fits."""
    plan = _one(answer, "memory")
    title = f"{plan.system.model.name} on {plan.system.cluster.name}: memory of the fullest chip"
    found = None if isinstance(answer.result, WhatIf) else answer.result.misfit
    if found is not None:
        return memory_report.memory_figure(found.memory, title, found)
    if plan.best is None:
        return axes.nothing_figure(title, plan.reason)
    held = search_misfit.ChipMemory.of_server(plan.best.layout.label(), plan.best.inside.memory)
    return memory_report.memory_figure(held, title)


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
        write_text(path, manifests.manifests_of(starting, kind), what="launch_as")


def _documents(answer: Answered) -> Mapping[str, str]:
    """How the answer is launched."""
    starting = answer.result.starting if isinstance(answer.result, Planned) else None
    if starting is None or starting.plan.best is None:
        return {}
    found: dict[str, str] = {}
    with contextlib.suppress(InputError):  # what cannot be expressed is said where it is asked for
        found["launch command"] = exports.commands_text(starting.commands())
    for kind in MANIFEST_KINDS:
        with contextlib.suppress(InputError):
            found[f"{kind} manifest"] = manifests.manifests_of(starting, kind)
    return found


def _refuse(question: PlanQuestion, outputs: frozenset[str]) -> None:
    require(
        question.what_if is None or "launch_as" not in outputs,
        what="launch_as",
        given=question.what_if,
        allowed="a single plan, without `what_if`",
    )


@asks(
    PlanQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    figures={
        "front": _figure,
        "rejected": lambda answer: plan_figures.rejected_figure(_one(answer, "rejected")),
        "step": lambda answer: plan_figures.step_figure(_one(answer, "step")),
        "memory": _memory_figure,
    },
    documents=_documents,
    interval=_interval,
    card=_card,
    files={"launch_as": SideFile(option=LAUNCH_AS, write=_write_manifests)},
    refuse=_refuse,
    simulates=True,
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
      --tpot 30ms --traffic 50M --peak-over-mean 1.8 --launch
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
    if question.load is not None:
        return _over_time(question, watch)
    question, use = with_use(question)
    if question.what_if is not None:
        return _what_if(question, question.what_if, use, watch)
    asked = engine_inputs(question, watch)
    with watch.moving("searching layouts, precisions, modes and batch sizes; simulating the best"):
        return _planned(question, asked, use, watch)


def _over_time(question: PlanQuestion, watch: Watch) -> PlannedOverTime:
    """The plan, and the policies that follow its load."""
    if load.is_recorded(question.load or "") and not question.given("input", "output", "mix", "trace"):
        question = replace(question, trace=question.load)
    # refuses before any search
    load.rates_of(question.load or "", question.load_time, question.requests, simulation.read_trace, option="requests")
    question, use = with_use(question)
    with watch.moving("searching layouts, precisions, modes and batch sizes; simulating the best"):
        found = _planned(question, engine_inputs(question, watch), use, watch)
    parts = {one.name: getattr(found, one.name) for one in fields(found)}
    return PlannedOverTime(**parts, over_time=following(question, found.plan, watch))


def _planned(question: PlanQuestion, engines: list[inputs.PlanInputs], use: Use, watch: Watch) -> Planned:
    """The plan, and everything else that was asked of it.

    Args:
        engines: what is searched under each engine.
    """
    found = answered_by(question, engines, watch, lambda plan: Planned(plan=plan, use=use))
    asked, plan, prefixes = found.asked, found.plan, found.prefixes
    rows = None if asked.drafts is None else tuple(extensions.plan_speculation(plan, asked.drafts or None))
    starting = search_starting.Starting(
        plan=plan,
        checkpoints=asked.checkpoints,
        options=search_starting.launch_options(asked, plan, rows, prefixes),
        kept_prefixes=prefixes is not None,
    )
    return Planned(
        plan=plan,
        use=use,
        fleet=extensions.plan_fleet(asked.traffic, plan, asked.prefill_cluster, asked.users, pue=question.pue),
        speculation=rows,
        attention_ffn=extensions.plan_split(plan) if question.attention_ffn else None,
        launch=tuple(starting.commands()) if question.launch else None,
        starting=starting,
        power_caps=found.power_caps or None,
        prefixes=prefixes,
        engines=found.engines,
        risk=plan.best
        and likelihood.risk_of(plan.best, plan.system, plan.demand.limits, engine_choice.cost_without_headroom(found)),
        misfit=None if plan.need is None else asked.misfit(),
        sample=_sample(question, plan),
    )


def _sample(question: PlanQuestion, plan: search.Plan) -> served.FewRequests | None:
    """What few requests show of the best, with the errors that a calibration of the user's own states."""
    best = plan.best
    if question.sample is None or best is None or best.sustained is None:
        return None
    fitted = question.calibration if str(question.calibration).endswith(".toml") else question.on
    errors = catalog.stated_errors(fitted) if isinstance(fitted, str) else {}
    service = served.Service(system=plan.system, prefill_system=plan.system, demand=plan.demand)
    group = served.group_of(best.estimate, service, best.max_num_seqs)
    return served.few_requests(group, best.requests_per_s, question.sample, errors)


def _what_if(question: PlanQuestion, text: str, use: Use, watch: Watch) -> WhatIf:
    """The same question with one more setting at each value.

    All values are planned with the engine of the answer without a value.

    Raises:
        InputError: a bad quantity.
    """
    model, _ = named(question, watch)
    sweep = read_sweep(text)
    settings = [setting(sweep.name, value, model) for value in sweep.values]
    plain_question = replace(question, what_if=None)

    def at_values(engine: str) -> list[tuple[PlanQuestion, inputs.PlanInputs]]:
        each = [replace(plain_question, engine=engine, set=(*question.set, one)) for one in settings]
        return [(one, plan_inputs(one, watch)) for one in each]

    engines = None
    asked = engine_inputs(plain_question, watch)
    each = at_values(asked[0].system.stack.name if question.engine == ANY_ENGINE else question.engine)  # refuses first
    if question.engine == ANY_ENGINE and len(asked) > 1:
        with watch.moving("searching every engine without a value"):
            answer = answered_by(plain_question, asked, watch)
        engines = answer.engines
        each = at_values(answer.plan.system.stack.name)
        watch.takes("the engine of the answer without a value is kept at every value")
    points: list[search.WhatIfPoint] = []
    answers: list[Planned] = []
    with watch.counting("looking at the first value", "considered") as done:
        for value, given, (one, inputs) in zip(sweep.values, settings, each, strict=True):
            answers.append(found := _planned(one, [inputs], use, Watch()))
            points.append(search.WhatIfPoint(value=value, number=leading_number(value), setting=given, plan=found.plan))
            done(value, len(points), len(settings))
    return WhatIf(what_if=sweep.name, points=tuple(points), answers=tuple(answers), engines=engines)
