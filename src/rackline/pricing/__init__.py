"""From cost to a price sheet, from a price sheet to the architecture, and the cost of keeping a KV cache."""

from rackline.pricing.cache import (
    CheapestSpan,
    KeepingCost,
    break_even_s,
    cheapest,
    default_tiers,
    envelope,
    keeping_cost,
    recompute_cost,
    tier_by_drain,
)
from rackline.pricing.compare import Compared, compare, rank_correlation
from rackline.pricing.costs import (
    EarnedAt,
    OneDeployment,
    PromptLengths,
    Rent,
    TokenCosts,
    Way,
    Ways,
    purchase_usd_per_hour,
)
from rackline.pricing.forward import keeping_lines, offer_prices, request_cost_usd
from rackline.pricing.inverse import read_all, read_prices
from rackline.pricing.offered import Offered, SoldCache, SoldMedia, SoldTier, Terms
from rackline.pricing.reading import Conflict, Inference, KeptIn, Missing, PriceChange, Reading
from rackline.pricing.sheet import PriceSheet, PriceTier, all_sheets, find_sheets, price_sheet, sheet_from_record
from rackline.pricing.unknowns import Offer, Range, Unknowns, default_offers, default_unknowns

__all__ = [
    "CheapestSpan",
    "Compared",
    "Conflict",
    "EarnedAt",
    "Inference",
    "KeepingCost",
    "KeptIn",
    "Missing",
    "Offer",
    "Offered",
    "OneDeployment",
    "PriceChange",
    "PriceSheet",
    "PriceTier",
    "PromptLengths",
    "Range",
    "Reading",
    "Rent",
    "SoldCache",
    "SoldMedia",
    "SoldTier",
    "Terms",
    "TokenCosts",
    "Unknowns",
    "Way",
    "Ways",
    "all_sheets",
    "break_even_s",
    "cheapest",
    "compare",
    "default_offers",
    "default_tiers",
    "default_unknowns",
    "envelope",
    "find_sheets",
    "keeping_cost",
    "keeping_lines",
    "offer_prices",
    "price_sheet",
    "purchase_usd_per_hour",
    "rank_correlation",
    "read_all",
    "read_prices",
    "recompute_cost",
    "request_cost_usd",
    "sheet_from_record",
    "tier_by_drain",
]
