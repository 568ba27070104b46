"""A scenario: a deployment that the page moves through by itself, as one classic script.

What answers a slider is written out from the library: the features of a decode batch, the cache that fits and what a
token costs are traced, the pass is what `PassTable.compile` emits. The script holds functions and no look; the figures
that they fill are those of `rackline.report.live_figures`.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rackline.api.answer import Answer
from rackline.api.answer import answer as ask
from rackline.api.explain import Explained, ExplainQuestion
from rackline.errors import InputError
from rackline.late import late
from rackline.passes.features import ONE, FloatLike
from rackline.passes.javascript import experts_javascript, row_features, rows_javascript, step_javascript
from rackline.passes.routing import ExpertLoad
from rackline.passes.trace import function
from rackline.web.grids import decode_points

with late:
    from rackline import parallel, passes
    from rackline.parallel import memory
    from rackline.serving import curve


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
    text = importlib.resources.files("rackline.web").joinpath("scenarios.toml").read_text("utf-8")
    return tuple(Scenario(**one) for one in tomllib.loads(text)["scenario"])


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
    if answer.question.prefill is not None:
        raise InputError(what="prefill", given=answer.question.prefill, allowed="nothing: a decode step is written")
    deployment, calibration = answer.result.explanation.deployment, answer.question.calibration
    named = {"calibration": calibration if isinstance(calibration, str) else deployment.calibration.name}
    if named["calibration"] == "auto":
        named["calibration"] = deployment.calibration.name
    texts = {name: text for name, text in answer.question.to_params().items() if name not in _SLID}
    title = f"{deployment.model.name} on {deployment.cluster.name}, {deployment.layout.label()}"
    return _script(answer, {**texts, **named}, ASKED, title)


def _script(answer: Answer[ExplainQuestion, Explained], params: Mapping[str, str], name: str, title: str) -> str:
    explanation, server = answer.result.explanation, answer.result.server
    deployment, table = explanation.deployment, explanation.table
    times = [_time(deployment.calibration.name, table, explanation.time.policy)]
    times[0]["band"] = _band(answer.result)
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
        "features": _features(deployment, table),
        "fits": _fits(deployment, server),
        "held": _held(deployment, server),
        "cost": _cost(deployment),
        "experts": experts_javascript(table.experts) if isinstance(table.experts, ExpertLoad) else "null",
        "times": "[" + ",".join(_written(time) for time in times) + "]",
    }
    body = ",".join(f"{name}:{code}" for name, code in functions.items())
    return f"rackline.scenario({json.dumps(facts, allow_nan=False)},({{bisect,rint}})=>({{{body}}}));\n"


def _time(name: str, table: passes.PassTable, policy: passes.StepPolicy) -> dict[str, Any]:
    """How one calibration times a pass: the pass, and its rows."""
    step = table.compile(policy)
    numbers = table.numbers().in_use()
    names = row_features(step, cast("Any", table.experts))
    return {
        "facts": {
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
        },
        "step": step_javascript(step),
        "rows": rows_javascript(numbers, names),
        "band": None,
    }


def _written(time: dict[str, Any]) -> str:
    facts = {**time["facts"], "band": time["band"]}
    text = json.dumps(facts, allow_nan=False, ensure_ascii=False)
    return f"{{facts:{text},step:{time['step']},rows:{time['rows']}}}"


def _band(found: Explained) -> dict[str, Any] | None:
    """What 90 % of measured passes were, over the predicted ones."""
    one = found.interval
    if one is None:
        return None
    return {
        "low": one.low / one.predicted,
        "high": one.high / one.predicted,
        "group": one.group,
        "cases": one.num_cases,
    }


def _features(deployment: parallel.Deployment, table: passes.PassTable) -> str:
    """Features of a decode batch by name."""

    def formula(batch_size: float, context_len: float) -> dict[str, FloatLike]:
        batch = curve.decode_batch(deployment, batch_size / deployment.layout.pp, context_len)
        found = batch.features(table.kinds)
        if table.experts is not None and batch.group_tokens is not None:
            found["group_tokens"] = batch.group_tokens
        del found[ONE]
        return {json.dumps(name): value for name, value in found.items()}

    return function(_AT, formula)


def _fits(deployment: parallel.Deployment, server: parallel.ServerMemory) -> str:
    """Sequences of a replica that fit, by context."""
    layout = deployment.layout

    def formula(context_len: float) -> FloatLike:
        each = memory.fitting_sequences(
            deployment.model, layout, deployment.precision, deployment.cluster.chip, server, context_len
        )
        return each * (layout.attention_dp * layout.pp)

    return function(["context_len"], formula)


def _held(deployment: parallel.Deployment, server: parallel.ServerMemory) -> str:
    """What a cache of this context takes on the fullest chip, a sequence [bytes]."""

    def formula(context_len: float) -> FloatLike:
        return 1.0 * memory.kv_bytes_per_sequence(
            deployment.model, deployment.layout, deployment.precision, context_len
        )

    return function(["context_len"], formula)


def _cost(deployment: parallel.Deployment) -> str:
    """Cost and rates of a batch whose pass is known."""

    def formula(batch_size: float, pass_s: float, usd_per_chip_hour: float) -> dict[str, FloatLike]:
        found = curve.curve_of_passes(deployment, batch_size / deployment.layout.pp, pass_s, usd_per_chip_hour)
        return {
            "usdPerMtok": found.usd_per_mtok_output,
            "perChip": found.tokens_per_s_per_chip,
            "perUser": found.tokens_per_s_per_user,
        }

    return function(["batch_size", "pass_s", "usd_per_chip_hour"], formula)
