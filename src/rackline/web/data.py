"""Data files of the page: classic scripts that hand themselves over, made by the library.

A server makes them when they are asked for, `export` writes them to disk. Each is `rackline.give(name, value)` or a
scenario (`scenario_script`).
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, cast

from rackline.api.answer import Answer, Watch, answer as ask, answer_of, find_verb
from rackline.api.explain import Explained, ExplainQuestion
from rackline.api.verbs import entries
from rackline.errors import require, unknown_name
from rackline.files import shipped_toml
from rackline.late import late
from rackline.passes.features import ONE, FloatLike
from rackline.passes.javascript import (
    compile_table,
    experts_javascript,
    function,
    row_features,
    rows_javascript,
    step_javascript,
)
from rackline.passes.routing import ExpertLoad
from rackline.web.asked import offered_names
from rackline.web.forms import printed_parts
from rackline.web.grids import GRIDS, WITHIN, accuracy, asked_prices, decode_points, parity, pipelines, racks

with late:
    from rackline import catalog, parallel, passes, simulation
    from rackline.display import axes, figure as report_figure, live_figures
    from rackline.ledger import guide as guided, said, table as ledgers
    from rackline.parallel import memory
    from rackline.serving import curve
    from rackline.web import forms

PARITY_KINDS: tuple[axes.Kind, ...] = ("seconds", "count")


@functools.cache
def _described() -> dict[str, Any]:
    return shipped_toml("rackline.web", "views.toml")


def views() -> dict[str, dict[str, Any]]:
    """The views by their id, in their order: title, question, claims, and what a view asks."""
    asking = {one.view["id"]: {"verb": name, **one.view} for name, one in entries().items() if one.view}
    described = {name: {"id": name, **view} for name, view in _described()["view"].items()}
    return dict(sorted({**described, **asking}.items(), key=lambda each: each[1]["place"]))


def site() -> dict[str, Any]:
    """What every view needs: the views, the scenarios, the themes and the figures that the page fills."""
    return {
        "version": version("rackline"),
        "views": {name: {**view, **forms.first_options(view)} for name, view in views().items()},
        "links": _described()["links"],
        "scenarios": [{"name": one.name, "title": one.title} for one in scenarios()],
        "themes": {name: report_figure.theme(name).config() for name in report_figure.THEME_NAMES},
        "figures": figures(),
    }


@functools.cache
def _answered(name: str, stop: int) -> dict[str, Any]:
    view = views()[name]
    question = find_verb(view["verb"]).question.from_params(first_fields(view) | _stopped(view, stop))
    drawn = "sliders" not in view  # the page draws from its grid what sliders move
    return forms.view_of(ask(question), view["figures"] if drawn else [])


def first_fields(view: Mapping[str, Any]) -> dict[str, str]:
    """What a view asks at first: its fields without those that are empty or switched off."""
    off = view.get("optional", {}).get("fields", ())
    return {name: value for name, value in view["fields"].items() if value and name not in off}


def _stored(view: Mapping[str, Any]) -> int:
    """How many answers of a view are stored: one for each of its examples that takes little time, or of its stops."""
    if "presets" in view:
        return sum(not one.get("live") for one in view["presets"])  # those that need a server stand last
    return len(view.get("stops", "0"))


def _stopped(view: Mapping[str, Any], stop: int) -> dict[str, str]:
    if "presets" in view:
        return view["presets"][stop].get("fields", {})
    return {view["stop"]: view["stops"][stop]} if "stops" in view else {}


_MEASURES: dict[str, tuple[str, str, axes.Kind | None]] = {
    "batch": ("batch_size", "batch: sequences of a replica", "count"),
    "context": ("context_len", "context length [tokens]", "count"),
    "step": ("seconds", "time of a decode step", "seconds"),
    "usd": ("usd_per_mtok", "cost of a million output tokens", "usd"),
    "sequence": ("held_bytes", "cache of a sequence on one chip", "bytes"),
    "fits": ("sequences", "sequences that fit", "count"),
    "micro": ("micro_batches", "micro-batches", "count"),
    "bubble": ("bubble_share", "share of the step that waits", "share"),
    "in_flight": ("in_flight", "activations held, in stages", "number"),
    "domain": ("domain_size", "chips in a domain", "count"),
    "exchange": ("seconds", "time of one exchange", "seconds"),
    "ratio": ("start", "measured / predicted", "number"),
    "start": ("start", "time [forward passes]", "number"),
    "stage": ("stage", "stage", None),
    "group": ("group", "", None),
    "sent": ("sent_bytes", "sent", "bytes"),
    "held": ("held_s", "time held", "seconds"),
    "kept_usd": ("usd_per_mtok", "$ per million tokens", "usd"),
    "size": ("active_params", "active parameters", "count"),
    "flop": ("flop", "FLOP, at the MFU of pre-training", "power"),
    "tokens": ("tokens", "tokens of pre-training", "count"),
    "cache": ("kv_bytes_per_token", "KV cache of a token", "bytes"),
}
"""Columns of the figures that the page fills: field, title and kind."""

_LINES = {
    "pipeline_bubble": ("Bubble by micro-batches", "micro", "bubble"),
    "pipeline_memory": ("Activations by micro-batches", "micro", "in_flight"),
    "rack_time": ("Exchange by domain size", "domain", "exchange"),
    "tiers_cost": ("Cost of keeping a prompt by the time held", "held", "kept_usd"),
    "over-training_lifetime": ("Cost over life by size", "size", "flop"),
    "over-training_quality": ("Tokens by size at one quality", "size", "tokens"),
    "prices_map": ("What prices reveal", "size", "cache"),
    "batch_step": ("Time of a decode step by batch size", "batch", "step"),
    "batch_cost": ("Cost of a million output tokens by batch size", "batch", "usd"),
    "context_step": ("Time of a decode step by context length", "context", "step"),
    "context_held": ("Cache of a sequence by context length", "context", "sequence"),
    "context_fits": ("Sequences that fit by context length", "context", "fits"),
}
"""Lines that the page fills: title and both columns."""


def figures() -> dict[str, Any]:
    """Specifications of the figures that the page fills, without their look."""
    axis = {name: axes.Measure(field=field, title=title, kind=kind) for name, (field, title, kind) in _MEASURES.items()}
    made = {
        "pipeline_slots": live_figures.live_bars(
            "What each stage does when",
            axis["start"],
            axis["stage"],
            colour_title="slot",
            names=["forward", "backward", "gradient of weights"],
        ),
        "rack_matrix": live_figures.live_matrix("Traffic", axis["sent"], x="to chip", y="from chip"),
        "accuracy_bands": live_figures.live_bars("Bands", axis["ratio"], axis["group"]),
        **{
            f"parity_{kind}": live_figures.live_parity(
                "Predicted over measured",
                axes.Measure(field="measured", title="measured", kind=kind),
                axes.Measure(field="predicted", title="predicted", kind=kind),
            )
            for kind in PARITY_KINDS
        },
        **{
            name: live_figures.live_lines(title, axis[x], axis[y], y_scale="linear" if x == "micro" else "log")
            for name, (title, x, y) in _LINES.items()
        },
    }
    return {name: _bare(figure.to_dict()) for name, figure in made.items()}


def _bare(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in ("config", "title", "$schema")}


def ledger() -> dict[str, Any]:
    """Every claim of the lecture with its verdict, as the page shows it."""
    return {
        "chapters": {str(number): title for number, title in said.SEGMENTS.items()},
        "claims": {
            one.claim.id: {
                "id": one.claim.id,
                "segment": one.claim.segment,
                "at": one.claim.at,
                "speaker": one.claim.speaker,
                "said": one.claim.said,
                "formula": one.claim.formula,
                "quoted": one.claim.quoted,
                "computed": [{"mark": value.mark, "text": value.text} for value in one.computed],
                "verdict": one.verdict,
                "condition": one.condition,
                "reason": one.reason,
                "uses": [*one.uses],
            }
            for one in ledgers.ledger()
        },
    }


def guide() -> dict[str, Any]:
    """The guided lecture: chapters, steps, and the figures that they show."""
    return {
        "chapters": [
            {
                **{name: getattr(chapter, name) for name in ("id", "title", "segment", "intro")},
                "steps": [asdict(step) for step in chapter.steps],
                "drawings": {
                    name: {**one.to_page(), "spec": _bare(one.figure().to_dict())}
                    for name, one in chapter.drawings.items()
                },
            }
            for chapter in guided.chapters()
        ]
    }


def names() -> dict[str, Any]:
    """Names that one may choose from: of the catalogue, and of scheduling policies."""
    found = {kind: [*catalog.names(kind)] for kind in ("models", "clusters")}
    others = [f"policy={name}" for name in simulation.POLICIES]
    return {**found, "sheets": [*catalog.names("prices")], "policies": [*simulation.POLICIES], "others": others}


CATALOGUE = ("models", "chips", "clusters", "memory")
"""Questions about the catalogue: without a name they list what there is."""
_WIDE = 200  # columns that no table of the catalogue needs


def catalogue(kind: str) -> dict[str, Any]:
    """All objects of a kind as one table, and each with the sources of its numbers."""
    verb = find_verb(kind)

    def shown(params: dict[str, str]) -> list[dict[str, Any]]:
        return printed_parts(ask(verb.question.from_params(params)).text(_WIDE))

    return {"list": shown({}), "records": {name: shown({"name": name}) for name in catalog.names(kind)}}


def experiments() -> dict[str, Any]:
    """Results of the lab as they are stored, each with its figure."""
    return json.loads(importlib.resources.files("rackline.web").joinpath("lab.json").read_text("utf-8"))


_MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "site": site,
    "ledger": ledger,
    "guide": guide,
    "pipeline": pipelines,
    "rack": racks,
    "accuracy": accuracy,
    "parity": parity,
    "asked-prices": asked_prices,
    "names": names,
    "lab": experiments,
    **{f"catalogue-{kind}": functools.partial(catalogue, kind) for kind in CATALOGUE},
}


def data_names() -> tuple[str, ...]:
    """Names of all data files."""
    asking = [(name, view) for name, view in views().items() if "verb" in view]
    places = [(name, stop) for name, view in asking for stop in range(_stored(view))]
    answers = (f"{kind}-{name}-{stop}" for name, stop in places for kind in ("answer", "json"))
    grids = (f"grid-{name}" for name in GRIDS)
    return (*_MADE, *(f"scenario-{one.name}" for one in scenarios()), *grids, *answers)


@functools.cache
def data_script(name: str) -> str:
    """A data file of the page.

    Raises:
        InputError: there is no such file.
    """
    if name in _MADE:
        return _given(name, _MADE[name]())
    for one in scenarios():
        if name == f"scenario-{one.name}":
            return scenario_script(one)
    kind, _, rest = name.partition("-")
    view, _, stop = rest.rpartition("-")
    if kind == "options" and rest in offered_names():
        return _given(name, forms.all_options(rest))
    if name not in data_names():
        raise unknown_name("data file", name, data_names())
    if kind == "grid":
        value, functions = GRIDS[rest](views()[rest])
        return _given(name, {**value, "within": WITHIN[rest]}, functions)
    found = _answered(view, int(stop))
    if kind == "json":
        return _given(name, {"answer": found["answer"]})
    return _given(name, {key: value for key, value in found.items() if key not in ("answer", "text")})


def _given(name: str, value: Mapping[str, Any], functions: Mapping[str, str] | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    written = "".join(f",{key}:{code}" for key, code in (functions or {}).items())
    return f"rackline.give({json.dumps(name)},{text[:-1]}{written}}});\n"


LONGEST_CONTEXT = 1_048_576.0  # of a model that does not say for how long contexts it was made [tokens]
ASKED = "own"  # the name of a scenario that somebody asks for
_AT = ("batch_size", "context_len")
_SLID = ("batch", "context")  # options that the page has as sliders


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A deployment for the page, by its name.

    Args:
        name: in addresses, such as "deepseek-v3-gb200".
        title: what people read.
        params: of `rackline explain`, as its addresses have them, without batch and context.
        batch: sequences that the page shows first [sequences].
        context: tokens of each [tokens].
    """

    name: str
    title: str
    params: dict[str, str]
    batch: int
    context: int


