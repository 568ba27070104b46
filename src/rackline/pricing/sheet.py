"""The usable part of a price sheet: valid prices, and what is wrong with the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rackline.catalog import PriceSheetRecord, PriceTierRecord, names, price_sheet_record
from rackline.errors import UnknownNameError, nearest_names

PER_MTOK = 1e-6


def per_mtok(name: str, unit: str = "USD per million tokens", times: float = 1.0) -> property:
    """A property: the price of a million tokens, from that of one token in the attribute `name`.

    Args:
        unit: of the price, for the property's docstring.
        times: what the price is multiplied by as well [ratio].
    """

    def price(of: object) -> float | None:
        usd: float | None = getattr(of, name)
        return None if usd is None else usd * times / PER_MTOK

    return property(price, doc=f"`{name}` [{unit}].")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWrite:
    """Price of writing to the cache.

    Args:
        name: of the lifetime.
        lifetime_s: None where it is not stated [s].
        usd: of one token [USD].
    """

    json_keys: ClassVar = ("name", "lifetime_s", "usd_per_mtok")

    name: str
    lifetime_s: float | None
    usd: float

    usd_per_mtok = per_mtok("usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTier:
    """Prices of one mode from one context length on, a token; None where there is no usable price.

    Args:
        name: of the tier in its sheet.
        mode: standard, batch, flex, priority or fast.
        above_context_len: prompts longer than this pay these prices [tokens].
        input_usd, output_usd, cached_input_usd: of one token [USD].
        storage_usd_per_s: of keeping one token for one second [USD/s].
        speed_ratio: of a fast mode [ratio].
        cache_writes: by lifetime.
    """

    json_keys: ClassVar = (
        "name",
        "mode",
        "above_context_len",
        "usd_per_mtok_input",
        "usd_per_mtok_output",
        "usd_per_mtok_cached_input",
        "usd_per_mtok_hour_storage",
        "speed_ratio",
        "cache_writes",
    )

    name: str
    mode: str
    above_context_len: float = 0.0
    input_usd: float | None = None
    output_usd: float | None = None
    cached_input_usd: float | None = None
    storage_usd_per_s: float | None = None
    speed_ratio: float | None = None
    cache_writes: tuple[CacheWrite, ...] = ()

    usd_per_mtok_input = per_mtok("input_usd")
    usd_per_mtok_output = per_mtok("output_usd")
    usd_per_mtok_cached_input = per_mtok("cached_input_usd")
    usd_per_mtok_hour_storage = per_mtok("storage_usd_per_s", "USD per million tokens and hour", 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastPrice:
    """An earlier price of one token [USD]; `name` says until when."""

    name: str
    until: str | None
    input_usd: float
    output_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSheet:
    """Usable prices of one model at one provider.

    Args:
        name: of the sheet.
        provider, sold_as: who sells it and under which name.
        model: catalogue name, None for closed models.
        date: when the prices held.
        max_context_len: longest prompt [tokens].
        tiers: by mode, in order of context.
        history: usable earlier prices, oldest first.
        problems: prices that cannot be used, and why.
    """

    name: str
    provider: str
    sold_as: str
    date: str
    tiers: tuple[PriceTier, ...]
    model: str | None = None
    max_context_len: float | None = None
    history: tuple[PastPrice, ...] = ()
    problems: tuple[str, ...] = ()

    def of_mode(self, mode: str) -> tuple[PriceTier, ...]:
        """Tiers of a mode in order of context."""
        return tuple(tier for tier in self.tiers if tier.mode == mode)

    @property
    def standard(self) -> PriceTier | None:
        """The standard prices of short prompts."""
        tiers = self.of_mode("standard")
        return tiers[0] if tiers else None

    @property
    def step(self) -> PriceTier | None:
        """The first standard tier beyond the lowest context, None where one price holds for all."""
        tiers = self.of_mode("standard")
        return tiers[1] if len(tiers) > 1 else None


def sheet_from_record(record: PriceSheetRecord) -> PriceSheet:
    """Take from a record the prices that make sense and name the others."""
    problems: list[str] = []
    tiers = [_tier(tier, problems) for tier in record.tiers]
    ordered = sorted(tiers, key=lambda tier: tier.above_context_len)
    for mode in dict.fromkeys(tier.mode for tier in tiers):
        starts = [tier.above_context_len for tier in tiers if tier.mode == mode]
        if starts != sorted(starts):
            problems.append(f"{mode} tiers are out of order of context ({_list(starts)}); they were sorted")
        if len(set(starts)) < len(starts):
            problems.append(f"{mode} tiers have the same context ({_list(starts)}); the first of each counts")
    first: dict[tuple[str, float], PriceTier] = {}
    for tier in ordered:
        first.setdefault((tier.mode, tier.above_context_len), tier)
    kept = list(first.values())
    longest = record.max_context_len
    beyond = [tier.name for tier in kept if longest is not None and tier.above_context_len >= longest]
    if beyond:
        problems.append(
            f"{', '.join(beyond)} begins at or beyond the longest prompt of {longest:,.0f} tokens: not used"
        )
        kept = [tier for tier in kept if tier.name not in beyond]
    past: list[PastPrice] = []
    for old in record.history:
        if old.usd_per_mtok_input > 0 and old.usd_per_mtok_output > 0:
            given, made = old.usd_per_mtok_input * PER_MTOK, old.usd_per_mtok_output * PER_MTOK
            past.append(PastPrice(name=old.name, until=old.until, input_usd=given, output_usd=made))
        else:
            problems.append(f"history {old.name}: a price that is not above 0: not used")
    dated = [old.until for old in past if old.until]
    if dated != sorted(dated):
        problems.append("history is out of order of its dates; it was sorted")
        past.sort(key=lambda old: old.until or "")
    return PriceSheet(
        name=record.name,
        provider=record.provider,
        sold_as=record.sold_as,
        model=record.model,
        date=record.date,
        max_context_len=longest,
        tiers=tuple(kept),
        history=tuple(past),
        problems=tuple(problems),
    )


def _list(starts: list[float]) -> str:
    return ", ".join(f"{start:,.0f}" for start in starts)


def _tier(tier: PriceTierRecord, problems: list[str]) -> PriceTier:
    def price(what: str, value: float | None, needed: bool = False) -> float | None:
        if value is None:
            if needed:
                problems.append(f"{tier.name}: no {what} price")
            return None
        if value <= 0:
            problems.append(f"{tier.name}: {what} price {value:g} is not above 0: not used")
            return None
        return value * PER_MTOK

    found = PriceTier(
        name=tier.name,
        mode=tier.mode,
        above_context_len=tier.above_context_len,
        input_usd=price("input", tier.usd_per_mtok_input, needed=True),
        output_usd=price("output", tier.usd_per_mtok_output, needed=True),
        cached_input_usd=price("cached input", tier.usd_per_mtok_cached_input),
        storage_usd_per_s=price("storage", tier.usd_per_mtok_hour_storage),
        speed_ratio=tier.speed_ratio,
    )
    if found.storage_usd_per_s is not None:
        found = replace(found, storage_usd_per_s=found.storage_usd_per_s / 3600.0)
    if found.input_usd and found.output_usd and found.output_usd < found.input_usd:
        problems.append(f"{tier.name}: output is cheaper than input: says nothing of memory against compute")
    if found.input_usd and found.cached_input_usd and found.cached_input_usd >= found.input_usd:
        problems.append(f"{tier.name}: cached input costs no less than uncached: says nothing of the cache")
        found = replace(found, cached_input_usd=None)
    writes: list[CacheWrite] = []
    for write in tier.cache_writes:
        usd = price(f"cache write ({write.name})", write.usd_per_mtok)
        if usd is not None:
            writes.append(CacheWrite(name=write.name, lifetime_s=write.lifetime_s, usd=usd))
    timed = [write for write in writes if write.lifetime_s is not None]
    if timed != sorted(timed, key=lambda write: write.lifetime_s or 0.0):
        problems.append(f"{tier.name}: cache writes are out of order of lifetime; they were sorted")
        writes.sort(key=lambda write: write.lifetime_s or 0.0)
    return replace(found, cache_writes=tuple(writes))


def price_sheet(name: str) -> PriceSheet:
    """Look a price sheet up by name, alias or file.

    Raises:
        UnknownNameError: no such sheet.
        CatalogError: a file that breaks the schema.

    >>> round(price_sheet("claude-opus-4.6").standard.output_usd * 1e6, 6)
    25.0
    """
    return sheet_from_record(price_sheet_record(name))


def find_sheets(name: str) -> tuple[PriceSheet, ...]:
    """The sheet of a name or file, or all sheets of a catalogue model.

    Raises:
        UnknownNameError: neither.
        CatalogError: a file that breaks the schema.

    >>> len(find_sheets("gpt-oss-120b")) >= 5
    True
    """
    from rackline.catalog import model_record

    try:
        return (price_sheet(name),)
    except UnknownNameError as error:
        if name.endswith(".toml"):
            raise
        try:
            model = model_record(name).name
        except UnknownNameError:
            model = ""
        found = tuple(sheet for sheet in all_sheets() if sheet.model == model)
        if found:
            return found
        near = nearest_names(name, [*names("prices"), *{sheet.model for sheet in all_sheets() if sheet.model}], 3)
        raise UnknownNameError(
            what="price sheet or model",
            given=name,
            allowed=f"one of {len(names('prices'))} sheets, a model that they sell, or a .toml file",
            nearest=", ".join(near) or error.nearest,
        ) from None


def all_sheets() -> tuple[PriceSheet, ...]:
    """Every shipped sheet, by name."""
    return tuple(price_sheet(name) for name in names("prices"))
