"""Racks: their number, chips, switches and cables, power and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from rackline.hardware.fabric import Cluster, FabricLevel
from rackline.hardware.paths import fat_tree

NETWORK_SWITCH_PORTS = 64  # of 400 Gb/s, one 25.6 Tb/s switch chip


@dataclass(frozen=True, slots=True, kw_only=True)
class RackBill:
    """Racks of a cluster in use; None for what the catalogue does not state.

    Args:
        num_chips: chips in use [count].
        num_racks: racks that hold them [count].
        chips_per_rack: [count].
        scale_up_switches: switch chips of all domains [count].
        scale_up_cables: links between chips and switches, or from chip to chip [count].
        network_switches, network_cables: of a tree of 64-port switches, a card per chip; None inside one domain and
            beyond the 65,536 chips of three tiers [count].
        rack_power_w: of one full rack [W].
        power_w: of all chips in use, with host, network and cooling [W].
        rack_usd_per_hour: rent of one full rack [USD/hour].
        usd_per_hour: rent of the chips in use [USD/hour].
    """

    num_chips: int
    num_racks: int
    chips_per_rack: int
    scale_up_switches: int | None
    scale_up_cables: int | None
    network_switches: int | None
    network_cables: int | None
    rack_power_w: float | None
    power_w: float | None
    rack_usd_per_hour: float | None
    usd_per_hour: float | None


def scale_up_cables(level: FabricLevel, num_chips: int) -> int | None:
    """Links of one level: chips times links to a switch, half of them from chip to chip; None when not known.

    Doubling the chips doubles them (lecture C48); a mesh without a link count has one link a pair.

    >>> from rackline.hardware import cluster
    >>> scale_up_cables(cluster("gb200-nvl72").scale_up, 72)
    1296
    """
    if level.topology == "switch":
        return None if level.links_per_chip is None else num_chips * level.links_per_chip
    if level.topology == "torus" and level.torus_axes:
        return num_chips * sum(axis > 1 for axis in level.torus_axes)
    if level.topology == "mesh" or level.topology == "torus":  # a torus of unknown axes
        domain = min(num_chips, level.size)
        per_chip = level.links_per_chip or domain - 1
        return num_chips * per_chip // 2
    assert_never(level.topology)


def scale_up_switches(level: FabricLevel, num_domains: int) -> int | None:
    """Switch chips: as many as the ports need, or as built in; 0 without switches, None if unknown.

    >>> from rackline.hardware import cluster
    >>> scale_up_switches(cluster("gb200-nvl72").scale_up, 1), scale_up_switches(cluster("dgx-h100").scale_up, 1)
    (18, 4)
    """
    if level.topology != "switch":
        return 0
    if level.num_switches is not None:
        return num_domains * level.num_switches
    if level.links_per_chip is None or level.switch_ports is None:
        return None
    return num_domains * math.ceil(level.size * level.links_per_chip / level.switch_ports)


def rack_bill(cluster: Cluster, num_chips: int | None = None) -> RackBill:
    """Racks, cables, switches, power and rent of the chips in use.

    Args:
        num_chips: chips in use; all of the cluster by default [count].

    Assumes: a rack holds one scale-up domain unless the catalogue says otherwise; one network card per chip.

    Sources: lecture C44-C49.
    """
    chips = cluster.num_chips if num_chips is None else num_chips
    level = cluster.scale_up
    per_rack = cluster.chips_per_rack or level.size
    domains = math.ceil(chips / level.size)
    needs_network = cluster.scale_out is not None and level.size < chips <= NETWORK_SWITCH_PORTS**3 // 4
    tree = fat_tree(chips, NETWORK_SWITCH_PORTS) if needs_network else None
    power, price = cluster.power_w_per_chip, cluster.usd_per_chip_hour
    return RackBill(
        num_chips=chips,
        num_racks=math.ceil(chips / per_rack),
        chips_per_rack=per_rack,
        scale_up_switches=scale_up_switches(level, domains),
        scale_up_cables=scale_up_cables(level, chips),
        network_switches=tree.num_switches if tree else None,
        network_cables=tree.num_cables if tree else None,
        rack_power_w=None if power is None else power * per_rack,
        power_w=None if power is None else power * chips,
        rack_usd_per_hour=None if price is None else price * per_rack,
        usd_per_hour=None if price is None else price * chips,
    )
