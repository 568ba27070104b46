"""Deployments side by side: a line each, and what would change against today's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.plain import follow
from rackline.report.choice_report import asked_of_fleet, users_of_fleet
from rackline.report.column import Column, Sheet, band_bar, facts
from rackline.report.wording import Prose, money, money_name, written
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
_BAR = 14  # characters of the bar of a band
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


Line = tuple[str, Deployed, dict[str, float | None]]
"""Name of a deployment, what it is, its numbers."""


def deployments_report(rows: Sequence[Line], *, prices: str) -> Group:
    """A line a deployment, then what each of them is.

    Args:
        prices: of which kind they are.
    """
    caption = f"×: over {short_names(rows)[0]}; W: drawn by the chips that are paid for, with machines; "
    caption += "low, high: of 90 % of measured servers" + (f"; {prices}" if prices else "")
    labels = facts("ways", [(name, one.label()) for name, (_, one, _) in zip(short_names(rows), rows, strict=True)])
    return Group(_deployments(rows), Prose(caption, style="dim"), Text(""), labels)


def short_names(rows: Sequence[Line]) -> list[str]:
    """Names without the model, where all have the same."""
    models = {name.partition("@")[0] for name, _, _ in rows}
    return [name.partition("@")[2] if len(models) == 1 else name for name, _, _ in rows]


def _deployments(rows: Sequence[Line]) -> Sheet[Line]:
    cost = "usd_per_mtok_output_all_in"
    names, first = short_names(rows), rows[0]
    most = max((one.bands[cost].high for _, one, _ in rows if cost in one.bands), default=0.0)

    def best(key: str, title: str, unit: str, priority: int = 0) -> Column[Line]:
        return Column(key, title, unit, lambda row: follow(row[1].choice, key), priority=priority)

    def band(key: str) -> Callable[[Line], Any]:
        return lambda row: follow(row[1].bands.get(cost), key)

    def bar(row: Line) -> Text | str:
        found, choice = row[1].bands.get(cost), row[1].choice
        if found is None or choice is None:
            return ""
        return band_bar(found.low, choice.usd_with_leftover, found.high, end=most, width=_BAR)

    def times(row: Line) -> float | str:
        choice, before = row[1].choice, first[2][cost]
        return choice.usd_with_leftover / before if choice is not None and before else ""

    unit = "USD" if first[1].priced else "1"

    models = {name.partition("@")[0] for name, _, _ in rows}
    what = f" of {models.pop()}" if len(models) == 1 else ""
    return Sheet(
        "deployments",
        [
            Column("name", "", getter=lambda row: names[rows.index(row)]),
            best("usd_with_leftover", f"{money_name(first[1].priced)} per M", unit),
            Column("ratio", "×", "ratio", times),
            Column(f"{cost}.low", "low", "1", band("low"), priority=3),
            Column("", "from 0", getter=bar, priority=4),
            Column(f"{cost}.high", "high", "1", band("high"), priority=3),
            best("tpot_s", "tpot", "s"),
            best("ttft_s", "ttft", "s"),
            best("requests_per_s_with_leftover", "requests/s", "1"),
            best("billed_chips", "chips", "whole", 1),
            best("batch_size", "batch", "whole", 5),
            Column("power_w", "drawn", "W", lambda row: row[2]["power_w"], priority=2),
        ],
        rows,
        title=f"deployments{what}: $ per M output tokens, all-in",
    )


def fleets_report(rows: Sequence[Line]) -> Sheet[Line] | None:
    """The fleet of each deployment for the same traffic, None without traffic."""
    some = next((one.fleet for _, one, _ in rows if one.fleet is not None), None)
    if some is None:
        return None
    users = some.interactive  # whose requests/s follow from the deployment
    first, names = rows[0][1].fleet, short_names(rows)

    def of(key: str, title: str, unit: str, priority: int = 0) -> Column[Line]:
        return Column(key, title, unit, lambda row: follow(row[1].fleet, key), priority=priority)

    def times(row: Line) -> float | str:
        hour, before = follow(row[1].fleet, "usd_per_hour"), follow(first, "usd_per_hour")
        return hour / before if hour is not None and before else ""

    title = f"fleets for {asked_of_fleet(some) if users is None else users_of_fleet(users)}"
    return Sheet(
        "fleets",
        [
            Column("name", "", getter=lambda row: names[rows.index(row)]),
            of("usd_per_hour", "$ an hour", "USD"),
            Column("ratio", "×", "ratio", times),
            of("copies", "copies", "whole"),
            of("billed_chips", "chips paid", "whole"),
            of("num_racks", "racks", "whole", 1),
            of("power_w", "power", "W"),
            of("utilisation", "in use", "share", 2),
            of("usd_per_mtok_output_all_in", "$ per M", "USD"),
        ],
        rows,
        title=title,
    )


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

    def cost(value: float) -> str:
        return money(value, planned.priced)

    numbers: tuple[tuple[str, float, float, Callable[[float], str]], ...] = (
        ("requests/s", now.requests_per_s_with_leftover, then.requests_per_s_with_leftover, written),
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
            f"a step reads the weights for {written(each[0])} sequences per chip today, "
            f"for {written(each[1])} in the plan"
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

    parts: list[RenderableType] = [
        Sheet(
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
    ]
    if reasons:
        parts.append(Text("why, of the cost of an output token"))
    return Group(*parts, *(Prose(f"  {reason}") for reason in reasons))
