"""The terminal report of what a prompt need not compute: cached prefixes, and media that encoders turn into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.wording import flop, percent, short_count
from rackline.units import format_bytes, format_seconds, format_usd

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The pass of one tower for one request.

    Args:
        kind: "vision" or "audio".
        items: images or clips [count].
        width, height: of an image after resizing [pixels].
        sequences: parts of each that attend to themselves alone [count].
        patches: tokens of the encoder in each part [tokens].
        tokens_per_item: tokens of the prompt for each [tokens].
        total_params: of the tower [count].
        weight_bytes: of the tower on all chips of a replica [B].
        activation_bytes: largest of the pass: inputs and outputs of the widest product [B].
        flop: of all of them [FLOP].
        seconds: of the pass [s].
        binds: what it is limited by.
    """

    kind: Literal["vision", "audio"]
    items: int
    width: int
    height: int
    sequences: int
    patches: int
    tokens_per_item: int
    total_params: int
    weight_bytes: float
    activation_bytes: float
    flop: float
    seconds: float
    binds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A request with images or sound, alone on a server.

    Args:
        model: its name.
        cluster: its name.
        layout: parallel degrees of the language model, which the tower shares.
        towers: passes of the encoders.
        prompt_tokens: text and encoded tokens together [tokens].
        prefill_s: of the language model on them [s].
        ttft_s: encoders and prefill, without waiting [s].
        text_ttft_s: the same prompt without images and sound [s].
    """

    model: str
    cluster: str
    layout: str
    towers: tuple[Encoded, ...]
    prompt_tokens: int
    prefill_s: float
    ttft_s: float
    text_ttft_s: float


def encode_report(found: Encoding) -> Group:
    """Towers, then where the time to the first token goes."""
    towers = plain_table(f"towers of {found.model}", caption="each image or clip; FLOP and time of all of them")
    for name in ("tower", "items", "resized", "patches", "tokens", "weights", "FLOP", "time"):
        towers.add_column(name, justify="left" if name == "tower" else "right", no_wrap=True)
    for one in found.towers:
        towers.add_row(
            one.kind,
            str(one.items),
            f"{one.width}x{one.height}" if one.width else "-",
            f"{one.sequences} x {one.patches:,}" if one.sequences > 1 else f"{one.patches:,}",
            f"{one.tokens_per_item:,}",
            format_bytes(one.weight_bytes),
            flop(one.flop),
            format_seconds(one.seconds),
        )
    times = plain_table(
        f"time to first token on {found.cluster}, {found.layout}",
        caption=f"one request alone; without images and sound {format_seconds(found.text_ttft_s)}",
    )
    for name in ("part", "time", "share"):
        times.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    for one in found.towers:
        times.add_row(f"{one.kind} encoder", format_seconds(one.seconds), percent(one.seconds / found.ttft_s))
    times.add_row(
        f"prefill of {found.prompt_tokens:,} tokens",
        format_seconds(found.prefill_s),
        percent(found.prefill_s / found.ttft_s),
    )
    times.add_section()
    times.add_row("all", format_seconds(found.ttft_s), "", style="bold")
    return Group(towers, Text(""), times)
