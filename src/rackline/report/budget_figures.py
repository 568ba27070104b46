"""Figures of a training budget: cost over life against size, and the sizes and tokens that reach the quality."""

from __future__ import annotations

import numpy as np

from rackline.report.axes import Measure, log_axis
from rackline.report.figure import Figure
from rackline.report.layers import Layer, Row, colour, hovered
from rackline.scaling import Budget, trained
from rackline.scaling.overtrain import PRETRAIN_FLOP_PER_PARAM_TOKEN
from rackline.units import format_count

_SIZE = Measure(field="active_params", title="active parameters", kind="count")
_FLOP = Measure(field="flop", title="FLOP, at the MFU of pre-training", kind="power")
_TOKENS = Measure(field="tokens", title="tokens of pre-training", kind="count")
_SERIES = Measure(field="series", title="what")
_MOST_OVER_LEAST = 20.0


def lifetime_figure(budget: Budget, *, asked: str) -> Figure:
    """Cost over life against size: in all, of training alone, of use alone; and the optimum.

    Args:
        budget: the answer.
        asked: the wanted quality in the words of the question.
    """
    sizes, total = _curve(budget)
    use = sizes * budget.lifetime_flop_per_param
    parts = {"whole life": total, "training": total - use, "use": use}
    names = [name for name, values in parts.items() if np.any(values > 0.0)]
    rows: list[Row] = [
        {"series": name, "active_params": size, "flop": flop}
        for name in names
        for size, flop in zip(sizes.tolist(), parts[name].tolist(), strict=True)
        if flop > 0.0
    ]
    x = log_axis(_SIZE, [row["active_params"] for row in rows])
    y = log_axis(_FLOP, [row["flop"] for row in rows])
    place: Layer = {"x": x, "y": y}
    layers: list[Layer] = [
        {"mark": "line", "encoding": {**place, "color": colour(names)}},
        hovered({"type": "point", "opacity": 0, "size": 60}, place, [_SERIES, _SIZE, _FLOP]),
    ]
    words = f"No size does it: {budget.optimum.reason}."
    if budget.feasible:
        best = {"active_params": float(budget.optimum.params), "flop": float(budget.optimum.lifetime_flop)}
        words = f"{format_count(best['active_params'])} on {format_count(float(budget.optimum.tokens))} tokens"
        layers.append(_best(best, place))
        words = f"diamond: least, {words}"
    return Figure(
        title=f"Cost over life at the quality of {asked}",
        subtitle=f"loss {budget.loss:.4g} ({budget.law.name}); {words}",
        description=f"FLOP over the whole life against active parameters on log axes. {words}",
        spec={"data": {"values": rows}, "layer": layers},
    )


def quality_figure(budget: Budget, *, asked: str) -> Figure:
    """Sizes and tokens that all reach the same loss: the cheapest to train, and the cheapest over the whole life.

    Models as they were trained stand beside them.

    Args:
        budget: the answer.
        asked: the wanted quality in the words of the question.
    """
    sizes, total = _curve(budget)
    tokens = (total / sizes - budget.lifetime_flop_per_param) / PRETRAIN_FLOP_PER_PARAM_TOKEN
    rows: list[Row] = [
        {
            "active_params": size,
            "tokens": count,
            "flop": size * count * PRETRAIN_FLOP_PER_PARAM_TOKEN,
            "lifetime_flop": cost,
        }
        for size, count, cost in zip(sizes.tolist(), tokens.tolist(), total.tolist(), strict=True)
        if count > 0.0
    ]
    marked: list[tuple[float, float, str, str]] = []
    if np.isfinite(float(budget.compute_optimal.params)):
        marked.append(
            (float(budget.compute_optimal.params), float(budget.compute_optimal.tokens), "least training", "circle")
        )
    if budget.feasible:
        marked.append((float(budget.optimum.params), float(budget.optimum.tokens), "least over its life", "diamond"))
    x = log_axis(_SIZE, [*(row["active_params"] for row in rows), *(mark[0] for mark in marked)])
    y = log_axis(_TOKENS, [*(row["tokens"] for row in rows), *(mark[1] for mark in marked)])
    place: Layer = {"x": x, "y": y}
    rule = [{"active_params": size, "tokens": 20.0 * size} for size in x["scale"]["domain"]]
    shown = [
        _SIZE,
        _TOKENS,
        Measure(field="flop", title="FLOP of training", kind="power"),
        Measure(field="lifetime_flop", title="FLOP over its life", kind="power"),
    ]
    layers: list[Layer] = [
        {
            "data": {"values": rule},
            "mark": {"type": "line", "style": "reference", "strokeWidth": 1.4, "clip": True},
            "encoding": place,
        },
        {"mark": {"type": "line"}, "encoding": place},
        hovered({"type": "point", "opacity": 0, "size": 60}, place, shown),
    ]
    for params, count, _, shape in marked:
        point = {"active_params": params, "tokens": count}
        circle: Layer = {"data": {"values": [point]}, "mark": {"type": "point", "size": 90}, "encoding": place}
        layers.append(_best(point, place) if shape == "diamond" else circle)
    (least_size, most_size), (least_tokens, most_tokens) = x["scale"]["domain"], y["scale"]["domain"]
    near: list[Row] = [
        {"model": one.full_name, "active_params": one.active_params, "tokens": one.tokens}
        for one in trained()
        if least_size < one.active_params < most_size and least_tokens < one.tokens < most_tokens
    ]
    if near:
        triangle = {"type": "point", "shape": "triangle-up", "style": "muted", "size": 60}
        measures = [Measure(field="model", title="model"), _SIZE, _TOKENS]
        layers.append(hovered(triangle, place, measures, data={"values": near}))
    texts = [
        f"{shape}: {name}, {format_count(size)} on {format_count(count)} tokens" for size, count, name, shape in marked
    ]
    return Figure(
        title=f"Sizes and tokens that reach the quality of {asked}",
        subtitle=f"loss {budget.loss:.4g} ({budget.law.name}); dashed: 20 tokens per parameter; "
        + "; ".join(texts)
        + ("; triangles: models as they were trained" if near else ""),
        description="Tokens of pre-training against active parameters at one loss, on log axes. "
        + "; ".join(texts)
        + ".",
        spec={"data": {"values": rows}, "layer": layers},
    )


def _curve(budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """Sizes that reach the loss and cost little more than the best, and their cost."""
    shown = np.isfinite(budget.curve_flop)
    if budget.feasible:
        shown &= budget.curve_flop < _MOST_OVER_LEAST * float(budget.optimum.lifetime_flop)
    return budget.curve_params[shown], budget.curve_flop[shown]


def _best(point: Row, place: Layer) -> Layer:
    return {"data": {"values": [point]}, "mark": {"type": "point", "style": "best"}, "encoding": place}
