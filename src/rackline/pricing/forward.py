"""From a deployment to a price sheet: every context pays, every mode follows from the batch curve.

    price = cost · (1 + margin) / utilisation

A tier's prices are those of its longest context, because the cost of a token never falls with context; so no prompt in
the tier is sold below its cost (lecture C98). A prompt's own first output token is sold as output.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError
from rackline.hardware import MemoryTier
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
from rackline.pricing.costs import Rent, TokenCosts
from rackline.pricing.offered import Offered, SoldCache, SoldMedia, SoldTier, Terms

LEAST_FAST = 2.0  # a mode below this speed-up is sold as priority
_STEPS_OF_A_TIER = 9


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
    chip_s = costs.request_chip_s(prompt_len, output_len, tpot_s)
    return rent.usd_per_chip_hour / 3600.0 / utilisation * chip_s


def offer_prices(
    costs: TokenCosts,
    rent: Rent,
    terms: Terms | None = None,
    *,
    steps: Sequence[float] = (32e3, 128e3),
    tiers: Sequence[MemoryTier] | None = None,
) -> Offered:
    """Make the price sheet of a deployment.

    Standard traffic fills `utilisation` of the hours; batch takes hours that are left over and the cheapest batch that
    fits, flex left-over hours at the standard batch; each faster mode (priority below twice the speed, fast from there
    on) the cheapest batch that is so much faster.

    Args:
        steps: longest prompt of each context tier, rising; tiers that do not fit stay with the reason [tokens].
        tiers: memory tiers for the cache; those of the catalogue when not given.

    Raises:
        InputError: steps that do not rise.
    """
    terms = terms or Terms()
    bounds = [0.0, *[float(step) for step in steps]]
    if len(bounds) < 2 or any(b <= a for a, b in itertools.pairwise(bounds)):
        raise InputError(
            what="context tiers", given=", ".join(f"{s:g}" for s in steps), allowed="rising lengths above 0"
        )
    found: list[SoldTier] = []
    modes: list[tuple[str, str, float | None, float]] = [
        ("standard", "standard", terms.tpot_s, terms.utilisation),
        ("batch", "batch", None, 1.0),
        ("flex", "flex", terms.tpot_s, 1.0),
    ]
    standard = [
        _sold("standard", *modes[0][1:], bounds[i], bounds[i + 1], costs, rent, terms) for i in range(len(steps))
    ]
    found += standard
    for name, mode, limit, used in modes[1:]:
        found += [_sold(name, mode, limit, used, low, high, costs, rent, terms) for low, high in _pairs(bounds)]
    for ratio in sorted(terms.fast_ratios):
        for (low, high), normal in zip(_pairs(bounds), standard, strict=True):
            limit = normal.tpot_s / ratio if np.isfinite(normal.tpot_s) else None
            mode = "priority" if ratio < LEAST_FAST else "fast"
            tier = _sold(f"{mode} {ratio:g}x", mode, limit, terms.utilisation, low, high, costs, rent, terms)
            if tier.reason and not normal.reason:
                tier = replace(tier, reason=f"no batch is {ratio:g} times as fast: the latency floor")
            found.append(tier)
    caches, storage, hits = _caches(costs, rent, terms, standard, tiers)
    priced = tuple(
        replace(tier, cached_input_usd=hits.get(tier.until_len, float("nan")) * _used(tier, terms)) for tier in found
    )
    return Offered(
        tiers=priced,
        caches=caches,
        storage_usd_per_mtok_hour=storage,
        terms=terms,
        rent=rent,
        costs=costs,
        media=_sold_media(costs, rent, terms, standard),
    )


def _sold_media(costs: TokenCosts, rent: Rent, terms: Terms, standard: Sequence[SoldTier]) -> SoldMedia | None:
    """Images and sound of a request: what their encoders add to a prompt of their tokens, and these tokens as input."""
    model = costs.deployment.model
    media = model.media if isinstance(model, Model) else None
    if media is None or not isinstance(model, Model):
        return None
    tokens = float(media.tokens)

    def prefill_chip_s(prompt_len: float | None) -> float:
        spread = replace(model, media=replace(media, prompt_len=prompt_len))
        one = TokenCosts.of(replace(costs.deployment, model=spread), costs.mode, costs.memory_fraction)
        return tokens * float(one.prefill_chip_s(tokens)[0])

    encoder_chip_s = prefill_chip_s(tokens) - prefill_chip_s(None)
    usd = rent.usd_per_chip_hour / 3600.0 * terms.price_over_cost * encoder_chip_s
    return SoldMedia(
        tokens=tokens,
        encoder_chip_s=encoder_chip_s,
        usd_by_context={f"{tier.until_len:g}": usd + tokens * tier.input_usd for tier in standard if not tier.reason},
    )


def _pairs(bounds: Sequence[float]) -> list[tuple[float, float]]:
    return list(itertools.pairwise(bounds))


def _used(tier: SoldTier, terms: Terms) -> float:
    """Utilisation of standard hours relative to the tier's own."""
    return terms.utilisation if tier.mode in ("batch", "flex") else 1.0


