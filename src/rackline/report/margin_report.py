"""What a provider's prices leave over the costs of a deployment: table, verdicts and figure."""

from __future__ import annotations

from typing import Any

from rich.console import Group

from rackline.hardware import on_demand_usd
from rackline.pricing import Offered
from rackline.pricing.margins import Margin, Sold, Verdict, WriteMargin
from rackline.report.axes import (
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
    nothing_figure,
    shapes,
)
from rackline.report.column import Column, Sheet, spaced
from rackline.report.figure import Figure
from rackline.report.wording import Box, Prose, composed, percent, short_count, written
from rackline.units import format_seconds, format_usd

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
    unknown = "nobody measured servers of this kind, so that no verdict is sure"
    return spaced(
        [
            Box(body, f"{sold.sheet}, {sold.date}", "", style),
            _tiers(sold),
            *([_writes(sold)] if sold.writes else []),
            *(Prose(note, style="yellow") for note in notes),
            Prose(
                "margin: price of the mean request without hits over its cost, less 1; low and high: "
                + (sure if measured else unknown)
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
