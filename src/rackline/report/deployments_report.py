"""Deployments side by side: a line each, and what would change against today's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.report.choice_report import asked_of_fleet, users_of_fleet
from rackline.report.wording import money, money_name, percent
from rackline.search.choice import Choice
from rackline.serving.fleet import Fleet
from rackline.units import format_seconds

_NAMES = {
    "compute": "compute",
    "hbm": "memory",
    "scale_up": "links inside the domain",
    "scale_out": "links beyond the domain",
    "overhead": "overhead",
}
_SAID = 3  # parts of the cost that are named
_LEAST = 0.02  # of the cost, that a named part changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Both ends of an interval; unit of its metric."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A deployment in a comparison, beside its numbers.

    Args:
        choice: the way to serve; None where nothing meets the limits.
        engine: whose kernels and launch rules it has.
        today: whether it is what runs today, not a plan.
        priced: False where costs are chip-hours.
        bands: the interval that held 90 % of measured servers, by metric.
        fleet: for the traffic; None where none was asked for or nothing serves.
        reason: why there is none; empty when there is one.
    """

    json_keys: ClassVar = (
        "today",
        "engine",
        "serving",
        "basis",
        "layout",
        "precision",
        "scheduler",
        "prefill_layout",
        "leftover",
        "intervals=bands",
        "fleet",
        "reason",
    )

    choice: Choice | None
    engine: str
    today: bool
    priced: bool
    bands: dict[str, Band]
    fleet: Fleet | None = None
    reason: str = ""

    @property
    def serving(self) -> str | None:
        """One engine, or two pools."""
        return self.choice.serving if self.choice else None

    @property
    def basis(self) -> str | None:
        """What its numbers rest on."""
        return self.choice.basis if self.choice else None

    @property
    def layout(self) -> str | None:
        """Of what decodes, with its replicas."""
        return self.choice.layout.label() if self.choice else None

    @property
    def prefill_layout(self) -> str | None:
        """Of the prefill pool; None for one engine."""
        pool = self.choice.prefill_pool if self.choice else None
        return pool.layout.label() if pool else None

    @property
    def leftover(self) -> str | None:
        """Layout of the engines on paid chips that the others leave free, whose output counts; None without."""
        left = self.choice.leftover if self.choice else None
        return left.choice.layout.label() if left else None

    @property
    def precision(self) -> str | None:
        """Data types."""
        return self.choice.precision.short() if self.choice else None

    @property
    def scheduler(self) -> str | None:
        """How prompts and decodes share passes."""
        return self.choice.mode.label() if self.choice else None

    def label(self) -> str:
        """Layout, precision and scheduler in words."""
        if self.choice is None:
            return self.reason
        if self.choice.serving == "disaggregated":
            where = f"decode {self.layout}, prefill {self.prefill_layout}"
            return f"{where} · {self.precision}"
        beside = f", and {self.leftover} on chips that it leaves free" if self.leftover else ""
        return f"{self.layout} · {self.precision} · {self.scheduler}{beside}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that would change.

    Args:
        what: name of it.
        before, after: in words.
        ratio: after over before, None for what is no number [ratio].
    """

    what: str
    before: str
    after: str
    ratio: float | None = None


def deployments_report(
    rows: Sequence[tuple[str, Deployed, dict[str, float | None]]], *, prices: str, width: int
) -> Group:
    """One line per deployment where the screen is wide enough, else what it is above its numbers.

    Where the numbers do not fit either, watts go first, then the chips, then the band.

    Args:
        rows: name, what it is, its numbers.
        prices: of which kind they are.
        width: columns of the terminal.
    """
    caption = f"×: $ per M output, all-in, over {rows[0][0]}; kW: drawn by the chips that are paid for, with machines; "
    caption += "band: of 90 % of measured servers" + (f"; {prices}" if prices else "")
    said = [Text(caption, style="dim")]
    wide = _table(rows, whole=True)
    if _fits(wide, width):
        return Group(wide, *said)
    listed = Table.grid(padding=(0, 1))
    listed.add_column(justify="right")
    listed.add_column(overflow="fold")
    for number, (name, one, _) in enumerate(rows, start=1):
        listed.add_row(str(number), Text.assemble((name, "bold"), f": {one.label()}"))
    orders = ((), ("kW",), ("kW", "chips"), ("kW", "chips", "band"))
    tables = [_table(rows, whole=False, without=without) for without in orders]
    table = next((one for one in tables if _fits(one, width)), tables[-1])
    return Group(listed, Text(""), table, *said)


def _fits(table: Table, width: int) -> bool:
    return Console(width=1000).measure(table).maximum <= width


def _table(
    rows: Sequence[tuple[str, Deployed, dict[str, float | None]]], *, whole: bool, without: tuple[str, ...] = ()
) -> Table:
    lines = [
        {"": name if whole else str(number), **_line(one, values, rows[0][2])}
        for number, (name, one, values) in enumerate(rows, start=1)
    ]
    texts = ("layout", "precision", "scheduler")
    table = plain_table("deployments side by side")
    names = [name for name in lines[0] if name not in without and (whole or name not in texts)]
    for name in names:
        table.add_column(name, justify="left" if name in ("", *texts) else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(line[name] for name in names))
    return table


def _line(one: Deployed, values: dict[str, float | None], first: dict[str, float | None]) -> dict[str, str]:
    """Column → cell; dashes where nothing serves."""
    names = ("layout", "precision", "scheduler", "chips", "batch", "tpot", "ttft", "requests/s", "kW")
    names = (*names, f"{money_name(one.priced)} per M", "×", "band")
    choice = one.choice
    if choice is None:
        return {**dict.fromkeys(names, "-"), "layout": one.reason}
    usd, watts = choice.usd_with_leftover, values["power_w"]
    before = first["usd_per_mtok_output_all_in"]
    band = one.bands.get("usd_per_mtok_output_all_in")
    where = f"{one.layout} after {one.prefill_layout}" if one.prefill_layout else one.layout
    cells = (
        where or "",
        one.precision or "",
        one.scheduler or "",
        f"{choice.billed_chips:,}",
        f"{choice.batch_size:,.0f}",
        format_seconds(choice.tpot_s),
        format_seconds(choice.ttft_s),
        f"{choice.requests_per_s_with_leftover:.3g}",
        "-" if watts is None else f"{watts / 1e3:.3g}",
        money(usd, one.priced),
        f"{usd / before:.2f}" if before else "",
        f"{band.low:.2g} to {band.high:.2g}" if band else "-",
    )
    return dict(zip(names, cells, strict=True))


def fleets_report(rows: Sequence[tuple[str, Deployed, dict[str, float | None]]], *, width: int) -> Table | None:
    """The fleet of each deployment for the same traffic, None without traffic; by numbers where names do not fit."""
    tables = [_fleets(rows, names=names) for names in (True, False)]
    return next((table for table in tables if table is None or _fits(table, width)), tables[-1])


def _fleets(rows: Sequence[tuple[str, Deployed, dict[str, float | None]]], *, names: bool) -> Table | None:
    first = rows[0][1].fleet
    fleets = [one.fleet for _, one, _ in rows]
    some = next((fleet for fleet in fleets if fleet is not None), None)
    if some is None:
        return None
    users = some.interactive  # whose requests/s follow from the deployment
    table = plain_table(f"fleets for {asked_of_fleet(some) if users is None else users_of_fleet(users)}")
    columns = ("", "copies", "chips paid", "racks", "kW", "$ an hour", "in use", "$ per M", "×")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    before = first.usd_per_hour if first is not None else None
    for number, ((name, _, _), fleet) in enumerate(zip(rows, fleets, strict=True), start=1):
        label = name if names else str(number)
        if fleet is None:
            table.add_row(label, *["-"] * (len(columns) - 1))
            continue
        hour, each = fleet.usd_per_hour, fleet.usd_per_mtok_output_all_in
        table.add_row(
            label,
            f"{fleet.copies:,}",
            f"{fleet.billed_chips:,}",
            f"{fleet.num_racks:,}",
            "-" if fleet.power_w is None else f"{fleet.power_w / 1e3:,.4g}",
            "-" if hour is None else f"{hour:,.2f}",
            percent(fleet.utilisation),
            "-" if each is None else money(each),
            f"{hour / before:.2f}" if hour is not None and before else "",
        )
    return table


def changes(today: Deployed, planned: Deployed) -> tuple[Change, ...]:
    """What would change from today's deployment to a plan: what it is, what it gives, what it costs."""
    now, then = today.choice, planned.choice
    if now is None or then is None:
        return ()
    found = [
        Change(what=what, before=before, after=after)
        for what, before, after in (
            ("serving", now.serving, then.serving),
            ("layout", today.layout or "", planned.layout or ""),
            ("precision", today.precision or "", planned.precision or ""),
            ("scheduler", today.scheduler or "", planned.scheduler or ""),
            ("sequences on a replica", f"{now.batch_size:,.0f}", f"{then.batch_size:,.0f}"),
            ("chips that are paid for", f"{now.billed_chips:,}", f"{then.billed_chips:,}"),
            ("on chips left free", today.leftover or "nothing", planned.leftover or "nothing"),
        )
        if before != after
    ]

    def rate(value: float) -> str:
        return f"{value:.3g}"

    def cost(value: float) -> str:
        return money(value, planned.priced)

    numbers: tuple[tuple[str, float, float, Callable[[float], str]], ...] = (
        ("requests/s", now.requests_per_s_with_leftover, then.requests_per_s_with_leftover, rate),
        ("time per output token", now.tpot_s, then.tpot_s, format_seconds),
        ("time to first token", now.ttft_s, then.ttft_s, format_seconds),
        (
            f"{money_name(planned.priced)} per M output, all-in",
            now.usd_with_leftover,
            then.usd_with_leftover,
            cost,
        ),
    )
    found += [
        Change(what=what, before=show(before), after=show(after), ratio=after / before)
        for what, before, after, show in numbers
    ]
    return tuple(found)


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
            f"a step reads the weights for {each[0]:.3g} sequences per chip today, for {each[1]:.3g} in the plan"
        )
    idle = [one.billed_chips - one.num_chips for one in (now, then)]
    if idle[0] != idle[1]:
        found.append(f"{idle[0]:,} chips are paid and idle today, {idle[1]:,} in the plan")
    return tuple(found)


