"""What it costs to keep the prefixes of some traffic: by lifetime and memory tier, and at the prices of an API.

A prompt token that is found is loaded, one that is not is computed and written, and each is held until its next use or
until it expires:

    cost per prompt token = hold · held time + found · retrieve + (1 - found) · (compute + write)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rackline.errors import require
from rackline.pricing.cache import RECOMPUTE, KeepingCost
from rackline.pricing.sheet import PriceTier

_TRIED_S = np.geomspace(1.0, 7 * 86400.0, 80)  # lifetimes among which the cheapest is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How traffic repeats its prefixes, without a limit of memory.

    Args:
        found: share of prompt tokens found, by sliding expiry [s] → [1].
        held_s: seconds for which a token is held, over prompt tokens, by sliding expiry [s] → [s].
        found_in: share found in a cache, by capacity [tokens] → [1].
        input_len: mean prompt [tokens].
        eviction: what leaves that cache first.
    """

    found: Callable[[float], float]
    held_s: Callable[[float], float]
    found_in: Callable[[float], float]
    input_len: float
    eviction: str = "lru"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCost:
    """Cost of the prompts of some traffic, if prefixes are kept for a time after their last use.

    Args:
        ttl_s: that time, which each use begins anew (sliding expiry) [s].
        hit_share: share of prompt tokens found [1].
        usd_per_mtok_prompt: cost of a million prompt tokens, or what they cost at an API [USD].
        saving: share of the cost without a cache that it saves [1].
    """

    ttl_s: float
    hit_share: float
    usd_per_mtok_prompt: float
    saving: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeCost(PromptCost):
    """Cost of keeping a prefix in one memory tier.

    Args:
        tier: that keeps them.
        held_s: seconds for which a token is held, over prompt tokens [s].
    """

    tier: str
    held_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLifetime(PromptCost):
    """Cost of keeping a prefix in one memory tier for a time, then in a slower one.

    Args:
        tier, until_s: the first, and how long after their last use they stay there [s].
        then_tier: the second, until they expire.
    """

    tier: str
    until_s: float
    then_tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoughtLifetime(PromptCost):
    """Cost of keeping a prefix at the prices of an API that sells cache writes.

    Args:
        name: of the write price.
    """

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBy:
    """What a cache finds in one device of a tier.

    Args:
        tier: the device.
        capacity_tokens: that fit [tokens].
        hit_share: share of prompt tokens found [1].
    """

    tier: str
    capacity_tokens: float
    hit_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrefixes:
    """The prefixes of some traffic, kept.

    Args:
        name: of the traffic.
        input_len: mean prompt [tokens].
        unlimited_share: share of prompt tokens that an unlimited cache finds [1].
        computed_usd_per_mtok: cost of computing a million prompt tokens [USD].
        lifetimes: the cheapest tier for each lifetime that was asked for.
        best: the cheapest lifetime and tier of all.
        staged: the cheapest two tiers for each two consecutive lifetimes that were asked for, then the cheapest two of
            all; nothing with one tier.
        devices: what one device of each tier finds, by capacity alone.
        eviction: what leaves a device first.
        bought: at the prices of an API; nothing without one.
    """

    name: str
    input_len: float
    unlimited_share: float
    computed_usd_per_mtok: float
    lifetimes: tuple[LifetimeCost, ...]
    best: LifetimeCost
    staged: tuple[StagedLifetime, ...]
    devices: tuple[HeldBy, ...]
    eviction: str
    bought: tuple[BoughtLifetime, ...]


def lifetime_cost(lines: Sequence[KeepingCost], repeats: Repeats, prompt_len: float, ttl_s: float) -> LifetimeCost:
    """The cheapest tier for one lifetime.

    Args:
        lines: cost lines of an entry of each tier, and of recomputing it.
        prompt_len: tokens of that entry [tokens].
        ttl_s: sliding expiry [s].

    Raises:
        InputError: no tier keeps anything.
    """
    compute = next(line for line in lines if line.name == RECOMPUTE).retrieve_usd
    tiers = [line for line in lines if line.name != RECOMPUTE]
    require(tiers, what="tiers", given=0, allowed="at least one memory tier")
    found, held_s = repeats.found(ttl_s), repeats.held_s(ttl_s)

    def cost(line: KeepingCost) -> float:
        return line.hold_usd_per_s * held_s + found * line.retrieve_usd + (1.0 - found) * (compute + line.once_usd)

    best = min(tiers, key=cost)
    return LifetimeCost(
        ttl_s=ttl_s,
        hit_share=found,
        held_s=held_s,
        tier=best.name,
        usd_per_mtok_prompt=cost(best) * 1e6 / prompt_len,
        saving=1.0 - cost(best) / compute,
    )


