"""Terminal report of the prefixes that a planned deployment keeps: hit rates by memory, what is held and read back."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.report.column import Column, Sheet
from rackline.report.wording import Prose, percent, short_count, written
from rackline.search.kept_prefixes import KeptIn, KeptPrefixes, ServedSessions
from rackline.system import Constraints
from rackline.units import format_bytes, format_seconds

_RECENCY = "lru"


def kept_report(found: KeptPrefixes, limits: Constraints, *, full: bool) -> Group:
    """What `rackline plan` prints of prompts that repeat.

    Args:
        limits: of the plan.
        full: with what each memory holds and reads, where there is one alone as well.
    """
    head = Text("\nprefixes", style="bold italic")
    head.append(
        f"  {found.name}: mean prompt {short_count(found.input_len)} tokens, {percent(found.hit_share)} of them found "
        f"(planned at {percent(found.assumed_hit_share)}; {percent(found.unlimited_share)} came before)",
        style="not bold not italic",
    )
    parts: list[RenderableType] = [Prose(head)]
    fastest, *behind = found.tiers
    if full or behind or fastest.ttl_s is not None:
        parts.append(_tiers(found, full=full))
    else:
        parts.append(Prose(_alone(found, fastest), style="dim"))
    parts.append(Prose(_check(found, limits), style="dim"))
    return Group(*parts)


def _kept(found: KeptPrefixes, tier: KeptIn) -> str:
    if tier.kept_s is not None:
        return format_seconds(tier.kept_s)
    return "forever" if found.eviction == _RECENCY and tier.ttl_s is None else "-"


def _rule(found: KeptPrefixes) -> str:
    name = found.eviction.replace("_", "-")
    return "the least recently used leaves first" if found.eviction == _RECENCY else f"eviction {name}"


def _alone(found: KeptPrefixes, tier: KeptIn) -> str:
    stays = "" if tier.kept_s is None else f"a prefix stays {_kept(found, tier)} after its last use; "
    return (
        f"{tier.name} alone: {stays}{format_bytes(tier.held_bytes)} of "
        f"{format_bytes(tier.capacity_bytes)} a chip (--tier adds host memory or flash, --cache-ttl an expiry)"
    )


def _tiers(found: KeptPrefixes, *, full: bool) -> RenderableType:
    fastest = found.tiers[0]

    def behind(key: str, title: str, unit: str) -> Column[KeptIn]:
        return Column(key, title, unit, lambda tier: None if tier is fastest else getattr(tier, key))

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
    sticky = f"prompts with a common prefix come to one rank; {_rule(found)}"
    if found.simulated is None:
        return f"not simulated ({found.not_simulated}); {sticky}"
    one = found.simulated
    text = (
        f"{one.requests:,} requests of the sessions served by one replica: {percent(one.hit_share)} found, first token "
        f"{format_seconds(one.ttft_s.mean)} (p99 {format_seconds(one.ttft_s.p99)}), per output token "
        f"{format_seconds(one.tpot_s.mean)}; {sticky}"
    )
    over = _over(one, limits)
    return f"{text}; beyond the limit of {over}" if over else text


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
