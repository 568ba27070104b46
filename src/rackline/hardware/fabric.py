"""Chips joined by a fabric: the cluster, the paths through it, and what a machine draws at the wall."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, assert_never

import numpy as np
from pydantic import Field

from rackline.catalog import resolve_beside, settable_keys
from rackline.catalog.base import (
    CatalogueObject,
    Count,
    NonNegative,
    Positive,
    SourcedRecord,
    Text,
    from_record,
    named,
    not_in_files,
    schema_of,
    stated,
    written_as,
)
from rackline.catalog.load import Reader
from rackline.errors import CatalogError, InputError, LayoutError, nearest_name, require
from rackline.hardware.chip import RENT_KINDS, Chip, chip_from_record, chip_record

HOST_W_PER_CHIP = 200.0
"""Host, fans and switches of eight-chip machines, for a machine whose record does not say, per chip [W]."""
SUPPLY_EFFICIENCY = 0.94
"""Power supplies of the 80 PLUS Titanium class at half to full load, for a machine whose record does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLevel:
    """One level of the fabric.

    Args:
        name: scale_up (the chip's own links) or scale_out (the data-centre network).
        size: Chips in one domain [count].
        bytes_per_s_each_way: Per chip, all its links of this level together, one direction [bytes/s].
        latency_s: From chip to chip over the shortest path [s].
        topology: switch, torus or mesh (full mesh of direct links).
        torus_axes: Chips along each axis; only for a torus [count].
        links_per_chip: Cables or traces of this level that leave one chip [count].
        switch_ports: Ports of one switch chip of this level [count].
        num_switches: Switch chips of one domain, where more are built in than the ports need [count].
        in_network_reduction: Whether the switches add up and multicast what the chips send, so that an all-reduce
            sends its buffer once instead of twice.
        peer_access: Whether chips copy from each other's memory; else every byte goes through the memory of the host
            (GeForce cards, virtual machines, PCIe boxes with several roots).
    """

    name: Literal["scale_up", "scale_out"]
    size: Count
    bytes_per_s_each_way: Positive
    latency_s: NonNegative
    topology: Literal["switch", "torus", "mesh"] = stated("switch")
    torus_axes: tuple[Count, ...] | None = None
    links_per_chip: Count | None = None
    switch_ports: Count | None = None
    num_switches: Count | None = None
    in_network_reduction: bool = False
    peer_access: bool = True

    def problem(self) -> str | None:
        """What is inconsistent in a file."""
        if self.in_network_reduction and self.topology != "switch":
            return "in_network_reduction belongs to topology switch, and only there"
        if not self.peer_access and (self.name != "scale_up" or self.topology != "switch"):
            return "peer_access = false belongs to a scale_up level of topology switch, and only there"
        if {"switch": False, "torus": True, "mesh": False}[self.topology] != (self.torus_axes is not None):
            return "torus_axes belong to topology torus, and only there"
        product = math.prod(self.torus_axes or (self.size,))
        return None if product == self.size else f"torus_axes multiply to {product}, but size is {self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(CatalogueObject):
    """Chips joined by a fabric: a node, a rack, a slice, or several of them.

    Args:
        chip: What it is made of; in a file the catalogue name of the chip, or a file beside it.
        num_chips: Chips of one unit; what a plan uses unless told otherwise [count].
        levels: scale_up, then optionally scale_out.
        usd_per_chip_hour: A dated price; that of the chip where nothing is said [USD/hour].
        power_w_per_chip: All-in power with host, network and cooling, per chip, as its nameplate says [W].
        host_w_per_chip: Power of host, fans and switches of the machine, per chip [W].
        supply_efficiency: Power behind the machine's supplies over power at the wall [1].
        chips_per_rack: Chips in one rack; the scale-up size where nothing else is said [count].
        chips_per_host: Chips that one operating system holds; the scale-up size up to 8, else 4, where nothing else is
            said [count].
        rented_chips: Chips of the smallest unit that one rents: a host, a tray, a slice; those of a host where nothing
            else is said [count].
        rent: Kind and date of the price in words; empty where it was given.
        calibration: Calibration of what runs there, by name or as a file beside this one, which `auto` takes.
    """

    chip: Chip = named()  # noqa: RUF009, a field
    num_chips: Count
    levels: Annotated[tuple[FabricLevel, ...], Field(min_length=1)]
    usd_per_chip_hour: Positive | None = None
    power_w_per_chip: Positive | None = None
    host_w_per_chip: Positive | None = None
    supply_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    chips_per_rack: Count | None = None
    chips_per_host: Count | None = None
    rented_chips: int = written_as(Count | None, lambda chips: chips or 0, 0, absent=None)
    rent: str = not_in_files("")
    calibration: str = written_as(Text | None, lambda name: name or "", "", absent=None)

    def __post_init__(self) -> None:
        """Rent by the host where nothing else is said."""
        if not self.rented_chips:
            object.__setattr__(self, "rented_chips", self.host_chips)

    def problem(self) -> str | None:
        """What is inconsistent in a file."""
        names = [level.name for level in self.levels]
        if names not in (["scale_up"], ["scale_up", "scale_out"]):
            return f"levels are scale_up, then at most one scale_out; got {', '.join(names)}"
        if self.num_chips > self.levels[-1].size:
            return f"num_chips {self.num_chips} exceeds the largest level's {self.levels[-1].size}"
        return None

    @property
    def host_chips(self) -> int:
        """Chips that one operating system holds [count]."""
        domain = self.levels[0].size
        return self.chips_per_host or (domain if domain <= 8 else 4)

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
        return replace(self, num_chips=num_chips)

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
        level = replace(whole, size=size, torus_axes=near_cube(size, len(whole.torus_axes)))
        return replace(self, levels=(level, *self.levels[1:]))

    def without_latency(self) -> Cluster:
        """Return the same cluster with zero-latency links, as in the calibration `unit`."""
        return replace(self, levels=tuple(replace(level, latency_s=0.0) for level in self.levels))


