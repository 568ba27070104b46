"""Figures of plans: the front of speed against cost, memory of a chip layout by layout, deployments compared."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rackline.display.axes import (
    BAR_HEIGHT,
    LONGEST_LABEL,
    Layer,
    Measure,
    Row,
    colour,
    hovered,
    layered,
    limit,
    log_axis,
    marked,
    name_axis,
    note,
    nothing_figure,
    shapes,
    stacked_bars,
)
from rackline.display.figure import Figure
from rackline.display.wording import money, money_name, short_count
from rackline.report.choice_report import replicas_label
from rackline.report.compare_report import QUANTITIES, Side, ratio
from rackline.report.explain_figures import pass_waterfall
from rackline.report.memory_report import memory_share
from rackline.report.plan_report import keeps_limits
from rackline.report.simulate_report import nearest_reason
from rackline.search import Candidate, Choice, Plan, PoolPair
from rackline.search.plan import WhatIfPoint
from rackline.serving.capacity import Capacity
from rackline.units import format_bytes, format_seconds

_SPEED = Measure(field="tokens_per_s_per_user", title="speed for one user [tokens/s]", kind="count")
_ONE, _TWO = "one engine", "separate pools"


def pareto_figure(plan: Plan) -> Figure:
    """Speed for one user against cost: the fronts of one engine and of separate pools, the best, and the limits."""
    apart = plan.disaggregated.pareto if plan.disaggregated else ()
    rows = [_row(plan, candidate) for candidate in (*plan.pareto, *apart)]
    best = _best_row(plan, plan.best) if plan.best is not None else None
    place = _place(plan, rows)
    names = colour([_ONE, *([_TWO] if apart else [])])
    hollow = {"condition": {"test": "datum.keeps_limits", "value": 1}, "value": 0}
    words = "Nothing meets the limits."
    if best is not None:
        words = f"The cheapest that meets the limits: {best['layout']}, {_worth(plan, best)} for each user."
    served = plan.best is not None and plan.best.sustained
    return Figure(
        title=f"{_name(plan)}: speed against cost",
        subtitle=f"estimates, the best {'simulated' if served else 'too'}; {plan.system.calibration.label} calibration"
        + ("" if all(row["keeps_limits"] for row in rows) else "; hollow: breaks a limit, some only when served"),
        description=f"Pareto front of tokens per second for one user against cost on log axes. {words}",
        spec=layered(
            rows,
            {"mark": {"type": "line", "strokeWidth": 1.4, "opacity": 0.6}, "encoding": {**place, "color": names}},
            hovered(
                {"type": "point", "size": 34, "strokeWidth": 1.3},
                {**place, "color": names, "stroke": names, "fillOpacity": hollow},
                _shown(plan),
            ),
            *_limit(plan, place),
            *_best(plan, place, best),
        ),
    )


def rejected_figure(plan: Plan) -> Figure:
    """The nearest rejected candidates beside the best: one for each limit, which it alone breaks."""
    title = f"{_name(plan)}: what was rejected by the least"
    rows: list[Row] = [
        {**_row(plan, one.candidate), "series": f"{one.reason} ({one.what})", "what": one.what} for one in plan.rejected
    ]
    if not rows:
        return nothing_figure(title, "Nothing was rejected.")
    best = _best_row(plan, plan.best) if plan.best else None
    place = _place(plan, [*rows, *([best] if best else [])], margins=(0.12, 0.15))
    colours = colour([row["series"] for row in rows])
    colours["legend"] = {"title": "rejected for", "columns": 1, "labelLimit": 640}
    shown = (Measure(field="what", title="candidate"), Measure(field="series", title="rejected for"), *_shown(plan))
    return Figure(
        title=title,
        subtitle=f"estimates; {plan.system.calibration.label} calibration",
        description="Candidates that break one limit alone, by the least, at their speed for one user and cost: "
        + "; ".join(f"{one.what} ({one.reason})" for one in plan.rejected)
        + ".",
        spec=layered(
            rows,
            hovered({"type": "point", "shape": "cross", "size": 130}, {**place, "color": colours}, shown),
            *_best(plan, place, best),
            *_limit(plan, place),
        ),
    )


def _place(plan: Plan, rows: Sequence[Row], margins: tuple[float, float] = (0.04, 0.08)) -> Layer:
    """Speed and cost, with the limit of the speed in sight."""
    cost, tpot_s = _cost(plan), plan.demand.limits.tpot_s
    speeds = [*(row[_SPEED.field] for row in rows), *([] if tpot_s is None else [1.0 / tpot_s])]
    return {
        "x": log_axis(_SPEED, speeds, margin=margins[0]),
        "y": log_axis(cost, [row[cost.field] for row in rows], margin=margins[1]),
    }


def _limit(plan: Plan, place: Layer) -> list[Layer]:
    tpot_s = plan.demand.limits.tpot_s
    return [] if tpot_s is None else limit("x", place["x"], 1.0 / tpot_s, f"limit: {format_seconds(tpot_s)} a token")


def _best(plan: Plan, place: Layer, best: Row | None) -> list[Layer]:
    """The best, with its speed and cost in words."""
    if best is None:
        return []
    point = hovered({"type": "point", "style": "best"}, place, _shown(plan), data={"values": [best]})
    at = (best[_SPEED.field], best[_cost(plan).field])
    return [point, *note(place["x"], place["y"], at, f"best: {_worth(plan, best)}", below=True)]


def _worth(plan: Plan, best: Row) -> str:
    return f"{money(best[_cost(plan).field], plan.priced)} at {best[_SPEED.field]:.3g} tokens/s"


def _name(plan: Plan) -> str:
    return f"{plan.system.model.name} on {plan.system.cluster.name}"


def step_figure(plan: Plan) -> Figure:
    """The decode step of the best, row by row, at the batch of its estimate."""
    best = plan.best
    title = f"{_name(plan)}: a decode step of the best"
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
    shown = (
        Measure(field="given", title=name),
        cost,
        _SPEED,
        Measure(field="layout", title="layout"),
    )
    rows: list[Row] = [
        {"given": point.value, "value": point.number, **_best_row(point.plan, point.plan.best)}
        for point in points
        if point.plan.best is not None
    ]
    x = log_axis(Measure(field="value", title=name, kind="count"), [row["value"] for row in rows])
    x["axis"] |= {"values": [row["value"] for row in rows], "labelExpr": _chosen_labels(rows)}
    place = {"x": x, "y": log_axis(cost, [row[cost.field] for row in rows])}
    least = min(rows, key=lambda row: row[cost.field], default=None)
    words = "No value meets the limits."
    if least is not None:
        words = f"The least cost, {money(least[cost.field], first.priced)}, is at {least['given']}."
    return Figure(
        title=f"{_name(first)}: what if {name} were another",
        subtitle=f"the cheapest deployment at each value; {first.system.calibration.label} calibration",
        description=f"Cost of the cheapest deployment against {name} on log axes. {words}",
        spec=layered(
            rows,
            {"mark": {"type": "line", "opacity": 0.7}, "encoding": place},
            hovered({"type": "point", "size": 70}, place, shown),
            *([] if least is None else [marked([least], place, style="best")]),
        ),
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
    engine = candidate.decode if isinstance(candidate, PoolPair) else candidate
    return {
        "series": _TWO if isinstance(candidate, PoolPair) else _ONE,
        _SPEED.field: candidate.tokens_per_s_per_user,
        _cost(plan).field: candidate.usd_per_mtok_output_all_in,
        "tpot_s": candidate.tpot_s,
        "ttft_s": candidate.ttft_s if math.isfinite(candidate.ttft_s) else None,
        "layout": replicas_label(candidate) if isinstance(candidate, PoolPair) else candidate.layout.label(),
        "batch_size": engine.batch_size,
        "precision": engine.precision.short(),
        "keeps_limits": keeps_limits(plan, candidate),
    }


def _best_row(plan: Plan, choice: Choice) -> Row:
    """The answer with its own numbers, simulated where it was served."""
    return {
        **_row(plan, choice.estimate),
        _SPEED.field: choice.tokens_per_s_per_user,
        _cost(plan).field: choice.whole.usd_per_mtok_output_all_in,
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
    words = f"Most fit with {next(iter(bars))}" if capacity.fitting else f"Nothing fits: {nearest_reason(capacity)}"
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


COMPARED = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
_RATIO = Measure(field="ratio", title="over the first", kind="number")


def compare_figure(sides: Sequence[Side], *, what: str) -> Figure:
    """Each number of each thing over that of the first, on a log axis.

    Args:
        sides: what is compared, the first is 1.
        what: their kind.
    """
    rows: list[Row] = []
    names: list[str] = []
    for key, first in sides[0].values.items():
        found = [(side, value) for side in sides if (value := ratio(side.values[key], first))]
        if len(found) < 2:
            continue
        label, write = QUANTITIES[key].title, QUANTITIES[key].text
        names.append(label)
        rows += [
            {"number": label, "side": side.name, "ratio": value, "value": write(side.values[key])}
            for side, value in found
            if side is not sides[0]
        ]
    others = [side.name for side in sides[1:]]
    x = log_axis(_RATIO, [1.0, *(row["ratio"] for row in rows)])
    x["axis"]["labelExpr"] = f"{x['axis']['labelExpr']} + ' ×'"
    shown = [
        Measure(field="side", title=what.removesuffix("s")),
        Measure(field="number", title="number"),
        Measure(field="value", title="value"),
        _RATIO,
    ]
    encoding: Layer = {
        "x": x,
        "y": name_axis("number", names, axis={"labelLimit": LONGEST_LABEL, "grid": True}, padding=0.9),
        "color": colour(others, "side"),
        "shape": shapes(others, "side", COMPARED),
    }
    texts = [
        f"{name} " + ", ".join(f"{row['number']} {row['ratio']:.3g} ×" for row in rows if row["side"] == name)
        for name in others
    ]
    return Figure(
        title=f"{what.capitalize()} side by side",
        subtitle=f"each number over that of {sides[0].name}",
        description=f"Ratios to {sides[0].name} on a log axis: {'; '.join(texts)}.",
        spec=layered(
            rows,
            *limit("x", x, 1.0, sides[0].name, "reference"),
            hovered({"type": "point", "size": 80, "opacity": 0.9}, encoding, shown),
        ),
        width=520,
        height=BAR_HEIGHT * (max(len(names), 2) + 1),
    )
