"""Whether a provider's prices pay for a deployment: margins of each mode and context tier, of hits and cache writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rackline.errors import InputError, nearest_names
from rackline.pricing.offered import LEFT_OVER, Offered, SoldTier, mode_name
from rackline.pricing.sheet import PriceSheet, PriceTier, all_sheets, find_sheets, per_mtok

Verdict = Literal["earns", "likely earns", "likely loses", "loses", "no price", "not served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """A tier of a price sheet against what its requests cost at a utilisation.

    Args:
        mode: as on the sheet.
        served_as: mode of the deployment, with the speed of a fast one.
        from_len, until_len: prompts longer than the first length and up to the second [tokens].
        priced_as: name of the tier of the sheet that they pay; empty where it has none.
        price_input_usd, price_cached_usd, price_output_usd: of the sheet, a token [USD].
        cost_input_usd, cost_cached_usd, cost_output_usd: of the deployment at the utilisation, a token [USD].
        margin_input, margin_cached, margin_output: price over cost, less 1 [ratio].
        margin: of the mean request without hits [ratio].
        margin_low, margin_high: of it, where 90 % of measured servers of the kind lay; None where nobody measured.
        pays_from: utilisation from which the mean request pays; above 1 where none does [ratio].
        verdict: of the mean request.
        reason: why there is no margin; empty with one.
    """

    json_keys: ClassVar = (
        "mode",
        "served_as",
        "from_len",
        "until_len",
        "priced_as",
        "usd_per_mtok_input_price",
        "usd_per_mtok_cached_price",
        "usd_per_mtok_output_price",
        "usd_per_mtok_input_cost",
        "usd_per_mtok_cached_cost",
        "usd_per_mtok_output_cost",
        "margin_input",
        "margin_cached",
        "margin_output",
        "margin",
        "margin_low",
        "margin_high",
        "pays_from",
        "verdict",
        "reason",
    )

    mode: str
    served_as: str
    from_len: float
    until_len: float
    priced_as: str = ""
    price_input_usd: float | None = None
    price_cached_usd: float | None = None
    price_output_usd: float | None = None
    cost_input_usd: float | None = None
    cost_cached_usd: float | None = None
    cost_output_usd: float | None = None
    margin: float | None = None
    margin_low: float | None = None
    margin_high: float | None = None
    pays_from: float | None = None
    verdict: Verdict
    reason: str = ""

    usd_per_mtok_input_price = per_mtok("price_input_usd")
    usd_per_mtok_cached_price = per_mtok("price_cached_usd")
    usd_per_mtok_output_price = per_mtok("price_output_usd")
    usd_per_mtok_input_cost = per_mtok("cost_input_usd")
    usd_per_mtok_cached_cost = per_mtok("cost_cached_usd")
    usd_per_mtok_output_cost = per_mtok("cost_output_usd")

    @property
    def margin_input(self) -> float | None:
        """Margin on prompt tokens."""
        return _margin(self.price_input_usd, self.cost_input_usd)

    @property
    def margin_cached(self) -> float | None:
        """Margin on prompt tokens that are found in the cache."""
        return _margin(self.price_cached_usd, self.cost_cached_usd)

    @property
    def margin_output(self) -> float | None:
        """Margin on output tokens."""
        return _margin(self.price_output_usd, self.cost_output_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMargin:
    """A cache write, or an hour of storage, of a price sheet against its cost.

    Args:
        what: "write" or "storage".
        lifetime_s: for which a written prompt is kept; None for storage [s].
        kept_in: the memory tier that costs least.
        usd_per_mtok_price, usd_per_mtok_cost: of a million tokens, for storage a million tokens and hour [USD].
        margin: price over cost, less 1 [ratio].
    """

    what: Literal["write", "storage"]
    lifetime_s: float | None
    kept_in: str
    usd_per_mtok_price: float
    usd_per_mtok_cost: float
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sold:
    """A provider's prices against a deployment.

    Args:
        sheet, provider, date: of the prices.
        utilisation: at which the costs are [fraction].
        tiers: a margin a mode and context.
        writes: of cache writes and storage.
    """

    sheet: str
    provider: str
    date: str
    utilisation: float
    tiers: tuple[Margin, ...]
    writes: tuple[WriteMargin, ...] = ()


def _margin(price: float | None, cost: float | None) -> float | None:
    return None if price is None or not cost else price / cost - 1.0


def sheet_of(name: str, model: str) -> PriceSheet:
    """The sheet of a name or file; of a provider, that of the model.

    Raises:
        InputError: neither; the nearest is named.

    >>> sheet_of("bedrock", "gpt-oss-20b").name
    'bedrock-gpt-oss-20b'
    """
    sheets = all_sheets()
    of_provider = [sheet for sheet in sheets if sheet.provider == name and sheet.model == model]
    if of_provider:
        return of_provider[0]
    known = [sheet.name for sheet in sheets]
    if name.endswith(".toml") or name in known:
        return find_sheets(name)[0]
    sellers = [sheet.provider for sheet in sheets if sheet.model == model]
    near = nearest_names(name, [*sellers, *known], 1) or sellers[:1]
    allowed = f"a price sheet, a .toml file or a seller of {model}: {', '.join(sellers) or 'none is known'}"
    raise InputError(what="against", given=name, allowed=allowed, nearest=near[0] if near else None)


def steps_of(sheet: PriceSheet, asked: Sequence[float]) -> tuple[float, ...]:
    """Ends of context tiers: those that were asked for and those at which the sheet's prices change [tokens].

    >>> steps_of(sheet_of("deepinfra", "qwen3-32b"), (32e3, 128e3))
    (32000.0, 40960.0)
    """
    starts = {tier.above_context_len for tier in sheet.tiers if tier.above_context_len}
    most = sheet.max_context_len or max(asked)
    return tuple(
        sorted({*(step for step in (*asked, *starts) if step < most), most if most < max(asked) else max(asked)})
    )


def margins(sheet: PriceSheet, offered: Offered, spread: Callable[[SoldTier], tuple[float, float] | None]) -> Sold:
    """Margins of a sheet's prices over the costs of a deployment.

    Equation:
        margin = price of the mean request / its cost - 1; it pays from utilisation · cost / price.

    Args:
        offered: at margin 0, so that its prices are costs at the utilisation.
        spread: costs of 90 % of measured servers of a tier's kind over the predicted cost; None where unknown.
    """
    modes = dict.fromkeys(tier.mode for tier in sheet.tiers)
    tiers = [
        _of_tier(sheet, mode, tier, offered, spread) for mode in modes for tier in _serving(offered.tiers, mode, sheet)
    ]
    return Sold(
        sheet=sheet.name,
        provider=sheet.provider,
        date=sheet.date,
        utilisation=offered.terms.utilisation,
        tiers=tuple(tiers),
        writes=tuple(_writes(sheet, offered)),
    )


def _serving(tiers: Sequence[SoldTier], mode: str, sheet: PriceSheet) -> list[SoldTier]:
    """The tiers of a deployment that serve a mode of a sheet; of a fast mode, that of its speed."""
    found = [tier for tier in tiers if tier.mode == mode]
    ratio = next((tier.speed_ratio for tier in sheet.of_mode(mode) if tier.speed_ratio), None)
    named = [tier for tier in found if ratio and mode_name(tier).endswith(f" {ratio:g}x")]
    return named or [tier for tier in found if mode_name(tier) == mode_name(found[0])]


def _paid(sheet: PriceSheet, mode: str, tier: SoldTier) -> PriceTier | None:
    """What prompts of a tier pay in a mode."""
    there = [one for one in sheet.of_mode(mode) if one.above_context_len <= tier.from_len]
    return max(there, key=lambda one: one.above_context_len, default=None)


def _of_tier(
    sheet: PriceSheet,
    mode: str,
    tier: SoldTier,
    offered: Offered,
    spread: Callable[[SoldTier], tuple[float, float] | None],
) -> Margin:
    priced, way = _paid(sheet, mode, tier), tier.way
    where: dict[str, Any] = {
        "mode": mode,
        "served_as": mode_name(tier),
        "from_len": tier.from_len,
        "until_len": tier.until_len,
    }
    if way is None:
        return Margin(**where, verdict="not served", reason=tier.reason)
    used = offered.terms.used(tier.mode)
    usd_s = offered.rent.usd_per_chip_hour / 3600.0 / used
    cost_in, cost_out = way.input_chip_s * usd_s, way.output_chip_s * usd_s
    cached = tier.cached_input_usd if math.isfinite(tier.cached_input_usd) else None
    costs: dict[str, Any] = {"cost_input_usd": cost_in, "cost_cached_usd": cached, "cost_output_usd": cost_out}
    if priced is None or priced.input_usd is None or priced.output_usd is None:
        return Margin(**where, **costs, verdict="no price", reason="the sheet has no price of input and output")
    paid = way.lengths.mean * priced.input_usd + way.output_len * priced.output_usd
    cost = way.request_chip_s * usd_s
    margin, ends = paid / cost - 1.0, spread(tier)
    low, high = (None, None) if ends is None else (paid / (cost * ends[1]) - 1.0, paid / (cost * ends[0]) - 1.0)
    return Margin(
        **where,
        **costs,
        priced_as=priced.name,
        price_input_usd=priced.input_usd,
        price_cached_usd=priced.cached_input_usd,
        price_output_usd=priced.output_usd,
        margin=margin,
        margin_low=low,
        margin_high=high,
        pays_from=None if tier.mode in LEFT_OVER else used * cost / paid,
        verdict=_verdict(margin, low, high),
        reason="" if not tier.reason else f"a batch of {tier.batch_size:,.0f}: {tier.reason.rpartition(': ')[2]}",
    )


def _verdict(margin: float, low: float | None, high: float | None) -> Verdict:
    """Sure where measured servers of the kind agree, likely where some do not or none was measured."""
    if margin >= 0.0:
        return "earns" if low is not None and low >= 0.0 else "likely earns"
    return "loses" if high is not None and high < 0.0 else "likely loses"


def _writes(sheet: PriceSheet, offered: Offered) -> list[WriteMargin]:
    first = sheet.standard
    if first is None:
        return []
    found: list[WriteMargin] = []
    costs = {cache.lifetime_s: cache for cache in offered.caches}
    for write in first.cache_writes:
        cost = costs.get(write.lifetime_s or 0.0)
        if cost is not None:
            found.append(
                WriteMargin(
                    what="write",
                    lifetime_s=cost.lifetime_s,
                    kept_in=cost.tier,
                    usd_per_mtok_price=write.usd * 1e6,
                    usd_per_mtok_cost=cost.write_usd * 1e6,
                    margin=write.usd / cost.write_usd - 1.0,
                )
            )
    storage, price = offered.storage_usd_per_mtok_hour, first.usd_per_mtok_hour_storage
    if storage and price is not None:
        found.append(
            WriteMargin(
                what="storage",
                lifetime_s=None,
                kept_in=offered.caches[-1].tier,
                usd_per_mtok_price=price,
                usd_per_mtok_cost=storage,
                margin=price / storage - 1.0,
            )
        )
    return found
