"""A price sheet made from a deployment: its terms, tiers and cache prices, and why some of them are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from rackline.errors import require
from rackline.parallel import Deployment
from rackline.pricing.costs import EarnedAt, PromptLengths, Rent, Way
from rackline.pricing.forms import price_over_cost
from rackline.pricing.sheet import per_mtok
from rackline.serving.fleet import Fleet
from rackline.serving.workload import Mixture
from rackline.units import format_seconds

LIFETIMES_S = (300.0, 3600.0, 86400.0)

Mode = Literal["standard", "batch", "flex", "priority", "fast"]
LEFT_OVER: tuple[Mode, ...] = ("batch", "flex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How costs become prices.

    Args:
        margin: price over cost, less 1 [ratio].
        earned_at: prompts at which it is earned: all of a tier on average, or the longest.
        utilisation: share of the chip-hours that standard traffic fills [fraction].
        output_len: tokens that an answer may add to the context of its prompt [tokens].
        tpot_s: longest time per output token of the standard mode, None for no limit [s].
        fast_ratios: speeds of the faster modes over the standard one [ratio].
        lifetimes_s: of cache writes [s].
        fetch_s: longest wait for a cached prompt, None for no limit [s].
        mixture: lengths of the requests; None for as many prompts in each doubling of a tier.
    """

    margin: float = 0.3
    utilisation: float = 0.6
    output_len: float = 1000.0
    tpot_s: float | None = 0.05
    fast_ratios: tuple[float, ...] = (1.5, 2.5)
    lifetimes_s: tuple[float, ...] = LIFETIMES_S
    fetch_s: float | None = None
    earned_at: EarnedAt = "mean"
    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        _check("margin", self.margin, 0.0, "at least 0")
        _check("output length", self.output_len, 1.0, "at least 1 token")
        require(
            0 < self.utilisation <= 1, what="utilisation", given=self.utilisation, allowed="above 0 to 1", nearest="0.6"
        )
        for ratio in self.fast_ratios:
            require(
                ratio > 1 and np.isfinite(ratio),
                what="speed of a fast mode",
                given=ratio,
                allowed="above 1",
                nearest="1.5",
            )
        for lifetime in self.lifetimes_s:
            _check("lifetime", lifetime, 1e-3, "at least 1 ms")

    @property
    def price_over_cost(self) -> float:
        """(1 + margin) / utilisation."""
        return price_over_cost(self.margin, self.utilisation)

    def prompts(self, from_len: float, until_len: float) -> PromptLengths:
        """Lengths of the prompts of a context tier."""
        inside = self.mixture.between(from_len, until_len) if self.mixture is not None else None
        return PromptLengths(from_len=from_len, until_len=until_len, earned_at=self.earned_at, mixture=inside)

    @property
    def lengths(self) -> str:
        """The prompts on which the margin is earned, in words."""
        if self.earned_at == "longest":
            return "the longest prompt of each tier"
        all_alike = "prompts of all lengths of the tier, as many in each doubling"
        return (
            all_alike
            if self.mixture is None
            else f"the prompts of {self.mixture.name}; where a tier has none, {all_alike}"
        )

    def used(self, mode: Mode) -> float:
        """Share of its chip-hours that a mode fills: left-over hours have been paid [fraction]."""
        return 1.0 if mode in LEFT_OVER else self.utilisation


