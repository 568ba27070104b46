"""Terminal report of a what-if: the optimum at each value of one quantity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.wording import money, money_name, written
from rackline.search.plan import WhatIfPoint
from rackline.units import format_seconds


def what_if_report(name: str, points: Sequence[WhatIfPoint]) -> Group:
    """A row a value; the lowest cost, or the least energy where that counts, is marked."""
    priced, joules = points[0].plan.priced, any(point.plan.objective == "joules" for point in points)
    least_of = "deployment of the least energy" if joules else "cheapest deployment"
    table = plain_table(f"what if {name} were another: the {least_of} at each value")
    table.add_column("", no_wrap=True)
    energy = ("J/tok",) if joules else ()
    for column in (name, *energy, f"{money_name(priced)}/Mtok", "tok/s/chip", "tpot", "ttft"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("layout")
    least = min(point.cost for point in points)
    for point in points:
        chosen = point.plan.best
        if chosen is None:
            table.add_row("", point.value, *("-" for _ in energy), "-", "-", "-", "-", point.plan.reason)
            continue
        layout = replace(chosen.layout, dp=1).label()
        if chosen.prefill_pool is not None:
            layout = f"decode {layout}; prefill {replace(chosen.prefill_pool.layout, dp=1).label()}"
        table.add_row(
            "◆" if point.cost == least else "",
            point.value,
            *(written(point.cost) for _ in energy),
            money(chosen.usd_per_mtok_output_all_in, priced).removesuffix(" chip-h"),
            f"{chosen.output_tokens_per_s_per_chip:,.0f}",
            format_seconds(chosen.tpot_s),
            format_seconds(chosen.ttft_s),
            layout,
        )
    return Group(table, Text(f"set: {points[0].setting.partition('=')[0]}", style="dim"))
