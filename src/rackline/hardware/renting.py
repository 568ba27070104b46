"""Racks and renting: switches and cables, chips that are paid for, which are whole units, and their price.

A price is of one kind for all chips, estimated where none of that kind is published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from rackline.catalog import names
from rackline.errors import unknown_name
from rackline.hardware.chip import RENT_KINDS, Chip, RentKind, chip, stated_chips
from rackline.hardware.fabric import Cluster, FabricLevel, fat_tree

NETWORK_SWITCH_PORTS = 64  # of 400 Gb/s, one 25.6 Tb/s switch chip
_CLOSE = 1e-9  # of a chip: thirds of a host add up to whole ones


def taken_chips(cluster: Cluster, chips_per_replica: Any) -> NDArray[np.float64]:
    """Chips that a replica takes from others of its kind: those of a host that it leaves cannot hold one more.

    Where chips are rented one by one, no more than it has.

    Args:
        chips_per_replica: [count].

    Returns:
        A host over the replicas that it holds, or whole hosts, as many values as were given [chips].

    Example:
        >>> from rackline.hardware import cluster
        >>> taken_chips(cluster("gb200-nvl72"), [1, 2, 3, 4, 12]).tolist()
        [1.0, 2.0, 4.0, 4.0, 12.0]
    """
    size = np.asarray(chips_per_replica, dtype=np.float64)
    if cluster.rented_chips == 1:
        return size
    host = float(cluster.host_chips)
    inside = host / np.floor(host / np.minimum(size, host))
    beyond = np.ceil(size / host) * host
    return np.maximum(np.minimum(np.where(size <= host, inside, beyond), cluster.num_chips), size)


def replicas(cluster: Cluster, chips_per_replica: Any) -> NDArray[np.int64]:
    """Replicas of one kind that a cluster holds, at least 1 [count]."""
    found = np.floor(cluster.num_chips / taken_chips(cluster, chips_per_replica) + _CLOSE)
    return np.maximum(found, 1.0).astype(np.int64)


def billed_chips(cluster: Cluster, taken: Any) -> NDArray[np.float64]:
    """Chips that are paid for: whole rented units, no more than the cluster has; beyond it, whole clusters first.

    A cluster that is set to fewer chips than a unit is a unit itself.

    Args:
        taken: chips of all replicas, as `taken_chips` counts them [chips].

    Example:
        >>> from rackline.hardware import cluster
        >>> float(billed_chips(cluster("gb200-nvl72"), 13)), float(billed_chips(cluster("l40s-8"), 3))
        (16.0, 3.0)
        >>> billed_chips(cluster("dgx-h100").with_num_chips(4), [2, 4, 6]).tolist()
        [4.0, 4.0, 8.0]
    """
    chips, unit = np.asarray(taken, dtype=np.float64), cluster.rented_chips
    clusters = np.floor(chips / cluster.num_chips + _CLOSE) * cluster.num_chips
    rest = np.ceil(np.maximum(chips - clusters, 0.0) / unit - _CLOSE) * unit
    return np.maximum(clusters + np.minimum(rest, cluster.num_chips), chips)


def billing(cluster: Cluster) -> str:
    """What is paid for, in words; see `billed_chips`."""
    unit = cluster.rented_chips
    if unit == 1:
        return "chips that no replica uses are not paid"
    if cluster.num_chips < unit:
        return f"all {cluster.num_chips} chips are paid, a part of a unit of {unit}"
    return f"paid in whole units of {unit} chips"


def paid_share(cluster: Cluster, chips_per_replica: Any) -> NDArray[np.float64]:
    """Chips that are paid for over chips in use, with as many replicas as the cluster holds [ratio]."""
    count = replicas(cluster, chips_per_replica)
    used = count * np.asarray(chips_per_replica, dtype=np.float64)
    return billed_chips(cluster, count * taken_chips(cluster, chips_per_replica)) / used


_NEAREST: tuple[RentKind, ...] = ("reserved_3y", "reserved_1y", "contract", "on_demand", "owned")


def parse_rent_kind(text: str) -> RentKind:
    """A kind of price of a chip-hour, such as "reserved-1y".

    Raises:
        InputError: an unknown one.
    """
    kind: RentKind | None = next((known for known in RENT_KINDS if known == text.replace("-", "_")), None)
    if kind is None:
        known = [one.replace("_", "-") for one in RENT_KINDS]
        raise unknown_name("rent", text, known)
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


def on_demand_usd(of: Chip, usd_per_chip_hour: float | None) -> float | None:
    """Price on demand of a chip that is paid at its default, which is another; None otherwise [USD/h].

    Args:
        usd_per_chip_hour: that is paid [USD/h].
    """
    if usd_per_chip_hour is None or of.usd_per_chip_hour != usd_per_chip_hour or of.name not in names("chips"):
        return None
    demand = rent_of(of.name, "on_demand")
    return None if demand is None or demand.usd_per_chip_hour == usd_per_chip_hour else demand.usd_per_chip_hour


def rent_of(name: str, kind: RentKind) -> Rent | None:
    """The price of a chip of the catalogue of one kind; None where it has none of any kind.

    A missing kind is estimated from another price of the chip, times the median ratio of both kinds over the chips that
    have both.

    Example:
        >>> rent_of("h100-sxm", "reserved_3y").usd_per_chip_hour
        1.3
    """
    prices = _prices(chip(name))
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


def _prices(of: Chip) -> dict[RentKind, tuple[float, str]]:
    found: dict[RentKind, tuple[float, str]] = {
        kind: (rent.usd_per_chip_hour, rent.date) for kind, rent in of.rents.items()
    }
    if of.usd_per_chip_hour is not None and of.rent_kind is not None:
        found.setdefault(of.rent_kind, (of.usd_per_chip_hour, ""))
    return found


def _ratios(base: RentKind, kind: RentKind) -> list[float]:
    prices = [_prices(one) for one in stated_chips()]
    return [one[kind][0] / one[base][0] for one in prices if kind in one and base in one]


# ------------------------------------------------------------------------------------------------------ racks


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
        return num_chips * (level.links_per_chip or min(num_chips, level.size) - 1) // 2
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
