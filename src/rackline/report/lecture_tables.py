"""Tables of the lecture over the whole catalogue: ridge points and drain times, caches and crossovers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from rackline.catalog.objects import from_record
from rackline.hardware import MemoryTier, MemoryTierRecord
from rackline.report.breakdown import plain_table
from rackline.report.wording import short_count
from rackline.serving.crossover import CacheOfModel, Ridge
from rackline.units import format_bytes, format_rate, format_seconds


def ridge_table(ridges: Sequence[Ridge]) -> Table:
    """One line per chip: FLOP per byte and R by data type, time to read the memory once."""
    table = plain_table(
        "ridge points", caption="FLOP/byte, then R: multiplies per weight read, the balance batch of a dense model"
    )
    table.add_column("chip", no_wrap=True)
    for name in ("16 bit", "fp8", "fp4", "R 16 bit", "R fp8", "R fp4", "drain"):
        table.add_column(name, justify="right", no_wrap=True)
    chips: dict[str, dict[str, Ridge]] = {}
    for ridge in ridges:
        width = "16 bit" if ridge.dtype in ("bf16", "fp16") else ridge.dtype
        chips.setdefault(ridge.chip, {})[width] = ridge
    for chip, by_width in chips.items():
        cells = [by_width.get(width) for width in ("16 bit", "fp8", "fp4")]
        table.add_row(
            chip,
            *(f"{cell.flop_per_byte:.0f}" if cell else "-" for cell in cells),
            *(f"{cell.ridge:.0f}" if cell else "-" for cell in cells),
            format_seconds(next(iter(by_width.values())).drain_s),
        )
    return table


def cache_table(caches: Sequence[CacheOfModel], *, on: str, dtype: str, width: int = 120) -> Table:
    """One line per model: cache of a token and of long sequences, crossover context, balance batch.

    Args:
        width: columns of the screen; a narrow one leaves out types of the cache but the first, and the state.
    """
    table = plain_table(
        "KV cache by model",
        caption=f"crossover and balance batch on {on} in {dtype}; what a window, a choice or a state saves is in it",
    )
    table.add_column("model", no_wrap=True)
    wide = width >= 100
    types = list(caches[0].kv_bytes_per_token)[: None if wide else 1] if caches else []
    contexts = list(caches[0].kv_bytes) if caches else []
    state = ["state"] if wide else []
    for name in (*(f"{each}/token" for each in types), *state, *(f"at {short_count(c)}" for c in contexts)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("crossover", justify="right", no_wrap=True)
    table.add_column("balance", justify="right", no_wrap=True)
    for cache in caches:
        table.add_row(
            cache.model,
            *(format_bytes(cache.kv_bytes_per_token[name]) for name in types),
            *([format_bytes(cache.state_bytes) if cache.state_bytes else "-"] if wide else []),
            *(format_bytes(value) for value in cache.kv_bytes.values()),
            _crossover(cache.crossover_context),
            f"{cache.balance_batch:.0f}",
        )
    return table


def _crossover(context: float) -> str:
    if math.isinf(context):
        return "never"
    return short_count(context) if context else "states"  # reading the states alone takes longer


def memory_table(records: Sequence[MemoryTierRecord], *, width: int) -> Table:
    """One line a memory tier, fastest first."""
    table = plain_table("memory tiers", caption="one unit each; drain is capacity over bandwidth")
    table.add_column("name", no_wrap=True)
    table.add_column("tier", no_wrap=True)
    if width >= 140:
        table.add_column("is", no_wrap=True, overflow="ellipsis")
    for name in ("capacity", "bandwidth", "latency", "drain", "$/GB", "$/h"):
        table.add_column(name, justify="right", no_wrap=True)
    tiers = [from_record(MemoryTier, record) for record in records]
    for tier in sorted(tiers, key=lambda each: -each.bytes_per_s / each.capacity_bytes):
        table.add_row(
            tier.name,
            tier.tier,
            *([tier.full_name] if width >= 140 else []),
            format_bytes(tier.capacity_bytes),
            format_rate(tier.bytes_per_s),
            format_seconds(tier.latency_s),
            format_seconds(tier.capacity_bytes / tier.bytes_per_s),
            f"{tier.usd_per_byte * 1e9:.3g}" if tier.usd_per_byte else "-",
            f"{tier.usd_per_hour:.3g}" if tier.usd_per_hour else "-",
        )
    return table