if TYPE_CHECKING:
    ClusterRecord = SourcedRecord
else:
    ClusterRecord = schema_of(Cluster)
"""What the file of a cluster says, with the sources of its numbers."""


cluster_record = Reader("clusters", ClusterRecord)


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
    """The cluster that a file describes, made of the given chip, at its price where the file has none."""
    stated = from_record(Cluster, record, chip=of, sources=record.sources + of.sources)
    price = of.usd_per_chip_hour
    if price is None or stated.usd_per_chip_hour not in (None, price):
        return stated
    return replace(stated, usd_per_chip_hour=price, rent=RENT_KINDS[of.rent_kind] if of.rent_kind else "")


def chip_name_of(record: ClusterRecord, referrer: str = "") -> str:
    """The chip that the file of a cluster names, a file beside it as a path.

    Args:
        referrer: name or path by which the cluster was read.
    """
    return resolve_beside(str(getattr(record, "chip")), referrer)  # noqa: B009


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
    cluster_keys, given = settable_keys(plain), overrides or {}
    of_cluster = {key: value for key, value in given.items() if key in cluster_keys}
    of_chip = {key.removeprefix("chip."): value for key, value in given.items() if key not in cluster_keys}
    record = cluster_record(name, of_cluster)
    chip_name = str(of_cluster["chip"]) if "chip" in of_cluster else chip_name_of(plain, name)
    bare_chip = chip_record(chip_name)
    chip_keys = settable_keys(bare_chip)
    for key in of_chip:
        if key not in chip_keys:
            raise CatalogError(
                what="override",
                given=key,
                allowed=f"a key of the cluster {plain.name} or of its chip {bare_chip.name}",
                nearest=nearest_name(key, [*cluster_keys, *chip_keys]),
            )
    found = cluster_from_record(record, chip_from_record(chip_record(chip_name, of_chip)))
    return replace(found, calibration=resolve_beside(found.calibration, name))