def _sold(
    name: str,
    mode: str,
    limit_s: float | None,
    utilisation: float,
    low: float,
    high: float,
    costs: TokenCosts,
    rent: Rent,
    terms: Terms,
) -> SoldTier:
    """One tier at the costs of its longest context."""
    label = name if low == 0.0 else f"{name} above {low:,.0f}"
    empty = SoldTier(name=label, mode=mode, from_len=low, until_len=high, output_len=terms.output_len)
    end = high + terms.output_len
    batch, step = costs.decode_batch(end, limit_s)
    if batch[0] == 0.0:
        if costs.batches_that_fit(end)[0] < 1:
            return replace(empty, reason=f"one sequence of {end:,.0f} tokens does not fit on the replica")
        return replace(empty, reason=f"no batch keeps {limit_s or 0:.3g} s per token at {end:,.0f} tokens")
    room = float(costs.mode.max_batched_tokens)
    # a prompt shorter than a pass costs no more a token than one that fills it; its logits are sold as output
    prefill = float(costs.prefill_chip_s(max(high, room))[0])
    decode = float(costs.decode_chip_s(end, limit_s)[0])
    factor = rent.usd_per_chip_hour / 3600.0 * (1.0 + terms.margin) / utilisation
    inside = np.geomspace(max(low, min(128.0, high)), high, _STEPS_OF_A_TIER)
    over_input = prefill / costs.prefill_chip_s(np.maximum(inside, min(room, high)))
    over_output = decode / costs.decode_chip_s(inside + terms.output_len, limit_s)
    kwh = None
    if rent.power_w_per_chip is not None:
        kwh = rent.power_w_per_chip * rent.pue / 3.6e6 * 1e6 / utilisation
    return replace(
        empty,
        input_usd=factor * prefill,
        output_usd=factor * decode,
        batch_size=float(batch[0]),
        tpot_s=float(step[0]),
        mean_margin=(
            float((1 + terms.margin) * over_input.mean() - 1),
            float((1 + terms.margin) * over_output.mean() - 1),
        ),
        kwh_per_mtok_input=None if kwh is None else kwh * prefill,
        kwh_per_mtok_output=None if kwh is None else kwh * decode,
    )


def _caches(
    costs: TokenCosts, rent: Rent, terms: Terms, standard: Sequence[SoldTier], tiers: Sequence[MemoryTier] | None
) -> tuple[tuple[SoldCache, ...], float | None, dict[float, float]]:
    """Prices of writes by lifetime, of storage, and of a hit by the longest prompt of a context tier [USD a token].

    A hit pays for the device that is read in the dearest of the lifetimes' tiers and, to be safe, for the chips while
    the entry crosses their host links, as if nothing else ran. It never costs more than computing again.
    """
    sold = [tier for tier in standard if not tier.reason]
    if not sold or not terms.lifetimes_s:
        return (), None, {}
    usd_s, x = rent.usd_per_chip_hour / 3600.0, terms.price_over_cost
    units = default_tiers(costs.deployment.cluster) if tiers is None else tuple(tiers)
    paths = [unit.path_bytes_per_s for unit in units if unit.path_bytes_per_s]
    lines = {tier.until_len: keeping_lines(costs, rent, tier.until_len, tiers, terms.fetch_s) for tier in sold}
    found: list[SoldCache] = []
    storage: float | None = None
    first = sold[0].until_len
    for lifetime in sorted(terms.lifetimes_s):
        line = cheapest(envelope(lines[first]), lifetime)
        hold = line.hold_usd_per_s * lifetime / first
        again = float(costs.prefill_chip_s(first)[0]) * usd_s
        found.append(
            SoldCache(
                lifetime_s=lifetime,
                tier=line.name,
                write_usd=(line.once_usd / first + hold) * x + sold[0].input_usd,
                hold_usd=hold,
                saves=again / (float(line.usd(lifetime, 1.0)) / first),
            )
        )
        storage = line.hold_usd_per_s * 3600.0 / first * x * 1e6
    hits: dict[float, float] = {}
    for tier in sold:
        length = tier.until_len
        chosen = [cheapest(envelope(lines[length]), lifetime) for lifetime in terms.lifetimes_s]
        waits = float(costs.kv_bytes(length)) / min(paths) * usd_s if paths else 0.0
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