def best_lifetime(lines: Sequence[KeepingCost], repeats: Repeats, prompt_len: float) -> LifetimeCost:
    """The cheapest lifetime and tier, from a second to a week."""
    tried = (lifetime_cost(lines, repeats, prompt_len, ttl_s) for ttl_s in _TRIED_S.tolist())
    return min(tried, key=lambda one: one.usd_per_mtok_prompt)


def staged_lifetime(
    lines: Sequence[KeepingCost], repeats: Repeats, prompt_len: float, lifetimes_s: Sequence[float] | None = None
) -> StagedLifetime | None:
    """The cheapest two tiers, the second cheaper to hold than the first; None where there are fewer than two.

    cost per prompt token = hold₁ · held(t₁) + hold₂ · (held(t₂) - held(t₁)) + found(t₁) · retrieve₁
    + (found(t₂) - found(t₁)) · retrieve₂ + (1 - found(t₂)) · compute + (1 - found(t₁)) · (write₁ + write₂)

    Each token that is not used again within t₁ moves to the second tier; each that the first does not hold is written
    there.

    Args:
        lines: cost lines of an entry of each tier, and of recomputing it.
        prompt_len: tokens of that entry [tokens].
        lifetimes_s: both times after the last use; by default the cheapest two from a second to a week [s].
    """
    compute = next(line for line in lines if line.name == RECOMPUTE).retrieve_usd
    tiers = [line for line in lines if line.name != RECOMPUTE]
    times = _TRIED_S if lifetimes_s is None else np.asarray(lifetimes_s, dtype=float)
    if len(tiers) < 2 or len(times) < 2:
        return None
    found, held_s = (np.array([law(ttl_s) for ttl_s in times.tolist()]) for law in (repeats.found, repeats.held_s))
    first, then = (found[:, None], held_s[:, None]), (found[None, :], held_s[None, :])
    before = times[:, None] < times[None, :]
    best: StagedLifetime | None = None
    for one in tiers:
        for other in tiers:
            if other.hold_usd_per_s >= one.hold_usd_per_s:
                continue
            usd = one.hold_usd_per_s * first[1] + other.hold_usd_per_s * (then[1] - first[1])
            usd = usd + first[0] * one.retrieve_usd + (then[0] - first[0]) * other.retrieve_usd
            usd = usd + (1.0 - then[0]) * compute + (1.0 - first[0]) * (one.once_usd + other.once_usd)
            least = np.where(before, usd, np.inf)
            row, column = (int(at) for at in np.unravel_index(np.argmin(least), least.shape))
            cost = float(least[row, column])
            if best is None or cost * 1e6 / prompt_len < best.usd_per_mtok_prompt:
                best = StagedLifetime(
                    tier=one.name,
                    until_s=float(times[row]),
                    then_tier=other.name,
                    ttl_s=float(times[column]),
                    hit_share=float(found[column]),
                    usd_per_mtok_prompt=cost * 1e6 / prompt_len,
                    saving=1.0 - cost / compute,
                )
    return best


def bought_lifetimes(tier: PriceTier, repeats: Repeats) -> tuple[BoughtLifetime, ...]:
    """What the prompts cost at each write price: tokens that are found at the price of a hit, others as written.

    Args:
        tier: standard prices.
        repeats: of the traffic.

    Assumes: each prompt is written to its end, and each hit renews the lifetime at no price of its own.
    """
    given, hit = tier.input_usd, tier.cached_input_usd
    if not given or hit is None:
        return ()
    rows: list[BoughtLifetime] = []
    for write in tier.cache_writes:
        if write.lifetime_s is None:
            continue
        found = repeats.found(write.lifetime_s)
        usd = found * hit + (1.0 - found) * write.usd
        rows.append(
            BoughtLifetime(
                name=write.name,
                ttl_s=write.lifetime_s,
                hit_share=found,
                usd_per_mtok_prompt=usd * 1e6,
                saving=1.0 - usd / given,
            )
        )
    return tuple(rows)
