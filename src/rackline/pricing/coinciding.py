"""Why prices of two modes, or of two context tiers, are the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rackline.pricing.offered import SoldTier, Terms
from rackline.units import format_seconds

_SAME = 0.005  # of a price: as it is written with three digits


def coinciding_modes(tiers: Sequence[SoldTier], terms: Terms) -> list[str]:
    """One sentence for each mode whose prices are those of the next slower one in the same tier."""
    found: list[str] = []
    for length in dict.fromkeys(tier.until_len for tier in tiers):
        sold = {tier.mode: tier for tier in tiers if tier.until_len == length and not tier.reason}
        batch, flex, standard = (sold.get(mode) for mode in ("batch", "flex", "standard"))
        if batch and flex and _same(batch, flex):
            found.append(f"prompts to {length:,.0f}: flex costs what batch does: {_why_flex(batch, terms)}")
        if flex and standard and _same(flex, standard):
            found.append(
                f"prompts to {length:,.0f}: standard costs what flex does: at a utilisation of "
                f"{100 * terms.utilisation:.3g} % no hours are left over"
            )
        fast = [tier for tier in (standard, *_faster(tiers, length)) if tier]
        found += [
            f"prompts to {length:,.0f}: {_plain(second)} costs what {_plain(first)} does: the way that serves it costs "
            "no more per token"
            for first, second in pairwise(fast)
            if _same(first, second)
        ]
    return found


def coinciding_contexts(tiers: Sequence[SoldTier]) -> list[str]:
    """One sentence for each mode whose longer tier costs what the shorter does."""
    found: list[str] = []
    for name in dict.fromkeys(_plain(tier) for tier in tiers):
        sold = [tier for tier in tiers if _plain(tier) == name and not tier.reason]
        for first, second in pairwise(sold):
            if _same(first, second):
                found.append(
                    f"{name}: prompts to {second.until_len:,.0f} cost what those to {first.until_len:,.0f} do: a step "
                    "takes no longer and as many sequences fit"
                )
    return found


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


def _plain(tier: SoldTier) -> str:
    return tier.name.split(" above")[0]


def _same(first: SoldTier, second: SoldTier) -> bool:
    pairs = ((first.input_usd, second.input_usd), (first.output_usd, second.output_usd))
    return all(abs(a - b) <= _SAME * max(a, b) for a, b in pairs)
