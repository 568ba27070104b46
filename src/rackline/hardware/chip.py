"""A chip: the peaks that bound every operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from rackline.catalog import ChipRecord, RentKind, Source, chip_record
from rackline.errors import PrecisionError, nearest_names
from rackline.hardware.power import ChipPower, peak_16_bit

RENT_KINDS: dict[RentKind, str] = {
    "on_demand": "on demand",
    "reserved_1y": "reserved for a year",
    "reserved_3y": "reserved for three years",
    "contract": "contract index",
    "owned": "owned",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator with its dense peaks.

    Args:
        name: Catalogue name.
        full_name: Display name.
        vendor: Who makes it.
        generation: Family, the parent of calibrations.
        released: Date of release, or None.
        peak_flop_per_s: Dense peak by data type [FLOP/s].
        hbm_bytes: Memory that the driver reports [bytes].
        hbm_bytes_per_s: Memory bandwidth [bytes/s].
        driver_bytes: Of the memory, what the driver keeps from programs [bytes].
        cores: Streaming multiprocessors or compute units, or None [count].
        l2_bytes: Last-level cache, or None [bytes].
        power_w: Rated power of the chip alone, or None [W].
        power: What it draws for what it does; None where nothing was measured on its generation.
        power_cap_w: Power that it is set to keep below, or None for its rated power [W].
        inline_ecc: Whether check bits are kept in and moved through the memory itself.
        usd_per_chip_hour: Dated rental price, or None [USD/hour].
        rent_kind: Kind of that price, or None where it is not known.
        sources: Where the numbers come from.
    """

    name: str
    full_name: str
    vendor: str
    generation: str
    peak_flop_per_s: Mapping[str, float] = field(hash=False)
    hbm_bytes: float
    hbm_bytes_per_s: float
    driver_bytes: float = 0.0
    released: str | None = None
    cores: int | None = None
    l2_bytes: float | None = None
    power_w: float | None = None
    power: ChipPower | None = None
    power_cap_w: float | None = None
    inline_ecc: bool = False
    usd_per_chip_hour: float | None = None
    rent_kind: RentKind | None = None
    sources: tuple[Source, ...] = field(default=(), repr=False, hash=False)

    def __post_init__(self) -> None:
        """Make the table of peaks read-only, so that the chip is deeply frozen."""
        object.__setattr__(self, "peak_flop_per_s", MappingProxyType(dict(self.peak_flop_per_s)))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as plain values, because a read-only mapping cannot be pickled."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["peak_flop_per_s"] = dict(self.peak_flop_per_s)
        return (_rebuild, (values,))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types that the matrix units support."""
        return tuple(self.peak_flop_per_s)

    def supports(self, dtype: str) -> bool:
        """Say whether the matrix units support the data type."""
        return dtype in self.peak_flop_per_s

    def flop_per_s(self, dtype: str) -> float:
        """Return the dense peak of a data type [FLOP/s].

        Args:
            dtype: "bf16", "fp16", "fp8", "fp4", "int8" or "fp32".

        Raises:
            PrecisionError: The chip has no such peak.
        """
        try:
            return self.peak_flop_per_s[dtype]
        except KeyError:
            near = nearest_names(dtype, self.dtypes, 1)
            raise PrecisionError(
                what=f"data type of {self.name}",
                given=dtype,
                allowed=", ".join(self.dtypes),
                nearest=near[0] if near else None,
            ) from None

    def ridge_point(self, dtype: str = "bf16") -> float:
        """Return the arithmetic intensity where compute time equals memory time [FLOP/byte].

        Equation:
            ridge = peak_flop_per_s / hbm_bytes_per_s

        Example:
            >>> from rackline.hardware import chip
            >>> round(chip("h100-sxm").ridge_point("bf16"))
            295
        """
        return self.flop_per_s(dtype) / self.hbm_bytes_per_s

    @property
    def peak_16_bit(self) -> float:
        """Peak of matrix products as if of 16 bits: the highest rate times bits over 16 [FLOP/s].

        >>> from rackline.hardware import chip
        >>> chip("tpu-v5e").peak_16_bit == chip("tpu-v5e").flop_per_s("bf16")
        True
        """
        return peak_16_bit(self.peak_flop_per_s)

    @property
    def program_bytes(self) -> float:
        """Memory available to programs: hbm_bytes - driver_bytes [bytes]."""
        return max(self.hbm_bytes - self.driver_bytes, 0.0)

    @property
    def drain_s(self) -> float:
        """Time to read the whole memory once: hbm_bytes / hbm_bytes_per_s [s]."""
        return self.hbm_bytes / self.hbm_bytes_per_s


def _rebuild(values: dict[str, object]) -> Chip:
    return Chip(**values)  # type: ignore[arg-type]


def chip_from_record(record: ChipRecord) -> Chip:
    """Build the chip that a catalogue record describes."""
    keys = [one.name for one in fields(Chip) if one.name in type(record).model_fields]
    values: dict[str, Any] = {key: getattr(record, key) for key in keys}
    values["peak_flop_per_s"] = record.peak_flop_per_s.model_dump(exclude_none=True)
    values["power"] = ChipPower.of_record(record)
    return Chip(**values)


def chip(name: str, overrides: Mapping[str, object] | None = None) -> Chip:
    """Look a chip up by name, alias or file.

    Args:
        name: Catalogue name, alias, or path of a TOML file.
        overrides: Dotted keys and the values that replace the catalogue's.

    Raises:
        UnknownNameError: No such chip.
        CatalogError: A bad file or override.

    Example:
        >>> chip("h100-sxm", {"hbm_bytes_per_s": 20e12}).hbm_bytes_per_s
        20000000000000.0
    """
    return chip_from_record(chip_record(name, overrides=overrides))
