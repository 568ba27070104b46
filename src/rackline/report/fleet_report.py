"""Terminal report of the fleet that a traffic needs."""

from __future__ import annotations

from rich.table import Table

from rackline.report.breakdown import plain_table
from rackline.report.wording import money, percent
from rackline.serving.fleet import Fleet
from rackline.units import format_count


def fleet_report(fleet: Fleet) -> Table:
    """One row a quantity."""
    traffic = fleet.traffic
    table = plain_table(f"fleet for {format_count(traffic.tokens_per_s)} output tokens/s")
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    rows = [
        ("rate that must be reached", f"{format_count(traffic.capacity_tokens_per_s)} tokens/s"),
        ("copies of the deployment", f"{fleet.copies:,} of {format_count(fleet.copy_tokens_per_s)} tokens/s"),
        ("chips", f"{fleet.num_chips:,}"),
        ("racks", f"{fleet.num_racks:,}"),
        ("power", "not known" if fleet.power_w is None else f"{format_count(fleet.power_w)} W"),
        ("rent", "no price" if fleet.usd_per_hour is None else f"{money(fleet.usd_per_hour)} an hour"),
        ("mean utilisation", percent(fleet.utilisation)),
    ]
    if fleet.usd_per_mtok_output_all_in is not None:
        rows.append(("per M output tokens, idle hours paid", money(fleet.usd_per_mtok_output_all_in)))
    if fleet.copy_share is not None and fleet.fleet_share is not None:
        rows.append(("one copy of the provider's traffic", f"1/{1 / fleet.copy_share:,.0f}"))
        rows.append(("this traffic of the provider's", percent(fleet.fleet_share)))
    for row in rows:
        table.add_row(*row)
    return table
