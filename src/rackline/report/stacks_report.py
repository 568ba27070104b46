"""The stacks that were asked: one line on the one that is taken, and a table of all."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table

from rackline.bands.stacks import StackCost, Stacks, Weighed
from rackline.report.breakdown import plain_table
from rackline.report.wording import Prose, money, money_name, percent, written
from rackline.search import Plan


def cost_text(found: StackCost, plan: Plan) -> str:
    """The cost under one stack; a bound where it was not simulated."""
    text = f"{written(found.cost)} J" if plan.objective == "joules" else money(found.cost, plan.priced)
    return f"at least {text}" if found.basis == "bound" else text


def stacks_line(stacks: Stacks, plan: Plan, usual: str = "") -> str:
    """Which stack is taken and why.

    Args:
        plan: under that stack.
        usual: the one that is taken where nothing is searched.
    """
    best, others = stacks.best, [one for one in stacks.rows if one.chance is not None]
    own = f"{percent(best.own_share)} of its decode step on rows measured under it"
    if stacks.verdict == "cheaper":
        than = ", ".join(
            f"{one.found.stack} ({cost_text(one.found, plan)}) in {percent(one.chance or 0.0)}" for one in others
        )
        text = f"at {cost_text(best, plan)} cheaper than {than} of the draws from their errors; {own}" if than else own
    else:
        costs = ", ".join(f"{one.stack} {cost_text(one, plan)}" for one in stacks.open)
        text = f"not separable: {costs}" if len(stacks.open) > 1 else f"{costs}, of which too little was measured"
        text += f"; taken for what is known of it: {own}, errors of {best.group}"
        beaten = [one for one in stacks.rows if one.beaten_by]
        text += "".join(f"; {one.beaten_by} is cheaper than {one.found.stack}" for one in beaten)
    text = f"stack {stacks.taken}: {text} (--calibration)"
    if stacks.measurement:
        text += f"; to tell them apart, measure {stacks.to_measure}: {stacks.measurement}"
    if usual and usual != stacks.taken:
        text += f"; commands that search nothing take {usual} without --calibration {stacks.taken}"
    return text


def stacks_table(stacks: Stacks, plan: Plan) -> RenderableType:
    """Every stack that was asked, cheapest first."""
    table = plain_table("stacks, each asked as if it were named")
    unit = "J an output token" if plan.objective == "joules" else f"{money_name(plan.priced)} per M output, all-in"
    table.add_column("stack", no_wrap=True)
    for name in (unit, "own rows", "errors", "of", "dearer in"):
        table.add_column(name, justify="right")
    for one in stacks.rows:
        _add(table, one, plan, taken=one.found.stack == stacks.taken)
    notes = [f"{one.found.stack}: {one.found.reason}" for one in stacks.rows if one.found.reason]
    how = (
        "own rows: share of the decode step on kernels measured under the stack on the chip; errors: measured over "
        "predicted time per output token, 90 % of the servers; dearer in: share of paired draws from both errors in "
        f"which it costs more than {stacks.taken}"
    )
    return Group(table, Prose("\n".join([how, *notes]), style="dim"))


def _add(table: Table, one: Weighed, plan: Plan, *, taken: bool) -> None:
    found = one.found
    known = math.isfinite(found.cost)
    band = found.errors
    table.add_row(
        f"{found.stack} {found.version}".strip(),
        cost_text(found, plan) if known else "-",
        percent(found.own_share) if known else "-",
        f"{band.low:.2f} to {band.high:.2f}",
        f"{found.group}, {band.num_cases} cases",
        "taken" if taken else percent(one.chance) if one.chance is not None else "-",
    )
