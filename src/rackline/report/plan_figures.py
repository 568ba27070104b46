"""Figures of plans: the front of speed against cost, memory of a chip layout by layout, deployments compared."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from rackline.report.axes import (
    BAR_HEIGHT,
    LONGEST_LABEL,
    Layer,
    Measure,
    Row,
    colour,
    hovered,
    limit,
    log_axis,
    note,
    nothing_figure,
    stacked_bars,
)
from rackline.report.compare_report import QUANTITIES, Side, ratio
from rackline.report.explain_figures import pass_waterfall
from rackline.report.figure import Figure
from rackline.report.simulate_report import nearest_reason
from rackline.report.wording import memory_share, money, money_name, short_count
from rackline.search import Candidate, Choice, Plan, PoolPair
from rackline.search.plan import WhatIfPoint
from rackline.serving.capacity import Capacity
from rackline.units import format_bytes, format_seconds

_SPEED = Measure(field="tokens_per_s_per_user", title="speed for one user [tokens/s]", kind="count")
_ONE, _TWO = "one engine", "separate pools"


def pareto_figure(plan: Plan) -> Figure:
    """Speed for one user against cost: the fronts of one engine and of separate pools, the best, and the limits."""
    limits = plan.demand.limits
    apart = plan.disaggregated.pareto if plan.disaggregated else ()
    rows = [_row(plan, candidate) for candidate in (*plan.pareto, *apart)]
    best = plan.best
    cost = _cost(plan)
    speeds = [row[_SPEED.field] for row in rows]
    if limits.tpot_s is not None:
        speeds.append(1.0 / limits.tpot_s)
    x, y = log_axis(_SPEED, speeds), log_axis(cost, [row[cost.field] for row in rows], margin=0.08)
    names = [_ONE, *([_TWO] if apart else [])]
    place = {"x": x, "y": y}
    layers: list[Layer] = [
        {"mark": {"type": "line", "strokeWidth": 1.4, "opacity": 0.6}, "encoding": {**place, "color": colour(names)}},
        hovered(
            {"type": "point", "size": 34, "strokeWidth": 1.3},
            {
                **place,
                "color": colour(names),
                "stroke": colour(names),
                "fillOpacity": {"condition": {"test": "datum.keeps_limits", "value": 1}, "value": 0},
            },
            _shown(plan),
        ),
    ]
    if limits.tpot_s is not None:
        text = f"limit: {format_seconds(limits.tpot_s)} a token"
        layers += limit("x", x, 1.0 / limits.tpot_s, text)
    words = "Nothing meets the limits."
    if best is not None:
        row = _best_row(plan, best)
        text = f"best: {money(row[cost.field], plan.priced)} at {row[_SPEED.field]:.3g} tokens/s"
        layers.append(
            hovered({"type": "point", "style": "best"}, place, _shown(plan), data={"values": [row]}),
        )
        layers += note(x, y, (row[_SPEED.field], row[cost.field]), text, below=True)
        words = f"The cheapest that meets the limits: {row['layout']}, {text.removeprefix('best: ')} for each user."
    broken = any(not row["keeps_limits"] for row in rows)
    return Figure(
        title=f"{plan.system.model.name} on {plan.system.cluster.name}: speed against cost",
        subtitle=f"estimates, the best {'simulated' if best is not None and best.sustained else 'too'}; "
        f"{plan.system.calibration.label} calibration" + ("; hollow: breaks a limit" if broken else ""),
        description=f"Pareto front of tokens per second for one user against cost on log axes. {words}",
        spec={"data": {"values": rows}, "layer": layers},
    )


def rejected_figure(plan: Plan) -> Figure:
    """The nearest rejected candidates beside the best: one for each limit, which it alone breaks."""
    cost = _cost(plan)
    rows: list[Row] = [
        {**_row(plan, one.candidate), "series": f"{one.reason} ({one.what})", "what": one.what} for one in plan.rejected
    ]
    title = f"{plan.system.model.name} on {plan.system.cluster.name}: what was rejected by the least"
    best = _best_row(plan, plan.best) if plan.best else None
    if not rows:
        return nothing_figure(title, "Nothing was rejected.")
    points = [*rows, *([best] if best else [])]
    tpot_s = plan.demand.limits.tpot_s
    speeds = [row[_SPEED.field] for row in points] + ([] if tpot_s is None else [1.0 / tpot_s])
    x = log_axis(_SPEED, speeds, margin=0.12)
    y = log_axis(cost, [row[cost.field] for row in points], margin=0.15)
    names = [row["series"] for row in rows]
    place = {"x": x, "y": y}
    colours = colour(names)
    colours["legend"] = {"title": "rejected for", "columns": 1, "labelLimit": 640}
    shown = (Measure(field="what", title="candidate"), Measure(field="series", title="rejected for"), *_shown(plan))
    layers: list[Layer] = [
        hovered({"type": "point", "shape": "cross", "size": 130}, {**place, "color": colours}, shown),
    ]
    if best is not None:
        layers.append(hovered({"type": "point", "style": "best"}, place, _shown(plan), data={"values": [best]}))
        text = f"best: {money(best[cost.field], plan.priced)} at {best[_SPEED.field]:.3g} tokens/s"
        layers += note(x, y, (best[_SPEED.field], best[cost.field]), text, below=True)
    if tpot_s is not None:
        layers += limit("x", x, 1.0 / tpot_s, f"limit: {format_seconds(tpot_s)} a token")
    return Figure(
        title=title,
        subtitle=f"estimates; {plan.system.calibration.label} calibration",
        description="Candidates that break one limit alone, by the least, at their speed for one user and cost: "
        + "; ".join(f"{one.what} ({one.reason})" for one in plan.rejected)
        + ".",
        spec={"data": {"values": rows}, "layer": layers},
    )


def step_figure(plan: Plan) -> Figure:
    """The decode step of the best, row by row, at the batch of its estimate."""
    best = plan.best
    title = f"{plan.system.model.name} on {plan.system.cluster.name}: a decode step of the best"
    if best is None:
        return nothing_figure(title, plan.reason)
    engine = best.estimate if isinstance(best.estimate, Candidate) else best.estimate.decode
    kernels = plan.system.calibration.label
    what = f"{best.layout.label()}, {best.precision.short()}, batch {engine.batch_size:,.4g}, {kernels}"
    return pass_waterfall(best.inside.decode, title, what)


def what_if_figure(name: str, points: Sequence[WhatIfPoint]) -> Figure:
    """Cost of the optimum against the quantity that is varied.

    Args:
        name: of the quantity.
    """
    first = points[0].plan
    cost = _cost(first)
    varied = Measure(field="value", title=name, kind="count")
    shown = (
        Measure(field="given", title=name),
        cost,
        Measure(field="tokens_per_s_per_user", title="speed for one user [tokens/s]", kind="count"),
        Measure(field="layout", title="layout"),
    )
    rows: list[Row] = []
    for point in points:
        chosen = point.plan.best
        if chosen is None:
            continue
        rows.append({"given": point.value, "value": point.number, **_best_row(point.plan, chosen)})
    x = log_axis(varied, [row["value"] for row in rows])
    x["axis"]["values"] = [row["value"] for row in rows]
    x["axis"]["labelExpr"] = _chosen_labels(rows)
    y = log_axis(cost, [row[cost.field] for row in rows])
    least = min(rows, key=lambda row: row[cost.field], default=None)
    layers: list[Layer] = [
        {"mark": {"type": "line", "opacity": 0.7}, "encoding": {"x": x, "y": y}},
        hovered({"type": "point", "size": 70}, {"x": x, "y": y}, shown),
    ]
    words = "No value meets the limits."
    if least is not None:
        layers.append(
            {"data": {"values": [least]}, "mark": {"type": "point", "style": "best"}, "encoding": {"x": x, "y": y}}
        )
        words = f"The least cost, {money(least[cost.field], first.priced)}, is at {least['given']}."
    return Figure(
        title=f"{first.system.model.name} on {first.system.cluster.name}: what if {name} were another",
        subtitle=f"the cheapest deployment at each value; {first.system.calibration.label} calibration",
        description=f"Cost of the cheapest deployment against {name} on log axes. {words}",
        spec={"data": {"values": rows}, "layer": layers},
    )


def _cost(plan: Plan) -> Measure:
    kind = "usd" if plan.priced else "count"
    field = "usd_per_mtok_output_all_in" if plan.priced else "chip_hours_per_mtok_output_all_in"
    return Measure(field=field, title=f"{money_name(plan.priced)} per million output tokens, all-in", kind=kind)


def _shown(plan: Plan) -> tuple[Measure, ...]:
    return (
        _SPEED,
        _cost(plan),
        Measure(field="layout", title="layout"),
        Measure(field="batch_size", title="batch", kind="count"),
        Measure(field="precision", title="precision"),
        Measure(field="tpot_s", title="time per output token", kind="seconds"),
        Measure(field="ttft_s", title="time to first token", kind="seconds"),
    )


def _row(plan: Plan, candidate: Candidate | PoolPair) -> Row:
    limits = plan.demand.limits
    keeps = (limits.tpot_s is None or candidate.tpot_s <= limits.tpot_s) and (
        limits.ttft_s is None or candidate.ttft_s <= limits.ttft_s
    )
    if isinstance(candidate, PoolPair):
        decode, prefill = (replace(pool.layout, dp=1).label() for pool in (candidate.decode, candidate.prefill))
        layout, batch = f"decode {decode}; prefill {prefill}", candidate.decode.batch_size
        precision = candidate.decode.precision.short()
    else:
        layout, batch = candidate.layout.label(), candidate.batch_size
        precision = candidate.precision.short()
    return {
        "series": _TWO if isinstance(candidate, PoolPair) else _ONE,
        _SPEED.field: candidate.tokens_per_s_per_user,
        _cost(plan).field: candidate.usd_per_mtok_output_all_in,
        "tpot_s": candidate.tpot_s,
        "ttft_s": candidate.ttft_s if math.isfinite(candidate.ttft_s) else None,
        "layout": layout,
        "batch_size": batch,
        "precision": precision,
        "keeps_limits": keeps,
    }


def _best_row(plan: Plan, choice: Choice) -> Row:
    """The answer with its own numbers, simulated where it was served."""
    return {
        **_row(plan, choice.estimate),
        _SPEED.field: choice.tokens_per_s_per_user,
        _cost(plan).field: choice.usd_per_mtok_output_all_in,
        "tpot_s": choice.tpot_s,
        "ttft_s": choice.ttft_s if math.isfinite(choice.ttft_s) else None,
        "batch_size": choice.batch_size,
        "keeps_limits": True,
    }


def _short(given: str) -> str:
    """A value as given, with three digits."""
    number = re.match(r"[0-9.]+", given)
    return f"{float(number[0]):.3g} {given[number.end() :]}".strip() if number else given


def _chosen_labels(rows: Sequence[Row]) -> str:
    """Ticks say what was asked for ("3TB/s")."""
    text = "''"
    for row in reversed(rows):
        text = f"abs(datum.value / {row['value']!r} - 1) < 1e-9 ? '{_short(row['given'])}' : {text}"
    return text


_MOST_ROWS = 12
_PARTS = ("weights", "KV cache of the requests", "rest of the room for KV", "activations, runtime, reserve")


def capacity_figure(capacity: Capacity, *, hbm_bytes: float) -> Figure:
    """Memory of the fullest chip by layout: weights, the cache of as many requests as fit, and what is kept back.

    Args:
        capacity: the layouts, most requests first.
        hbm_bytes: memory of a chip [bytes].
    """
    shown = (capacity.fitting or tuple(sorted(capacity.rows, key=lambda row: -row.kv_room_bytes)))[:_MOST_ROWS]
    title = f"{capacity.model} on {capacity.cluster}: memory of a chip"
    if not shown:
        return nothing_figure(title, nearest_reason(capacity))
    bars: dict[str, dict[str, float]] = {}
    for row in shown:
        room = max(row.kv_room_bytes, 0.0)
        ranks = row.layout.attention_dp * row.layout.pp
        held = min(-(-row.max_concurrency // ranks) * row.layout.pp * row.kv_bytes_per_sequence, room)
        bars[f"{row.layout.label()}: {row.total_concurrency:,} requests"] = {
            _PARTS[0]: row.weights_bytes,
            _PARTS[1]: held,
            _PARTS[2]: room - held,
            _PARTS[3]: max(hbm_bytes - row.weights_bytes - row.kv_room_bytes, 0.0) if room else 0.0,
        }
    first = next(iter(bars))
    words = f"Most fit with {first}" if capacity.fitting else f"Nothing fits: {nearest_reason(capacity)}"
    return stacked_bars(
        bars,
        _PARTS,
        Measure(field="held_bytes", title="memory of the fullest chip", kind="bytes"),
        title=title,
        subtitle=f"requests of {short_count(capacity.context_len)} tokens; {capacity.precision.short()}; "
        f"{memory_share(capacity.memory_fraction, capacity.fraction_of)}",
        description=f"Weights, cache and reserve of a chip for {len(bars)} layouts. {words}.",
        marks={f"chip: {format_bytes(hbm_bytes)}": hbm_bytes},
    )


_RATIO = Measure(field="ratio", title="over the first", kind="number")


def compare_figure(sides: Sequence[Side], *, what: str) -> Figure:
    """Each number of each thing over that of the first, on a log axis.

    Args:
        sides: what is compared, the first is 1.
        what: their kind.
    """
    rows: list[Row] = []
    names: list[str] = []
    for key in sides[0].values:
        label = QUANTITIES[key].title
        found = [(side, value) for side in sides if (value := ratio(side.values[key], sides[0].values[key]))]
        if len(found) < 2:
            continue
        names.append(label)
        rows += [
            {"number": label, "side": side.name, "ratio": value, "value": QUANTITIES[key].text(side.values[key])}
            for side, value in found
            if side is not sides[0]
        ]
    others = [side.name for side in sides[1:]]
    x = log_axis(_RATIO, [1.0, *(row["ratio"] for row in rows)])
    x["axis"]["labelExpr"] = f"{x['axis']['labelExpr']} + ' ×'"
    y: Layer = {"field": "number", "type": "nominal", "sort": names, "title": None}
    y |= {"axis": {"labelLimit": LONGEST_LABEL, "ticks": False, "grid": True}, "scale": {"padding": 0.9}}
    shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
    chosen = [shapes[index % len(shapes)] for index in range(len(others))]
    shown = [
        Measure(field="side", title=what.removesuffix("s")),
        Measure(field="number", title="number"),
        Measure(field="value", title="value"),
        _RATIO,
    ]
    encoding: Layer = {
        "x": x,
        "y": y,
        "color": colour(others, "side"),
        "shape": {**colour(others, "side"), "scale": {"domain": others, "range": chosen}},
    }
    texts = [
        f"{name} " + ", ".join(f"{row['number']} {row['ratio']:.3g} ×" for row in rows if row["side"] == name)
        for name in others
    ]
    return Figure(
        title=f"{what.capitalize()} side by side",
        subtitle=f"each number over that of {sides[0].name}",
        description=f"Ratios to {sides[0].name} on a log axis: {'; '.join(texts)}.",
        spec={
            "data": {"values": rows},
            "layer": [
                *limit("x", x, 1.0, sides[0].name, "reference"),
                hovered({"type": "point", "size": 80, "opacity": 0.9}, encoding, shown),
            ],
        },
        width=520,
        height=BAR_HEIGHT * (max(len(names), 2) + 1),
    )
