"""From ways to serve to a price sheet: each context tier and each mode pays for its own.

    price = cost · (1 + margin) / utilisation

The margin is earned over all prompts of a tier, whose lengths are those of a mixture or log-uniform; or at the
longest, and then no prompt of the tier is sold below its cost (lecture C98). A prompt's own first output token is sold
as output.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from rackline.arch import media_of, with_media
from rackline.errors import require
from rackline.hardware import MemoryTier, drawn_w
from rackline.passes.features import FloatLike
from rackline.pricing.cache import (
    RECOMPUTE,
    KeepingCost,
    cheapest,
    default_tiers,
    envelope,
    keeping_cost,
    recompute_cost,
)
from rackline.pricing.costs import PromptLengths, Rent, TokenCosts, Way, Ways
from rackline.pricing.offered import (
    Mode,
    Offered,
    SoldCache,
    SoldMedia,
    SoldTier,
    Terms,
    coinciding_contexts,
    coinciding_modes,
)
from rackline.serving.fleet import power_of
from rackline.units import format_seconds, format_usd

LEAST_FAST = 2.0  # a mode below this speed-up is sold as priority

# Below this a product of a decode pass does not fill one tile of the tensor cores (16 rows: PTX ISA, mma.m16n8k16), and
# each sequence pays for a large part of a replica: no host would make a tier of it.
SMALL_BATCH = 16.0


def request_cost_usd(
    costs: TokenCosts,
    rent: Rent,
    prompt_len: FloatLike,
    output_len: FloatLike,
    tpot_s: float | None = None,
    utilisation: float = 1.0,
) -> FloatLike:
    """Bare cost of one request: its prefill, which makes the first output token, and the decode of the others.

    cost = q / utilisation · chip-seconds

    Args:
        prompt_len, output_len: [tokens], broadcast.
        tpot_s: limit of the standard mode [s].
        utilisation: share of the chip-hours that are sold [fraction].

    Returns:
        USD; infinite where no batch fits. Decode is counted at the final context, an upper bound.
    """
    return rent.usd_per_chip_hour / 3600.0 / utilisation * costs.request_chip_s(prompt_len, output_len, tpot_s)


def offer_prices(
    ways: Ways,
    rent: Rent,
    terms: Terms | None = None,
    *,
    steps: Sequence[float] = (32e3, 128e3),
    tiers: Sequence[MemoryTier] | None = None,
) -> Offered:
    """Make a price sheet: each mode of each context tier is served in its own cheapest way.

    Standard traffic fills `utilisation` of the hours; batch takes hours that are left over and the cheapest batch that
    fits, flex left-over hours within the limit of the standard mode; each faster mode (priority below twice the speed,
    fast from there on) the cheapest way that is so much faster.

    Args:
        ways: finds the cheapest way to serve a tier within a limit.
        steps: longest prompt of each context tier, rising; tiers that do not fit stay with the reason [tokens].
        tiers: memory tiers for the cache; those of the catalogue when not given.

    Raises:
        InputError: steps that do not rise.
    """
    terms = terms or Terms()
    bounds = [0.0, *[float(step) for step in steps]]
    require(
        len(bounds) > 1 and all(a < b for a, b in itertools.pairwise(bounds)),
        what="context tiers",
        given=", ".join(f"{s:g}" for s in steps),
        allowed="rising lengths above 0",
    )
    priced = [_modes_of(terms.prompts(low, high), ways, rent, terms) for low, high in itertools.pairwise(bounds)]
    standard = [modes[0] for modes in priced]
    caches, storage, hits = _caches(rent, terms, standard, tiers)
    found = [
        replace(tier, cached_input_usd=_cached(tier, hits.get(tier.until_len), terms))
        for same in zip(*priced, strict=True)
        for tier in same
    ]
    return Offered(
        tiers=tuple(found),
        caches=caches,
        storage_usd_per_mtok_hour=storage,
        terms=terms,
        rent=rent,
        coincide=(*coinciding_modes(found, terms), *coinciding_contexts(found)),
        media=tuple(
            _sold_media(tier, tier.way, rent, terms)
            for tier in standard
            if tier.way and not tier.reason and media_of(tier.way.costs.deployment.model)
        ),
    )


def _sold_media(tier: SoldTier, way: Way, rent: Rent, terms: Terms) -> SoldMedia:
    """Images and sound of a request: what their encoders add to a prompt of their tokens, and these tokens as input."""
    costs, model = way.prompts, way.costs.deployment.model
    media = media_of(model)
    tokens = media.tokens if media is not None else 0

    def prefill_chip_s(prompt_len: float | None) -> float:
        spread = with_media(model, media and replace(media, prompt_len=prompt_len))
        one = TokenCosts.of(replace(costs.system, model=spread), costs.deployment.layout, costs.mode)
        return tokens * float(one.prefill_chip_s(float(tokens))[0])

    encoder_chip_s = (prefill_chip_s(float(tokens)) - prefill_chip_s(None)) / way.used_share
    return SoldMedia(
        until_len=tier.until_len,
        tokens=tokens,
        encoder_chip_s=encoder_chip_s,
        usd=(rent.usd_per_chip_hour / 3600.0 * terms.price_over_cost * encoder_chip_s) + tokens * tier.input_usd,
    )


def _cached(tier: SoldTier, hit_usd: float | None, terms: Terms) -> float:
    """Price of a prompt token found in the cache, never above that of one that is computed [USD]."""
    if hit_usd is None or tier.reason:
        return float("nan")
    return min(hit_usd * terms.utilisation / terms.used(tier.mode), tier.input_usd)


def _modes_of(lengths: PromptLengths, ways: Ways, rent: Rent, terms: Terms) -> list[SoldTier]:
    """All modes of one context tier: standard, batch, flex, then the faster ones."""
    output_len = lengths.output_len(terms.output_len)
    standard = ways.cheapest(lengths, output_len, terms.tpot_s)
    asked: list[tuple[str, Mode, Way | str]] = [
        ("standard", "standard", standard),
        ("batch", "batch", ways.cheapest(lengths, output_len, None)),
        ("flex", "flex", standard),
    ]
    for ratio in sorted(terms.fast_ratios):
        mode: Mode = "priority" if ratio < LEAST_FAST else "fast"
        way: Way | str = standard
        if isinstance(standard, Way):
            way = ways.cheapest(lengths, output_len, standard.tpot_s / ratio)
            if isinstance(way, str):
                way = f"no way is {ratio:g} times as fast: the latency floor"
        asked.append((f"{mode} {ratio:g}x", mode, way))
    usd_s = rent.usd_per_chip_hour / 3600.0
    sold = {
        name: _Split.of(way, usd_s * (1.0 + terms.margin) / terms.used(mode))
        for name, mode, way in asked
        if isinstance(way, Way)
    }
    slower: _Split | None = None
    for name in ("batch", "flex", "standard", *[name for name, mode, _ in asked if mode in ("priority", "fast")]):
        if name in sold:
            slower = sold[name] = sold[name].above(slower)
    largest = max((way.batch_size for _, _, way in asked if isinstance(way, Way)), default=0.0)
    tiers = [_sold(name, mode, way, sold.get(name), lengths, rent, terms) for name, mode, way in asked]
    return [_unless_small(tier, tier.way, largest) if tier.way else tier for tier in tiers]


def _unless_small(tier: SoldTier, way: Way, largest: float) -> SoldTier:
    """The tier; where only a small batch serves it, without prices, but with the reason and what they would be.

    Args:
        largest: batch that serves the tier in any mode [sequences].
    """
    if way.batch_size >= SMALL_BATCH:
        return tier
    if way.tpot_limit_s is None or largest < SMALL_BATCH:
        why = f"memory holds no more than {largest:,.0f}"
    else:
        limit = format_seconds(way.tpot_limit_s)
        why = f"the limit of {limit} a token leaves no more (without it {largest:,.0f} sequences); allow more time"
    chips = "a chip" if way.costs.num_chips == 1 else f"{way.costs.num_chips:,} chips"
    batch = f"a batch of {way.batch_size:,.3g} on {chips}"
    usd = f"{format_usd(tier.usd_per_mtok_input)} in, {format_usd(tier.usd_per_mtok_output)} out a million tokens"
    return replace(
        tier,
        reason=f"not sold: {usd} would be the price of {batch}: {why}",
        input_usd=nan,
        output_usd=nan,
        margin=None,
        margin_at_longest=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Price of the mean request, split into a prompt token and an output token [USD].

    Args:
        prompts, outputs: tokens of the mean request [tokens].
    """

    input_usd: float
    output_usd: float
    prompts: float
    outputs: float

    @classmethod
    def of(cls, way: Way, usd_per_chip_s: float) -> _Split:
        return cls(
            input_usd=way.input_chip_s * usd_per_chip_s,
            output_usd=way.output_chip_s * usd_per_chip_s,
            prompts=way.lengths.mean,
            outputs=way.output_len,
        )

    @property
    def request_usd(self) -> float:
        return self.prompts * self.input_usd + self.outputs * self.output_usd

    def above(self, slower: _Split | None) -> _Split:
        """The same request at prices of which neither is below that of a slower mode.

        Another layout may compute prompts more cheaply and outputs at more cost: what the mean request pays stays.
        """
        if slower is None:
            return self
        whole = max(self.request_usd, slower.request_usd)
        given = min(max(self.input_usd, slower.input_usd), (whole - self.outputs * slower.output_usd) / self.prompts)
        return replace(self, input_usd=given, output_usd=(whole - self.prompts * given) / self.outputs)


