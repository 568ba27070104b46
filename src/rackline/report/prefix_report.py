"""Terminal report of the prefixes of some traffic: hit rates and costs by lifetime, tier and price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.wording import percent, short_count
from rackline.units import format_seconds, format_usd

if TYPE_CHECKING:
    from rackline.pricing.prefixes import KeptPrefixes


def prefixes_report(found: KeptPrefixes) -> Group:
    """What `rackline tiers` prints for traffic that repeats."""
    head = Text(f"\n{found.name}", style="bold green")
    head.append(
        f"\nmean prompt {short_count(found.input_len)} tokens, {percent(found.unlimited_share)} of which came before; "
        f"computing them all costs {format_usd(found.computed_usd_per_mtok)} per M prompt tokens\n",
        style="not bold",
    )
    parts: list[RenderableType] = [head, _lifetimes(found)]
    if found.staged:
        parts += [Text(""), _staged(found)]
    parts += [Text(""), _devices(found)]
    if found.bought:
        parts += [Text(""), _bought(found)]
    return Group(*parts)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = plain_table(title)
    for name in columns:
        table.add_column(name, justify="left" if name in ("tier", "then", "write", "") else "right")
    return table


def _lifetimes(found: KeptPrefixes) -> Table:
    table = _table(
        "kept after each use, in the cheapest tier and as much of it as that needs",
        ("", "lifetime", "found", "held per token", "tier", "$ per M prompt tokens", "saved"),
    )
    for mark, one in [*(("", row) for row in found.lifetimes), ("cheapest", found.best)]:
        table.add_row(
            mark,
            format_seconds(one.ttl_s),
            percent(one.hit_share),
            format_seconds(one.held_s),
            one.tier,
            format_usd(one.usd_per_mtok_prompt),
            percent(one.saving),
        )
    return table


def _staged(found: KeptPrefixes) -> Table:
    table = _table(
        "kept in one tier after each use, then in a slower one, the cheapest two",
        ("", "tier", "until", "then", "expiry", "found", "$ per M prompt tokens", "saved"),
    )
    for place, one in enumerate(found.staged, start=1):
        table.add_row(
            "cheapest" if place == len(found.staged) else "",
            one.tier,
            format_seconds(one.until_s),
            one.then_tier,
            format_seconds(one.ttl_s),
            percent(one.hit_share),
            format_usd(one.usd_per_mtok_prompt),
            percent(one.saving),
        )
    return table


def _devices(found: KeptPrefixes) -> Table:
    rule = "least recently used" if found.eviction == "lru" else f"eviction {found.eviction.replace('_', '-')}"
    table = _table(f"{rule}, in one device for all of this traffic", ("tier", "tokens", "found"))
    for one in found.devices:
        table.add_row(one.tier, short_count(one.capacity_tokens), percent(one.hit_share))
    return table


def _bought(found: KeptPrefixes) -> Table:
    table = _table(
        "at the prices of the sheet, each prompt written to its end",
        ("write", "lifetime", "found", "$ per M prompt tokens", "saved"),
    )
    for one in found.bought:
        table.add_row(
            one.name,
            format_seconds(one.ttl_s),
            percent(one.hit_share),
            format_usd(one.usd_per_mtok_prompt),
            percent(one.saving),
        )
    return table
