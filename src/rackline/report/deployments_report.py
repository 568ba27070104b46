"""Deployments that plans chose: one on one screen, several side by side, and what would change against today's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from rackline.arch import media_of
from rackline.display.column import Column, Predicted, Sheet, facts, stacked
from rackline.display.terminal import band_bar
from rackline.display.wording import Prose, composed, money, money_name, percent, share, written
from rackline.hardware import on_demand_usd
from rackline.passes import PassTime
from rackline.passes.features import PREFILL_TOKENS
from rackline.plain import follow
from rackline.report.choice_report import (
    against,
    asked_of_fleet,
    bands_sheet,
    chips_text,
    choice_panel,
    energy_text,
    estimate_line,
    nothing_panel,
    other_kind,
    replica_label,
    served_table,
    trust_line,
    users_of_fleet,
)
from rackline.report.compare_report import Change, Deployed, Side
from rackline.search import Choice, Plan
from rackline.search.misfit import Misfit
from rackline.serving.fleet import HOURS_PER_MONTH, Fleet
from rackline.system import Risk
from rackline.units import format_bytes, format_count, format_seconds

MOST_LINES = 46  # of the answer at 100 columns; each limit has one
_ROWS = 3  # of a pass that are named


def plan_summary(
    plan: Plan,
    risk: Risk | None,
    *,
    bands: Sequence[Predicted] = (),
    elapsed_s: float,
    misfit: Misfit | None = None,
    fleet: Fleet | None = None,
) -> Group:
    """What `rackline plan` prints; `plan_report` has the rest.

    Args:
        risk: how surely the best keeps its limits; None where that is not known.
        bands: of the best.
        elapsed_s: wall time of the search [s].
        misfit: what would make it fit, where nothing does.
        fleet: that serves the traffic; None where none was asked for.
    """
    best = plan.best
    said: list[tuple[str, str | Text]] = []
    parts: list[RenderableType] = [nothing_panel(plan, misfit)]
    if best is not None:
        parts = [choice_panel(plan, best, risk, fleet), _numbers(plan, best, bands)]
        if bands:
            parts += [bands_sheet(bands, best, plan.demand.limits, priced=plan.priced, risk=risk)]
        parts.append(stacked(served_table(best, full=False), estimate_line(best)))
        said += [("also", _leftover(plan, best)), ("limits", "\n".join(_limits(plan, best)))]
        if second := _second(plan, best):
            said.append(("second", second))
    said += [
        ("refused", f"{one.what} would be cheaper: {one.reason.removeprefix('launch: ')} (--any-layout)")
        for one in plan.rejected
        if one.reason.startswith("launch: ")
    ]
    if best is not None:
        said.append(("next", _next(plan, best)))
    return Group(*parts, facts("said", [*said, ("from", _looked(plan, elapsed_s))]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """A number of a decision card.

    Args:
        name: what it is.
        kind: how a page writes it: usd, seconds, count or number.
        unit: words after it.
        value: in SI units or USD.
        low, high: 90 % of measured servers of the kind lay between them; None where it is certain or nothing is known.
        limit: that was asked; None without.
        at_least: whether the limit is a floor.
        note: what else is known, such as the share of servers that meet the limit.
    """

    name: str
    kind: Literal["usd", "seconds", "count", "number"]
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    at_least: bool = False
    note: str = ""


def decision_card(plan: Plan, best: Choice, risk: Risk | None, bands: Sequence[Predicted]) -> dict[str, Any]:
    """The numbers that one decides by, in the order in which one reads them; what was second, in a sentence.

    Args:
        best: of the plan.
        risk: how surely it keeps its limits; None where that is not known.
        bands: of the best.
    """
    known = {one.metric: one for one in bands}
    cost = known.get("usd_per_mtok_output_all_in")
    whole = best.whole
    usd = whole.usd_per_mtok_output_all_in
    month = usd / 1e6 * whole.output_tokens_per_s * 3600.0 * HOURS_PER_MONTH
    unit = "per M output tokens, all-in"
    numbers = [
        Large(
            name="Cost",
            kind="usd" if plan.priced else "number",
            unit=unit if plan.priced else f"chip-hours {unit}",
            value=usd,
            low=None if cost is None else cost.low,
            high=None if cost is None else cost.high,
            note=f"at {written(whole.requests_per_s)} requests/s",
        ),
        _latency(plan, best, risk, known, "tpot_s"),
        _latency(plan, best, risk, known, "ttft_s"),
        Large(name="Chips", kind="count", unit="", value=best.billed_chips, note=chips_text(plan, best)),
    ]
    other = other_kind(plan)
    alternative, _, caveat = ("" if other is None else other.plain).partition("; ")
    if plan.priced:
        numbers.append(Large(name="A month", kind="usd", unit="", value=month, note="paid at any load"))
    return {
        "deployment": f"{best.layout.label()}, {best.precision.short()}, {best.serving}",
        "numbers": numbers,
        "basis": "simulated" if best.sustained else "estimated",
        "alternative": alternative,
        "caveat": caveat,
    }


def _latency(plan: Plan, best: Choice, risk: Risk | None, known: Mapping[str, Predicted], metric: str) -> Large:
    """Speed for one user, or the time to the first token, with its limit and who keeps it."""
    limits = {name: (limit, place) for name, limit, place in plan.demand.limits.latencies()}
    limit_s, place = limits.get(metric, (None, None))
    value = best.latency_s(metric, place)
    kept = next((one for one in risk.limits if one.metric == metric), None) if risk else None
    band = known.get(metric)
    low, high = (kept.low_s, kept.high_s) if kept else (band.low, band.high) if band else (None, None)
    note = f"{percent(kept.chance)} of such servers keep {format_seconds(kept.limit_s)}" if kept else ""
    at = f", p{place:g}" if place is not None else ""
    if metric == "ttft_s":
        return Large(
            name=f"First token{at}", kind="seconds", unit="", value=value, low=low, high=high, limit=limit_s, note=note
        )
    return Large(
        name=f"Speed{at}",
        kind="count",
        unit="tokens/s a user",
        value=1.0 / value,
        low=None if high is None else 1.0 / high,
        high=None if low is None else 1.0 / low,
        limit=None if limit_s is None else 1.0 / limit_s,
        at_least=True,
        note=note,
    )


def _numbers(plan: Plan, best: Choice, bands: Sequence[Predicted]) -> Sheet[Any]:
    """Rates and costs, what is paid and drawn; latencies where no table below has them."""
    whole = best.whole
    given, made = (money(one, plan.priced) for one in (whole.usd_per_mtok_input, whole.usd_per_mtok_output))
    each = whole.output_tokens_per_s_per_chip
    rates = f"{format_count(whole.output_tokens_per_s)} output tokens/s, {each:,.0f} a chip"
    rows: list[tuple[str, str | Text]] = [
        ("gives", f"{rates}, {written(best.tokens_per_s_per_user)} a user; {given} per M input, {made} output"),
    ]
    if not (bands and best.sustained):
        rows.append(("per output token", against(plan, best, "tpot_s")))
        rows.append(("to first token", against(plan, best, "ttft_s")))
    rows.append(("paid", _paid(plan, best)))
    if best.energy is not None:
        joules = next((one for one in bands if one.metric == "joules_per_output_token"), None)
        power = energy_text(best.energy, plan.system.cluster.power_w_per_chip)
        if joules is not None:
            power += f"; 90 % of {joules.num_cases} measured servings {written(joules.low)} to {written(joules.high)} J"
        rows.append(("power", power))
    return facts("numbers", rows)


def _paid(plan: Plan, best: Choice) -> str:
    """Chips in use, chips that are paid for, and their price."""
    cluster, text = plan.system.cluster, chips_text(plan, best)
    price = cluster.usd_per_chip_hour
    if price is None:
        return f"{text}; no price is known, costs are chip-hours: --price"
    kind = f" ({cluster.rent})" if cluster.rent else ""
    if best.prefill_pool is not None and best.prefill_pool.cluster != cluster.name:
        return f"{text}; {money(price)} a decode chip-hour{kind}"
    hour = price * best.billed_chips
    text = f"{text}; {money(price)} a chip-hour{kind}, {money(hour)} an hour, {money(hour * HOURS_PER_MONTH)} a month"
    demand = on_demand_usd(cluster.chip, price)
    return text if demand is None else f"{text}; {money(hour * HOURS_PER_MONTH * demand / price)} on demand"


def _leftover(plan: Plan, best: Choice) -> str:
    """The engines on paid chips that the answer leaves free; empty without."""
    if best.leftover is None:
        return ""
    one = best.leftover.choice
    where = f"{replica_label(one)} · {one.precision.short()} · {one.mode.label()}"
    return (
        f"on {best.leftover.num_chips} paid chips that are left over: {where} serves "
        f"{written(best.leftover.requests_per_s)} of the requests/s ({format_seconds(one.tpot_s)} a token, first after "
        f"{format_seconds(one.ttft_s)}); without it {written(best.requests_per_s)} requests/s at "
        f"{money(best.usd_per_mtok_output_all_in, plan.priced)} per M output, all-in"
    )


def _limits(plan: Plan, best: Choice) -> Iterable[str]:
    """What a pass waits for and which rows take most of it; what the fullest chip holds."""
    prefill, memory = best.inside.prefill, best.inside.memory
    yield _pass_line("a decode step", best.inside.decode)
    if best.prefill_pool is not None:
        yield _pass_line("a prefill pass", prefill)
    media = media_of(plan.system.model)
    if media is not None and media.prompt_len is not None:  # what images and sound add to the passes of a prompt
        passes = media.prompt_len / float(np.asarray(prefill.features[PREFILL_TOKENS]))
        names = [f"{part.tower.kind} tower" for part in media.parts]
        taken = sum(row.seconds for row in prefill.rows if row.used and row.group in names) * passes
        part = percent(share(taken, prefill.seconds * passes))
        yield f"{' and '.join(names)}: {format_seconds(taken)} of a prompt's passes, {part} of them"
    parts = {
        "weights": float(sum(float(value) for value in memory.weights.values())),
        "KV cache": float(memory.kv_cache),
        "free": float(memory.free),
    }
    held = ", ".join(f"{name} {percent(share(value, memory.total))}" for name, value in parts.items())
    yield f"memory of the fullest chip, {format_bytes(memory.total)}: {held}"


def _pass_line(name: str, time: PassTime) -> str:
    rows = sorted((row for row in time.rows if row.used), key=lambda row: -row.seconds)[:_ROWS]
    parts = [f"{row.name.replace('_', ' ')} {percent(share(row.seconds, time.seconds))}" for row in rows]
    return f"{name} of {format_seconds(time.seconds)} waits for {time.binds.replace('_', ' ')}: {', '.join(parts)}"


def _second(plan: Plan, best: Choice) -> Text:
    """The other kind of serving, and the next layout of the same kind; both estimates, so that they compare."""
    other = other_kind(plan)
    lines = [] if other is None else [other.text]
    same = (best.layout, best.precision.label)
    others = (ranked for ranked in plan.ranked if (ranked.layout, ranked.precision.label) != same)
    following = next(others, None)
    if following is not None and best.serving == "aggregated":
        ratio = following.usd_per_mtok_output_all_in / best.estimate.usd_per_mtok_output_all_in
        where = f"another layout: {replica_label(following)} · {following.precision.short()}"
        why = "" if ratio >= 1.0 else ", but not when simulated"
        lines.append(Text(f"{where}, {written(ratio)} times as much by estimates{why}", style="dim"))
    return Text("\n").join(lines)


def _next(plan: Plan, best: Choice) -> str:
    """What one may ask next."""
    asks = ["--full for rows, fronts and other layouts", "--launch for commands"]
    if plan.demand.limits.tpot_s is None and plan.demand.limits.ttft_s is None:
        asks.insert(0, "--tpot 50ms --ttft 2s: no latency is limited")
    elif best.utilisation < 0.7:
        asks.append(f"looser limits, which take {percent(1.0 - best.utilisation)} of the rate")
    return "; ".join(asks)


def _looked(plan: Plan, elapsed_s: float) -> Text:
    """How much was considered, under whose rules and numbers."""
    considered = f"{plan.candidates_evaluated:,} candidates in {format_seconds(elapsed_s)}; "
    rules = f"; launch rules of {plan.rules_name}" if plan.rules_name else ""
    return composed(f"{considered}{'; '.join(plan.assumptions[2:-1])}{rules}\n", trust_line(plan), style="dim")


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
