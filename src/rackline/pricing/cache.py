"""Where to keep the KV cache of a prompt, what that costs over time, and what cache prices say of it.

An entry of K bytes is written once, held for t seconds and loaded n times. In a tier of capacity C, read bandwidth W,
write bandwidth V and q dollars per second for the device:

    hold = q · K / C · t      the share of the device that is occupied
    retrieve = q · K / W      the device is busy for the read, each time
    write = q · K / V

In the chip's own memory an entry is already where it is needed: retrieve = write = 0. Recomputing has no hold cost and
costs a prefill each time. Over t every tier is a straight line, so the cheapest of them is a lower envelope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.catalog import names
from rackline.errors import InputError, require
from rackline.hardware import Cluster, MemoryTier, hbm_of, memory_tier
from rackline.passes.features import Array, FloatLike, as_array
from rackline.pricing.forms import storage_usd_per_token_s
from rackline.pricing.reading import KeptIn, Reader
from rackline.pricing.sheet import PriceTier
from rackline.pricing.unknowns import Range

SECONDS_PER_HOUR = 3600.0
RECOMPUTE = "recompute"
_WITH_GRACE = ("gb200", "gb300")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingCost:
    """Cost line of one tier for one entry.

    Args:
        name: name of the tier, or "recompute".
        tier: kind of the tier.
        once_usd: cost of writing once [USD].
        hold_usd_per_s: cost while it is held [USD/s].
        retrieve_usd: cost of each load [USD].
        drain_s: drain time of the device; None for recompute [s].
        fetch_s: time to load the entry to one accelerator [s].
        capacity_bytes: of the device; 0 for recompute [bytes].
        entry_bytes: size of the entry [bytes].
    """

    name: str
    tier: str
    once_usd: float
    hold_usd_per_s: float
    retrieve_usd: float
    drain_s: float | None = None
    fetch_s: float = 0.0
    capacity_bytes: float = 0.0
    entry_bytes: float = 0.0

    def usd(self, kept_s: FloatLike, reuses: FloatLike = 1.0) -> Array:
        """Cost of writing, holding and loading `reuses` times [USD]."""
        return self.once_usd + self.hold_usd_per_s * as_array(kept_s) + self.retrieve_usd * as_array(reuses)


def keeping_cost(tier: MemoryTier, entry_bytes: float) -> KeepingCost:
    """The cost line of a tier.

    Args:
        entry_bytes: K, KV cache of the entry [bytes].

    Raises:
        InputError: the tier has no price, or the bytes are not above 0.

    Sources: lecture C116, C117, C118.
    """
    _positive("entry bytes", entry_bytes)
    if tier.usd_per_hour is None:
        raise InputError(what=f"price of {tier.name}", given="nothing", allowed="a tier with usd_per_hour")
    usd_per_s = tier.usd_per_hour / SECONDS_PER_HOUR
    own = tier.tier in ("hbm", "sram")
    return KeepingCost(
        name=tier.name,
        tier=tier.tier,
        once_usd=0.0 if own else usd_per_s * tier.write_s(entry_bytes),
        hold_usd_per_s=usd_per_s * tier.held_share_s(entry_bytes, 1.0),
        retrieve_usd=0.0 if own else usd_per_s * tier.read_s(entry_bytes),
        drain_s=tier.drain_s,
        fetch_s=0.0 if own else tier.fetch_s(entry_bytes),
        capacity_bytes=tier.capacity_bytes,
        entry_bytes=entry_bytes,
    )


def recompute_cost(prefill_usd: float, prefill_s: float) -> KeepingCost:
    """The cost line of dropping an entry and recomputing it.

    Args:
        prefill_usd: cost of the prefill [USD].
        prefill_s: its time [s].

    Sources: lecture C110.
    """
    _positive("prefill cost", prefill_usd)
    return KeepingCost(
        name=RECOMPUTE,
        tier=RECOMPUTE,
        once_usd=0.0,
        hold_usd_per_s=0.0,
        retrieve_usd=prefill_usd,
        fetch_s=prefill_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestSpan:
    """A range of hold times in which one tier is the cheapest.

    Args:
        cost: the tier's line.
        from_s, until_s: hold times; until_s of the last one is infinite [s].
    """

    json_keys: ClassVar = (
        "name=cost.name",
        "tier=cost.tier",
        "from_s",
        "until_s",
    )

    cost: KeepingCost
    from_s: float
    until_s: float


def envelope(costs: Sequence[KeepingCost], reuses: float = 1.0) -> tuple[CheapestSpan, ...]:
    """The cheapest tier over the hold time: the lower envelope of the cost lines.

    From the cheapest line at t = 0, the next span begins at the nearest crossing with a flatter line:

        t = (fixed_j - fixed_i) / (hold_i - hold_j)      fixed = write + n · retrieve

    Args:
        costs: one line per tier.
        reuses: n, number of times that the entry is loaded while it is held, at least 1 [count].

    Returns:
        Ranges in the order of hold time; they cover 0 to infinity without a gap.

    Raises:
        InputError: there is no tier, or reuses is below 1.

    Sources: lecture C118; break-even times by equating two lines.
    """
    require(costs, what="tiers", given=0, allowed="at least one tier")
    require(
        reuses >= 1 and np.isfinite(reuses),
        what="reuses",
        given=reuses,
        allowed="a finite number of at least 1",
        nearest="1",
    )
    fixed = [float(cost.usd(0.0, reuses)) for cost in costs]
    slope = [cost.hold_usd_per_s for cost in costs]
    order = range(len(costs))
    now = min(order, key=lambda i: (fixed[i], slope[i]))
    start, spans = 0.0, list[CheapestSpan]()
    while True:
        flatter = [i for i in order if slope[i] < slope[now]]
        if not flatter:
            break
        ends = {i: (fixed[i] - fixed[now]) / (slope[now] - slope[i]) for i in flatter}
        then = min(flatter, key=lambda i: (ends[i], slope[i]))
        if ends[then] > start:
            spans.append(CheapestSpan(cost=costs[now], from_s=start, until_s=ends[then]))
        start, now = max(ends[then], start), then
    spans.append(CheapestSpan(cost=costs[now], from_s=start, until_s=float("inf")))
    return tuple(spans)


def cheapest(spans: Sequence[CheapestSpan], kept_s: float) -> KeepingCost:
    """The cheapest tier for a hold time."""
    return next(span.cost for span in reversed(spans) if kept_s >= span.from_s)


def tier_by_drain(costs: Sequence[KeepingCost], kept_s: float) -> KeepingCost:
    """The lecture's rule: the tier whose drain time is nearest to the hold time, in ratio.

    Derivation: an entry held for t occupies t · K / C of the device, and loading it once occupies K / W. The two are
    equal at t = C / W, the drain time: there neither part of the device is wasted for the other (C122). Among tiers
    whose hold rate falls as fast as their retrieval cost rises (hold ∝ x⁻¹, retrieve ∝ x) that is also the cheapest
    tier: hold · t + retrieve is least where both are equal (C80). For other prices it is off by the ratio of the
    exponents.

    Args:
        costs: lines; those without a drain time (recompute) are left out.
        kept_s: t, above 0 [s].

    Raises:
        InputError: the time is not above 0, or no tier has a drain time.

    Sources: lecture C121, C122.
    """
    _positive("hold time", kept_s)
    draining = [cost for cost in costs if cost.drain_s]
    require(draining, what="tiers", given=len(costs), allowed="at least one tier with a drain time")
    return min(draining, key=lambda cost: drain_distance(cost.drain_s or 1.0, kept_s))


def drain_distance(drain_s: float, kept_s: float) -> float:
    """How far a drain time is from a hold time: the logarithm of their ratio, without its sign.

    Args:
        drain_s: time to read a full device [s].
        kept_s: time that an entry is held [s].
    """
    return np.abs(np.log(drain_s / kept_s))


def break_even_s(cheap_to_load: KeepingCost, cheap_to_hold: KeepingCost, reuses: float = 1.0) -> float:
    """Hold time from which the second tier is cheaper than the first [s]; 0 if always, infinite if never."""
    gap = float(cheap_to_hold.usd(0.0, reuses)) - float(cheap_to_load.usd(0.0, reuses))
    faster = cheap_to_load.hold_usd_per_s - cheap_to_hold.hold_usd_per_s
    if gap <= 0:
        return 0.0
    return gap / faster if faster > 0 else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLine:
    """Cost of keeping an entry in one tier.

    Args:
        cost: of the entry.
        prompt_len: its tokens [tokens].
    """

    json_keys: ClassVar = (
        "name=cost.name",
        "tier=cost.tier",
        "usd_per_mtok_once",
        "usd_per_mtok_hour_hold",
        "usd_per_mtok_retrieve",
        "drain_s=cost.drain_s",
        "fetch_s=cost.fetch_s",
    )

    cost: KeepingCost
    prompt_len: float

    @property
    def usd_per_mtok_once(self) -> float:
        """Cost of computing or writing it [USD per million tokens]."""
        return self.cost.once_usd * 1e6 / self.prompt_len

    @property
    def usd_per_mtok_hour_hold(self) -> float:
        """Cost of holding it [USD per million tokens and hour]."""
        return self.cost.hold_usd_per_s * SECONDS_PER_HOUR * 1e6 / self.prompt_len

    @property
    def usd_per_mtok_retrieve(self) -> float:
        """Cost of loading it once [USD per million tokens]."""
        return self.cost.retrieve_usd * 1e6 / self.prompt_len


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPrice:
    """The cheapest tier for one hold time, with its cost and possible prices.

    Args:
        hold_s: how long it is held [s].
        tier: the cheapest.
        usd_per_mtok_write, usd_per_mtok_hit: prices with the margin [USD per million tokens].
        usd_per_mtok_hour_storage: price of holding [USD per million tokens and hour].
        cost_usd_per_mtok: total cost, without the margin [USD per million tokens].
        rule_tier: tier chosen by the lecture's rule, see `tier_by_drain`.
        rule_over_best: its cost over that of the cheapest tier [ratio].
    """

    hold_s: float
    tier: str
    usd_per_mtok_write: float
    usd_per_mtok_hit: float
    usd_per_mtok_hour_storage: float
    cost_usd_per_mtok: float
    rule_tier: str
    rule_over_best: float


def held_price(
    lines: Sequence[KeepingCost],
    spans: Sequence[CheapestSpan],
    kept_s: float,
    *,
    prompt_len: float,
    reuses: float,
    price_over_cost: float,
) -> HeldPrice:
    """Cost and possible prices of holding an entry.

    Args:
        lines: cost line of each tier.
        spans: the cheapest tier by hold time.
        kept_s: hold time [s].
        prompt_len: tokens of the entry [tokens].
        reuses: number of times that it is loaded [count].
        price_over_cost: price over cost [ratio].
    """
    best, rule = cheapest(spans, kept_s), tier_by_drain(lines, kept_s)
    per_mtok = 1e6 / prompt_len
    charged = per_mtok * price_over_cost
    return HeldPrice(
        hold_s=kept_s,
        tier=best.name,
        usd_per_mtok_write=(best.once_usd + best.hold_usd_per_s * kept_s) * charged,
        usd_per_mtok_hit=best.retrieve_usd * charged,
        usd_per_mtok_hour_storage=best.hold_usd_per_s * SECONDS_PER_HOUR * charged,
        cost_usd_per_mtok=float(best.usd(kept_s, reuses)) * per_mtok,
        rule_tier=rule.name,
        rule_over_best=float(rule.usd(kept_s, reuses)) / float(best.usd(kept_s, reuses)),
    )


def default_tiers(cluster: Cluster) -> tuple[MemoryTier, ...]:
    """The chip's own memory at the cluster's rent, and every priced tier of the catalogue that it can be combined with.

    The memory of a Grace host counts only where the chip sits on one, and replaces DDR5 there.
    """
    absent = "ddr5-host" if cluster.chip.name in _WITH_GRACE else "lpddr5x-grace"
    outside = (unit for unit in keeping_units() if unit.name != absent)
    return (hbm_of(cluster.chip, cluster.usd_per_chip_hour), *outside)


def _positive(what: str, given: float) -> None:
    require(given > 0 and np.isfinite(given), what=what, given=given, allowed="a finite number above 0")


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
        slope = storage_usd_per_token_s(first.usd, first.lifetime_s or 0.0, last.usd, last.lifetime_s or 0.0)
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
    reader.add(
        "kv_bytes_per_token",
        "bytes",
        "cache hit",
        reader.ends(hit * path.low / (x.high * high_rent), hit * path.high / (x.low * low_rent)),
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
        rate = (reader.draws.usd_per_chip_s / reader.draws.hbm_bytes) if kind == "hbm" else reader.draws.within(rates)
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
