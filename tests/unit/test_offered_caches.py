"""What a cache is offered for, put together from its cost line."""

from __future__ import annotations

import pytest

from helpers import token_costs
from rackline.pricing import OneDeployment, Rent, Terms, keeping_lines, offer_prices

RENT = Rent(usd_per_chip_hour=2.0)
UNTIL = 32e3
LIFETIMES = (0.01, 300.0, 86400.0)


def test_a_write_pays_for_its_share_of_the_tier_as_long_as_it_is_kept() -> None:
    costs = token_costs("llama-3.1-70b", "tp=8", on="dgx-h100", label="fp8")
    terms = Terms(margin=0.25, utilisation=0.5, lifetimes_s=LIFETIMES)
    offered = offer_prices(OneDeployment(costs=costs), RENT, terms, steps=(UNTIL,))
    lines = {line.name: line for line in keeping_lines(costs, RENT, UNTIL)}
    input_usd = offered.tiers[0].input_usd
    assert [cache.lifetime_s for cache in offered.caches] == list(LIFETIMES)
    for cache in offered.caches:
        line = lines[cache.tier]
        hold = line.hold_usd_per_s * cache.lifetime_s / UNTIL
        assert cache.hold_usd == pytest.approx(hold, rel=1e-12)
        write = (line.once_usd / UNTIL + hold) * terms.price_over_cost + input_usd
        assert cache.write_usd == pytest.approx(write, rel=1e-12)
        again = float(costs.prefill_chip_s(UNTIL)[0]) * RENT.usd_per_chip_hour / 3600.0
        assert cache.saves == pytest.approx(again * UNTIL / float(line.usd(cache.lifetime_s, 1.0)), rel=1e-12)
    last = lines[offered.caches[-1].tier]
    stored = last.hold_usd_per_s * 3600.0 / UNTIL * terms.price_over_cost * 1e6
    assert offered.storage_usd_per_mtok_hour == pytest.approx(stored, rel=1e-12)
