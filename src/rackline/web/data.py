"""Data files of the page: classic scripts that hand themselves over, made by the library.

A server makes them when they are asked for, `export` writes them to disk. Each is `rackline.give(name, value)` or a
scenario (see `rackline.web.scenario`).
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from rackline.api.answer import answer, find_verb
from rackline.api.question import options
from rackline.api.verbs import entries
from rackline.errors import InputError, nearest_name
from rackline.late import late
from rackline.web.grids import GRIDS, WITHIN, accuracy, asked_prices, parity, pipelines, racks
from rackline.web.scenario import scenario_script, scenarios

with late:
    from rackline import catalog, simulation
    from rackline import ledger as ledgers
    from rackline.ledger import said
    from rackline.report import axes, live_figures
    from rackline.report import figure as report_figure
    from rackline.web import forms


PARITY_KINDS: tuple[axes.Kind, ...] = ("seconds", "count")


@functools.cache
def _described() -> dict[str, Any]:
    return tomllib.loads(importlib.resources.files("rackline.web").joinpath("views.toml").read_text("utf-8"))


def views() -> dict[str, dict[str, Any]]:
    """The views by their id, in their order: title, question, claims, and what a view asks."""
    asking = {one.view["id"]: {"verb": name, **one.view} for name, one in entries().items() if one.view}
    return dict(sorted({**_described()["view"], **asking}.items(), key=lambda each: each[1]["place"]))


def site() -> dict[str, Any]:
    """What every view needs: the views, the scenarios, the themes and the figures that the page fills."""
    return {
        "version": version("rackline"),
        "views": {name: {**view, **_options(view)} for name, view in views().items()},
        "links": _described()["links"],
        "scenarios": [{"name": one.name, "title": one.title} for one in scenarios()],
        "themes": {name: report_figure.theme(name).config() for name in report_figure.THEME_NAMES},
        "figures": figures(),
    }


def _options(view: Mapping[str, Any]) -> dict[str, Any]:
    """Help and choices of the fields of a view that asks."""
    if "verb" not in view:
        return {}

    known = options(find_verb(view["verb"]).question)
    labels = {
        "on": "Cluster",
        "tpot": "Time per output token",
        "ttft": "Time to first token",
        "quality_of": "As good as",
    }
    return {
        "options": {
            name: {
                "label": labels.get(name, name.replace("_", " ").capitalize()),
                "help": known[name].help,
                "positional": known[name].positional,
                "choices": [] if not known[name].choices else ["", *known[name].choices],
            }
            for name in view["fields"]
        }
    }


def stored_answer(view: Mapping[str, Any], stop: int) -> dict[str, Any]:
    """What the server answers to a view's own question.

    Args:
        stop: place of the value of the field that varies.
    """
    question = find_verb(view["verb"]).question.from_params(first_fields(view) | _stopped(view, stop))
    drawn = "sliders" not in view  # the page draws from its grid what sliders move
    found = forms.view_of(answer(question), view["figures"] if drawn else [])
    return {name: value for name, value in found.items() if name != "answer"}  # the page shows the rest


def first_fields(view: Mapping[str, Any]) -> dict[str, str]:
    """What a view asks at first: its fields without those that are empty or switched off."""
    off = view.get("optional", {}).get("fields", ())
    return {name: value for name, value in view["fields"].items() if value and name not in off}


def _stopped(view: Mapping[str, Any], stop: int) -> dict[str, str]:
    return {view["stop"]: view["stops"][stop]} if "stops" in view else {}


def figures() -> dict[str, Any]:
    """Specifications of the figures that the page fills, without their look."""
    batch = axes.Measure(field="batch_size", title="batch: sequences of a replica", kind="count")
    context = axes.Measure(field="context_len", title="context length [tokens]", kind="count")
    step = axes.Measure(field="seconds", title="time of a decode step", kind="seconds")
    usd = axes.Measure(field="usd_per_mtok", title="cost of a million output tokens", kind="usd")
    sequence = axes.Measure(field="held_bytes", title="cache of a sequence on one chip", kind="bytes")
    fits = axes.Measure(field="sequences", title="sequences that fit", kind="count")
    micro = axes.Measure(field="micro_batches", title="micro-batches", kind="count")
    bubble = axes.Measure(field="bubble_share", title="share of the step that waits", kind="share")
    in_flight = axes.Measure(field="in_flight", title="activations held, in stages", kind="number")
    domain = axes.Measure(field="domain_size", title="chips in a domain", kind="count")
    exchange = axes.Measure(field="seconds", title="time of one exchange", kind="seconds")
    ratio = axes.Measure(field="start", title="measured / predicted", kind="number")
    stage = axes.Measure(field="stage", title="stage")
    held = axes.Measure(field="held_s", title="time held", kind="seconds")
    kept_usd = axes.Measure(field="usd_per_mtok", title="$ per million tokens", kind="usd")
    size = axes.Measure(field="active_params", title="active parameters", kind="count")
    flop = axes.Measure(field="flop", title="FLOP, at the MFU of pre-training", kind="power")
    tokens = axes.Measure(field="tokens", title="tokens of pre-training", kind="count")
    cache = axes.Measure(field="kv_bytes_per_token", title="KV cache of a token", kind="bytes")
    slots = ["forward", "backward", "gradient of weights"]
    made = {
        "pipeline_slots": live_figures.live_bars(
            "What each stage does when",
            axes.Measure(field="start", title="time [forward passes]", kind="number"),
            stage,
            colour_title="slot",
            names=slots,
        ),
        "pipeline_bubble": live_figures.live_lines("Bubble by micro-batches", micro, bubble, y_scale="linear"),
        "pipeline_memory": live_figures.live_lines("Activations by micro-batches", micro, in_flight, y_scale="linear"),
        "rack_time": live_figures.live_lines("Exchange by domain size", domain, exchange),
        "rack_matrix": live_figures.live_matrix(
            "Traffic", axes.Measure(field="sent_bytes", title="sent", kind="bytes"), x="to chip", y="from chip"
        ),
        "accuracy_bands": live_figures.live_bars("Bands", ratio, axes.Measure(field="group", title="")),
        **{
            f"parity_{kind}": live_figures.live_parity(
                "Predicted over measured",
                axes.Measure(field="measured", title="measured", kind=kind),
                axes.Measure(field="predicted", title="predicted", kind=kind),
            )
            for kind in PARITY_KINDS
        },
        "tiers_cost": live_figures.live_lines("Cost of keeping a prompt by the time held", held, kept_usd),
        "over-training_lifetime": live_figures.live_lines("Cost over life by size", size, flop),
        "over-training_quality": live_figures.live_lines("Tokens by size at one quality", size, tokens),
        "prices_map": live_figures.live_lines("What prices reveal", size, cache),
        "batch_step": live_figures.live_lines("Time of a decode step by batch size", batch, step),
        "batch_cost": live_figures.live_lines("Cost of a million output tokens by batch size", batch, usd),
        "context_step": live_figures.live_lines("Time of a decode step by context length", context, step),
        "context_held": live_figures.live_lines("Cache of a sequence by context length", context, sequence),
        "context_fits": live_figures.live_lines("Sequences that fit by context length", context, fits),
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
    """The guided lecture: chapters, steps, and the number that the library says at each."""
    from dataclasses import asdict

    from rackline.ledger.guide import chapters

    return {"chapters": [asdict(chapter) for chapter in chapters()]}


def names() -> dict[str, Any]:
    """Names that one may choose from: of the catalogue, and of scheduling policies."""
    policies = simulation.policy_names()
    found = {kind: [*catalog.names(kind)] for kind in ("models", "clusters")}
    others = [f"policy={name}" for name in policies]
    return {**found, "sheets": [*catalog.names("prices")], "policies": [*policies], "others": others}


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
}


def data_names() -> tuple[str, ...]:
    """Names of all data files."""
    asking = ((name, view) for name, view in views().items() if "verb" in view)
    answers = (f"answer-{name}-{stop}" for name, view in asking for stop in range(len(view.get("stops", "0"))))
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
    if name in data_names():
        kind, _, rest = name.partition("-")
        if kind == "grid":
            value, functions = GRIDS[rest](views()[rest])
            return _given(name, {**value, "within": WITHIN[rest]}, functions)
        view, _, stop = rest.rpartition("-")
        return _given(name, stored_answer(views()[view], int(stop)))
    raise InputError(
        what="data file", given=name, allowed=", ".join(data_names()), nearest=nearest_name(name, data_names())
    )


def _given(name: str, value: Mapping[str, Any], functions: Mapping[str, str] | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    written = "".join(f",{key}:{code}" for key, code in (functions or {}).items())
    return f"rackline.give({json.dumps(name)},{text[:-1]}{written}}});\n"