def _sold(
    name: str,
    mode: Mode,
    way: Way | str,
    split: _Split | None,
    lengths: PromptLengths,
    rent: Rent,
    terms: Terms,
) -> SoldTier:
    """One mode of one tier, at its prices."""
    empty = SoldTier(
        name=name if lengths.from_len == 0.0 else f"{name} above {lengths.from_len:,.0f}",
        mode=mode,
        from_len=lengths.from_len,
        until_len=lengths.until_len,
        output_len=lengths.output_len(terms.output_len),
    )
    if isinstance(way, str) or split is None:
        return replace(empty, reason=str(way))
    used = terms.used(mode)
    usd = rent.usd_per_chip_hour / 3600.0 / used
    longest = lengths.until_len
    paid = longest * split.input_usd + way.output_len * split.output_usd
    takes = longest * float(way.input_at(longest)[0]) + way.output_len * float(way.output_at(longest)[0])
    kwh = _kwh_per_mtok_chip_s(way, rent, used)
    return replace(
        empty,
        way=way,
        input_usd=split.input_usd,
        output_usd=split.output_usd,
        margin=split.request_usd / (usd * way.request_chip_s) - 1.0,
        margin_at_longest=paid / (usd * takes) - 1.0 if np.isfinite(takes) else None,
        kwh_per_mtok_input=None if kwh is None else kwh * way.input_chip_s,
        kwh_per_mtok_output=None if kwh is None else kwh * way.output_chip_s,
    )


