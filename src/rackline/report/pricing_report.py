"""Terminal reports of price sheets, made and read: tables of tiers, caches, intervals and conflicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rich.console import Group
from rich.text import Text

from rackline.display.column import SECTION, Column, Sheet, spaced, stacked
from rackline.display.wording import Prose, composed, percent, short_count, written
from rackline.hardware import on_demand_usd
from rackline.pricing import (
    CheapestSpan,
    Compared,
    Inference,
    KeepingCost,
    Offered,
    PriceTier,
    Reading,
    SoldTier,
    Terms,
    tier_by_drain,
)
from rackline.pricing.offered import Demand
from rackline.report.choice_report import asked_of_fleet
from rackline.units import format_bytes, format_count, format_percent, format_seconds, format_usd, format_watts, plural

R = TypeVar("R")
_PAST = "past that"


def _mtok(per_token: float | None) -> float | None:
    """USD of a million tokens; None where there is no price."""
    return per_token * 1e6 if per_token is not None and math.isfinite(per_token) else None


def _label(tier: SoldTier) -> str:
    return f"{tier.name.split(' above')[0]} to {short_count(tier.until_len)}"


def offered_report(offered: Offered) -> Group:
    """Everything that `rackline price` prints."""
    d, terms, rent = offered.deployment, offered.terms, offered.rent
    kind = f" ({rent.kind})" if rent.kind else ""
    usd = on_demand_usd(d.cluster.chip, rent.usd_per_chip_hour) if d else None
    a_chip = f"{format_usd(rent.usd_per_chip_hour)} a chip-hour{kind}"
    a_chip += "" if usd is None else f", {format_usd(usd)} on demand"
    head = composed(
        (f"{d.model.name} on {d.cluster.name}" if d else "nothing can be sold", "bold green"),
        (
            f"\n{rent.how} {a_chip} · margin {percent(terms.margin)} · utilisation "
            f"{percent(terms.utilisation)}: prices are {written(terms.price_over_cost)} times the cost at "
            f"full use, batch and flex fill hours that are left over\n{_energy(offered)}",
            "green",
        ),
    )
    warned = [f"{tiers}: {why}" for why, tiers in _by(offered, lambda tier: tier.reason).items()]
    below = ", ".join(
        f"{_label(tier)} by {percent(-tier.margin_at_longest)}"
        for tier in offered.tiers
        if tier.margin_at_longest is not None and tier.margin_at_longest < -0.0005
    )
    if below:
        said = f"requests with the longest prompt are sold below their cost: {below}; with margin at longest"
        warned.append(f"{said} (--margin-at longest) no prompt is")
    prices = stacked(
        _tiers_table(offered),
        *(Text(line, style="yellow") for line in warned),
        *(Text(sentence) for sentence in offered.coincide),
    )
    media = ", ".join(f"{format_usd(one.usd)} in prompts to {short_count(one.until_len)}" for one in offered.media)
    if offered.media:
        first = offered.media[0]
        each = f"{first.tokens:,} input tokens and {format_seconds(first.encoder_chip_s)} of a chip for encoders"
        media = f"images and sound of a request: {each}; {media}"
    means = ", ".join(
        f"{short_count(tier.way.lengths.mean)} to {short_count(tier.until_len)}"
        for tier in offered.tiers
        if tier.mode == "standard" and tier.way is not None
    )
    return stacked(
        spaced(
            [
                head,
                prices,
                Sheet(
                    "served",
                    [Column("layout", "layout", "words"), Column("tiers", "modes and tiers", "words")],
                    [*_by(offered, _way).items()],
                    title="served in the cheapest way",
                ),
                _cache_table(offered) if offered.caches else None,
                Text(media) if offered.media else None,
            ]
        ),
        Text(f"the margin is earned over {offered.terms.lengths}; on average {means} tokens", style="dim"),
    )


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


def _by(offered: Offered, of: Callable[[SoldTier], str]) -> dict[str, str]:
    """Modes and tiers by what they have in common; those without it are left out."""
    found: dict[str, list[str]] = {}
    for tier in offered.tiers:
        if said := of(tier):
            found.setdefault(said, []).append(_label(tier))
    return {said: ", ".join(labels) for said, labels in found.items()}


def _way(tier: SoldTier) -> str:
    """Layout, precision and scheduler; empty where a tier is not sold."""
    way, deployment = tier.way, tier.deployment
    if way is None or deployment is None:
        return ""
    layout = replace(deployment.layout, dp=1).label()
    if way.prefill is not None:
        layout = f"prefill {replace(way.prefill.deployment.layout, dp=1).label()}, decode {layout}"
    return f"{layout} · {deployment.precision.short()} · {way.scheduler}"


def _energy(offered: Offered) -> str:
    """Power, PUE, and the energy of the first tier in kWh and dollars."""
    rent = offered.rent
    sold = next((tier for tier in offered.tiers if not tier.reason), None)
    power = sold.way.power if sold and sold.way else None
    if power is None:
        return "energy: nothing is known of the power of these chips"
    if power.basis == "nameplate":
        text = f"energy: {format_watts(power.wall_w)} per chip with host, network and cooling, by the nameplate"
    else:
        text = f"energy: {format_watts(power.chip_w)} per chip that serves, {format_watts(power.wall_w)} with its "
        text += f"machine, PUE {rent.pue:.3g}{'' if power.basis == 'kernels' else ', power of other generations'}"
    if sold is None or sold.kwh_per_mtok_input is None or sold.kwh_per_mtok_output is None:
        return text
    text += f": {written(sold.kwh_per_mtok_input)} kWh a M input, {written(sold.kwh_per_mtok_output)} kWh a M output"
    if rent.usd_per_kwh is not None:
        usd = [format_usd(kwh * rent.usd_per_kwh) for kwh in (sold.kwh_per_mtok_input, sold.kwh_per_mtok_output)]
        text += f", {usd[0]} and {usd[1]} of the price at {format_usd(rent.usd_per_kwh)} a kWh"
    return text


def _tiers_table(offered: Offered) -> Sheet[Any]:
    modes = dict.fromkeys(tier.mode for tier in offered.tiers)
    rows: list[Any] = [row for mode in modes for row in (SECTION, *(one for one in offered.tiers if one.mode == mode))]

    def sold(
        key: str, title: str, unit: str, priority: int = 0, *, scale: float = 1.0, style: str = ""
    ) -> Column[SoldTier]:
        def value(tier: SoldTier) -> float | None:
            found = None if tier.reason else getattr(tier, key)
            return None if found is None or not math.isfinite(found) else found * scale

        return Column(key, title, unit, value, priority=priority, style=style)

    return Sheet(
        "tiers",
        [
            Column("name", "mode", getter=lambda tier: tier.name.split(" above")[0]),
            Column("until_len", "prompts to", "figures", lambda tier: short_count(tier.until_len)),
            sold("input_usd", "input", "USD", scale=1e6, style="bold"),
            sold("cached_input_usd", "cached", "USD", scale=1e6),
            sold("output_usd", "output", "USD", scale=1e6, style="bold"),
            sold("batch_size", "batch", "whole"),
            sold("tpot_s", "tpot", "s"),
            sold("margin", "margin", "share", 1),
            sold("margin_at_longest", "at the longest", "share", 1),
            sold("kwh_per_mtok_input", "kWh in", "1", 2),
            sold("kwh_per_mtok_output", "out", "1", 2),
        ],
        rows[1:],
        title="$ per million tokens",
    )


def _cache_table(offered: Offered) -> Sheet[Any]:
    storage, terms = offered.storage_usd_per_mtok_hour, offered.terms
    told = "storage in the tier of the longest lifetime"
    return Sheet(
        "caches",
        [
            Column("lifetime_s", "lifetime", "s"),
            Column("tier", "kept in"),
            Column("write_usd", "write", "USD", lambda cache: _mtok(cache.write_usd)),
            Column("hold_usd", "of that holding", "USD", lambda cache: _mtok(cache.hold_usd * terms.price_over_cost)),
            Column("saves", "one hit saves, ×", "1"),
        ],
        offered.caches,
        "cache writes, $ per million tokens",
        ("" if storage is None else f"{told}: {format_usd(storage)} per M·hour"),
    )


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
) -> Group:
    """Everything that `rackline tiers` prints."""
    prompt = f"a prompt of {short_count(prompt_len)} tokens is {format_bytes(entry_bytes)} of KV"
    each = f"({format_bytes(entry_bytes / prompt_len)} a token), brought back {reuses:g} {plural(reuses, 'time')}"
    return spaced(
        [
            composed((title, "bold green"), (f"\n{prompt} {each}", "green")),
            Sheet(
                "spans",
                [
                    Column("from_s", "from", "s", lambda span: span.from_s or "0"),
                    Column("until_s", "until", "s", lambda one: one.until_s if math.isfinite(one.until_s) else _PAST),
                    Column("cost.name", "tier"),
                    Column("cost.tier", "kind", priority=1),
                    Column("cost.drain_s", "drain time", "s", lambda span: span.cost.drain_s or None),
                    Column("cost.fetch_s", "back in", "s", lambda span: span.cost.fetch_s or "at once"),
                ],
                spans,
                title="cheapest tier by how long the entry is held",
            ),
            _hold_times_table(lines, spans, hold_times_s, prompt_len, reuses, price_over_cost),
            _lines_table(lines, prompt_len),
        ]
    )


def _hold_times_table(
    lines: Sequence[KeepingCost],
    spans: Sequence[CheapestSpan],
    hold_times_s: Sequence[float],
    prompt_len: float,
    reuses: float,
    price_over_cost: float,
) -> Sheet[Any]:
    from rackline.pricing import cheapest

    rows: list[dict[str, Any]] = []
    for hold in hold_times_s:
        best, rule = cheapest(spans, hold), tier_by_drain(lines, hold)
        per_token = price_over_cost / prompt_len
        over = float(rule.usd(hold, reuses)) / float(best.usd(hold, reuses))
        rows.append(
            {
                "hold_time_s": hold,
                "tier": best.name,
                "write_usd": _mtok((best.once_usd + best.hold_usd_per_s * hold) * per_token),
                "retrieve_usd": _mtok(best.retrieve_usd * per_token),
                "storage_usd_per_hour": _mtok(best.hold_usd_per_s * 3600.0 * per_token),
                "rule_tier": rule.name,
                "rule_over_best": "the same" if rule.name == best.name else over,
            }
        )
    return Sheet(
        "hold_times",
        [
            Column("hold_time_s", "held", "s"),
            Column("tier", "tier"),
            Column("write_usd", "write + hold", "USD"),
            Column("retrieve_usd", "each hit", "USD"),
            Column("storage_usd_per_hour", "storage an hour", "USD", priority=1),
            Column("rule_tier", "rule's tier"),
            Column("rule_over_best", "rule costs, ×", "1"),
        ],
        rows,
        "which tier, and what to charge per million tokens",
        f"prices are {written(price_over_cost)} times the cost; the rule takes the tier whose drain time is nearest",
    )


def _lines_table(lines: Sequence[KeepingCost], prompt_len: float) -> Sheet[KeepingCost]:
    def cost(key: str, title: str, scale: float = 1.0) -> Column[KeepingCost]:
        return Column(key, title, "USD", lambda line: _mtok(getattr(line, key) * scale / prompt_len))

    return Sheet(
        "costs",
        [
            Column("name", "tier"),
            cost("once_usd", "write"),
            cost("hold_usd_per_s", "hold an hour", 3600.0),
            cost("retrieve_usd", "bring back"),
            Column("drain_s", "drain time", "s", lambda line: line.drain_s or None),
            Column("fetch_s", "back in", "s", lambda line: line.fetch_s or "at once"),
        ],
        sorted(lines, key=lambda line: -line.hold_usd_per_s),
        "bare costs per million tokens",
        "holding in the chip's memory costs the chip's rent",
    )


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


_AT_ONE_SIDE = {"at least": "≥ "}


def _value(inference: Inference, value: float) -> str:
    return _UNITS.get(inference.unit, written)(value)


def _ends_columns(
    find: Callable[[R], Inference | None], name: str, *, likely: bool, title: str = "", priority: int = 0
) -> list[Column[R]]:
    """Both ends of an interval as two columns; one that is known exactly, or bounded at one side, stands once.

    Args:
        find: the quantity of a row.
        name: of the quantity, for keys.
        likely: whether it is the likely interval or the certain one.
        title: above the first of them.
        priority: of both.
    """

    def ends(row: R) -> tuple[str, str]:
        one = find(row)
        if one is None:
            return "-", "-"
        low, high = (one.likely_low, one.likely_high) if likely else (one.low, one.high)
        if low == high or one.bound == "at most":
            sign = "≤ " if low != high else _AT_ONE_SIDE.get(one.bound, "")
            return "", f"{sign}{_value(one, high)}"
        return _value(one, low), _value(one, high)

    key, style = (f"{name}likely_", "") if likely else (name, "dim")
    first = title or ("likely" if likely else "certain")
    return [
        Column(f"{key}low", first, "figures", lambda row: ends(row)[0], style=style, priority=priority),
        Column(f"{key}high", "to", "figures", lambda row: ends(row)[1], style=style, priority=priority),
    ]


def reading_report(reading: Reading) -> Group:
    """One sheet: what it reveals, what it does not, what contradicts."""
    told = "likely: eight of ten combinations of chip, precision, rent, margin, utilisation and efficiency, for a host "
    told += "that earns money; certain: all of them. These are ranges of assumptions, no confidence intervals"
    revealed: Sheet[Inference] = Sheet(
        "inferences",
        [
            Column("quantity", "quantity", "words", lambda one: one.quantity.removesuffix("_s").replace("_", " ")),
            *_ends_columns(lambda one: one, "", likely=True),
            *_ends_columns(lambda one: one, "", likely=False),
            Column("method", "from", "words", lambda one: f"{one.method} ({one.claim})" if one.claim else one.method),
        ],
        reading.inferences,
        "what the prices reveal",
        told,
    )
    head = stacked(
        Text(f"{reading.sheet}: {reading.sold_as} at {reading.provider}, {reading.date}", style="bold green"),
        *(Prose(f"cannot be used: {problem}", style="yellow") for problem in reading.problems),
        Prose(f"does the host earn money? {reading.verdict.text}", style="bold"),
    )
    fitting = f"the price of keeping a token fits {', '.join(reading.fitting_tiers)}, by KV bytes from other prices"
    return Group(
        *(part for table in (head, revealed, _prices_table(reading.prices)) for part in (table, Text(""))),
        *(
            Prose(
                f"a lifetime of {format_seconds(kept.lifetime_s)} is nearest to the drain time of {kept.rule_tier} "
                f"({format_seconds(kept.rule_drain_s)}) (C121)"
            )
            for kept in reading.kept_in
        ),
        *([Prose(fitting)] if reading.fitting_tiers else []),
        *(Prose(f"before: {change.name}: {change.text}") for change in reading.changes),
        *(Prose(f"conflict ({one.claims}): {one.text}", style="yellow") for one in reading.conflicts),
        *(Prose(f"not revealed: {missing.quantity}: {missing.reason}", style="dim") for missing in reading.missing),
    )


def _prices_table(prices: Sequence[PriceTier]) -> Sheet[PriceTier]:
    """The sheet itself: prices of each mode and context tier."""

    def cache(tier: PriceTier) -> str:
        said = [f"write {write.name} {format_usd(write.usd * 1e6)}" for write in tier.cache_writes]
        if tier.usd_per_mtok_hour_storage is not None:
            said.append(f"{format_usd(tier.usd_per_mtok_hour_storage)} an hour")
        return ", ".join(said) or "-"

    def price(key: str, title: str) -> Column[PriceTier]:
        return Column(key, title, "USD", lambda tier: _mtok(getattr(tier, key)))

    return Sheet(
        "prices",
        [
            Column("name", "tier"),
            Column("above_context_len", "prompts above", "figures", lambda tier: short_count(tier.above_context_len)),
            price("input_usd", "input"),
            price("cached_input_usd", "cached"),
            price("output_usd", "output"),
            Column("cache", "cache", "words", cache),
        ],
        prices,
        title="prices, $ per million tokens",
    )


def compared_report(rows: Sequence[Compared]) -> Sheet[Compared]:
    """Open models: what the prices say against what the models are."""

    def truth(row: Compared) -> str:
        low, high = (_value(row.cheapest, end) for end in (row.truth.low, row.truth.high))
        return low if low == high else f"{low} to {high}"

    told = "true KV at one to two bytes per element; the cheapest host is nearest to cost; likely and certain: hosts "
    told += "whose interval holds the truth"
    return Sheet(
        "against_open_models",
        [
            Column("model", "model"),
            Column("quantity", "", getter=lambda row: "active" if row.quantity == "active_params" else "KV"),
            Column("truth", "true", "figures", truth),
            *_ends_columns(lambda row: row.cheapest, "cheapest.", likely=True, title="cheapest host"),
            Column("likely", "likely", "figures", lambda row: f"{row.likely} of {row.hosts}"),
            Column("certain", "certain", "figures", lambda row: f"{row.certain} of {row.hosts}"),
        ],
        rows,
        "against the open models",
        told,
    )


def readings_table(readings: Sequence[Reading]) -> Sheet[Reading]:
    """All sheets, a row each: prices, whether the host earns money, likely intervals of the main quantities."""

    def price(key: str, title: str) -> Column[Reading]:
        def value(reading: Reading) -> float | None:
            first = next((tier for tier in reading.prices if tier.mode == "standard"), None)
            return None if first is None else _mtok(getattr(first, key))

        return Column(key, title, "USD", value)

    def of(name: str, title: str, priority: int, method: str = "") -> list[Column[Reading]]:
        def find(reading: Reading) -> Inference | None:
            return (reading.find(name, method) if method else None) or reading.find(name)

        return _ends_columns(find, f"{name}.", likely=True, title=title, priority=priority)

    told = "eight of ten combinations of the unknowns; earns: share of them in which the host earns money; show a "
    told += "sheet to read its conflicts"
    title = f"{len(readings)} price sheets: $ per million tokens, likely intervals"
    return Sheet(
        "readings",
        [
            Column("sheet", "sheet"),
            price("input_usd", "in"),
            price("output_usd", "out"),
            Column("earning_share", "earns", "share", "verdict.earning_share", priority=2),
            *of("active_params", "active", 0),
            *of("kv_bytes_per_token", "KV of a token", 1, "context step"),
            *of("crossover_context", "crossover", 4),
            *of("normal_batch", "normal batch", 5),
            Column("conflicts", "conflicts", "whole", lambda reading: len(reading.conflicts) or None, priority=3),
        ],
        readings,
        title,
        told,
    )
