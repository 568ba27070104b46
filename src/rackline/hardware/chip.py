"""A chip: the peaks that bound every operation, and what it draws for what it does."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from rackline.catalog import names
from rackline.catalog.base import (
    CatalogueObject,
    Count,
    Date,
    Name,
    NonNegative,
    Positive,
    Record,
    SourcedRecord,
    Text,
    from_record,
    not_in_files,
    schema_of,
    written_as,
)
from rackline.catalog.load import Reader
from rackline.errors import InputError, PrecisionError, require, unknown_name

RentKind = Literal["on_demand", "reserved_1y", "reserved_3y", "contract", "owned"]
RENT_KINDS: dict[RentKind, str] = {
    "on_demand": "on demand",
    "reserved_1y": "reserved for a year",
    "reserved_3y": "reserved for three years",
    "contract": "contract index",
    "owned": "owned",
}

BITS = {"fp32": 32.0, "bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.0}
"""Bits of the factors of a product; what a multiplication takes is taken to be proportional to them."""


class PeakRates(Record):
    """Dense peak of the matrix units by data type [FLOP/s]; absent means not supported."""

    bf16: Positive | None = None
    fp16: Positive | None = None
    fp8: Positive | None = None
    fp4: Positive | None = None
    int8: Positive | None = None
    fp32: Positive | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("a chip needs the peak of at least one data type")
        return self


class RentRecord(Record):
    """A dated price of a chip-hour.

    Args:
        usd_per_chip_hour: With its share of host and network [USD/hour].
        date: When it was asked, as YYYY[-MM[-DD]].
    """

    usd_per_chip_hour: Positive
    date: Date


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipPower:
    """What a chip draws for what it does.

    Equation:
        joules of a pass = idle_w · seconds + sum over kernels of (busy_w + converting_w) · seconds without overhead
                           + joules_per_flop · FLOP + joules_per_hbm_byte · bytes + joules_per_link_byte · bytes

    at most limit_w · seconds; a kernel that reaches the limit runs at a lower clock, which measured rates include.

    Args:
        idle_w: With a loaded program that waits [W].
        busy_w: In addition, while a kernel runs on the chip [W].
        converting_w: In addition, while a kernel scales or converts weights outside of the matrix units [W].
        joules_per_flop: Of a bf16 matrix product; other types in proportion to their bits [J/FLOP].
        joules_per_hbm_byte: Read or written, with the way across the chip [J/byte].
        joules_per_link_byte: Sent to another chip [J/byte].
        limit_w: rated power, to which the chip keeps by itself [W].
        origin: the chips to which the numbers were fitted.
        other_generation: whether those are of other generations.
    """

    idle_w: Positive
    busy_w: NonNegative
    converting_w: NonNegative
    joules_per_flop: NonNegative
    joules_per_hbm_byte: NonNegative
    joules_per_link_byte: NonNegative
    limit_w: float = not_in_files(float("inf"))
    origin: str = not_in_files("")
    other_generation: bool = not_in_files(False)

    def flop_joules(self, dtype: str) -> float:
        """Energy of one FLOP of a data type [J].

        >>> from rackline.hardware import chip
        >>> power = chip("h100-sxm").power
        >>> power.flop_joules("fp8") / power.flop_joules("bf16")
        0.5
        """
        return self.joules_per_flop * BITS.get(dtype.partition("_")[0], 16.0) / 16.0

    def clock_under(self, cap_w: float | None, drawn_w: float) -> float:
        """Share of the clock at which a kernel keeps below a power cap [1].

        Equation:
            sqrt((cap_w - idle_w) / (min(drawn_w, limit_w) - idle_w)), at most 1

        Args:
            cap_w: power cap; None is the limit [W].
            drawn_w: power of the kernel at the default limit [W].

        Assumes: power beyond idle is proportional to the square of the clock (as in `rackline.passes.fallback`).
        """
        drawn_w = min(drawn_w, self.limit_w)
        if cap_w is None or cap_w >= drawn_w:
            return 1.0
        return ((cap_w - self.idle_w) / (drawn_w - self.idle_w)) ** 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip(CatalogueObject):
    """One accelerator with its dense peaks.

    Args:
        vendor: Who makes it.
        generation: Family used as the parent of calibrations ("hopper", "tpu-v5e").
        released: Date of release, YYYY[-MM[-DD]].
        peak_flop_per_s: Dense peaks by data type [FLOP/s].
        hbm_bytes: Memory that the driver reports [bytes].
        driver_bytes: Of it, what the driver keeps from programs [bytes].
        hbm_bytes_per_s: Peak memory bandwidth [bytes/s].
        cores: Streaming multiprocessors or compute units [count].
        l2_bytes: Last-level cache [bytes].
        power_w: Rated power of the chip alone, its default limit [W].
        power: What it draws for what it does; that of a chip of its generation where nothing is said.
        power_cap_w: Power that it is set to keep below, or None for its rated power [W].
        inline_ecc: Whether check bits are kept in and moved through the memory itself, a sixteenth of it.
        host_bytes_per_s: Speed of its way to the memory of its host, each way; PCIe of its generation where nothing is
            said [bytes/s].
        grace: Whether its host is a Grace CPU, joined by NVLink-C2C.
        usd_per_chip_hour: The price that is used unless another kind is asked for [USD/hour].
        rent_kind: Of which kind that price is.
        rents: Dated prices by kind: on demand, reserved for one or three years, an index of contracts, or what owning
            costs.
    """

    vendor: Text
    generation: Name
    released: Date | None = None
    peak_flop_per_s: Mapping[str, float] = written_as(
        PeakRates, lambda rates: rates.model_dump(exclude_none=True), {}, needed=True, hash=False
    )
    hbm_bytes: Positive
    hbm_bytes_per_s: Positive
    driver_bytes: NonNegative = 0.0
    cores: Count | None = None
    l2_bytes: Positive | None = None
    power_w: Positive | None = None
    power: ChipPower | None = None
    power_cap_w: float | None = not_in_files(None)
    inline_ecc: bool = False
    host_bytes_per_s: Positive | None = None
    grace: bool = False
    usd_per_chip_hour: Positive | None = None
    rent_kind: RentKind | None = None
    rents: dict[RentKind, RentRecord] = field(default_factory=dict[RentKind, RentRecord], repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the table of peaks read-only, so that the chip is deeply frozen."""
        object.__setattr__(self, "peak_flop_per_s", MappingProxyType(dict(self.peak_flop_per_s)))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as plain values, because a read-only mapping cannot be pickled."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values["peak_flop_per_s"] = dict(self.peak_flop_per_s)
        return (functools.partial(Chip, **values), ())

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
            raise unknown_name(f"data type of {self.name}", dtype, self.dtypes, PrecisionError) from None

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

        fp32 counts where there is no other type.

        >>> from rackline.hardware import chip
        >>> chip("tpu-v5e").peak_16_bit == chip("tpu-v5e").flop_per_s("bf16")
        True
        """
        return max(
            rate * BITS.get(dtype, 16.0) / 16.0
            for dtype, rate in self.peak_flop_per_s.items()
            if dtype != "fp32" or len(self.peak_flop_per_s) == 1
        )

    @property
    def program_bytes(self) -> float:
        """Memory available to programs: hbm_bytes - driver_bytes [bytes]."""
        return max(self.hbm_bytes - self.driver_bytes, 0.0)

    @property
    def drain_s(self) -> float:
        """Time to read the whole memory once: hbm_bytes / hbm_bytes_per_s [s]."""
        return self.hbm_bytes / self.hbm_bytes_per_s


if TYPE_CHECKING:
    ChipRecord = SourcedRecord
else:
    ChipRecord = schema_of(Chip)
"""What the file of a chip says, with the sources of its numbers."""


chip_record = Reader("chips", ChipRecord)


def chip_from_record(record: ChipRecord) -> Chip:
    """The chip that a file describes; its power is borrowed from other chips where the file has none."""
    stated = from_record(Chip, record)
    return replace(stated, power=_power(stated))


@functools.cache
def stated_chips() -> tuple[Chip, ...]:
    """All chips of the catalogue as their files state them, nothing borrowed."""
    return tuple(from_record(Chip, chip_record(name)) for name in names("chips"))


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


# ------------------------------------------------------------------------------------------------------ power


def _power(chip: Chip) -> ChipPower | None:
    """The chip's own numbers, else those of its generation, else those of other generations; None without a limit.

    Within a generation, idle and busy power grow with the limit, and an operation takes the same energy. From other
    generations a chip takes the mean shares: of the limit, and for an operation of the limit over the peak.
    """
    if chip.power_w is None:
        return None
    if chip.power is not None:
        return replace(chip.power, limit_w=chip.power_w, origin=chip.name)
    measured = [(other, other.power, other.power_w) for other in stated_chips() if other.power and other.power_w]
    for other, power, limit_w in measured:
        if other.generation == chip.generation:
            share = chip.power_w / limit_w
            watts = {key: getattr(power, key) * share for key in ("idle_w", "busy_w", "converting_w")}
            return replace(power, **watts, limit_w=chip.power_w, origin=other.name)
    of = [shares(other, power, limit_w) for other, power, limit_w in measured]
    # scales of blocks are applied in hardware where there are fp4 units
    alike = [one["converting_w"] for one, (other, _, _) in zip(of, measured, strict=True)
             if other.supports("fp4") == chip.supports("fp4")]  # fmt: skip
    mean = {key: sum(one[key] for one in of) / len(of) for key in of[0]}
    return ChipPower(
        idle_w=mean["idle_w"] * chip.power_w,
        busy_w=mean["busy_w"] * chip.power_w,
        converting_w=sum(alike) / max(len(alike), 1) * chip.power_w,
        joules_per_flop=mean["joules_per_flop"] * chip.power_w / chip.peak_16_bit,
        joules_per_hbm_byte=mean["joules_per_hbm_byte"] * chip.power_w / chip.hbm_bytes_per_s,
        joules_per_link_byte=measured[0][1].joules_per_link_byte,
        limit_w=chip.power_w,
        origin=", ".join(other.name for other, _, _ in measured),
        other_generation=True,
    )


def shares(chip: Chip, power: ChipPower, limit_w: float) -> dict[str, float]:
    """The numbers of a chip as shares of its limit, at its peaks for energies of an operation [1]."""
    return {
        "idle_w": power.idle_w / limit_w,
        "busy_w": power.busy_w / limit_w,
        "converting_w": power.converting_w / limit_w,
        "joules_per_flop": power.joules_per_flop * chip.peak_16_bit / limit_w,
        "joules_per_hbm_byte": power.joules_per_hbm_byte * chip.hbm_bytes_per_s / limit_w,
    }


LEAST_CAP = 0.2
"""Lowest power cap, as the share of the range between idle and the limit (assumed: a little above the lowest limit that
an H100 takes, 200 of 700 W, from memory)."""


def checked_cap(chip: Chip, cap_w: float) -> float:
    """A power cap that the chip can keep [W].

    Raises:
        InputError: nothing is known of the chip's power, or it is beyond what the chip can be set to.
    """
    power = chip.power
    if power is None:
        raise InputError(
            what="power cap", given=f"{cap_w:g} W", allowed=f"a chip whose power is known; {chip.name}'s is not"
        )
    least = power.idle_w + LEAST_CAP * (power.limit_w - power.idle_w)
    require(
        least <= cap_w <= power.limit_w,
        what="power cap",
        given=f"{cap_w:g} W",
        allowed=f"{least:.0f} to {power.limit_w:g} W on {chip.name}",
        nearest=f"{min(max(cap_w, least), power.limit_w):.0f}W",
    )
    return cap_w


def drawn_w(chip: Chip, kernel_joules: Any, seconds: Any) -> NDArray[np.float64]:
    """Mean power of a chip over some time [W].

    Equation:
        min(idle_w + kernel_joules / seconds, cap or limit)

    Args:
        chip: with what it draws.
        kernel_joules: energy of its kernels in that time beyond idle [J].
        seconds: the time [s].

    Returns:
        In the shape of both; not a number where nothing is known of the chip.
    """
    power = chip.power
    if power is None:
        return np.full(np.shape(seconds), np.nan)
    limit = power.limit_w if chip.power_cap_w is None else chip.power_cap_w
    return np.minimum(power.idle_w + np.asarray(kernel_joules) / seconds, limit)


# ---------------------------------------------------------------------------------------- the way to its host

PCIE_BYTES_PER_S = {"volta": 12.5e9, "turing": 12.5e9, "ampere": 25e9, "ada": 25e9}
"""PCIe of 16 lanes less its headers, 3.0 (15.8 GB/s) and 4.0 (31.5 GB/s), by generation of chips (assumed share)."""
HOST_BYTES_PER_S = 50e9
"""The rate of all later chips: PCIe 5.0 of 16 lanes, 63 GB/s less its headers (assumed share)."""


def host_bytes_per_s(chip: Chip) -> float:
    """Speed at which a chip exchanges data with the memory of its host, each way [bytes/s]."""
    known = PCIE_BYTES_PER_S.get(chip.generation.split("-")[0], HOST_BYTES_PER_S)
    return known if chip.host_bytes_per_s is None else chip.host_bytes_per_s
