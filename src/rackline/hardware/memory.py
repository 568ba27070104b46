"""A memory tier: device time to hold bytes, device time to read them, and drain time.

Physics only: shares of a device and seconds. What they cost in dollars is `rackline.pricing.cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rackline.catalog import MemoryRecord, Source, memory_record
from rackline.hardware.chip import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """One unit of a memory tier.

    Args:
        name: Catalogue name, or that of the chip whose memory it is.
        tier: sram, hbm, host_dram, cxl, nvme, qlc or disk.
        capacity_bytes: Capacity of the unit [bytes].
        bytes_per_s: Sequential read bandwidth of the unit [bytes/s].
        write_bytes_per_s: Sequential write bandwidth [bytes/s].
        latency_s: From a request to its first byte, path included [s].
        path_bytes_per_s: Link from one accelerator to the unit; None where it is the unit's own [bytes/s].
        usd_per_hour: Cost of keeping the unit, None without a price [USD/hour].
        sources: Where the numbers come from.
    """

    name: str
    tier: str
    capacity_bytes: float
    bytes_per_s: float
    write_bytes_per_s: float
    latency_s: float = 0.0
    path_bytes_per_s: float | None = None
    usd_per_hour: float | None = None
    sources: tuple[Source, ...] = field(default=(), repr=False, hash=False)

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
        return written_bytes / self.write_bytes_per_s

    def fetch_s(self, read_bytes: float) -> float:
        """Time until one accelerator has the bytes: latency and the narrower of unit and path [s]."""
        return self.latency_s + read_bytes / self.reach_bytes_per_s


def tier_from_record(record: MemoryRecord) -> MemoryTier:
    """Build the tier that a catalogue record describes."""
    return MemoryTier(
        name=record.name,
        tier=record.tier,
        capacity_bytes=record.capacity_bytes,
        bytes_per_s=record.bytes_per_s,
        write_bytes_per_s=record.write_bytes_per_s or record.bytes_per_s,
        latency_s=record.latency_s + record.path_latency_s,
        path_bytes_per_s=record.path_bytes_per_s,
        usd_per_hour=record.usd_per_hour,
        sources=record.sources,
    )


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
    return tier_from_record(memory_record(name, overrides=overrides))


def hbm_of(chip: Chip, usd_per_chip_hour: float | None = None) -> MemoryTier:
    """The memory of a chip as a tier: holding bytes occupies the chip itself, so its rent is the price.

    Sources: lecture C116.
    """
    return MemoryTier(
        name=f"hbm of {chip.name}",
        tier="hbm",
        capacity_bytes=chip.hbm_bytes,
        bytes_per_s=chip.hbm_bytes_per_s,
        write_bytes_per_s=chip.hbm_bytes_per_s,
        usd_per_hour=usd_per_chip_hour if usd_per_chip_hour is not None else chip.usd_per_chip_hour,
        sources=chip.sources,
    )
