"""Terminal report of the fleet that a traffic needs."""

from __future__ import annotations

from rich.table import Table

from rackline.report.breakdown import plain_table
from rackline.report.wording import money, percent
from rackline.serving.fleet import Fleet, Interactive
from rackline.units import format_count, format_seconds, format_usd


def fleet_report(fleet: Fleet) -> Table:
    """One row a quantity."""
    traffic = fleet.traffic
    table = plain_table(f"fleet for {asked_of_fleet(fleet)}")
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    rows = [
        ("rate that must be reached", f"{format_count(traffic.capacity_tokens_per_s)} tokens/s"),
        ("copies of the deployment", f"{fleet.copies:,} of {format_count(fleet.copy_tokens_per_s)} tokens/s"),
        ("chips", _chips(fleet)),
        ("racks", f"{fleet.num_racks:,}"),
        ("power of the site", _power(fleet)),
        ("rent", "no price" if fleet.usd_per_hour is None else f"{money(fleet.usd_per_hour)} an hour"),
        ("mean utilisation", percent(fleet.utilisation)),
    ]
    if fleet.tokens_per_joule is not None and fleet.racks_per_megawatt is not None:
        each = f"{fleet.racks_per_megawatt:.3g} racks, {format_count(fleet.tokens_per_joule * 1e6)} tokens/s"
        rows.insert(5, ("for a megawatt", each))
    users = fleet.interactive
    if users is not None:
        rows.append(("users of a copy within its limits", f"{users.users_per_copy:,.0f}"))
        rows.append(("time of a request at this traffic", format_seconds(users.response_s)))
        rows.append(("users who wait, on average", f"{users.waiting_users:,.0f}"))
    if fleet.usd_per_mtok_output_all_in is not None:
        rows.append(("per M output tokens, idle hours paid", money(fleet.usd_per_mtok_output_all_in)))
    if fleet.copy_share is not None and fleet.fleet_share is not None:
        rows.append(("one copy of the provider's traffic", f"1/{1 / fleet.copy_share:,.0f}"))
        rows.append(("this traffic of the provider's", percent(fleet.fleet_share)))
    for row in rows:
        table.add_row(*row)
    return table


def asked_of_fleet(fleet: Fleet) -> str:
    """What the traffic was given as, and what it is in tokens."""
    tokens = f"{format_count(fleet.traffic.tokens_per_s)} output tokens/s"
    if fleet.requests_per_s is None:
        return tokens
    requests = f"{fleet.requests_per_s:,.3g} requests/s, {tokens}"
    return requests if fleet.interactive is None else f"{users_of_fleet(fleet.interactive)}: {requests}"


def users_of_fleet(users: Interactive) -> str:
    """How many there are, and their think time."""
    think_s = users.population.think_s
    pause = f"{format_seconds(think_s)} think time" if think_s else "no think time"
    return f"{users.population.users:,.0f} users, {pause}"


def _chips(fleet: Fleet) -> str:
    left = fleet.billed_chips - fleet.num_chips
    return f"{fleet.num_chips:,}" + (f", {fleet.billed_chips:,} paid" if left else "")


def _power(fleet: Fleet) -> str:
    if fleet.power_w is None:
        return "not known"
    basis = {"kernels": "", "nameplate": ", by the nameplate"}.get(fleet.power_basis, f", {fleet.power_basis}")
    return f"{format_count(fleet.power_w)} W{basis}"


def fleet_summary(fleet: Fleet | None) -> str:
    """What the traffic needs; empty where none was asked for."""
    if fleet is None:
        return ""
    rent = "" if fleet.usd_per_hour is None else f", {format_usd(fleet.usd_per_hour)} an hour"
    return f";\n  {asked_of_fleet(fleet)}: {fleet.copies:,} copies, {fleet.billed_chips:,} chips paid{rent}"
