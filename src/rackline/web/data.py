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
from typing import Any

from rackline.errors import InputError, nearest_names
from rackline.web.scenario import scenario_script, scenarios


@functools.cache
def views() -> dict[str, dict[str, Any]]:
    """The views by their id: title, question, claims; "links" are the claims that one can see move."""
    return tomllib.loads(importlib.resources.files("rackline.web").joinpath("views.toml").read_text("utf-8"))


def site() -> dict[str, Any]:
    """What every view needs: the views, the scenarios, the themes and the figures that the page fills."""
    from rackline.report.theme import THEME_NAMES, theme

    found = views()
    return {
        "views": {name: view for name, view in found.items() if name != "links"},
        "links": found["links"],
        "scenarios": [{"name": one.name, "title": one.title} for one in scenarios()],
        "themes": {name: theme(name).config() for name in THEME_NAMES},
        "figures": figures(),
    }


def figures() -> dict[str, Any]:
    """Specifications of the figures that the page fills, without their look."""
    from rackline.report.axes import Measure
    from rackline.report.live_figures import live_lines

    batch = Measure(field="batch_size", title="batch: sequences of a replica", kind="count")
    context = Measure(field="context_len", title="context length [tokens]", kind="count")
    step = Measure(field="seconds", title="time of a decode step", kind="seconds")
    usd = Measure(field="usd_per_mtok", title="cost of a million output tokens", kind="usd")
    held = Measure(field="held_bytes", title="cache of a sequence on one chip", kind="bytes")
    fits = Measure(field="sequences", title="sequences that fit", kind="count")
    made = {
        "batch_step": live_lines("Time of a decode step by batch size", batch, step),
        "batch_cost": live_lines("Cost of a million output tokens by batch size", batch, usd),
        "context_step": live_lines("Time of a decode step by context length", context, step),
        "context_held": live_lines("Cache of a sequence by context length", context, held),
        "context_fits": live_lines("Sequences that fit by context length", context, fits),
    }
    return {name: _bare(figure.to_dict()) for name, figure in made.items()}


def _bare(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in ("config", "title", "$schema")}


def ledger() -> dict[str, Any]:
    """Every claim of the lecture with its verdict, as the page shows it."""
    from rackline.ledger import ledger as examined
    from rackline.ledger.said import SEGMENTS

    return {
        "chapters": {str(number): title for number, title in SEGMENTS.items()},
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
            for one in examined()
        },
    }


_MADE: dict[str, Callable[[], dict[str, Any]]] = {"site": site, "ledger": ledger}


def data_names() -> tuple[str, ...]:
    """Names of all data files."""
    return (*_MADE, *(f"scenario-{one.name}" for one in scenarios()))


@functools.cache
def data_script(name: str) -> str:
    """A data file of the page.

    Raises:
        InputError: there is no such file.
    """
    if name in _MADE:
        value = json.dumps(_MADE[name](), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"rackline.give({json.dumps(name)},{value});\n"
    for one in scenarios():
        if name == f"scenario-{one.name}":
            return scenario_script(one)
    near = nearest_names(name, data_names(), 1)
    raise InputError(what="data file", given=name, allowed=", ".join(data_names()), nearest=near[0] if near else None)