def _parts(choice: Choice) -> dict[str, float]:
    """Cost of an output token by what it goes into [USD per million tokens]: prompts, and decode steps by resource."""
    step = choice.inside.decode
    seconds: dict[str, float] = {}
    for row in step.rows:
        if row.used:
            name = f"decode steps, {_NAMES.get(row.binds, row.binds)}"
            seconds[name] = seconds.get(name, 0.0) + row.seconds
    whole = sum(seconds.values()) or 1.0
    parts = {name: choice.usd_per_mtok_output * value / whole for name, value in seconds.items()}
    parts["prompts"] = choice.usd_per_mtok_output_all_in - choice.usd_per_mtok_output
    return parts


def changes_report(found: Sequence[Change], reasons: Sequence[str], *, planned: str) -> Group:
    """What would change, and why.

    Args:
        planned: name of the plan.
    """
    table = plain_table(f"from today's deployment to {planned}")
    for name in ("", "today", "plan", "×"):
        table.add_column(name, justify="right" if name == "×" else "left", overflow="fold")
    for one in found:
        table.add_row(one.what, one.before, one.after, "" if one.ratio is None else f"{one.ratio:.2f}")
    parts: list[RenderableType] = [table]
    parts += [
        Text(f"{'why, of the cost of an output token' if not place else ''}") for place in range(min(len(reasons), 1))
    ]
    parts += [Text(f"  {reason}") for reason in reasons]
    return Group(*parts)