@dataclass(frozen=True, slots=True, kw_only=True)
class SoldTier:
    """Prices of one mode up to one context.

    Args:
        name, mode: as on a price sheet.
        from_len, until_len: prompts longer than the first and up to the second [tokens].
        output_len: tokens of an answer; all-in is the output of a request with the longest prompt [tokens].
        input_usd, output_usd: of one token [USD].
        cached_input_usd: of one prompt token found in the cache [USD].
        way: that serves it, None where nothing does.
        margin: earned over all of its prompts: price over cost, less 1 [ratio].
        margin_at_longest: of a request with the longest prompt, None where no batch of them meets the limit [ratio].
        kwh_per_mtok_input, kwh_per_mtok_output: energy of the site, None without a power [kWh].
        reason: why the tier cannot be sold; empty when it can.
    """

    json_keys: ClassVar = (
        "name",
        "mode",
        "from_len",
        "until_len",
        "usd_per_mtok_input",
        "usd_per_mtok_output",
        "usd_per_mtok_output_all_in",
        "usd_per_mtok_cached_input",
        "layout=way.costs.deployment.layout",
        "prefill_layout=way.prefill.deployment.layout",
        "precision=way.costs.deployment.precision",
        "scheduler=way.scheduler",
        "batch_size",
        "tpot_s",
        "mean_input_len=way.lengths.mean",
        "margin",
        "margin_at_longest",
        "kwh_per_mtok_input",
        "kwh_per_mtok_output",
        "chip_w=way.power.chip_w",
        "power_basis=way.power.basis",
        "reason",
    )

    name: str
    mode: Mode
    from_len: float
    until_len: float
    output_len: float
    way: Way | None = None
    input_usd: float = float("nan")
    output_usd: float = float("nan")
    cached_input_usd: float = float("nan")
    margin: float | None = None
    margin_at_longest: float | None = None
    kwh_per_mtok_input: float | None = None
    kwh_per_mtok_output: float | None = None
    reason: str = ""

    @property
    def deployment(self) -> Deployment | None:
        """What serves it, None where it cannot be sold."""
        return self.way.costs.deployment if self.way else None

    @property
    def batch_size(self) -> float:
        """Sequences on one replica; 0 where it cannot be sold [sequences]."""
        return self.way.batch_size if self.way else 0.0

    @property
    def tpot_s(self) -> float:
        """Mean time per output token; infinite where it cannot be sold [s]."""
        return self.way.tpot_s if self.way else float("inf")

    usd_per_mtok_input = per_mtok("input_usd")
    usd_per_mtok_output = per_mtok("output_usd")
    usd_per_mtok_cached_input = per_mtok("cached_input_usd")

    @property
    def usd_per_mtok_output_all_in(self) -> float:
        """Price of output with the longest prompt that belongs to it [USD per million output tokens]."""
        return (self.output_usd + self.input_usd * self.until_len / self.output_len) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SoldCache:
    """Price of writing a prompt to the cache for a lifetime.

    Args:
        lifetime_s: how long it is kept [s].
        tier: name of the cheapest tier for it, with one use in that time.
        write_usd: of one token, its prefill included [USD].
        hold_usd: of one token over the lifetime, bare cost [USD].
        saves: uncached over cached cost of one use within the lifetime [ratio].
    """

    json_keys: ClassVar = (
        "lifetime_s",
        "tier",
        "usd_per_mtok_write",
        "usd_per_mtok_hold",
        "saves",
    )

    lifetime_s: float
    tier: str
    write_usd: float
    hold_usd: float
    saves: float

    usd_per_mtok_write = per_mtok("write_usd")
    usd_per_mtok_hold = per_mtok("hold_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoldMedia:
    """Price of the images and sound of one request in standard traffic of a context tier.

    Args:
        until_len: longest prompt of the tier [tokens].
        tokens: of the prompt, for which the tier's input is paid [tokens].
        encoder_chip_s: chip-seconds of their encoders, those of chips that are paid for with it among them [s].
        usd: of tokens and encoders [USD].
    """

    until_len: float
    tokens: int
    encoder_chip_s: float
    usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Traffic that is sold at the standard prices, and the fleet that serves it.

    Args:
        fleet: whose rent the prices bring in with the margin.
        engine: layout, data types and scheduler of a replica, in words.
        input_len, cached_len, output_len: of the mean request [tokens].
        request_usd: what it pays [USD].
    """

    json_keys: ClassVar = (
        "*fleet",
        "engine",
        "input_len",
        "cached_len",
        "output_len",
        "request_usd",
        "sales_usd_per_hour",
    )

    fleet: Fleet
    engine: str
    input_len: float
    cached_len: float
    output_len: float
    request_usd: float

    @property
    def sales_usd_per_hour(self) -> float:
        """What all requests pay [USD/hour]."""
        return self.request_usd * self.fleet.traffic.tokens_per_s / self.output_len * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A price sheet made from ways to serve.

    Args:
        tiers: by mode and context.
        caches: by lifetime.
        storage_usd_per_mtok_hour: price of keeping a million tokens for an hour in the tier of the longest lifetime.
        terms, rent: as given.
        coincide: why prices of two modes or two tiers are the same, one sentence each.
        media: images and sound of a request in each context tier; empty for text alone.
        demand: traffic at these prices; None where none was asked for.
    """

    json_keys: ClassVar = (
        "deployment",
        "terms.margin=terms.margin",
        "terms.earned_at=terms.earned_at",
        "terms.lengths=terms.lengths",
        "terms.utilisation=terms.utilisation",
        "terms.price_over_cost=terms.price_over_cost",
        "terms.output_len=terms.output_len",
        "terms.tpot_s=terms.tpot_s",
        "terms.usd_per_chip_hour=rent.usd_per_chip_hour",
        "terms.rent_or_purchase=rent.how",
        "terms.rent=rent.kind",
        "terms.pue=rent.pue",
        "terms.usd_per_kwh=rent.usd_per_kwh",
        "terms.power_w_per_chip=rent.power_w_per_chip",
        "tiers",
        "cache_writes=caches",
        "usd_per_mtok_hour_storage=storage_usd_per_mtok_hour",
        "coincide",
        "media_prices=media",
        "demand",
    )

    tiers: tuple[SoldTier, ...]
    caches: tuple[SoldCache, ...]
    storage_usd_per_mtok_hour: float | None
    terms: Terms
    rent: Rent
    coincide: tuple[str, ...] = ()
    media: tuple[SoldMedia, ...] = ()
    demand: Demand | None = None

    @property
    def deployment(self) -> Deployment | None:
        """Way to serve the first tier that can be sold; None where none can."""
        return next((tier.deployment for tier in self.tiers if tier.deployment), None)

    def request_usd(self, mixture: Mixture, cache_hit: float) -> float | None:
        """What the mean request pays at the standard prices; None where some of them are not sold [USD].

        Args:
            cache_hit: share of each prompt that is found in the cache [1].
        """
        whole = 0.0
        for tier in (tier for tier in self.tiers if tier.mode == "standard"):
            inside = mixture.between(tier.from_len, tier.until_len)
            if inside is None:
                continue
            if tier.reason:
                return None
            cached = tier.cached_input_usd if np.isfinite(tier.cached_input_usd) else tier.input_usd
            prompt = cache_hit * cached + (1.0 - cache_hit) * tier.input_usd
            each = inside.mean(inside.input_len) * prompt + inside.mean(inside.output_len) * tier.output_usd
            whole += mixture.share_between(tier.from_len, tier.until_len) * each
        return whole if float(mixture.input_len.max()) <= max(tier.until_len for tier in self.tiers) else None


def _check(what: str, given: float, least: float, allowed: str) -> None:
    require(given >= least and np.isfinite(given), what=what, given=given, allowed=allowed, nearest=f"{least:g}")


_SAME = 0.005  # of a price: as it is written with three digits


def coinciding_modes(tiers: Sequence[SoldTier], terms: Terms) -> Iterator[str]:
    """One sentence for each mode whose prices are those of the next slower one in the same tier."""
    for length in dict.fromkeys(tier.until_len for tier in tiers):
        sold = {tier.mode: tier for tier in tiers if tier.until_len == length and not tier.reason}
        batch, flex, standard = (sold.get(mode) for mode in ("batch", "flex", "standard"))
        if batch and flex and _same(batch, flex):
            yield f"prompts to {length:,.0f}: flex costs what batch does: {_why_flex(batch, terms)}"
        if flex and standard and _same(flex, standard):
            yield (
                f"prompts to {length:,.0f}: standard costs what flex does: at a utilisation of "
                f"{100 * terms.utilisation:.3g} % no hours are left over"
            )
        yield from (
            f"prompts to {length:,.0f}: {mode_name(second)} costs what {mode_name(first)} does: the way that serves "
            "it costs no more per token"
            for first, second in pairwise([tier for tier in (standard, *_faster(tiers, length)) if tier])
            if _same(first, second)
        )


def coinciding_contexts(tiers: Sequence[SoldTier]) -> Iterator[str]:
    """One sentence for each mode whose longer tier costs what the shorter does."""
    for name in dict.fromkeys(mode_name(tier) for tier in tiers):
        for first, second in pairwise([tier for tier in tiers if mode_name(tier) == name and not tier.reason]):
            if _same(first, second):
                yield (
                    f"{name}: prompts to {second.until_len:,.0f} cost what those to {first.until_len:,.0f} do: a step "
                    "takes no longer and as many sequences fit"
                )


def _why_flex(batch: SoldTier, terms: Terms) -> str:
    if terms.tpot_s is None:
        return "there is no limit to the time per output token"
    if batch.tpot_s <= terms.tpot_s:
        return (
            f"the cheapest batch takes {format_seconds(batch.tpot_s)} per token, within {format_seconds(terms.tpot_s)}"
        )
    return f"without the limit of {format_seconds(terms.tpot_s)} no way costs less per token"


def _faster(tiers: Sequence[SoldTier], length: float) -> list[SoldTier]:
    return [
        tier for tier in tiers if tier.until_len == length and tier.mode in ("priority", "fast") and not tier.reason
    ]


def mode_name(tier: SoldTier) -> str:
    """The mode of a tier, with the speed of a fast one."""
    return tier.name.split(" above")[0]


def _same(first: SoldTier, second: SoldTier) -> bool:
    pairs = ((first.input_usd, second.input_usd), (first.output_usd, second.output_usd))
    return all(abs(a - b) <= _SAME * max(a, b) for a, b in pairs)