@functools.cache
def scenarios() -> tuple[Scenario, ...]:
    """The scenarios that the page offers, in order."""
    return tuple(Scenario(**one) for one in shipped_toml("rackline.web", "scenarios.toml")["scenario"])


def scenario_script(scenario: Scenario) -> str:
    """A scenario as a script that hands itself to the page.

    Raises:
        RacklineError: as `rackline explain`.
    """
    texts = {**scenario.params, "batch": str(scenario.batch), "context": str(scenario.context)}
    return _script(ask(ExplainQuestion.from_params(texts)), scenario.params, scenario.name, scenario.title)


def asked_script(answer: Answer[ExplainQuestion, Explained]) -> str:
    """What was explained, at any batch and context, as such a script.

    Raises:
        InputError: prompts in the same pass; a part of it that cannot be written as a script.
    """
    require(
        answer.question.prefill is None,
        what="prefill",
        given=answer.question.prefill,
        allowed="nothing: a decode step is written",
    )
    deployment, calibration = answer.result.explanation.deployment, answer.question.calibration
    named = {"calibration": calibration if isinstance(calibration, str) else deployment.calibration.name}
    if named["calibration"] == "auto":
        named["calibration"] = deployment.calibration.name
    texts = {name: text for name, text in answer.question.to_params().items() if name not in _SLID}
    title = f"{deployment.model.name} on {deployment.cluster.name}, {deployment.layout.label()}"
    return _script(answer, {**texts, **named}, ASKED, title)


