"""Deployments side by side: a line each, and what would change against today's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group
from rich.text import Text

from rackline.plain import follow
from rackline.report.choice_report import asked_of_fleet, users_of_fleet
from rackline.report.column import Column, Sheet, band_bar, facts, stacked
from rackline.report.compare_report import Change, Deployed, Side
from rackline.report.wording import Prose, money, money_name, written
from rackline.search.choice import Choice
from rackline.units import format_seconds

_NAMES = {
    "compute": "compute",
    "hbm": "memory",
    "scale_up": "links inside the domain",
    "scale_out": "links beyond the domain",
    "overhead": "overhead",
}
_BAR = 14  # characters of the bar of a band
_SAID = 3  # parts of the cost that are named
_LEAST = 0.02  # of the cost, that a named part changes
_ALL_IN = "usd_per_mtok_output_all_in"


def deployments_report(sides: Sequence[Side], *, prices: str) -> Group:
    """A line a deployment, then what each of them is.

    Args:
        prices: of which kind they are.
    """
    shown, first = _shortened(sides), sides[0].deployed
    costs = [None if one.deployed is None else one.deployed.bands.get(_ALL_IN) for one in shown]
    most = max((band.high for band in costs if band is not None), default=0.0)
    priced = first is None or first.priced

    def best(key: str, title: str, unit: str, priority: int = 0) -> Column[Side]:
        return Column(key, title, unit, f"deployed.choice.{key}", priority=priority)

    def bar(row: Side) -> Text | str:
        band, usd = costs[shown.index(row)], follow(row, "deployed.choice.usd_with_leftover")
        return "" if band is None or usd is None else band_bar(band.low, usd, band.high, end=most, width=_BAR)

    models = {side.name.partition("@")[0] for side in sides}
    table: Sheet[Side] = Sheet(
        "deployments",
        [
            Column("name"),
            best("usd_with_leftover", f"{money_name(priced)} per M", "USD" if priced else "1"),
            _times("deployed.choice.usd_with_leftover", shown[0].values[_ALL_IN]),
            Column(f"{_ALL_IN}.low", "low", "1", lambda row: follow(costs[shown.index(row)], "low"), priority=3),
            Column("", "from 0", getter=bar, priority=4),
            Column(f"{_ALL_IN}.high", "high", "1", lambda row: follow(costs[shown.index(row)], "high"), priority=3),
            best("tpot_s", "tpot", "s"),
            best("ttft_s", "ttft", "s"),
            best("requests_per_s_with_leftover", "requests/s", "1"),
            best("billed_chips", "chips", "whole", 1),
            best("batch_size", "batch", "whole", 5),
            Column("power_w", "drawn", "W", lambda row: row.values["power_w"], priority=2),
        ],
        shown,
        title=f"deployments{f' of {models.pop()}' if len(models) == 1 else ''}: $ per M output tokens, all-in",
    )
    caption = f"×: over {shown[0].name}; W: drawn by the chips that are paid for, with machines; "
    caption += "low, high: of 90 % of measured servers" + (f"; {prices}" if prices else "")
    labels = facts("ways", [(one.name, follow(one.deployed, "label()")) for one in shown])
    return Group(table, Prose(caption, style="dim"), Text(""), labels)


def _shortened(sides: Sequence[Side]) -> list[Side]:
    """Without the model in their names, where all have the same."""
    models = {side.name.partition("@")[0] for side in sides}
    return [replace(side, name=side.name.partition("@")[2]) for side in sides] if len(models) == 1 else [*sides]


def _times(path: str, first: float | None) -> Column[Side]:
    """What lies at a path, over that of the first side."""

    def over(row: Side) -> float | str:
        value = follow(row, path)
        return "" if value is None or first is None else value / first

    return Column("ratio", "×", "ratio", over)


def fleets_report(sides: Sequence[Side]) -> Sheet[Side] | None:
    """The fleet of each deployment for the same traffic, None without traffic."""
    some = next((one.deployed.fleet for one in sides if one.deployed and one.deployed.fleet), None)
    if some is None:
        return None

    def of(key: str, title: str, unit: str, priority: int = 0) -> Column[Side]:
        return Column(key, title, unit, f"deployed.fleet.{key}", priority=priority)

    users = some.interactive  # whose requests/s follow from the deployment
    return Sheet(
        "fleets",
        [
            Column("name"),
            of("usd_per_hour", "$ an hour", "USD"),
            _times("deployed.fleet.usd_per_hour", follow(sides[0], "deployed.fleet.usd_per_hour")),
            of("copies", "copies", "whole"),
            of("billed_chips", "chips paid", "whole"),
            of("num_racks", "racks", "whole", 1),
            of("power_w", "power", "W"),
            of("utilisation", "in use", "share", 2),
            of(_ALL_IN, "$ per M", "USD"),
        ],
        _shortened(sides),
        title=f"fleets for {asked_of_fleet(some) if users is None else users_of_fleet(users)}",
    )


_STATED: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("serving", "serving", str),
    ("layout", "layout.label()", str),
    ("precision", "precision.short()", str),
    ("scheduler", "mode.label()", str),
    ("sequences on a replica", "batch_size", "{:,.0f}".format),
    ("chips that are paid for", "billed_chips", "{:,}".format),
    ("on chips left free", "leftover.choice.layout.label()", lambda label: label or "nothing"),
)
"""What a deployment is: name, where its choice has it, and how it is written."""


def changes(today: Deployed, planned: Deployed) -> tuple[Change, ...]:
    """What would change from today's deployment to a plan: what it is, what it gives, what it costs."""
    now, then = today.choice, planned.choice
    if now is None or then is None:
        return ()
    stated = [(what, write(follow(now, path)), write(follow(then, path))) for what, path, write in _STATED]
    numbers: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("requests/s", "requests_per_s_with_leftover", written),
        ("time per output token", "tpot_s", format_seconds),
        ("time to first token", "ttft_s", format_seconds),
        (
            f"{money_name(planned.priced)} per M output, all-in",
            "usd_with_leftover",
            lambda usd: money(usd, planned.priced),
        ),
    )
    return (
        *(Change(what=what, before=before, after=after) for what, before, after in stated if before != after),
        *(
            Change(
                what=what,
                before=write(follow(now, path)),
                after=write(follow(then, path)),
                ratio=follow(then, path) / follow(now, path),
            )
            for what, path, write in numbers
        ),
    )


