"""Open models sold by several hosts: what their prices reveal against what the models are.

`bench/refresh_docs.py --only tables/prices` writes the table into docs/accuracy/prices.md.
"""

from __future__ import annotations

import numpy as np

from rackline.pricing import all_sheets, compare, rank_correlation, read_all
from rackline.pricing.compare import Compared
from rackline.units import format_bytes, format_count

BEGIN, END = "<!-- prices of open models: begin -->", "<!-- prices of open models: end -->"


def rows() -> tuple[Compared, ...]:
    """Every open model that at least two hosts sell."""
    return tuple(row for row in compare(read_all(all_sheets())) if row.hosts >= 2)


def _row(row: Compared) -> str:
    write = format_count if row.quantity == "active_params" else format_bytes
    truth = (
        write(row.truth.low)
        if row.truth.low == row.truth.high
        else f"{write(row.truth.low)} to {write(row.truth.high)}"
    )
    interval = row.cheapest
    most = "at most " if interval.bound == "at most" else f"{write(interval.likely_low)} to "
    return (
        f"| {row.model} | {truth} | {most}{write(interval.likely_high)} | {row.factor:.2g} | "
        f"{row.likely} of {row.hosts} | {row.certain} of {row.hosts} |"
    )


def _summary(found: list[Compared], what: str) -> str:
    factors = np.array([max(row.factor, 1 / row.factor) for row in found])
    widths = np.array([row.cheapest.likely_high / row.cheapest.likely_low for row in found])
    hosts = sum(row.hosts for row in found)
    rho = rank_correlation([row.truth.middle for row in found], [row.cheapest.likely.middle for row in found])
    low = sum(row.factor < 1 for row in found)
    return (
        f"{what}: the likely interval holds the truth at {sum(r.likely for r in found)} of {hosts} hosts, the certain "
        f"one at {sum(r.certain for r in found)}; likely intervals are {np.median(widths):.0f} times as high as low "
        f"(median); "
        f"the middle of the cheapest host is off by a factor of {np.median(factors):.1f} (median) and "
        f"{factors.max():.0f} (worst), too low for {low} of {len(found)} models; rank correlation "
        f"with the truth {rho:.2f}."
    )


def table() -> str:
    """The block of docs/accuracy/prices.md."""
    found = rows()
    parts: list[str] = []
    for quantity, title in (("active_params", "Active parameters"), ("kv_bytes_per_token", "KV bytes per token")):
        mine = [row for row in found if row.quantity == quantity]
        parts += [
            f"| {title} of | true | likely, cheapest host | middle / true | likely holds it | certain holds it |",
            "|---|---|---|---|---|---|",
            *(_row(row) for row in mine),
            "",
            _summary(mine, title),
            "",
        ]
    return "\n".join(parts).strip()