# ------------------------------------------------------------------------------------------------------ paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Links and switches that a message passes from one chip to another.

    Args:
        stops: chips, network cards and switches in order.
        bytes_per_s: slowest link on the way, each way [bytes/s].
        latency_s: of the whole path [s].
    """

    json_keys: ClassVar = ("stops", "hops", "latency_s", "bytes_per_s")

    stops: tuple[str, ...]
    bytes_per_s: float
    latency_s: float

    @property
    def hops(self) -> int:
        """Links on the path [count]."""
        return len(self.stops) - 1

    @property
    def num_switches(self) -> int:
        """Switches on the path [count]."""
        return sum(stop.endswith("switch") for stop in self.stops)

    def seconds(self, message_bytes: float) -> float:
        """Latency and transfer of one message [s]."""
        return self.latency_s + message_bytes / self.bytes_per_s


def scale_up_path(level: FabricLevel) -> Path:
    """From chip to chip inside a scale-up domain: two hops over a switch, one in a full mesh, the mean in a torus.

    Sources: lecture C45 (any GPU to any GPU of a rack in two hops).

    >>> from rackline.hardware import cluster
    >>> scale_up_path(cluster("gb200-nvl72").scale_up).stops
    ('chip', 'scale-up switch', 'chip')
    """
    if level.topology == "torus" and level.torus_axes:
        stops = ("chip", *("chip",) * (max(1, round(torus_hops(level.torus_axes)[0])) - 1), "chip")
    elif level.topology == "mesh":
        stops = ("chip", "chip")
    elif level.topology == "switch" or level.topology == "torus":  # a torus of unknown axes
        stops = ("chip", "scale-up switch", "chip")
    else:
        assert_never(level.topology)
    return Path(stops=stops, bytes_per_s=level.bytes_per_s_each_way, latency_s=level.latency_s)


def scale_out_path(level: FabricLevel, network_tiers: int = 2) -> Path:
    """From chip to chip over the data-centre network: NIC, top of rack, spine and back down.

    Args:
        network_tiers: 1 when both chips hang on one leaf switch, 2 over a spine, 3 over a core [count].

    Raises:
        InputError: not 1 to 3 tiers.

    Sources: lecture C74 (GPU, card, top of rack, data-centre switch and the reverse).
    """
    require(network_tiers in (1, 2, 3), what="network_tiers", given=network_tiers, allowed="1, 2 or 3", nearest="2")
    up = ("top-of-rack switch", "spine switch", "core switch")[:network_tiers]
    stops = ("chip", "network card", *up, *reversed(up[:-1]), "network card", "chip")
    return Path(stops=stops, bytes_per_s=level.bytes_per_s_each_way, latency_s=level.latency_s)


def path_between(cluster: Cluster, one: int, other: int) -> Path:
    """The path between two chips by number: chips of one scale-up domain are neighbours in the numbering.

    Raises:
        InputError: the chips are in different domains and the cluster has no scale-out level.
    """
    size = cluster.scale_up.size
    if one // size == other // size:
        return scale_up_path(cluster.scale_up)
    if cluster.scale_out is None:
        raise InputError(what="chips", given=f"{one} and {other}", allowed=f"one domain of {size} chips")
    per_rack = cluster.chips_per_rack or size
    return scale_out_path(cluster.scale_out, 1 if one // per_rack == other // per_rack else 2)


def torus_hops(axes: tuple[int, ...]) -> tuple[float, int]:
    """Mean and largest number of links between two different chips of a torus.

    A ring of n has mean distance floor(n²/4)/n over all pairs (a chip itself included) and largest floor(n/2).

    >>> torus_hops((4, 4, 4))
    (3.0476190476190474, 6)
    """
    chips = float(np.prod(axes))
    mean = sum((n * n // 4) / n for n in axes)
    return (mean * chips / (chips - 1.0) if chips > 1 else 0.0), sum(n // 2 for n in axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTree:
    """A non-blocking Clos network.

    Args:
        tiers: levels of switches [count].
        num_switches, num_cables: of all tiers, cables to the endpoints included [count].
        max_hops: links between the farthest endpoints [count].
    """

    tiers: int
    num_switches: int
    num_cables: int
    max_hops: int


def fat_tree(num_endpoints: int, switch_ports: int) -> FatTree:
    """Switches and cables that join endpoints at full bisection bandwidth.

    One switch joins p, two tiers p²/2, three p³/4. Below the top, half of a switch's ports go down.

    Args:
        num_endpoints: network cards to join [count].
        switch_ports: p, ports of one switch, even [count].

    Returns:
        The smallest tree.

    Raises:
        InputError: no endpoints, odd ports, or more endpoints than three tiers join.

    Sources: Al-Fares, Loukissas, Vahdat, SIGCOMM 2008, doi:10.1145/1402958.1402967.

    >>> fat_tree(1024, 64)
    FatTree(tiers=2, num_switches=48, num_cables=2048, max_hops=4)
    """
    n, p = num_endpoints, switch_ports
    most = p**3 // 4
    require(
        n >= 1 and p >= 2 and not p % 2 and n <= most,
        what="fat tree",
        given=f"{n} endpoints, switches of {p} ports",
        allowed=f"1 to {max(most, 1)} endpoints, an even number of ports",
    )
    half = p // 2
    if n <= p:
        return FatTree(tiers=1, num_switches=1, num_cables=n, max_hops=2)
    leaves = -(-n // half)
    if n <= p * half:
        spines = -(-leaves * half // p)
        return FatTree(tiers=2, num_switches=leaves + spines, num_cables=n + leaves * half, max_hops=4)
    pods = -(-leaves // half)
    edge, middle = leaves, pods * half
    core = -(-middle * half // p)
    return FatTree(
        tiers=3,
        num_switches=edge + middle + core,
        num_cables=n + edge * half + middle * half,
        max_hops=6,
    )


# ------------------------------------------------------------------------------------------------------ power


def wall_w(cluster: Cluster, chip_w: float) -> float:
    """Power of a machine at the wall, per chip, from what its chips draw [W].

    Equation:
        (chip_w + host_w_per_chip) / supply_efficiency

    Args:
        cluster: its record's host and supplies, else those of eight-chip machines.
        chip_w: mean power of a chip [W].
    """
    host = HOST_W_PER_CHIP if cluster.host_w_per_chip is None else cluster.host_w_per_chip
    supply = SUPPLY_EFFICIENCY if cluster.supply_efficiency is None else cluster.supply_efficiency
    return (chip_w + host) / supply


def most_w(cluster: Cluster) -> float | None:
    """Power of a chip with its share of the machine at its limit: the record's, else by `wall_w`; None unknown [W]."""
    if cluster.power_w_per_chip is not None or cluster.chip.power is None:
        return cluster.power_w_per_chip
    return wall_w(cluster, cluster.chip.power.limit_w)
