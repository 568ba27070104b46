"""Records of price sheets: what a provider charges for the tokens of one model, on one date.

A sheet that somebody types in may lack a price, hold a negative one or have its tiers out of order: such a sheet still
loads, and `rackline.pricing.sheet` says which prices cannot be used and why. Only a price that is no number is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackline.catalog.base import Date, NonNegative, Positive, Record, SourcedRecord, Text

Usd = Annotated[float, Field()]

ServiceMode = Literal["standard", "batch", "flex", "priority", "fast"]


class CacheWriteRecord(Record):
    """What it costs to put a prompt into the cache.

    Args:
        name: How the lifetime is called ("5min").
        lifetime_s: How long it is kept without being used, None where the provider does not say [s].
        usd_per_mtok: Price of each token written, its processing included [USD per million tokens].
    """

    name: Text
    lifetime_s: Positive | None = None
    usd_per_mtok: Usd


class PriceTierRecord(Record):
    """Prices of one mode of service from one context length on.

    Args:
        name: Unique in the sheet ("standard", "standard-200k", "batch").
        mode: standard, batch (within a day), flex (when there is room), priority (preferred), fast (more tokens/s).
        above_context_len: Prompts longer than this pay these prices [tokens].
        usd_per_mtok_input: Uncached prompt tokens [USD per million tokens].
        usd_per_mtok_output: Generated tokens [USD per million tokens].
        usd_per_mtok_cached_input: Prompt tokens found in the cache [USD per million tokens].
        usd_per_mtok_hour_storage: Keeping tokens in the cache, where charged by time [USD per million tokens and hour].
        speed_ratio: Tokens per second of a fast mode over the standard mode, as advertised [ratio].
        cache_writes: Prices of writing to the cache by lifetime.
    """

    name: Text
    mode: ServiceMode = "standard"
    above_context_len: NonNegative = 0.0
    usd_per_mtok_input: Usd | None = None
    usd_per_mtok_output: Usd | None = None
    usd_per_mtok_cached_input: Usd | None = None
    usd_per_mtok_hour_storage: Usd | None = None
    speed_ratio: Positive | None = None
    cache_writes: tuple[CacheWriteRecord, ...] = ()


class PastPriceRecord(Record):
    """An earlier price of the same model.

    Args:
        name: A label, such as the date on which it ended.
        until: The last day of the price, None where only its order is known.
        usd_per_mtok_input, usd_per_mtok_output: [USD per million tokens].
    """

    name: Text
    until: Date | None = None
    usd_per_mtok_input: Usd
    usd_per_mtok_output: Usd


class PriceSheetRecord(SourcedRecord):
    """The prices of one model at one provider.

    Args:
        provider: Who sells it.
        sold_as: How the provider calls the model.
        model: Catalogue name of the model where its shape is public.
        date: When the prices held.
        max_context_len: Longest prompt that is accepted [tokens].
        tiers: In order of mode and context, standard first.
        history: Earlier prices, oldest first.
    """

    provider: Text
    sold_as: Text
    model: Text | None = None
    date: Date
    max_context_len: Positive | None = None
    tiers: Annotated[tuple[PriceTierRecord, ...], Field(min_length=1)]
    history: tuple[PastPriceRecord, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ValueError(f"tiers need different names; got {', '.join(names)}")
        return self