def why(today: Deployed, planned: Deployed) -> tuple[str, ...]:
    """Where the cost of an output token changes most: prompts, and decode steps by what their rows wait for."""
    now, then = today.choice, planned.choice
    if now is None or then is None:
        return ()
    before, after = _parts(now), _parts(then)
    whole = now.usd_per_mtok_output_all_in
    names = sorted(
        dict.fromkeys([*before, *after]), key=lambda name: -abs(after.get(name, 0.0) - before.get(name, 0.0))
    )
    found = [
        f"{name}: {money(before.get(name, 0.0), planned.priced)} to {money(after.get(name, 0.0), planned.priced)}"
        for name in names[:_SAID]
        if abs(after.get(name, 0.0) - before.get(name, 0.0)) > _LEAST * whole
    ]
    each = tuple(one.engine.batch_size / replace(one.layout, dp=1).num_chips for one in (now, then))
    if found and abs(each[1] / each[0] - 1.0) > 0.01:
        found.append(
            f"a step reads the weights for {written(each[0])} sequences per chip today, "
            f"for {written(each[1])} in the plan"
        )
    idle = [one.billed_chips - one.num_chips for one in (now, then)]
    if idle[0] != idle[1]:
        found.append(f"{idle[0]:,} chips are paid and idle today, {idle[1]:,} in the plan")
    return tuple(found)


def _parts(choice: Choice) -> dict[str, float]:
    """Cost of an output token by what it goes into [USD per million tokens]: prompts, and decode steps by resource."""
    seconds: dict[str, float] = {}
    for row in choice.inside.decode.rows:
        if row.used:
            name = f"decode steps, {_NAMES.get(row.binds, row.binds)}"
            seconds[name] = seconds.get(name, 0.0) + row.seconds
    whole = sum(seconds.values()) or 1.0
    prompts = choice.usd_per_mtok_output_all_in - choice.usd_per_mtok_output
    return {name: choice.usd_per_mtok_output * value / whole for name, value in seconds.items()} | {"prompts": prompts}


def changes_report(found: Sequence[Change], reasons: Sequence[str], *, planned: str) -> Group:
    """What would change, and why.

    Args:
        planned: name of the plan.
    """
    table: Sheet[Change] = Sheet(
        "changes",
        [
            Column("what"),
            Column("before", "today", "words"),
            Column("after", "plan", "words"),
            Column("ratio", "×", "ratio", lambda one: "" if one.ratio is None else one.ratio),
        ],
        found,
        title=f"from today's deployment to {planned}",
    )
    because = Text("why, of the cost of an output token") if reasons else None
    return stacked(table, because, *(Prose(f"  {reason}") for reason in reasons))