def script_body(question: Mapping[str, Any], watch: Watch) -> bytes:
    """What `explain` is asked, at any batch and context, as the script that the page computes with.

    Args:
        question: as `Question.to_data` writes it.
        watch: is told how far it is.

    Raises:
        RacklineError: as `rackline explain`; a part of it cannot be written as a script.
    """
    verb = find_verb(str(question["ask"]))
    return asked_script(answer_of(verb.question.from_data(question), verb.solve, watch)).encode()


def _script(answer: Answer[ExplainQuestion, Explained], params: Mapping[str, str], name: str, title: str) -> str:
    explanation, server = answer.result.explanation, answer.result.server
    deployment, table = explanation.deployment, explanation.table
    one = answer.result.interval
    band = one and {
        "low": one.low / one.predicted,
        "high": one.high / one.predicted,
        "group": one.group,
        "cases": one.num_cases,
    }
    times = [_time(deployment.calibration.name, table, explanation.time.policy, band)]
    if deployment.calibration.name != "unit":
        times.append(_time("blackboard", table.with_calibration(passes.UNIT), "blackboard"))
    longest = getattr(deployment.model, "max_context_len", None) or LONGEST_CONTEXT
    facts = {
        "name": name,
        "title": title,
        "params": {**params, "layout": deployment.layout.label()},
        "batch": explanation.batch_size,
        "context": explanation.context_len,
        "longestContext": longest,
        "chips": deployment.layout.chips_per_replica,
        "precision": deployment.precision.short(),
        "usdPerChipHour": deployment.cluster.usd_per_chip_hour,
        "rent": deployment.cluster.rent,
        "hbmBytes": deployment.cluster.chip.hbm_bytes,
        "weightBytes": sum(float(value) for value in explanation.memory.weights.values()),
        "measured": decode_points(deployment),
        "warnings": [*answer.warnings],
        "assumptions": [*explanation.time.assumptions],
    }
    functions = {
        **_formulas(deployment, server, table),
        "experts": experts_javascript(table.experts) if isinstance(table.experts, ExpertLoad) else "null",
        "times": f"[{','.join(times)}]",
    }
    body = ",".join(f"{name}:{code}" for name, code in functions.items())
    return f"rackline.scenario({json.dumps(facts, allow_nan=False)},({{bisect,rint}})=>({{{body}}}));\n"


