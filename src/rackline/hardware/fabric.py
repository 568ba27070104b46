"""A cluster: chips joined by a scale-up domain and, beyond it, a scale-out network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rackline.catalog import (
    ClusterRecord,
    Source,
    chip_record,
    cluster_record,
    resolve_beside,
    settable_keys,
)
from rackline.errors import CatalogError, LayoutError, nearest_names
from rackline.hardware.chip import RENT_KINDS, Chip, chip_from_record


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLevel:
    """One level of the fabric.

    Args:
        name: "scale_up" or "scale_out".
        size: Chips in one domain [count].
        bytes_per_s_each_way: Per chip, all its links of this level together, one direction [bytes/s].
        latency_s: From chip to chip over the shortest path [s].
        topology: "switch", "torus" or "mesh" (direct links between all pairs).
        torus_axes: Chips along each axis of a torus, else None [count].
        links_per_chip: Cables or traces that leave one chip, or None [count].
        switch_ports: Ports of one switch chip, or None [count].
        num_switches: Switch chips of one domain where more are built in than the ports need, or None [count].
        in_network_reduction: Whether the switches add up and multicast what the chips send.
    """

    name: Literal["scale_up", "scale_out"]
    size: int
    bytes_per_s_each_way: float
    latency_s: float
    topology: Literal["switch", "torus", "mesh"] = "switch"
    torus_axes: tuple[int, ...] | None = None
    links_per_chip: int | None = None
    switch_ports: int | None = None
    num_switches: int | None = None
    in_network_reduction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Chips joined by a fabric.

    Args:
        name: Catalogue name.
        full_name: Display name.
        chip: What the cluster is made of.
        num_chips: Chips in use [count].
        levels: scale_up, then optionally scale_out.
        usd_per_chip_hour: Dated price, or None [USD/hour].
        power_w_per_chip: All-in power per chip as its nameplate says, or None [W].
        host_w_per_chip: Power of host, fans and switches of the machine, per chip, or None [W].
        supply_efficiency: Power behind the machine's supplies over power at the wall, or None [1].
        chips_per_rack: Chips in one rack; None where a rack holds one scale-up domain [count].
        host_chips: Chips that one operating system holds [count].
        rented_chips: Chips of the smallest unit that one rents [count].
        rent: Kind and date of the price in words; empty where it was given.
        calibration: Calibration that `auto` takes there, by name or file; empty where the chip decides.
        sources: Where the numbers come from.
    """

    name: str
    chip: Chip
    num_chips: int
    levels: tuple[FabricLevel, ...]
    full_name: str = ""
    usd_per_chip_hour: float | None = None
    power_w_per_chip: float | None = None
    host_w_per_chip: float | None = None
    supply_efficiency: float | None = None
    chips_per_rack: int | None = None
    host_chips: int = 8
    rented_chips: int = 1
    rent: str = ""
    calibration: str = ""
    sources: tuple[Source, ...] = field(default=(), repr=False, hash=False)

    @property
    def scale_up(self) -> FabricLevel:
        """The chips' own links."""
        return self.levels[0]

    @property
    def scale_out(self) -> FabricLevel | None:
        """The data-centre network, or None where the cluster has none."""
        return self.levels[1] if len(self.levels) > 1 else None

    @property
    def max_chips(self) -> int:
        """Chips that the largest level can join [count]."""
        return self.levels[-1].size

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all chips together, or None [USD/hour]."""
        return None if self.usd_per_chip_hour is None else self.usd_per_chip_hour * self.num_chips

    def with_num_chips(self, num_chips: int) -> Cluster:
        """Return the same cluster with another number of chips in use.

        Args:
            num_chips: Chips to use; fewer than the scale-up size is a part of the domain [count].

        Raises:
            LayoutError: Not a positive count, or more than the fabric joins.
        """
        if isinstance(num_chips, bool) or num_chips < 1 or num_chips > self.max_chips:
            raise LayoutError(
                what=f"number of chips on {self.name}",
                given=num_chips,
                allowed=f"1 to {self.max_chips}" + ("" if self.scale_out else " (the cluster has no scale-out level)"),
                nearest=str(min(max(num_chips, 1), self.max_chips)),
            )
        return dataclasses.replace(self, num_chips=num_chips)

    def in_slices(self, count: int) -> Cluster:
        """Return the chips in use as a number of equal slices of a torus, each with axes of its own.

        Raises:
            LayoutError: Not a torus, slices that are not whole, larger than its domain or joined by nothing.
        """
        size, whole = self.num_chips // max(count, 1), self.scale_up
        joined = count == 1 or self.scale_out is not None
        if whole.torus_axes is None or not joined or count < 1 or self.num_chips % count or size > whole.size:
            raise LayoutError(
                what=f"slices on {self.name}",
                given=f"{count} of {self.num_chips} chips",
                allowed=f"whole parts of a torus of at most {whole.size} chips"
                + ("" if self.scale_out else ", one (the cluster has no scale-out level)"),
            )
        level = dataclasses.replace(whole, size=size, torus_axes=near_cube(size, len(whole.torus_axes)))
        return dataclasses.replace(self, levels=(level, *self.levels[1:]))

    def without_latency(self) -> Cluster:
        """Return the same cluster with zero-latency links, as in the calibration `unit`."""
        levels = tuple(dataclasses.replace(level, latency_s=0.0) for level in self.levels)
        return dataclasses.replace(self, levels=levels)


def near_cube(chips: int, axes: int) -> tuple[int, ...]:
    """Lengths of `axes` axes whose product is a number of chips, as equal as whole numbers allow, rising.

    >>> near_cube(128, 2), near_cube(128, 3), near_cube(64, 3)
    ((8, 16), (4, 4, 8), (4, 4, 4))
    """
    if axes == 1:
        return (chips,)
    first = max(n for n in range(1, round(chips ** (1.0 / axes) + 1e-9) + 1) if chips % n == 0)
    return (first, *near_cube(chips // first, axes - 1))


def cluster_from_record(record: ClusterRecord, of: Chip) -> Cluster:
    """Build the cluster that a catalogue record describes, made of the given chip."""
    usd = record.usd_per_chip_hour if record.usd_per_chip_hour is not None else of.usd_per_chip_hour
    known = of.rent_kind is not None and usd is not None and usd == of.usd_per_chip_hour
    domain = record.levels[0].size
    host = record.chips_per_host or (domain if domain <= 8 else 4)
    return Cluster(
        name=record.name,
        full_name=record.full_name,
        chip=of,
        num_chips=record.num_chips,
        levels=tuple(FabricLevel(**dict(level)) for level in record.levels),
        usd_per_chip_hour=usd,
        rent=RENT_KINDS[of.rent_kind] if known and of.rent_kind is not None else "",
        power_w_per_chip=record.power_w_per_chip,
        host_w_per_chip=record.host_w_per_chip,
        supply_efficiency=record.supply_efficiency,
        chips_per_rack=record.chips_per_rack,
        host_chips=host,
        rented_chips=record.rented_chips or host,
        calibration=record.calibration or "",
        sources=record.sources + of.sources,
    )


def cluster(name: str, overrides: Mapping[str, object] | None = None) -> Cluster:
    """Look a cluster up by name, alias or file.

    Args:
        name: Catalogue name, alias, or path of a TOML file.
        overrides: Dotted keys and the values that replace the catalogue's. A key of the cluster is
            applied to the cluster, any other to its chip; ``chip.KEY`` always means the chip.

    Raises:
        UnknownNameError: No such cluster.
        CatalogError: A bad file or override.

    Example:
        >>> rack = cluster("gb200-nvl72")
        >>> rack.num_chips, rack.scale_up.size
        (72, 72)
    """
    plain = cluster_record(name)
    of_cluster: dict[str, object] = {}
    of_chip: dict[str, object] = {}
    cluster_keys = settable_keys(plain)
    chip_name = resolve_beside(plain.chip, name)
    for key, value in (overrides or {}).items():
        if key in cluster_keys:
            of_cluster[key] = value
        else:
            of_chip[key.removeprefix("chip.")] = value
    record = cluster_record(name, overrides=of_cluster) if of_cluster else plain
    if "chip" in of_cluster:
        chip_name = str(of_cluster["chip"])
    bare_chip = chip_record(chip_name)
    chip_keys = settable_keys(bare_chip)
    for key in of_chip:
        if key not in chip_keys:
            near = nearest_names(key, [*cluster_keys, *chip_keys], 1)
            raise CatalogError(
                what="override",
                given=key,
                allowed=f"a key of the cluster {plain.name} or of its chip {bare_chip.name}",
                nearest=near[0] if near else None,
            )
    made_of = chip_record(chip_name, overrides=of_chip) if of_chip else bare_chip
    found = cluster_from_record(record, chip_from_record(made_of))
    return dataclasses.replace(found, calibration=resolve_beside(found.calibration, name))
