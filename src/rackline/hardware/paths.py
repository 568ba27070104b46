"""Paths through the fabric: links and switches between two chips, and their latency and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, assert_never

import numpy as np

from rackline.errors import InputError
from rackline.hardware.fabric import Cluster, FabricLevel


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
        between = max(1, round(torus_hops(level.torus_axes)[0])) - 1
        stops = ("chip", *("chip",) * between, "chip")
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
    if network_tiers not in (1, 2, 3):
        raise InputError(what="network_tiers", given=network_tiers, allowed="1, 2 or 3", nearest="2")
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
    if n < 1 or p < 2 or p % 2 or n > most:
        raise InputError(
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
