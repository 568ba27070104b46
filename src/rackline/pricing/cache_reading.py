"""What cache prices reveal: bytes per token, the memory tier that the price of time pays for, the drain-time rule."""

from __future__ import annotations

import numpy as np

from rackline.catalog import names
from rackline.hardware import MemoryTier, memory_tier
from rackline.pricing import forms
from rackline.pricing.reader import Reader
from rackline.pricing.reading import KeptIn
from rackline.pricing.sheet import PriceTier
from rackline.pricing.unknowns import Range

_PATH_BYTES_PER_S = Range(low=63e9, high=450e9)  # PCIe 5.0 x16 to NVLink-C2C, one direction, per chip
_KEEPING = ("hbm", "host_dram", "cxl", "nvme", "qlc", "disk")


def keeping_units() -> tuple[MemoryTier, ...]:
    """Every tier of the catalogue that has a price and lies outside a chip."""
    units = (memory_tier(name) for name in names("memory"))
    return tuple(unit for unit in units if unit.tier in _KEEPING[1:] and unit.usd_per_hour is not None)


def read_cache(reader: Reader, standard: PriceTier) -> None:
    hit, given = standard.cached_input_usd, standard.input_usd
    if hit is None:
        reader.miss("cache hit", "no usable price of cached input")
    else:
        _hit(reader, hit, given)
    timed = [write for write in standard.cache_writes if write.lifetime_s is not None]
    slope = standard.storage_usd_per_s
    method = "storage price"
    if slope is None and len(timed) >= 2:
        first, last = timed[0], timed[-1]
        slope = forms.storage_usd_per_token_s(first.usd, first.lifetime_s or 0.0, last.usd, last.lifetime_s or 0.0)
        method = f"cache writes of {first.name} and {last.name}"
        if given is not None:
            once = first.usd - given - slope * (first.lifetime_s or 0.0)
            if once > 0:
                reader.add("cache_write_usd_per_mtok", "USD", method, (once * 1e6, once * 1e6), claim="C119")
    if slope is None:
        reason = "a single lifetime" if timed else "no storage price and no cache writes with a lifetime"
        reader.miss("memory tier of the cache", f"{reason}: no price of time")
    elif slope <= 0:
        reader.miss("memory tier of the cache", "a longer lifetime costs no more")
    else:
        _kept(reader, slope, method)
        _worth_keeping(reader, slope, method, hit, given)
    for write in timed:
        _rule(reader, write.lifetime_s or 0.0)


def _hit(reader: Reader, hit: float, given: float | None) -> None:
    if given is not None:
        reader.add("hit_over_miss", "ratio", "cached over uncached input", (hit / given, hit / given), claim="C109")
    x, (low_rent, high_rent) = reader.price_over_cost, reader.rents
    path = _PATH_BYTES_PER_S
    low = hit * path.low / (x.high * high_rent)
    high = hit * path.high / (x.low * low_rent)
    reader.add(
        "kv_bytes_per_token",
        "bytes",
        "cache hit",
        reader.ends(low, high),
        hit * reader.draws.within(path) / (reader.drawn_x * reader.draws.usd_per_chip_s),
        bound="at most",
        claim="C110",
        note="if the chip waits for the load over its host link, 63 to 450 GB/s, and the hit pays for that",
    )


def _kept(reader: Reader, slope: float, method: str) -> None:
    """KV bytes per token that the price of time pays for in each tier."""
    x = reader.price_over_cost
    reader.add("storage_usd_per_mtok_hour", "USD", method, (slope * 3.6e9, slope * 3.6e9), claim="C116")
    for kind in _KEEPING:
        rates = _usd_per_byte_s(reader, kind)
        if rates is None:
            continue
        own = reader.draws.usd_per_chip_s / reader.draws.hbm_bytes
        rate = own if kind == "hbm" else reader.draws.within(rates)
        reader.add(
            "kv_bytes_per_token",
            "bytes",
            f"{method}, if kept in {kind}",
            (slope / (x.high * rates.high), slope / (x.low * rates.low)),
            slope / (reader.drawn_x * rate),
            claim="C116",
            note="what the price of time pays for",
        )


def _usd_per_byte_s(reader: Reader, kind: str) -> Range | None:
    """Cost of a byte for a second in a tier: the chip's rent for its memory, the unit's cost for the others."""
    if kind == "hbm":
        held = np.array([offer.chip.hbm_bytes for offer, _ in reader.unknowns.points])
        low, high = reader.rents
        return Range(low=float((low / held).min()), high=float((high / held).max()))
    rates = [
        unit.usd_per_hour / 3600.0 / unit.capacity_bytes
        for unit in reader.units
        if unit.tier == kind and unit.usd_per_hour is not None
    ]
    return Range(low=min(rates), high=max(rates)) if rates else None


def _worth_keeping(reader: Reader, slope: float, method: str, hit: float | None, given: float | None) -> None:
    """How long an entry is worth its price of time: storage then costs what a hit saves.

    t = (input - hit) / price of time
    """
    if hit is None or given is None or not given > hit:
        return
    longest_s = (given - hit) / slope
    reader.add(
        "cache_break_even_s",
        "s",
        method,
        (longest_s, longest_s),
        claim="C119",
        note="a pause after which computing the prompt anew is cheaper than having kept it, at these prices",
    )


def _rule(reader: Reader, lifetime_s: float) -> None:
    drains = {f"hbm of {o.chip.name}": o.chip.drain_s for o, _ in reader.unknowns.points}
    drains |= {unit.name: unit.drain_s for unit in reader.units}
    nearest = min(drains, key=lambda name: abs(np.log(drains[name] / lifetime_s)))
    reader.kept_in.append(KeptIn(lifetime_s=lifetime_s, rule_tier=nearest, rule_drain_s=drains[nearest]))
