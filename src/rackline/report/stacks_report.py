"""The serving stacks that a question was asked of: which one is taken and why, as a line and as a table."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType

from rackline.bands.stack_choice import StackCost, Stacks, Weighed
from rackline.display.column import Column, Sheet
from rackline.display.wording import Prose, money, percent, written
from rackline.search import Plan


def unit_of(plan: Plan) -> str:
    """Return what the costs of a plan are counted in: $, chip-h or J."""
    if plan.objective == "joules":
        return "J"
    return "$" if plan.priced else "chip-h"


def cost_text(found: StackCost, unit: str) -> str:
    """Return the cost under one stack; a bound where it was not simulated."""
    if not math.isfinite(found.cost):
        return "-"
    text = f"{written(found.cost)} J" if unit == "J" else money(found.cost, unit == "$")
    return f"at least {text}" if found.basis == "bound" else text


def stacks_line(stacks: Stacks, unit: str, usual: str) -> str:
    """Return which stack is taken and why.

    Args:
        unit: of the costs: $, chip-h or J.
        usual: the one that is taken where stacks are not compared.
    """
    open_costs = ", ".join(f"{one.stack} {cost_text(one, unit)}" for one in stacks.open)
    if stacks.verdict == "cheaper":
        than = [
            f"{one.found.stack} ({cost_text(one.found, unit)}) in {percent(one.chance)}"
            for one in stacks.rows
            if one.chance is not None
        ]
        text = f"stack {stacks.taken}: {open_costs}"
        text += f", cheaper than {', '.join(than)} of the draws from their errors" if than else ""
    else:
        dearer = ", ".join(f"{one.found.stack} {cost_text(one.found, unit)}" for one in stacks.rows if one.beaten_by)
        text = f"stack {stacks.taken}, most is known of it; "
        text += f"not separable: {open_costs}" if len(stacks.open) > 1 else f"too little was measured: {open_costs}"
        text += f"; dearer: {dearer}" if dearer else ""
    if usual != stacks.taken:
        text += f"; explain takes {usual} (--calibration)"
    if stacks.measurement:
        text += f"; to separate: {stacks.measurement}"
    return text


def stacks_table(stacks: Stacks, unit: str) -> RenderableType:
    """Return a table of every stack that was weighed, cheapest first.

    Args:
        unit: of the costs: $, chip-h or J.
    """
    per = "J an output token" if unit == "J" else f"{unit} per M output, all-in"

    def dearer(one: Weighed) -> str:
        return "taken" if one.found.stack == stacks.taken else "-" if one.chance is None else percent(one.chance)

    def own(one: Weighed) -> float | None:
        return one.found.own_share if math.isfinite(one.found.cost) else None

    columns: list[Column[Weighed]] = [
        Column("stack", "stack", getter=lambda one: f"{one.found.stack} {one.found.version}".strip()),
        Column("cost", per, "figures", lambda one: cost_text(one.found, unit)),
        Column("own_share", "own rows", "share", own),
        Column("errors", "errors", "figures", lambda one: f"{one.found.errors.low:.2f} to {one.found.errors.high:.2f}"),
        Column(
            "",
            "of",
            "words",
            lambda one: f"{one.found.errors.of.text()}, {one.found.errors.num_cases} cases",
            priority=1,
        ),
        Column("", "dearer in", "figures", dearer),
    ]
    table = Sheet("stacks", columns, stacks.rows, "stacks, each asked as if it were named")
    how = (
        "costs: with engines on chips that are left over; own rows: share of the decode step on kernels measured under "
        "the stack on the chip; errors: measured over predicted time per output token, of 90 % of the servers; dearer "
        f"in: share of the paired draws from both errors in which it costs more than {stacks.taken}"
    )
    reasons = [f"{one.found.stack}: {one.found.reason}" for one in stacks.rows if one.found.reason]
    return Group(table, Prose("\n".join([how, *reasons]), style="dim"))
