"""Tables of the lecture over the whole catalogue: ridge points and drain times, caches and crossovers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rackline.catalog.objects import from_record
from rackline.hardware import MemoryTier, MemoryTierRecord
from rackline.plain import follow
from rackline.report.column import Column, Sheet
from rackline.report.wording import short_count
from rackline.serving.curve import CacheOfModel, Ridge


def ridge_table(ridges: Sequence[Ridge]) -> Sheet[Mapping[str, Ridge]]:
    """One line per chip: FLOP per byte and R by data type, time to read the memory once."""
    chips: dict[str, dict[str, Ridge]] = {}
    for ridge in ridges:
        width = "16 bit" if ridge.dtype in ("bf16", "fp16") else ridge.dtype
        chips.setdefault(ridge.chip, {})[width] = ridge
    widths = ("16 bit", "fp8", "fp4")

    def of(key: str, width: str, title: str) -> Column[Mapping[str, Ridge]]:
        return Column(f"{width}.{key}", title, "whole", lambda row: follow(row.get(width), key))

    columns: list[Column[Mapping[str, Ridge]]] = [
        Column("chip", "chip", getter=lambda row: next(iter(row.values())).chip),
        *(of("flop_per_byte", width, width) for width in widths),
        *(of("ridge", width, f"R {width}") for width in widths),
        Column("drain_s", "drain", "s", lambda row: next(iter(row.values())).drain_s),
    ]
    caption = "FLOP/byte, then R: multiplies per weight read, the balance batch of a dense model"
    return Sheet("ridge", columns, list(chips.values()), "ridge points", caption)


def cache_table(caches: Sequence[CacheOfModel], *, on: str, dtype: str) -> Sheet[CacheOfModel]:
    """One line per model: cache of a token and of long sequences, crossover context, balance batch."""

    def of(part: str, key: Any, title: str, priority: int = 0) -> Column[CacheOfModel]:
        return Column(f"{part}.{key}", title, "B", lambda cache: getattr(cache, part)[key], priority=priority)

    types = list(caches[0].kv_bytes_per_token) if caches else []
    contexts = list(caches[0].kv_bytes) if caches else []
    columns: list[Column[CacheOfModel]] = [
        Column("model", "model"),
        *(of("kv_bytes_per_token", each, f"{each}/token", 4 if place else 0) for place, each in enumerate(types)),
        Column("state_bytes", "state", "B", lambda cache: cache.state_bytes or None, priority=5),
        *(of("kv_bytes", each, f"at {short_count(each)}", 3 - place) for place, each in enumerate(contexts)),
        Column("crossover_context", "crossover", "count", lambda cache: _crossover(cache.crossover_context)),
        Column("balance_batch", "balance", "whole"),
    ]
    caption = f"crossover and balance batch on {on} in {dtype}; what a window, a choice or a state saves is in it"
    return Sheet("caches", columns, caches, "KV cache by model", caption)


def _crossover(context: float) -> float | str:
    if math.isinf(context):
        return "never"
    return context or "states"  # reading the states alone takes longer


def memory_table(records: Sequence[MemoryTierRecord]) -> Sheet[MemoryTier]:
    """One line a memory tier, fastest first."""
    tiers = [from_record(MemoryTier, record) for record in records]
    columns: list[Column[MemoryTier]] = [
        Column("name", "name"),
        Column("tier", "tier"),
        Column("full_name", "is", priority=3),
        Column("capacity_bytes", "capacity", "B"),
        Column("bytes_per_s", "bandwidth", "B/s"),
        Column("latency_s", "latency", "s", priority=2),
        Column("drain_s", "drain", "s", lambda tier: tier.capacity_bytes / tier.bytes_per_s),
        Column("usd_per_gb", "$/GB", "USD", lambda tier: tier.usd_per_byte * 1e9 if tier.usd_per_byte else None),
        Column("usd_per_hour", "$/h", "USD", lambda tier: tier.usd_per_hour or None, priority=1),
    ]
    tiers.sort(key=lambda each: -each.bytes_per_s / each.capacity_bytes)
    return Sheet("memory", columns, tiers, "memory tiers", "one unit each; drain is capacity over bandwidth")
