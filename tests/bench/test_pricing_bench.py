"""Small sizes of what bench/pricing.py measures; run once as tests, timed with `--benchmark-enable`."""

from __future__ import annotations

from typing import Any

from helpers import token_costs
from rackline.pricing import OneDeployment, Rent, all_sheets, offer_prices, read_all


def test_all_sheets(benchmark: Any) -> None:
    assert len(benchmark(lambda: read_all(all_sheets()))) >= 12


def test_one_sheet_made(benchmark: Any) -> None:
    costs = token_costs("llama-3.1-70b", "tp=8", on="dgx-h100")
    offered = benchmark(offer_prices, OneDeployment(costs=costs), Rent(usd_per_chip_hour=2.0))
    assert offered.tiers[0].output_usd > 0
