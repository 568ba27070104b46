"""The terminal report of what a prompt need not compute: cached prefixes, and media that encoders turn into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.report.column import SECTION, Column, Sheet
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


_COST: tuple[Column[Any], ...] = (
    Column("hit_share", "found", "share"),
    Column("usd_per_mtok_prompt", "$ per M prompt tokens", "USD"),
    Column("saving", "saved", "share"),
)
"""What keeping prefixes in some way gives."""


def _lifetimes(found: KeptPrefixes) -> Sheet[Any]:
    rows = [*found.lifetimes, found.best]
    columns: list[Column[Any]] = [
        Column("", "", getter=lambda row: "cheapest" if row is rows[-1] else ""),
        Column("ttl_s", "lifetime", "s"),
        Column("held_s", "held per token", "s"),
        Column("tier", "tier"),
        *_COST,
    ]
    return Sheet(
        "lifetimes", columns, rows, "kept after each use, in the cheapest tier and as much of it as that needs"
    )


def _staged(found: KeptPrefixes) -> Sheet[Any]:
    columns: list[Column[Any]] = [
        Column("", "", getter=lambda row: "cheapest" if row is found.staged[-1] else ""),
        Column("tier", "tier"),
        Column("until_s", "until", "s"),
        Column("then_tier", "then"),
        Column("ttl_s", "expiry", "s"),
        *_COST,
    ]
    return Sheet(
        "staged", columns, found.staged, "kept in one tier after each use, then in a slower one, the cheapest two"
    )


def _devices(found: KeptPrefixes) -> Sheet[Any]:
    rule = "least recently used" if found.eviction == "lru" else f"eviction {found.eviction.replace('_', '-')}"
    columns: list[Column[Any]] = [
        Column("tier", "tier"),
        Column("capacity_tokens", "tokens", "count"),
        Column("hit_share", "found", "share"),
    ]
    return Sheet("devices", columns, found.devices, f"{rule}, in one device for all of this traffic")


def _bought(found: KeptPrefixes) -> Sheet[Any]:
    columns: list[Column[Any]] = [Column("name", "write"), Column("ttl_s", "lifetime", "s"), *_COST]
    return Sheet("bought", columns, found.bought, "at the prices of the sheet, each prompt written to its end")


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
    """Where the time to the first token goes, then the towers."""
    columns: list[Column[Encoded]] = [
        Column("kind", "tower"),
        Column("items", "items", "whole"),
        Column("", "resized", "figures", lambda one: f"{one.width}x{one.height}" if one.width else "-"),
        Column(
            "patches",
            "patches",
            "figures",
            lambda one: f"{one.sequences} x {one.patches:,}" if one.sequences > 1 else f"{one.patches:,}",
        ),
        Column("tokens_per_item", "tokens", "whole"),
        Column("weight_bytes", "weights", "B"),
        Column("flop", "FLOP", "FLOP"),
        Column("seconds", "time", "s"),
    ]
    told = "each image or clip; FLOP and time of all of them"
    towers = Sheet("towers", columns, found.towers, f"towers of {found.model}", told)
    rows: list[Any] = [(f"{one.kind} encoder", one.seconds, one.seconds / found.ttft_s) for one in found.towers]
    prefill = f"prefill of {found.prompt_tokens:,} tokens"
    rows += [(prefill, found.prefill_s, found.prefill_s / found.ttft_s), SECTION, ("all", found.ttft_s)]
    parts: list[Column[Any]] = [
        Column("part", "part"),
        Column("seconds", "time", "s"),
        Column("share", "share", "share"),
    ]
    told = f"one request alone; without images and sound {format_seconds(found.text_ttft_s)}"
    times = Sheet("ttft", parts, rows, f"time to first token on {found.cluster}, {found.layout}", told)
    return Group(times, Text(""), towers)
