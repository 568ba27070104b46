"""A memory tier: device time to hold bytes, device time to read them, and drain time.

Physics only: shares of a device and seconds. What they cost in dollars is `rackline.pricing.cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rackline.catalog.base import (
    CatalogueObject,
    Date,
    NonNegative,
    Positive,
    SourcedRecord,
    Text,
    from_record,
    schema_of,
    stated,
)
from rackline.catalog.load import Reader
from rackline.hardware.chip import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier(CatalogueObject):
    """One unit of a memory tier: a stack, a host's memory, a card, a drive.

    Args:
        tier: Which tier it is an example of, fastest first: sram, hbm, host_dram, cxl, nvme, qlc, disk.
        unit: Description of one unit ("one drive").
        released: Date of release, YYYY[-MM[-DD]].
        capacity_bytes: Capacity of one unit [bytes].
        bytes_per_s: Sequential read bandwidth of one unit [bytes/s].
        write_bytes_per_s: Sequential write bandwidth of one unit; absent means as when reading [bytes/s].
        latency_s: From a request to its first byte, at the unit itself [s].
        path_bytes_per_s: One direction of the link through which one accelerator reaches the tier [bytes/s]; absent
            means that the tier's own bandwidth is what one accelerator sees.
        path_latency_s: What that link adds to the latency [s].
        usd_per_byte: Purchase price [USD/byte].
        usd_per_hour: Cost of keeping one unit for one hour [USD/hour].
        power_w: Power of one unit [W].
    """

    tier: Literal["sram", "hbm", "host_dram", "cxl", "nvme", "qlc", "disk"]
    unit: Text = stated("")
    released: Date | None = None
    capacity_bytes: Positive
    bytes_per_s: Positive
    write_bytes_per_s: Positive | None = None
    latency_s: NonNegative = stated(0.0)
    path_bytes_per_s: Positive | None = None
    path_latency_s: NonNegative = 0.0
    usd_per_byte: Positive | None = None
    usd_per_hour: Positive | None = None
    power_w: Positive | None = None

    @property
    def drain_s(self) -> float:
        """Time to read the whole unit once [s].

        Equation:
            t = capacity_bytes / bytes_per_s

        Sources: lecture C123.

        Example:
            >>> round(memory_tier("hdd-20tb").drain_s / 3600, 1)
            19.5
        """
        return self.capacity_bytes / self.bytes_per_s

    @property
    def reach_bytes_per_s(self) -> float:
        """Bandwidth that one accelerator sees: the narrower of the unit and its path [bytes/s]."""
        return min(self.bytes_per_s, self.path_bytes_per_s or self.bytes_per_s)

    def held_share_s(self, held_bytes: float, kept_s: float) -> float:
        """Device time for holding: seconds times the share of the capacity [s].

        Sources: lecture C116, C117, C122.
        """
        return kept_s * held_bytes / self.capacity_bytes

    def read_s(self, read_bytes: float) -> float:
        """Device time for reading [s]; latency delays the reader but does not occupy the device.

        Sources: lecture C117, C122.
        """
        return read_bytes / self.bytes_per_s

    def write_s(self, written_bytes: float) -> float:
        """Device time for writing [s]."""
        return written_bytes / (self.write_bytes_per_s or self.bytes_per_s)

    def fetch_s(self, read_bytes: float) -> float:
        """Time until one accelerator has the bytes: latency and the narrower of unit and path [s]."""
        return self.latency_s + self.path_latency_s + read_bytes / self.reach_bytes_per_s


if TYPE_CHECKING:
    MemoryTierRecord = SourcedRecord
else:
    MemoryTierRecord = schema_of(MemoryTier)
"""What the file of a memory tier says, with the sources of its numbers."""


memory_record = Reader("memory", MemoryTierRecord)


def memory_tier(name: str, overrides: Mapping[str, object] | None = None) -> MemoryTier:
    """Look a memory tier up by name, alias or file.

    Args:
        name: Catalogue name, alias, or path of a TOML file.
        overrides: Dotted keys and the values that replace the catalogue's.

    Raises:
        UnknownNameError: No such tier.
        CatalogError: A bad file or override.

    Example:
        >>> memory_tier("ddr5").tier
        'host_dram'
    """
    return from_record(MemoryTier, memory_record(name, overrides=overrides))


def hbm_of(chip: Chip, usd_per_chip_hour: float | None = None) -> MemoryTier:
    """The memory of a chip as a tier: holding bytes occupies the chip itself, so its rent is the price.

    Sources: lecture C116.
    """
    return MemoryTier(
        name=f"hbm of {chip.name}",
        tier="hbm",
        capacity_bytes=chip.hbm_bytes,
        bytes_per_s=chip.hbm_bytes_per_s,
        usd_per_hour=usd_per_chip_hour if usd_per_chip_hour is not None else chip.usd_per_chip_hour,
        sources=chip.sources,
    )
