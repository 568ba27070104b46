"""Records of memory tiers: where data can be kept, how fast it can be read and what holding it costs."""

from __future__ import annotations

from typing import Literal

from rackline.catalog.base import Date, NonNegative, Positive, SourcedRecord, Text

TierKind = Literal["sram", "hbm", "host_dram", "cxl", "nvme", "qlc", "disk"]


class MemoryRecord(SourcedRecord):
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

    tier: TierKind
    unit: Text
    released: Date | None = None
    capacity_bytes: Positive
    bytes_per_s: Positive
    write_bytes_per_s: Positive | None = None
    latency_s: NonNegative
    path_bytes_per_s: Positive | None = None
    path_latency_s: NonNegative = 0.0
    usd_per_byte: Positive | None = None
    usd_per_hour: Positive | None = None
    power_w: Positive | None = None
