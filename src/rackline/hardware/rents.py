"""What a chip costs by the hour: one kind of price for all chips, estimated where none of that kind is published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from rackline.catalog import ChipRecord, RentKind, chip_record, names
from rackline.errors import InputError, nearest_names
from rackline.hardware.chip import RENT_KINDS
from rackline.hardware.fabric import Cluster

_NEAREST: tuple[RentKind, ...] = ("reserved_3y", "reserved_1y", "contract", "on_demand", "owned")


def parse_rent_kind(text: str) -> RentKind:
    """A kind of price of a chip-hour, such as "reserved-1y".

    Raises:
        InputError: an unknown one.
    """
    kind: RentKind | None = next((known for known in RENT_KINDS if known == text.replace("-", "_")), None)
    if kind is None:
        known = [one.replace("_", "-") for one in RENT_KINDS]
        near = nearest_names(text, known, 1)
        raise InputError(what="rent", given=text, allowed=", ".join(known), nearest=near[0] if near else None)
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """A price of a chip-hour.

    Args:
        usd_per_chip_hour: [USD/hour].
        kind: "on_demand", "reserved_1y", "reserved_3y", "contract" or "owned".
        how: kind and date in words; for an estimate, what it was made from.
        estimated: whether no price of this kind is published for the chip.
    """

    usd_per_chip_hour: float
    kind: RentKind
    how: str
    estimated: bool = False


def rent_of(name: str, kind: RentKind) -> Rent | None:
    """The price of a chip of the catalogue of one kind; None where it has none of any kind.

    A missing kind is estimated from another price of the chip, times the median ratio of both kinds over the chips that
    have both.

    Example:
        >>> rent_of("h100-sxm", "reserved_3y").usd_per_chip_hour
        1.3
    """
    record = chip_record(name)
    prices = _prices(record)
    if kind in prices:
        usd, date = prices[kind]
        return Rent(usd_per_chip_hour=usd, kind=kind, how=f"{RENT_KINDS[kind]}, {date}" if date else RENT_KINDS[kind])
    for base in _NEAREST:
        ratios = _ratios(base, kind) if base in prices else []
        if ratios:
            usd, ratio = prices[base][0], median(ratios)
            made = f"${usd:.3g} {RENT_KINDS[base]} × {ratio:.3g} (median of {len(ratios)} chips)"
            return Rent(
                usd_per_chip_hour=usd * ratio, kind=kind, how=f"{RENT_KINDS[kind]}, estimated: {made}", estimated=True
            )
    return None


def rented(cluster: Cluster, kind: RentKind) -> Cluster:
    """The cluster at the price of its chip of one kind; without a price where it has none of any kind."""
    found = rent_of(cluster.chip.name, kind) if cluster.chip.name in names("chips") else None
    if found is None:
        return replace(cluster, usd_per_chip_hour=None, rent=f"no price {RENT_KINDS[kind]} is known")
    return replace(cluster, usd_per_chip_hour=found.usd_per_chip_hour, rent=found.how)


def _prices(record: ChipRecord) -> dict[RentKind, tuple[float, str]]:
    found: dict[RentKind, tuple[float, str]] = {}
    for kind, rent in record.rents.items():
        found[kind] = (rent.usd_per_chip_hour, rent.date)
    if record.usd_per_chip_hour is not None and record.rent_kind is not None:
        found.setdefault(record.rent_kind, (record.usd_per_chip_hour, ""))
    return found


def _ratios(base: RentKind, kind: RentKind) -> list[float]:
    prices = [_prices(chip_record(name)) for name in names("chips")]
    return [one[kind][0] / one[base][0] for one in prices if kind in one and base in one]
