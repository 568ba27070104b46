"""Terminal report of racks, switches, cables and paths of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table

from rackline.hardware import Cluster, Path, RackBill, rack_bill, scale_out_path, scale_up_path
from rackline.report.breakdown import plain_table
from rackline.report.wording import money
from rackline.units import format_count, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Racks:
    """What the chips of a cluster need around them, and how messages travel between them."""

    json_keys: ClassVar = ("*bill", "paths")

    bill: RackBill
    paths: tuple[Path, ...]


def racks(cluster: Cluster) -> Racks:
    """The same as data."""
    return Racks(bill=rack_bill(cluster), paths=tuple(_paths(cluster)))


def _paths(cluster: Cluster) -> list[Path]:
    inside = [scale_up_path(cluster.scale_up)]
    return inside if cluster.scale_out is None else [*inside, scale_out_path(cluster.scale_out)]


def rack_table(cluster: Cluster) -> Table:
    """What the chips of the cluster need around them; what the catalogue does not say is left out."""
    bill = rack_bill(cluster)
    table = plain_table("racks, switches, cables and paths")
    table.add_column("", no_wrap=True)
    table.add_column("")
    counts = [
        ("racks", f"{bill.num_racks} of {bill.chips_per_rack} chips"),
        ("scale-up switches", _count(bill.scale_up_switches)),
        ("scale-up cables", _count(bill.scale_up_cables)),
        ("network switches", _count(bill.network_switches)),
        ("network cables", _count(bill.network_cables)),
        ("nameplate power of a full rack", "" if bill.rack_power_w is None else f"{format_count(bill.rack_power_w)} W"),
        ("rent of a full rack", "" if bill.rack_usd_per_hour is None else f"{money(bill.rack_usd_per_hour)} an hour"),
    ]
    for name, text in counts:
        if text:
            table.add_row(name, text)
    for path in _paths(cluster):
        table.add_row(f"{path.hops} hops", f"{' → '.join(path.stops)}: {format_seconds(path.latency_s)}")
    return table


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
