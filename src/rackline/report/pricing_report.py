"""Terminal reports of price sheets, made and read: tables of tiers, caches, intervals and conflicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackline.pricing import (
    CheapestSpan,
    Compared,
    Inference,
    KeepingCost,
    Offered,
    PriceTier,
    Reading,
    SoldMedia,
    SoldTier,
    Terms,
    tier_by_drain,
)
from rackline.pricing.offered import Demand
from rackline.report.breakdown import plain_table
from rackline.report.choice_report import asked_of_fleet
from rackline.report.wording import percent, short_count
from rackline.units import format_bytes, format_count, format_percent, format_seconds, format_usd

_PAST = "past that"


def _usd(per_token: float) -> str:
    return format_usd(per_token * 1e6) if math.isfinite(per_token) else "-"


def _label(tier: SoldTier) -> str:
    return f"{tier.name.split(' above')[0]} to {short_count(tier.until_len)}"


def offered_report(offered: Offered, *, width: int) -> Group:
    """Everything that `rackline price` prints."""
    d, terms, rent = offered.deployment, offered.terms, offered.rent
    head = Text(f"{d.model.name} on {d.cluster.name}" if d else "nothing can be sold", style="bold green")
    kind = f" ({rent.kind})" if rent.kind else ""
    head.append(
        f"\n{rent.how} {format_usd(rent.usd_per_chip_hour)} a chip-hour{kind} · margin {percent(terms.margin)} · "
        f"utilisation {percent(terms.utilisation)}: prices are {terms.price_over_cost:.3g} times the cost at full use, "
        "batch and flex fill hours that are left over",
        style="not bold",
    )
    head.append(f"\n{_energy(offered)}", style="not bold")
    parts: list[RenderableType] = [head, Text(""), _tiers_table(offered, width)]
    unsold: dict[str, list[str]] = {}
    for tier in offered.tiers:
        if tier.reason:
            unsold.setdefault(tier.reason, []).append(_label(tier))
    parts += [Text(f"{', '.join(tiers)}: {why}", style="yellow") for why, tiers in unsold.items()]
    below = [
        f"{_label(tier)} by {percent(-tier.margin_at_longest)}"
        for tier in offered.tiers
        if tier.margin_at_longest is not None and tier.margin_at_longest < -0.0005
    ]
    if below:
        said = f"requests with the longest prompt are sold below their cost: {', '.join(below)}; with margin at longest"
        parts.append(Text(f"{said} (--margin-at longest) no prompt is", style="yellow"))
    parts += [Text(sentence) for sentence in offered.coincide]
    parts += [Text(""), _layouts_table(offered)]
    if offered.caches:
        parts += [Text(""), _cache_table(offered)]
    if offered.media:
        parts += [Text(""), _media_line(offered.media)]
    means = ", ".join(
        f"{short_count(tier.mean_input_len)} to {short_count(tier.until_len)}"
        for tier in offered.tiers
        if tier.mode == "standard" and tier.mean_input_len is not None
    )
    parts.append(Text(f"the margin is earned over {offered.terms.lengths}; on average {means} tokens", style="dim"))
    return Group(*parts)


def demand_report(demand: Demand, terms: Terms) -> Text:
    """The fleet of some traffic, and what its requests bring in."""
    fleet = demand.fleet
    cached = f", {short_count(demand.cached_len)} of them cached" if demand.cached_len >= 1.0 else ""
    rent = fleet.usd_per_hour or 0.0
    return Text(
        f"{asked_of_fleet(fleet)}: {fleet.copies:,} × {demand.engine}, {fleet.billed_chips:,} chips paid, "
        f"{format_usd(rent)} an hour; utilisation {percent(terms.utilisation)} follows\n"
        f"a mean request of {short_count(demand.input_len)} prompt tokens{cached} and "
        f"{short_count(demand.output_len)} output tokens pays {format_usd(demand.request_usd)}: sales of "
        f"{format_usd(demand.sales_usd_per_hour)} an hour, {percent(demand.sales_usd_per_hour / rent - 1.0)} above the "
        "rent"
    )


def _layouts_table(offered: Offered) -> Table:
    """The ways to serve, each with the modes and tiers that it serves."""
    served: dict[str, list[str]] = {}
    for tier in offered.tiers:
        if tier.layout and tier.precision:
            layout = replace(tier.layout, dp=1).label()
            if tier.prefill_layout:
                layout = f"prefill {replace(tier.prefill_layout, dp=1).label()}, decode {layout}"
            label = f"{layout} · {tier.precision.short()} · {tier.scheduler}"
            served.setdefault(label, []).append(_label(tier))
    table = plain_table("served in the cheapest way")
    table.add_column("layout", overflow="fold")
    table.add_column("modes and tiers", overflow="fold")
    for label, tiers in served.items():
        table.add_row(label, ", ".join(tiers))
    return table


def _media_line(media: Sequence[SoldMedia]) -> Text:
    """What the images and sound of a request cost in each context tier."""
    each = [f"{format_usd(one.usd)} in prompts to {short_count(one.until_len)}" for one in media]
    words = f"{media[0].tokens:,} input tokens and {format_seconds(media[0].encoder_chip_s)} of a chip for encoders"
    return Text(f"images and sound of a request: {words}; {', '.join(each)}")


def _energy(offered: Offered) -> str:
    """Power, PUE, and the energy of the first tier in kWh and dollars."""
    rent = offered.rent
    sold = next((tier for tier in offered.tiers if not tier.reason), None)
    power = sold.power if sold else None
    if power is None:
        return "energy: nothing is known of the power of these chips"
    if power.basis == "nameplate":
        text = f"energy: {power.wall_w:,.0f} W per chip with host, network and cooling, by the nameplate"
    else:
        text = f"energy: {power.chip_w:,.0f} W per chip that serves, {power.wall_w:,.0f} W with its machine, "
        text += f"PUE {rent.pue:.3g}{'' if power.basis == 'kernels' else ', power of other generations'}"
    if sold is None or sold.kwh_per_mtok_input is None or sold.kwh_per_mtok_output is None:
        return text
    text += f": {sold.kwh_per_mtok_input:.3g} kWh a M input, {sold.kwh_per_mtok_output:.3g} kWh a M output"
    if rent.usd_per_kwh is not None:
        usd = [format_usd(kwh * rent.usd_per_kwh) for kwh in (sold.kwh_per_mtok_input, sold.kwh_per_mtok_output)]
        text += f", {usd[0]} and {usd[1]} of the price at {format_usd(rent.usd_per_kwh)} a kWh"
    return text


def _tiers_table(offered: Offered, width: int) -> Table:
    wide = 4 if width >= 120 else 2 if width >= 100 else 0
    table = plain_table("$ per million tokens")
    table.add_column("mode", no_wrap=True)
    table.add_column("prompts to", justify="right", no_wrap=True)
    for name in ("input", "cached", "output"):
        table.add_column(name, justify="right", style="bold" if name != "cached" else "", no_wrap=True)
    for name in ("batch", "tpot"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("margin", "at the longest", "kWh in", "out")[:wide]:
        table.add_column(name, justify="right", no_wrap=True)
    mode = ""
    for tier in offered.tiers:
        if mode and tier.mode != mode:
            table.add_section()
        mode = tier.mode
        name = tier.name.split(" above")[0]
        if tier.reason:
            table.add_row(name, short_count(tier.until_len), *["-"] * 3)
            continue
        more = [
            _margin(tier.margin),
            _margin(tier.margin_at_longest),
            _kwh(tier.kwh_per_mtok_input),
            _kwh(tier.kwh_per_mtok_output),
        ]
        table.add_row(
            name,
            short_count(tier.until_len),
            _usd(tier.input_usd),
            _usd(tier.cached_input_usd),
            _usd(tier.output_usd),
            f"{tier.batch_size:,.0f}",
            format_seconds(tier.tpot_s),
            *more[:wide],
        )
    return table


def _margin(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _kwh(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _cache_table(offered: Offered) -> Table:
    storage = offered.storage_usd_per_mtok_hour
    caption = (
        "" if storage is None else f"storage in the tier of the longest lifetime: {format_usd(storage)} per M·hour"
    )
    table = plain_table("cache writes, $ per million tokens", caption=caption)
    for name in ("lifetime", "kept in", "write", "of that holding", "one hit saves"):
        table.add_column(name, justify="left" if name == "kept in" else "right", no_wrap=True)
    for cache in offered.caches:
        table.add_row(
            format_seconds(cache.lifetime_s),
            cache.tier,
            _usd(cache.write_usd),
            _usd(cache.hold_usd * offered.terms.price_over_cost),
            f"{cache.saves:,.0f} ×" if cache.saves >= 100.0 else f"{cache.saves:.3g} ×",
        )
    return table


# ------------------------------------------------------------------------------------------------ tiers


def tiers_report(
    lines: Sequence[KeepingCost],
    spans: Sequence[CheapestSpan],
    hold_times_s: Sequence[float],
    *,
    title: str,
    entry_bytes: float,
    prompt_len: float,
    reuses: float,
    price_over_cost: float,
    width: int,
) -> Group:
    """Everything that `rackline tiers` prints."""
    head = Text(title, style="bold green")
    head.append(
        f"\na prompt of {short_count(prompt_len)} tokens is {format_bytes(entry_bytes)} of KV "
        f"({format_bytes(entry_bytes / prompt_len)} a token), brought back {reuses:g} times",
        style="not bold",
    )
    return Group(
        head,
        Text(""),
        _spans_table(spans),
        Text(""),
        _hold_times_table(lines, spans, hold_times_s, prompt_len, reuses, price_over_cost, width >= 100),
        Text(""),
        _lines_table(lines, prompt_len),
    )


def _spans_table(spans: Sequence[CheapestSpan]) -> Table:
    table = plain_table("cheapest tier by how long the entry is held")
    for name in ("from", "until", "tier", "kind", "drain time", "back in"):
        table.add_column(name, justify="right" if name in ("from", "until", "drain time", "back in") else "left")
    for span in spans:
        table.add_row(
            format_seconds(span.from_s) if span.from_s else "0",
            format_seconds(span.until_s) if math.isfinite(span.until_s) else _PAST,
            span.cost.name,
            span.cost.tier,
            format_seconds(span.cost.drain_s) if span.cost.drain_s else "-",
            format_seconds(span.cost.fetch_s) if span.cost.fetch_s else "at once",
        )
    return table


def _hold_times_table(
    lines: Sequence[KeepingCost],
    spans: Sequence[CheapestSpan],
    hold_times_s: Sequence[float],
    prompt_len: float,
    reuses: float,
    price_over_cost: float,
    wide: bool,
) -> Table:
    from rackline.pricing import cheapest

    table = plain_table(
        "which tier, and what to charge per million tokens",
        caption=f"prices are {price_over_cost:.3g} times the cost; the rule takes the tier whose drain time is nearest",
    )
    more = ("storage an hour", "rule's tier", "rule costs") if wide else ("rule's tier", "costs")
    for name in ("held", "tier", "write + hold", "each hit", *more):
        table.add_column(name, justify="left" if "tier" in name else "right", no_wrap=True)
    for hold in hold_times_s:
        best, rule = cheapest(spans, hold), tier_by_drain(lines, hold)
        per_token = price_over_cost / prompt_len
        over = float(rule.usd(hold, reuses)) / float(best.usd(hold, reuses))
        table.add_row(
            format_seconds(hold),
            best.name,
            _usd((best.once_usd + best.hold_usd_per_s * hold) * per_token),
            _usd(best.retrieve_usd * per_token),
            *([_usd(best.hold_usd_per_s * 3600.0 * per_token)] if wide else []),
            rule.name,
            "the same" if rule.name == best.name else f"{over:.3g} ×",
        )
    return table


def _lines_table(lines: Sequence[KeepingCost], prompt_len: float) -> Table:
    table = plain_table("bare costs per million tokens", caption="holding in the chip's memory costs the chip's rent")
    for name in ("tier", "write", "hold an hour", "bring back", "drain time", "back in"):
        table.add_column(name, justify="left" if name == "tier" else "right", no_wrap=True)
    for line in sorted(lines, key=lambda line: -line.hold_usd_per_s):
        table.add_row(
            line.name,
            _usd(line.once_usd / prompt_len),
            _usd(line.hold_usd_per_s * 3600.0 / prompt_len),
            _usd(line.retrieve_usd / prompt_len),
            format_seconds(line.drain_s) if line.drain_s else "-",
            format_seconds(line.fetch_s) if line.fetch_s else "at once",
        )
    return table


# ---------------------------------------------------------------------------------------------- reading


_UNITS = {
    "elements": format_count,
    "bytes": format_bytes,
    "tokens": format_count,
    "fraction": format_percent,
    "sequences": format_count,
    "USD": format_usd,
    "s": format_seconds,
}


def _value(inference: Inference, value: float) -> str:
    write = _UNITS.get(inference.unit)
    return write(value) if write else f"{value:.3g}"


def _ends(inference: Inference, low: float, high: float) -> str:
    if low == high:
        prefix = "≥ " if inference.bound == "at least" else ""
        return prefix + _value(inference, low)
    match inference.bound:
        case "at most":
            return f"≤ {_value(inference, high)}"
        case "interval" | "at least":
            return f"{_value(inference, low)} to {_value(inference, high)}"
    assert_never(inference.bound)


def reading_report(reading: Reading, *, width: int) -> Group:
    """One sheet: what it reveals, what it does not, what contradicts."""
    head = Text(f"{reading.sheet}: {reading.sold_as} at {reading.provider}, {reading.date}", style="bold green")
    parts: list[RenderableType] = [head]
    parts += [Text(f"cannot be used: {problem}", style="yellow") for problem in reading.problems]
    parts += [Text(""), _prices_table(reading.prices)]
    parts += [Text(f"does the host earn money? {reading.verdict.text}", style="bold")]
    table = plain_table(
        "what the prices reveal",
        caption="likely: eight of ten combinations of chip, precision, rent, margin, utilisation and efficiency, for a "
        "host that earns money; certain: all of them. These are ranges of assumptions, no confidence intervals",
    )
    table.add_column("quantity", overflow="fold")
    table.add_column("likely", justify="right", no_wrap=True, style="bold")
    table.add_column("certain", justify="right", no_wrap=True, style="dim")
    if width >= 100:
        table.add_column("from", overflow="fold")
    for inference in reading.inferences:
        exact = inference.low == inference.high
        table.add_row(
            inference.quantity if width >= 100 else f"{inference.quantity}\n  {inference.method}",
            _ends(inference, inference.likely_low, inference.likely_high),
            "" if exact else _ends(inference, inference.low, inference.high),
            *([f"{inference.method} ({inference.claim})" if inference.claim else inference.method] * (width >= 100)),
        )
    parts += [Text(""), table]
    for kept in reading.kept_in:
        parts.append(
            Text(
                f"a lifetime of {format_seconds(kept.lifetime_s)} is nearest to the drain time of {kept.rule_tier} "
                f"({format_seconds(kept.rule_drain_s)}) (C121)"
            )
        )
    if reading.fitting_tiers:
        parts.append(
            Text(f"the price of keeping a token fits {', '.join(reading.fitting_tiers)}, by KV bytes from other prices")
        )
    parts += [Text(f"before: {change.name}: {change.text}") for change in reading.changes]
    parts += [Text(f"conflict ({conflict.claims}): {conflict.text}", style="yellow") for conflict in reading.conflicts]
    parts += [Text(f"not revealed: {missing.quantity}: {missing.reason}", style="dim") for missing in reading.missing]
    return Group(*parts)


def _prices_table(prices: Sequence[PriceTier]) -> Table:
    """The sheet itself: prices of each mode and context tier."""
    table = plain_table("prices, $ per million tokens")
    table.add_column("tier", overflow="fold")
    for name in ("prompts above", "input", "cached", "output"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cache", overflow="fold")
    for tier in prices:
        cache = [f"write {write.name} {_usd(write.usd)}" for write in tier.cache_writes]
        if tier.usd_per_mtok_hour_storage is not None:
            cache.append(f"{format_usd(tier.usd_per_mtok_hour_storage)} an hour")
        table.add_row(
            tier.name,
            short_count(tier.above_context_len),
            *("-" if usd is None else _usd(usd) for usd in (tier.input_usd, tier.cached_input_usd, tier.output_usd)),
            ", ".join(cache) or "-",
        )
    return table


def compared_report(rows: Sequence[Compared]) -> Table:
    """Open models: what the prices say against what the models are."""
    table = plain_table(
        "against the open models",
        caption="true KV at one to two bytes per element; the cheapest host is nearest to cost; likely and certain: "
        "hosts whose interval holds the truth",
    )
    table.add_column("model", overflow="fold")
    for name in ("", "true", "cheapest host", "likely", "certain"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        low, high = (_value(row.cheapest, end) for end in (row.truth.low, row.truth.high))
        table.add_row(
            row.model,
            "active" if row.quantity == "active_params" else "KV",
            low if low == high else f"{low} to {high}",
            _ends(row.cheapest, row.cheapest.likely_low, row.cheapest.likely_high),
            f"{row.likely} of {row.hosts}",
            f"{row.certain} of {row.hosts}",
        )
    return table


def readings_table(readings: Sequence[Reading], *, width: int) -> Table:
    """All sheets, a row each: prices, whether the host earns money, likely intervals of the main quantities."""
    table = plain_table(
        f"{len(readings)} price sheets: $ per million tokens, likely intervals",
        caption="eight of ten combinations of the unknowns; earns: share of them in which the host earns money; "
        "show a sheet to read its conflicts",
    )
    table.add_column("sheet", no_wrap=True)
    apart = ("active parameters", "KV bytes per token") if width >= 100 else ("active parameters\nKV bytes per token",)
    for name in ("in", "out", "earns", *apart):
        table.add_column(name, justify="right", no_wrap=True)
    if width >= 140:
        table.add_column("crossover", justify="right", no_wrap=True)
        table.add_column("normal batch", justify="right", no_wrap=True)
    if width >= 100:
        table.add_column("conflicts", justify="right", no_wrap=True)
    for reading in readings:
        first = next((tier for tier in reading.prices if tier.mode == "standard"), None)
        usd = (first.input_usd, first.output_usd) if first else (None, None)
        share = reading.verdict.earning_share
        kv = reading.find("kv_bytes_per_token", "context step") or reading.find("kv_bytes_per_token")
        intervals = [_cell(reading.find("active_params")), _cell(kv)]
        cells = [
            *("-" if price is None else _usd(price) for price in usd),
            "-" if share is None else f"{100 * share:.0f} %",
            *(intervals if width >= 100 else ["\n".join(intervals)]),
        ]
        if width >= 140:
            cells += [_cell(reading.find("crossover_context")), _cell(reading.find("normal_batch"))]
        if width >= 100:
            cells.append(str(len(reading.conflicts)) if reading.conflicts else "-")
        table.add_row(reading.sheet, *cells)
    return table


def _cell(inference: Inference | None) -> str:
    return "-" if inference is None else _ends(inference, inference.likely_low, inference.likely_high)
