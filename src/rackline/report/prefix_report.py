"""The terminal report of what a prompt need not compute: cached prefixes, and media that encoders turn into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group
from rich.text import Text

from rackline.display.column import SECTION, Column, Sheet, spaced, stacked
from rackline.display.wording import Prose, percent, short_count, written
from rackline.search.kept_prefixes import KeptIn, KeptPrefixes, ServedSessions
from rackline.system import Constraints
from rackline.units import format_bytes, format_seconds, format_usd

if TYPE_CHECKING:
    from rackline.pricing import prefixes

_COST: tuple[Column[Any], ...] = (
    Column("hit_share", "found", "share"),
    Column("usd_per_mtok_prompt", "$ per M prompt tokens", "USD"),
    Column("saving", "saved", "share"),
)
"""What keeping prefixes in some way gives."""


def prefixes_report(found: prefixes.KeptPrefixes) -> Group:
    """What `rackline tiers` prints for traffic that repeats."""
    head = Text.assemble(
        (f"\n{found.name}", "bold green"),
        (
            f"\nmean prompt {short_count(found.input_len)} tokens, {percent(found.unlimited_share)} of which came "
            f"before; computing them all costs {format_usd(found.computed_usd_per_mtok)} per M prompt tokens",
            "green",
        ),
    )
    lifetimes = [*found.lifetimes, found.best]
    tables: tuple[Sheet[Any], ...] = (
        Sheet(
            "lifetimes",
            [
                Column("", "", getter=lambda row: "cheapest" if row is lifetimes[-1] else ""),
                Column("ttl_s", "lifetime", "s"),
                Column("held_s", "held per token", "s"),
                Column("tier", "tier"),
                *_COST,
            ],
            lifetimes,
            "kept after each use, in the cheapest tier and as much of it as that needs",
        ),
        Sheet(
            "staged",
            [
                Column("", "", getter=lambda row: "cheapest" if row is found.staged[-1] else ""),
                Column("tier", "tier"),
                Column("until_s", "until", "s"),
                Column("then_tier", "then"),
                Column("ttl_s", "expiry", "s"),
                *_COST,
            ],
            found.staged,
            "kept in one tier after each use, then in a slower one, the cheapest two",
        ),
        Sheet(
            "devices",
            [Column("tier", "tier"), Column("capacity_tokens", "tokens", "count"), _COST[0]],
            found.devices,
            f"{_rule(found.eviction, 'least recently used')}, in one device for all of this traffic",
        ),
        Sheet(
            "bought",
            [Column("name", "write"), Column("ttl_s", "lifetime", "s"), *_COST],
            found.bought,
            "at the prices of the sheet, each prompt written to its end",
        ),
    )
    return spaced([head, *(one for one in tables if one.rows or one.name == "devices")])


_RECENCY = "lru"


def _rule(eviction: str, recency: str) -> str:
    """Which prefix leaves first, in words; `recency` where that is the least recently used."""
    return recency if eviction == _RECENCY else f"eviction {eviction.replace('_', '-')}"


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
    passes = [(f"{one.kind} encoder", one.seconds) for one in found.towers]
    passes.append((f"prefill of {found.prompt_tokens:,} tokens", found.prefill_s))
    times: Sheet[Any] = Sheet(
        "ttft",
        [Column("part", "part"), Column("seconds", "time", "s"), Column("share", "share", "share")],
        [*((name, taken, taken / found.ttft_s) for name, taken in passes), SECTION, ("all", found.ttft_s)],
        f"time to first token on {found.cluster}, {found.layout}",
        f"one request alone; without images and sound {format_seconds(found.text_ttft_s)}",
    )

    def patches(one: Encoded) -> str:
        return f"{one.sequences} x {one.patches:,}" if one.sequences > 1 else f"{one.patches:,}"

    towers: Sheet[Encoded] = Sheet(
        "towers",
        [
            Column("kind", "tower"),
            Column("items", "items", "whole"),
            Column("", "resized", "figures", lambda one: f"{one.width}x{one.height}" if one.width else "-"),
            Column("patches", "patches", "figures", patches),
            Column("tokens_per_item", "tokens", "whole"),
            Column("weight_bytes", "weights", "B"),
            Column("flop", "FLOP", "FLOP"),
            Column("seconds", "time", "s"),
        ],
        found.towers,
        f"towers of {found.model}",
        "each image or clip; FLOP and time of all of them",
    )
    return spaced([times, towers])


def kept_report(found: KeptPrefixes, limits: Constraints, *, full: bool) -> Group:
    """What `rackline plan` prints of prompts that repeat.

    Args:
        limits: of the plan.
        full: with what each memory holds and reads, where there is one alone as well.
    """
    head = Text.assemble(
        ("\nprefixes", "bold italic"),
        f"  {found.name}: mean prompt {short_count(found.input_len)} tokens, {percent(found.hit_share)} of them found "
        f"(planned at {percent(found.assumed_hit_share)}; {percent(found.unlimited_share)} came before)",
    )
    fastest, *behind = found.tiers
    several = full or behind or fastest.ttl_s is not None
    memories = _tiers(found, full=full) if several else Prose(_alone(found, fastest), style="dim")
    return stacked(Prose(head), memories, Prose(_check(found, limits), style="dim"))


def _kept(found: KeptPrefixes, tier: KeptIn) -> str:
    if tier.kept_s is not None:
        return format_seconds(tier.kept_s)
    return "forever" if found.eviction == _RECENCY and tier.ttl_s is None else "-"


def _alone(found: KeptPrefixes, tier: KeptIn) -> str:
    stays = "" if tier.kept_s is None else f"a prefix stays {_kept(found, tier)} after its last use; "
    return (
        f"{tier.name} alone: {stays}{format_bytes(tier.held_bytes)} of "
        f"{format_bytes(tier.capacity_bytes)} a chip (--tier adds host memory or flash, --cache-ttl an expiry)"
    )


def _tiers(found: KeptPrefixes, *, full: bool) -> Sheet[KeptIn]:
    def behind(key: str, title: str, unit: str) -> Column[KeptIn]:
        return Column(key, title, unit, lambda tier: None if tier is found.tiers[0] else getattr(tier, key))

    columns: list[Column[KeptIn]] = [
        Column("name", "memory"),
        Column("ttl_s", "expiry", "s"),
        Column("kept_s", "kept for", "figures", lambda tier: _kept(found, tier)),
        Column("hit_share", "found", "share"),
        Column("held_bytes", "held", "B"),
        Column("capacity_bytes", "room", "B"),
        behind("load_s", "load", "s"),
    ]
    if full:
        columns += [behind("read_bytes_per_s", "read back", "B/s"), behind("link_share", "of link", "share")]
        if any(tier.usd_per_hour is not None for tier in found.tiers):
            columns.append(Column("usd_per_hour", "$ an hour", "USD", lambda tier: tier.usd_per_hour or None))
    title = "memories of a chip, by Che's approximation" if found.is_estimated else "memories of a chip"
    return Sheet("kept_in", columns, found.tiers, title=title)


def _check(found: KeptPrefixes, limits: Constraints) -> str:
    """What the simulation of the sessions found, or why there is none."""
    rule = _rule(found.eviction, "the least recently used leaves first")
    sticky = f"prompts with a common prefix come to one rank; {rule}"
    if found.simulated is None:
        return f"not simulated ({found.not_simulated}); {sticky}"
    one, over = found.simulated, _over(found.simulated, limits)
    return (
        f"{one.requests:,} requests of the sessions served by one replica: {percent(one.hit_share)} found, first token "
        f"{format_seconds(one.ttft_s.mean)} (p99 {format_seconds(one.ttft_s.p99)}), per output token "
        f"{format_seconds(one.tpot_s.mean)}; {sticky}" + (f"; beyond the limit of {over}" if over else "")
    )


def _over(one: ServedSessions, limits: Constraints) -> str:
    """Limits that the sessions exceed, by how much."""
    measured = {"ttft_s": one.ttft_s, "tpot_s": one.tpot_s}
    names = {"ttft_s": "the time to first token", "tpot_s": "the time per output token"}
    parts = [
        f"{names[name]}, {written(measured[name].at(place) / limit)} times"
        for name, limit, place in limits.latencies()
        if measured[name].at(place) > limit
    ]
    return " and ".join(parts)
