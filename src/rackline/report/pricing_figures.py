"""Figures of prices and memory tiers as data, in the form of plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rackline.pricing import KeepingCost, Offered, Reading, Reign
from rackline.report.figures import BLUE, GREEN, GREY, ORANGE, Figure

_COLORS = (BLUE, ORANGE, GREEN, GREY, "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def _line(name: str, x: Sequence[float], y: Sequence[float], color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "marker": {"color": color, "symbol": "circle", "size": 6},
        "line": {"color": color},
    }


def _layout(title: str, x: str, y: str) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "xaxis": {"type": "log", "title": {"text": x}},
        "yaxis": {"type": "log", "title": {"text": y}},
        "shapes": [],
    }


def tiers_figure(
    lines: Sequence[KeepingCost], reigns: Sequence[Reign], *, title: str, prompt_len: float, reuses: float
) -> Figure:
    """Cost of keeping a prompt over the hold time: the tiers that are ever the cheapest, and their lower envelope."""
    times = np.geomspace(1e-3, 1e8, 121)
    per_mtok = 1e6 / prompt_len
    ever = {reign.cost.name for reign in reigns}
    data = [
        _line(line.name, times.tolist(), (line.usd(times, reuses) * per_mtok).tolist(), _COLORS[index % len(_COLORS)])
        for index, line in enumerate(line for line in lines if line.name in ever)
    ]
    least = np.min([line.usd(times, reuses) * per_mtok for line in lines], axis=0)
    data.append(_line("cheapest", times.tolist(), least.tolist(), "#000000"))
    kept = [trace for trace in data if min(trace["y"]) > 0]
    return {"data": kept, "layout": _layout(title, "held [s]", f"$ per million tokens, brought back {reuses:g} times")}


def offered_figure(offered: Offered) -> Figure:
    """Price and bare cost of input and output over the prompt length, standard mode."""
    sold = [tier for tier in offered.tiers if tier.mode == "standard" and not tier.reason]
    terms, costs = offered.terms, offered.costs
    usd = offered.rent.usd_per_chip_hour / 3600.0 / terms.utilisation * 1e6
    data: list[dict[str, Any]] = []
    if sold:
        lengths = np.geomspace(128.0, sold[-1].until_len, 80)
        limit = terms.tpot_s
        data = [
            _line("cost of input", lengths.tolist(), (usd * costs.prefill_chip_s(lengths)).tolist(), BLUE),
            _line(
                "cost of output",
                lengths.tolist(),
                (usd * costs.decode_chip_s(lengths + terms.output_len, limit)).tolist(),
                ORANGE,
            ),
        ]
        for name, color in (("input", GREEN), ("output", GREY)):
            x: list[float] = []
            y: list[float] = []
            for tier in sold:
                x += [max(tier.from_len, 128.0), tier.until_len]
                y += [(tier.input_usd if name == "input" else tier.output_usd) * 1e6] * 2
            data.append(_line(f"price of {name}", x, y, color))
    name = f"{costs.deployment.model.name} on {costs.deployment.cluster.name}"
    return {"data": data, "layout": _layout(name, "prompt [tokens]", "$ per million tokens")}


def readings_figure(readings: Sequence[Reading]) -> Figure:
    """Likely active parameters against likely KV bytes per token, one mark a sheet at the middles."""
    data: list[dict[str, Any]] = []
    for name, color, chosen in (
        ("closed models", ORANGE, [r for r in readings if r.model is None]),
        ("open models", BLUE, [r for r in readings if r.model is not None]),
    ):
        pairs = [
            (reading.sheet, active.likely.middle, kv.likely.middle)
            for reading in chosen
            if (active := reading.find("active_params"))
            and (kv := reading.find("kv_bytes_per_token", "context step") or reading.find("kv_bytes_per_token"))
        ]
        if pairs:
            data.append(
                {
                    "type": "scatter",
                    "name": name,
                    "mode": "markers",
                    "x": [pair[1] for pair in pairs],
                    "y": [pair[2] for pair in pairs],
                    "text": [pair[0] for pair in pairs],
                    "marker": {"color": color, "symbol": "circle", "size": 8},
                }
            )
    title = "What prices reveal: middles of the likely intervals"
    return {"data": data, "layout": _layout(title, "active parameters", "KV bytes a token")}