def _time(name: str, table: passes.PassTable, policy: passes.StepPolicy, band: dict[str, Any] | None = None) -> str:
    """How one calibration times a pass: the pass, its rows, and what 90 % of measured passes were over it."""
    step = compile_table(table, policy)
    numbers = table.numbers().in_use()
    names = row_features(step, cast("Any", table.experts))
    facts = {
        "name": name,
        "policy": policy,
        "evidence": table.calibration.evidence,
        "host_s": table.calibration.host_s_per_step,
        "parameters": [*step.parameters],
        "rowFeatures": [*names],
        "rows": [
            {
                "name": one.row.name,
                "group": one.row.group,
                "stream": one.row.stream,
                "choice": one.row.choice,
                "fabric": one.row.is_fabric,
                "readsCache": any(name.startswith("kv_") for name in one.row.features()),
                "formula": one.row.formula,
            }
            for one in numbers
        ],
        "band": band,
    }
    text = json.dumps(facts, allow_nan=False, ensure_ascii=False)
    return f"{{facts:{text},step:{step_javascript(step)},rows:{rows_javascript(numbers, names)}}}"


def _formulas(
    deployment: parallel.Deployment, server: parallel.ServerMemory, table: passes.PassTable
) -> dict[str, str]:
    """Of a decode batch: its features by name, sequences of a replica that fit, the bytes that a cache takes on the
    fullest chip, and cost and rates where the time of its pass is known."""
    layout, placed = deployment.layout, (deployment.model, deployment.layout, deployment.precision)

    def features(batch_size: float, context_len: float) -> dict[str, FloatLike]:
        batch = curve.decode_batch(deployment, batch_size / layout.pp, context_len)
        found = batch.features(table.kinds)
        if table.experts is not None and batch.group_tokens is not None:
            found["group_tokens"] = batch.group_tokens
        del found[ONE]
        return {json.dumps(name): value for name, value in found.items()}

    def fits(context_len: float) -> FloatLike:
        each = memory.fitting_sequences(*placed, deployment.cluster.chip, server, context_len)
        return each * (layout.attention_dp * layout.pp)

    def held(context_len: float) -> FloatLike:
        return 1.0 * memory.kv_bytes_per_sequence(*placed, context_len)

    def cost(batch_size: float, pass_s: float, usd_per_chip_hour: float) -> dict[str, FloatLike]:
        found = curve.curve_of_passes(deployment, batch_size / layout.pp, pass_s, usd_per_chip_hour)
        return {
            "usdPerMtok": found.usd_per_mtok_output,
            "perChip": found.tokens_per_s_per_chip,
            "perUser": found.tokens_per_s_per_user,
        }

    return {
        "features": function(_AT, features),
        "fits": function(["context_len"], fits),
        "held": function(["context_len"], held),
        "cost": function(["batch_size", "pass_s", "usd_per_chip_hour"], cost),
    }