def _caches(
    rent: Rent, terms: Terms, standard: Sequence[SoldTier], tiers: Sequence[MemoryTier] | None
) -> tuple[tuple[SoldCache, ...], float | None, dict[float, float]]:
    """Prices of writes by lifetime, of storage, and of a hit by the longest prompt of a context tier [USD per token].

    A hit pays for the device that is read, in the most expensive tier of the lifetimes, and, to be safe, for the chips
    while the entry crosses their host links, as if nothing else ran. It never costs more than recomputing.
    """
    sold = [(tier, tier.way.prompts) for tier in standard if tier.way is not None and not tier.reason]
    if not sold or not terms.lifetimes_s:
        return (), None, {}
    cheap, costs = sold[0]
    usd_s, x = rent.usd_per_chip_hour / 3600.0, terms.price_over_cost
    units = default_tiers(costs.deployment.cluster) if tiers is None else tuple(tiers)
    paths = [unit.path_bytes_per_s for unit in units if unit.path_bytes_per_s]
    lines = {tier.until_len: keeping_lines(of, rent, tier.until_len, tiers, terms.fetch_s) for tier, of in sold}
    found: list[SoldCache] = []
    storage: float | None = None
    first = cheap.until_len
    for lifetime in sorted(terms.lifetimes_s):
        line = cheapest(envelope(lines[first]), lifetime)
        hold = line.hold_usd_per_s * lifetime / first
        found.append(
            SoldCache(
                lifetime_s=lifetime,
                tier=line.name,
                write_usd=(line.once_usd / first + hold) * x + cheap.input_usd,
                hold_usd=hold,
                saves=(float(costs.prefill_chip_s(first)[0]) * usd_s) / (float(line.usd(lifetime, 1.0)) / first),
            )
        )
        storage = line.hold_usd_per_s * 3600.0 / first * x * 1e6
    hits: dict[float, float] = {}
    for tier, of in sold:
        length = tier.until_len
        chosen = [cheapest(envelope(lines[length]), lifetime) for lifetime in terms.lifetimes_s]
        waits = float(of.kv_bytes(length)) / min(paths) * usd_s if paths else 0.0
        each = max(line.retrieve_usd + (0.0 if line.tier in ("hbm", RECOMPUTE) else waits) for line in chosen)
        hits[length] = min(each / length * x, tier.input_usd)
    return tuple(found), storage, hits


def keeping_lines(
    costs: TokenCosts,
    rent: Rent,
    prompt_len: float,
    tiers: Sequence[MemoryTier] | None = None,
    fetch_s: float | None = None,
) -> list[KeepingCost]:
    """Cost lines of keeping the KV cache of one prompt in every memory tier, and of computing it again.

    Args:
        prompt_len: tokens of the entry [tokens].
        fetch_s: tiers that take longer to bring it back are left out; recomputing stays [s].
    """
    on = replace(costs.deployment.cluster, usd_per_chip_hour=rent.usd_per_chip_hour)
    entry = float(costs.kv_bytes(prompt_len))
    units = default_tiers(on) if tiers is None else tiers
    chip_s = float(costs.prefill_chip_s(prompt_len)[0]) * prompt_len
    again = recompute_cost(rent.usd_per_chip_hour / 3600.0 * chip_s, chip_s / costs.num_chips)
    lines = [keeping_cost(unit, entry) for unit in units]
    return [*[line for line in lines if fetch_s is None or line.fetch_s <= fetch_s], again]


def _kwh_per_mtok_chip_s(way: Way, rent: Rent, used: float) -> float | None:
    """Energy of a site for a million tokens that take a second of a chip each [kWh]; None where none is known.

    Chips that wait for requests draw idle power; all are paid for.

    Args:
        used: share of the time that chips serve [1].
    """
    power, cluster = way.power, way.costs.deployment.cluster
    waiting = power_of(cluster, float(drawn_w(cluster.chip, 0.0, 1.0)))
    if power is None or waiting is None:
        return None
    return (power.site_w(rent.pue) + waiting.site_w(rent.pue) * (1.0 / used - 1.0)) / 3.6e6 * 1e6 * way.used_share
