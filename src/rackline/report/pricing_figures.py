"""Figures of prices and costs, and what a provider's prices leave over the costs of a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group

from rackline.arch import model
from rackline.display.axes import (
    BAR_HEIGHT,
    LONGEST_LABEL,
    SERIES,
    UNSEEN,
    Layer,
    Measure,
    Row,
    colour,
    hovered,
    layered,
    limit,
    linear_axis,
    log_axis,
    marked,
    name_axis,
    nothing_figure,
    shapes,
)
from rackline.display.column import Column, Sheet, spaced
from rackline.display.figure import Figure
from rackline.display.wording import Box, Prose, composed, percent, short_count, written
from rackline.hardware import on_demand_usd
from rackline.pricing import CheapestSpan, KeepingCost, Offered, Reading
from rackline.pricing.bought import Bought, Wanted
from rackline.pricing.compare import Truth
from rackline.pricing.costs import SHORTEST
from rackline.pricing.margins import Margin, Sold, Verdict, WriteMargin
from rackline.units import format_count, format_seconds, format_usd

_HELD = Measure(field="held_s", title="time held", kind="seconds")
_LENGTH = Measure(field="prompt_len", title="length of the prompt [tokens]", kind="count")
_USD = Measure(field="usd_per_mtok", title="$ per million tokens", kind="usd")
_USERS = Measure(field="users", title="users", kind="count")
_USD_A_MONTH = Measure(field="usd_per_month", title="$ a month", kind="usd")
_SERIES = Measure(field="series", title="what")
_TOKENS = ("input", "cached input", "output")


def tiers_figure(
    lines: Sequence[KeepingCost], spans: Sequence[CheapestSpan], *, title: str, prompt_len: float, reuses: float
) -> Figure:
    """Cost of keeping a prompt over the time held: the tiers that are ever the cheapest, and where one takes over.

    Args:
        lines: cost of each tier.
        spans: stretches in which one is the cheapest.
        title: what is kept and where.
        prompt_len: tokens of the prompt [tokens].
        reuses: times that it is brought back [count].
    """
    ends = [span.until_s for span in spans if np.isfinite(span.until_s) and span.until_s > 0]
    times = np.geomspace(min([1.0, *ends]) / 30.0, max([86400.0, *ends]) * 5.0, 81)
    per_mtok = 1e6 / prompt_len
    names = list(dict.fromkeys(span.cost.name for span in spans))
    usd = {line.name: line.usd(times, reuses) * per_mtok for line in lines}
    least = np.min(list(usd.values()), axis=0)
    kept = least[least > 0]
    low, high = (float(kept.min()), float(kept.max())) if len(kept) else (1.0, 10.0)
    rows: list[Row] = [
        {"series": name, "held_s": held, "usd_per_mtok": cost}
        for name, costs in usd.items()
        if name in names
        for held, cost in zip(times.tolist(), costs.tolist(), strict=True)
        if 0 < cost < 30.0 * high
    ]
    cost = Measure(field="usd_per_mtok", title=f"$ per million tokens, brought back {reuses:g} ×", kind="usd")
    x, y = log_axis(_HELD, times.tolist()), log_axis(cost, [low / 3.0, 10.0 * high])
    hull = [
        {"held_s": held, "usd_per_mtok": usd}
        for held, usd in zip(times.tolist(), least.tolist(), strict=True)
        if usd > 0
    ]
    place = {"x": x, "y": y}
    words = "; ".join(
        f"{span.cost.name} up to {format_seconds(span.until_s)}"
        if np.isfinite(span.until_s)
        else f"then {span.cost.name}"
        for span in spans
    )
    return Figure(
        title="Keeping the cache of a prompt: cost over the time held",
        subtitle=f"{title}; grey: the cheapest; dashed: another takes over",
        description=f"Cost over the time held on log axes. The cheapest: {words}.",
        spec=layered(
            rows,
            marked(hull, place, type="line", style="hull", strokeWidth=10, opacity=0.3, clip=True),
            {"mark": {"type": "line", "clip": True}, "encoding": {**place, "color": colour(names)}},
            hovered({**UNSEEN, "clip": True}, place, [_SERIES, _HELD, cost]),
            *(part for end in ends for part in limit("x", x, end, format_seconds(end), "reference")),
        ),
    )


def offered_figure(offered: Offered) -> Figure:
    """Price and bare cost of input and output over the length of the prompt, standard mode."""
    sold = [tier for tier in offered.tiers if tier.mode == "standard" and tier.way is not None]
    terms = offered.terms
    usd = offered.rent.usd_per_chip_hour / 3600.0 / terms.utilisation * 1e6
    rows: list[Row] = []
    for tier in sold:
        if tier.way is None:
            continue
        lengths = np.geomspace(max(tier.from_len, min(SHORTEST, tier.until_len)), tier.until_len, 40)
        bare = {"input": usd * tier.way.input_at(lengths), "output": usd * tier.way.output_at(lengths)}
        for name, values in bare.items():
            price = (tier.input_usd if name == "input" else tier.output_usd) * 1e6
            ends = [("price", float(end), price) for end in (lengths[0], lengths[-1])]
            along = [("cost", at, value) for at, value in zip(lengths.tolist(), values.tolist(), strict=True)]
            rows += [
                {"series": name, "what": what, "tier": tier.name, "prompt_len": length, "usd_per_mtok": value}
                for what, length, value in [*along, *ends]
                if np.isfinite(value)
            ]
    kinds = {"domain": ["price", "cost"], "range": [[1, 0], [5, 4]]}
    lines = {"field": "what", "type": "nominal", "scale": kinds, "legend": {"title": None}}
    place = {
        "x": log_axis(_LENGTH, [row["prompt_len"] for row in rows]),
        "y": log_axis(_USD, [row["usd_per_mtok"] for row in rows]),
        "detail": {"field": "tier", "type": "nominal"},
    }
    d = offered.deployment
    words = "; ".join(
        f"up to {format_count(tier.until_len)} tokens ${tier.input_usd * 1e6:.3g} in, ${tier.output_usd * 1e6:.3g} out"
        for tier in sold
    )
    return Figure(
        title=f"{d.model.name} on {d.cluster.name}: price and cost over context" if d else "nothing can be sold",
        subtitle=f"${offered.rent.usd_per_chip_hour:.3g} per chip-hour, {percent(terms.utilisation)} used, "
        f"margin {percent(terms.margin)}",
        description=f"The margin is earned over {offered.terms.lengths}; cost rises with the prompt. "
        f"{words or 'Nothing can be sold.'}",
        spec=layered(
            rows,
            {"mark": "line", "encoding": {**place, "color": colour(["input", "output"]), "strokeDash": lines}},
            hovered(UNSEEN, place, [_SERIES, Measure(field="what", title="price or cost"), _LENGTH, _USD]),
        ),
    )


def modes_figure(offered: Offered) -> Figure:
    """Prices by mode, a colour a context tier and a shape a kind of token, on a log axis."""
    rows: list[Row] = []
    for tier in offered.tiers:
        if tier.way is None:
            continue
        rows += [
            {
                "mode": tier.name.split(" above")[0],
                "tier": f"to {format_count(tier.until_len)}",
                "series": what,
                "usd_per_mtok": price * 1e6,
                "layout": tier.way.costs.deployment.layout.label(),
                "tpot_s": tier.tpot_s,
            }
            for what, price in zip(_TOKENS, (tier.input_usd, tier.cached_input_usd, tier.output_usd), strict=True)
            if np.isfinite(price) and price > 0
        ]
    order = {"batch": 0, "flex": 1, "standard": 2}
    modes = sorted(dict.fromkeys(row["mode"] for row in rows), key=lambda mode: order.get(mode, 3))
    encoding: Layer = {
        "x": log_axis(_USD, [row["usd_per_mtok"] for row in rows]),
        "y": name_axis("mode", modes, axis={"grid": True}, padding=0.9),
        "color": colour(list(dict.fromkeys(row["tier"] for row in rows)), "tier"),
        "shape": shapes(_TOKENS, SERIES.field, ("circle", "diamond", "square")),
    }
    shown = [
        Measure(field="mode", title="mode"),
        Measure(field="tier", title="prompts"),
        _SERIES,
        _USD,
        Measure(field="layout", title="layout"),
        Measure(field="tpot_s", title="time per output token", kind="seconds"),
    ]
    words = "; ".join(
        f"{row['mode']} {row['tier']} {row['series']} ${row['usd_per_mtok']:.3g}"
        for row in rows
        if row["series"] != "cached input"
    )
    d = offered.deployment
    return Figure(
        title=f"{d.model.name} on {d.cluster.name}: prices by mode and context" if d else "nothing can be sold",
        subtitle=f"${offered.rent.usd_per_chip_hour:.3g} per chip-hour, {percent(offered.terms.utilisation)} used, "
        f"margin {percent(offered.terms.margin)}; each mode and tier in its own cheapest layout",
        description=f"Dollars per million tokens on a log axis: {words or 'nothing can be sold'}.",
        spec=layered(rows, hovered({"type": "point", "size": 90, "opacity": 0.9}, encoding, shown)),
        width=520,
        height=BAR_HEIGHT * (max(len(modes), 2) + 1),
    )


def readings_figure(readings: Sequence[Reading]) -> Figure:
    """What prices reveal: likely active parameters against likely KV bytes per token, with their likely intervals.

    Beside them stands what is known of the open models, with one byte for each element of the cache to two.
    """
    size = Measure(field="active_params", title="active parameters", kind="count")
    cache = Measure(field="kv_bytes_per_token", title="KV cache of a token", kind="bytes")
    found = [
        (one, one.find("active_params"), one.find(cache.field, "context step") or one.find(cache.field))
        for one in readings
    ]
    rows: list[Row] = [
        {
            "series": "closed models" if reading.model is None else "open models",
            "sheet": reading.sheet,
            "active_params": active.likely.middle,
            "active_params_low": active.likely_low,
            "active_params_high": active.likely_high,
            "kv_bytes_per_token": kv.likely.middle,
            "kv_bytes_per_token_low": kv.likely_low,
            "kv_bytes_per_token_high": kv.likely_high,
        }
        for reading, active, kv in found
        if active is not None and kv is not None
    ]
    named = len(rows) <= 16
    ends = ("", "_low", "_high") if named else ("",)
    known = [_truth(name) for name in dict.fromkeys(one.model for one in readings if named and one.model)]
    sizes = [row[f"active_params{end}"] for row in rows for end in ends]
    x = log_axis(size, [*sizes, *(row["active_params"] for row in known)])
    y = log_axis(cache, [row[f"kv_bytes_per_token{end}"] for row in [*rows, *known] for end in ends])
    kinds = ("closed models", "open models")
    plain: Layer = {"x": x, "y": y}
    place: Layer = {**plain, "color": colour(kinds)}
    shown = [
        Measure(field="sheet", title="price sheet"),
        size,
        Measure(field="active_params_low", title="likely from", kind="count"),
        Measure(field="active_params_high", title="to", kind="count"),
        cache,
        Measure(field="kv_bytes_per_token_low", title="likely from", kind="bytes"),
        Measure(field="kv_bytes_per_token_high", title="to", kind="bytes"),
    ]
    faint = {"type": "rule", "opacity": 0.35, "clip": True}
    wide = {"x": {**x, "field": "active_params_low"}, "x2": {"field": "active_params_high"}}
    high = {"y": {**y, "field": "kv_bytes_per_token_low"}, "y2": {"field": "kv_bytes_per_token_high"}}
    words = {"type": "text", "align": "left", "dx": 7, "dy": -7}
    triangle = {"type": "point", "shape": "triangle-up", "style": "best", "size": 110}
    spread = [
        marked(known, {"x": x, **high}, type="rule", style="limit"),
        hovered(triangle, plain, [shown[0], size, *shown[4:]], data={"values": known}),
    ]
    return Figure(
        title="What prices reveal",
        subtitle="middles of the likely intervals"
        + ("; lines: the likely intervals" if named else "")
        + ("; triangles: what is known of the open models" if known else ""),
        description=f"Likely active parameters against KV bytes of a token, read from {len(rows)} price sheets.",
        spec=layered(
            rows,
            *({"mark": faint, "encoding": {**place, **ends}} for ends in (wide, high) if named),
            hovered(
                {"type": "point", "size": 60},
                {**place, "shape": shapes(kinds, SERIES.field, ("circle", "square"))},
                shown,
            ),
            *([{"mark": words, "encoding": {**plain, "text": {"field": "sheet"}}}] if named else []),
            *(spread if known else []),
        ),
    )


def _truth(name: str) -> Row:
    """What is known of an open model."""
    truth = Truth.of(model(name))
    kv = truth.kv_bytes_per_token
    return {
        "sheet": name,
        "active_params": truth.active_params,
        "kv_bytes_per_token": kv.middle,
        "kv_bytes_per_token_low": kv.low,
        "kv_bytes_per_token_high": kv.high,
    }


def afford_figure(ways: Sequence[tuple[str, Bought]], wanted: Wanted) -> Figure:
    """Dollars a month, or users that a budget buys, under each way to pay, by model and cluster.

    Args:
        ways: (model and cluster, fleet).
        wanted: what was asked for; users are drawn where only a budget was.
    """
    by_users = wanted.users is None and wanted.requests_per_s is None
    measure = _USERS if by_users else _USD_A_MONTH
    names = list(dict.fromkeys(name for name, _ in ways))
    rows: list[Row] = [
        {
            "label": way.terms if len(names) == 1 else f"{name}, {way.terms}",
            "series": name,
            "terms": way.terms,
            "users": way.users or 0.0,
            "usd_per_month": way.usd_per_month,
        }
        for name, way in ways
    ]
    x = linear_axis(measure, [row[measure.field] for row in rows], zero=True)
    y = name_axis("label", [row["label"] for row in rows], axis={"labelLimit": LONGEST_LABEL})
    shown = [Measure(field="series", title="service"), Measure(field="terms", title="paid"), _USERS, _USD_A_MONTH]
    layers = [hovered({"type": "bar", "height": 12}, {"x": x, "y": y, "color": colour(names)}, shown)]
    if not by_users and wanted.budget_usd is not None:
        layers += limit("x", x, wanted.budget_usd, "budget")
    words = "; ".join(f"{row['label']} {row[measure.field]:,.0f}" for row in rows) or "no model fits on any cluster"
    return Figure(
        title="What a budget buys" if by_users else "What it costs a month",
        subtitle=f"{measure.title}, by way to pay" if rows else words,
        description=f"{measure.title}: {words}.",
        spec=layered(rows, *layers),
        width=520,
        height=max(2, len(rows)) * BAR_HEIGHT,
    )


_RATIO = Measure(field="ratio", title="price over cost", kind="number")
_STYLES: dict[Verdict, str] = {"earns": "green", "likely earns": "green", "loses": "red", "likely loses": "red"}
_PARTS = ("request", "input", "cached input", "output")


def _label(row: Margin) -> str:
    return f"{row.served_as} to {short_count(row.until_len)}"


def verdicts_text(sold: Sold) -> str:
    """Which tiers earn and which lose, in a sentence."""
    found: dict[str, list[str]] = {}
    for row in sold.tiers:
        margin = "" if row.margin is None else f" ({percent(row.margin)})"
        found.setdefault(row.verdict, []).append(f"{_label(row)}{margin}")
    said = "; ".join(f"{verdict}: {', '.join(tiers)}" for verdict, tiers in found.items())
    return f"at {percent(sold.utilisation)} utilisation {said or 'nothing is sold'}"


def sold_report(sold: Sold, offered: Offered) -> Group:
    """What `rackline price --against` prints."""
    d, rent = offered.deployment, offered.rent
    kind = f" ({rent.kind})" if rent.kind else ""
    head = next((row for row in sold.tiers if row.mode == "standard"), sold.tiers[0] if sold.tiers else None)
    style = "yellow" if head is None else _STYLES.get(head.verdict, "yellow")
    body = composed((verdicts_text(sold), f"bold {style}"))
    if d is not None:
        where = f"{d.model.name} on {d.cluster.name}, {format_usd(rent.usd_per_chip_hour)} a chip-hour{kind}"
        body.append(f"\ncosts: {where}; batch and flex fill hours that are left over")
    demand = on_demand_usd(d.cluster.chip, rent.usd_per_chip_hour) if d else None
    if demand is not None:
        times = written(demand / rent.usd_per_chip_hour)
        body.append(f"; {times} times as much on demand ({format_usd(demand)})")
    notes = [f"{_label(row)}: {row.reason}" for row in sold.tiers if row.reason]
    measured = any(row.margin_low is not None for row in sold.tiers)
    sure = "of the costs of 90 % of measured servers; earns and loses are sure where all of them do"
    return spaced(
        [
            Box(body, f"{sold.sheet}, {sold.date}", "", style),
            _tiers(sold),
            *([_writes(sold)] if sold.writes else []),
            *(Prose(note, style="yellow") for note in notes),
            Prose(
                "margin: price of the mean request without hits over its cost, less 1; low and high: "
                + (sure if measured else "nobody measured servers of this kind, so that no verdict is sure")
                + f". Pays from: utilisation at which price is cost. {_lengths(offered)}",
                style="dim",
            ),
        ]
    )


def _lengths(offered: Offered) -> str:
    return f"Requests are {offered.terms.lengths}, {short_count(offered.terms.output_len)} tokens of output each"


def _tiers(sold: Sold) -> Sheet[Margin]:
    def pair(title: str, price: str, cost: str, priority: int = 0) -> list[Column[Margin]]:
        return [
            Column(f"usd_per_mtok_{price}", title, "USD", priority=priority, style="bold"),
            Column(f"usd_per_mtok_{cost}", "costs", "USD", priority=priority),
        ]

    return Sheet(
        "margins",
        [
            Column("served_as", "mode"),
            Column("until_len", "to", "figures", lambda row: short_count(row.until_len)),
            *pair("input", "input_price", "input_cost", 1),
            *pair("cached", "cached_price", "cached_cost", 2),
            *pair("output", "output_price", "output_cost", 1),
            Column("margin", "margin", "share", style="bold"),
            Column("margin_low", "low", "share", priority=3),
            Column("margin_high", "high", "share", priority=3),
            Column("pays_from", "pays from", "words", _pays_from),
            Column("verdict", "verdict", "words"),
        ],
        sold.tiers,
        title="$ per million tokens: prices and costs",
    )


def _pays_from(row: Margin) -> str:
    if row.pays_from is None:
        return "-"
    return percent(row.pays_from) if row.pays_from <= 1.0 else "never"


def _writes(sold: Sold) -> Sheet[WriteMargin]:
    def what(row: WriteMargin) -> str:
        return "storage, an hour" if row.lifetime_s is None else f"write for {format_seconds(row.lifetime_s)}"

    return Sheet(
        "writes",
        [
            Column("what", "cache", "words", what),
            Column("kept_in", "kept in"),
            Column("usd_per_mtok_price", "price", "USD", style="bold"),
            Column("usd_per_mtok_cost", "costs", "USD"),
            Column("margin", "margin", "share"),
        ],
        sold.writes,
        title="cache writes and storage, $ per million tokens",
    )


def margins_figure(sold: Sold | None) -> Figure:
    """Price over cost of each mode and tier, a shape a kind of token, the band of the request as a line."""
    if sold is None:
        return nothing_figure("Margins of a provider's prices", "no prices were named (--against)")
    rows: list[Row] = []
    for row in sold.tiers:
        parts = (row.margin, row.margin_input, row.margin_cached, row.margin_output)
        ends = {} if row.margin_low is None or row.margin_high is None else {
            "low": row.margin_low + 1.0, "high": row.margin_high + 1.0
        }  # fmt: skip
        rows += [
            {"label": _label(row), "series": part, "ratio": 1.0 + margin, "verdict": row.verdict,
             **(ends if part == "request" else {})}
            for part, margin in zip(_PARTS, parts, strict=True)
            if margin is not None
        ]  # fmt: skip
    if not rows:
        return nothing_figure("Margins of a provider's prices", "no tier has both a price and a cost")
    labels = list(dict.fromkeys(row["label"] for row in rows))
    drawn = [part for part in _PARTS if any(row["series"] == part for row in rows)]
    x = log_axis(_RATIO, [1.0, *(row[key] for row in rows for key in ("ratio", "low", "high") if key in row)])
    y = name_axis("label", labels, axis={"grid": True, "labelLimit": LONGEST_LABEL}, padding=0.9)
    encoding: Layer = {
        "x": x,
        "y": y,
        "color": colour(drawn),
        "shape": shapes(drawn, "series", ("circle", "triangle-right", "diamond", "square")),
    }
    shown = [
        Measure(field="label", title="mode and prompts"),
        Measure(field="series", title="of"),
        _RATIO,
        Measure(field="verdict", title="verdict"),
    ]
    bars = [row for row in rows if "low" in row]
    ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}
    layers: list[Any] = [marked(bars, ends, type="rule", strokeWidth=2)] if bars else []
    layers += [*limit("x", x, 1.0, "price = cost"), hovered({"type": "point", "size": 90}, encoding, shown)]
    words = "; ".join(f"{row['label']} {row['series']} {row['ratio']:.2f}" for row in rows)
    return Figure(
        title=f"{sold.sheet}: price over cost",
        subtitle=f"{percent(sold.utilisation)} of the hours used; line: costs of 90 % of measured servers",
        description=f"Price over cost by mode and context: {words}.",
        spec=layered(rows, *layers),
        width=520,
        height=BAR_HEIGHT * (max(len(labels), 2) + 1),
    )
