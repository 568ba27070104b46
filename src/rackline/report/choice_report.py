"""The terminal report of the deployment that a plan chose, of its fleet and of its adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.arch import AppliedAdapter
from rackline.parallel import Layout
from rackline.plain import plain
from rackline.report.column import SECTION, Column, Sheet, band_bar, facts
from rackline.report.wording import Box, Prose, money, money_name, percent, share, short_count, written
from rackline.search import Basis, Choice, Plan, Pool
from rackline.search.choice import Energy
from rackline.search.fits import ClusterNeed
from rackline.search.served import Latency
from rackline.serving.fleet import Fleet, Interactive
from rackline.simulation.statistics import Interval
from rackline.system import Constraints, LimitRisk, Risk
from rackline.system.demand import LEAST_CHANCE
from rackline.units import format_count, format_seconds, format_usd, format_watts

BASIS: dict[Basis, str] = {
    "closed_loop_estimate": "closed-loop estimates, with every slot always taken",
    "open_loop_estimate": "open-loop estimates, with random arrivals",
    "simulated": "simulated, with random arrivals",
}
BASIS_OF_ONE: dict[Basis, str] = {
    "closed_loop_estimate": "closed-loop estimate",
    "open_loop_estimate": "open-loop estimate",
    "simulated": "simulated",
}
_BAR = 12  # characters of the bar of a band
_BANDS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "tpot_s": ("per output token", format_seconds),
    "ttft_s": ("to first token", format_seconds),
    "request_s": ("request", format_seconds),
    "usd_per_mtok_output_all_in": ("{} per M output, all-in", lambda usd: format_usd(usd).lstrip("$")),
}
"""Predicted values whose bands are shown: their names, and how they are written."""


def request_text(plan: Plan) -> str:
    """The question as a sentence: lengths and limits; a limit without a percentile is one on the mean."""
    work = plan.demand.workload
    text = f"{short_count(work.input_len)} tokens in, {short_count(work.output_len)} out"
    if work.mixture is not None:
        text += " (means)"
    if work.cache_hit:
        text += f", {percent(work.cache_hit)} of the prompt cached"
    for name, limit, percentile in plan.demand.limits.latencies():
        of = "mean of " if percentile is None else f"p{percentile:g} of "
        text += f", {of}{name.removesuffix('_s')} ≤ {format_seconds(limit)}"
    return text


def energy_text(energy: Energy, nameplate_w: float | None = None) -> str:
    """Watts of a chip and of all machines, and joules, in a sentence.

    Args:
        nameplate_w: that the cluster's record states for a chip at full load, with network and cooling [W].
    """
    power, prefill = energy.power, energy.prefill_power
    if power.basis == "nameplate":
        return f"{format_watts(energy.power_w)} by the nameplate: nothing is known of what the chip draws"
    chip = f"{format_watts(power.chip_w)} a chip drawn"
    if prefill is not None:
        chip = f"{format_watts(power.chip_w)} a decode chip, {format_watts(prefill.chip_w)} a prefill chip drawn"
    cap = "" if power.cap_w is None else f" (capped at {format_watts(power.cap_w)})"
    borrowed = "; power of other generations" if power.basis != "kernels" else ""
    named = "" if nameplate_w is None else f"; nameplate {format_watts(nameplate_w)} a chip"
    return (
        f"{chip}{cap}, {format_watts(energy.power_w)} with machines; "
        f"{written(energy.joules_per_output_token)} J an output token, all-in{borrowed}{named}"
    )


def title(plan: Plan) -> str:
    """Model, cluster and its chips."""
    cluster = plan.system.cluster
    return f"{plan.system.model.name} on {cluster.name} ({cluster.num_chips} × {cluster.chip.name})"


def _replicas(layout: Layout, on: str = "") -> str:
    count, chips = layout.dp, layout.chips_per_replica
    return f"{count} replica{'s' if count > 1 else ''} of {_chips_of(chips)}{on}"


def _chips_of(count: int) -> str:
    return f"{count:,} chip{'' if count == 1 else 's'}"


def choice_panel(plan: Plan, choice: Choice, risk: Risk | None = None) -> Box:
    """What to run, in the headline, and how surely it keeps its limits."""
    cost = f"{money(choice.usd_per_mtok_output_all_in, plan.priced)} per M output tokens, all-in"
    body = Text(f"{cost} · {written(choice.requests_per_s)} requests/s", style="bold green")
    body.append(f" · {_chips_of(choice.num_chips)}\n")
    first, then = choice.prefill_pool, choice.decode_pool
    if first is not None and then is not None:
        for name, pool in (("decode   ", then), ("\nprefill  ", first)):
            body.append(name, style="not bold dim")
            body.append(replace(pool.layout, dp=1).label(), style="bold green")
            body.append(f" · {pool.precision.short()}\n         ", style="not bold default")
            how = f"{_replicas(pool.layout, f' on {pool.cluster}')} · {_scheduler(choice, pool)}"
            body.append(how, style="not bold default")
        notes = then.precision.notes
    else:
        layout = choice.layout
        body.append(f"{replace(layout, dp=1).label()}", style="bold green")
        body.append(f" · {choice.precision.short()}\n", style="not bold default")
        how = f"{_replicas(layout)} · {choice.mode.label()}, {_slots(choice)}"
        body.append(how, style="not bold default")
        notes = choice.precision.notes
    for note in notes:
        body.append(f"\n{note}", style="not bold yellow")
    for line in () if risk is None else risk_lines(risk, priced=plan.priced):
        body.append("\n").append(line)
    return Box(body, title(plan), request_text(plan))


def risk_lines(risk: Risk, *, priced: bool) -> list[Text]:
    """A limit a line: the share of the servers that keep it, and where it lies among what most of them take."""
    lines = [_limit_line(one) for one in risk.limits]
    if risk.confidence is not None:
        text = f"headroom for {percent(risk.confidence)} of servers of this kind"
        if risk.usd_without is not None and risk.cost_ratio is not None:
            cost, without = money(risk.usd, priced), money(risk.usd_without, priced)
            text += f": {cost} per M output, {written(risk.cost_ratio)} times {without} without it"
        lines.append(Text(text, style="not bold default"))
    return lines


def _limit_line(one: LimitRisk) -> Text:
    """The share of the servers that keep a limit, and what 90 % of them take, with the limit marked."""
    name = one.metric.removesuffix("_s")
    of = name if one.percentile is None else f"p{one.percentile:g} {name}"
    line = Text(
        f"{of} ≤ {format_seconds(one.limit_s)} kept by {_chance_text(one.chance)} of servers ", style="not bold default"
    )
    line.append(band_bar(one.low_s, one.predicted_s, one.high_s, one.limit_s, width=_BAR))
    low, high = format_seconds(one.low_s), format_seconds(one.high_s)
    number, _, unit = low.partition(" ")
    return line.append(f" {number if high.endswith(f' {unit}') else low} to {high}", style="not bold dim")


def _chance_text(chance: float) -> str:
    """A share between those that are known."""
    if chance <= LEAST_CHANCE:
        return f"<{percent(LEAST_CHANCE)}"
    return f">{percent(1.0 - LEAST_CHANCE)}" if chance >= 1.0 - LEAST_CHANCE else percent(chance)


def _slots(choice: Choice) -> str:
    many = choice.layout.attention_dp * choice.layout.pp > 1
    return f"up to {choice.max_num_seqs:,} sequences{' a rank' if many else ''}"


def _scheduler(choice: Choice, pool: Pool) -> str:
    overlap = ", two-batch overlap" if pool.mode.two_batch_overlap else ""
    if pool.batch_size:
        return f"{_slots(choice)}{overlap}"
    return f"{pool.mode.max_batched_tokens} tokens per pass{overlap}"


def key_numbers(plan: Plan, choice: Choice) -> Sheet[Any]:
    """Rate, latencies and costs."""
    unit = money_name(plan.priced)
    limits = {name: (limit, place) for name, limit, place in plan.demand.limits.latencies()}
    each, chip = choice.batch_size, choice.output_tokens_per_s_per_chip
    busy = f"{percent(choice.utilisation)} of {written(choice.saturation_requests_per_s)} requests/s"
    pairs = [
        ("requests/s", written(choice.requests_per_s)),
        (f"{unit} per M input tokens", money(choice.usd_per_mtok_input, plan.priced)),
        ("time per output token", against(choice, "tpot_s", limits.get("tpot_s"))),
        (f"{unit} per M output tokens", money(choice.usd_per_mtok_output, plan.priced)),
        ("time to first token", against(choice, "ttft_s", limits.get("ttft_s"))),
        (f"{unit} per M output, all-in", money(choice.usd_per_mtok_output_all_in, plan.priced)),
        ("tokens/s per user", written(choice.tokens_per_s_per_user)),
        ("price of a chip", _price(plan)),
        ("output tokens/s per chip", f"{chip:,.0f}"),
        ("chips", chips_text(plan, choice)),
        ("output tokens/s, all chips", format_count(chip * choice.num_chips)),
        ("utilisation", busy),
        ("requests in flight", f"{each * choice.layout.dp:,.0f}"),
        ("in flight on a replica", written(each)),
    ]
    return facts("numbers", pairs)


class Predicted(Protocol):
    """A predicted value with its band, SI units."""

    @property
    def metric(self) -> str: ...
    @property
    def predicted(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def group(self) -> str: ...
    @property
    def num_cases(self) -> int: ...


def bands_sheet(
    bands: Sequence[Predicted],
    choice: Choice,
    limits: Constraints,
    *,
    priced: bool = True,
    what: str = "servers",
    risk: Risk | None = None,
) -> Sheet[Any]:
    """What measured servers of the kind deviate by: a line a quantity, with its band as a bar and its limit.

    Args:
        bands: of the choice; a latency that is limited at a percentile is shown there.
        limits: that the prediction keeps.
        risk: whose limits are drawn elsewhere.
    """
    drawn = set[str]() if risk is None else {one.metric for one in risk.limits}
    known = {name: (limit, place) for name, limit, place in limits.latencies()}
    rows: list[dict[str, Any]] = []
    for band in bands:
        title, write = _BANDS.get(band.metric, ("", written))
        if not title or band.metric in drawn:
            continue
        limit, place = known.get(band.metric, (None, None))
        value = choice.latency_s(band.metric, place) if place is not None else band.predicted
        by = value / band.predicted
        low, high = band.low * by, band.high * by
        rows.append(
            {
                "quantity": title.format(money_name(priced)) + (f", p{place:g}" if place is not None else ""),
                "predicted": write(value),
                "bar": band_bar(low, value, high, limit, width=_BAR),
                "low": write(low),
                "high": write(high),
                "limit": "" if limit is None else write(limit),
            }
        )
    columns: list[Column[Any]] = [
        Column("quantity", style="dim"),
        Column("predicted", "predicted", "figures", style="bold"),
        Column("bar", "from 0", priority=1),
        Column("low", "low", "figures"),
        Column("high", "high", "figures"),
    ]
    if any(row["limit"] for row in rows):
        columns.append(Column("limit", "limit", "figures"))
    of = f"{bands[0].group}, {bands[0].num_cases} cases" if bands else ""
    return Sheet("bands", columns, rows, title=f"within low and high lay 90 % of measured {what} ({of})")


def against(choice: Choice, name: str, limit: tuple[float, float | None] | None) -> Text:
    """The mean, and how much of its limit the limited one takes."""
    mean = choice.tpot_s if name == "tpot_s" else choice.ttft_s
    text = Text(format_seconds(mean), style="bold")
    if limit is None:
        return text
    most, percentile = limit
    if percentile is None or choice.sustained is None:
        text.append(f"  ({percent(share(mean, most))} of the limit)", style="not bold dim")
        return text
    value = choice.latency_s(name, percentile)
    text.append(f"  (p{percentile:g} {percent(share(value, most))} of the limit)", style="not bold dim")
    return text


def _price(plan: Plan) -> Text:
    price = plan.system.cluster.usd_per_chip_hour
    if price is None:
        return Text("none: costs are chip-hours, see --price", style="yellow")
    return Text(f"{money(price)} an hour" + (f", {plan.system.cluster.rent}" if plan.system.cluster.rent else ""))


def chips_text(plan: Plan, choice: Choice) -> str:
    """Chips in use of those of the cluster, and chips that are paid for."""
    left = choice.billed_chips - choice.num_chips
    paid = f"; {choice.billed_chips} paid, {left} left over" if left else f"; {choice.billed_chips} paid"
    if choice.leftover is not None:
        paid += f", {choice.leftover.num_chips} of them used by a second kind of replica"
    return chips_used(plan, choice) + paid


def chips_used(plan: Plan, choice: Choice) -> str:
    """Chips in use of those of the cluster."""
    first, then = choice.prefill_pool, choice.decode_pool
    if first is None or then is None:
        return f"{choice.num_chips} of {plan.system.cluster.num_chips}"
    used = f"{then.num_chips} decode + {first.num_chips} prefill"
    return f"{used} of {plan.system.cluster.num_chips}" if then.cluster == first.cluster else used


def served_table(choice: Choice) -> RenderableType:
    """What the simulator measured at the sustained rate, or why it was not run."""
    sustained = choice.sustained
    if sustained is None:
        why = choice.not_simulated or "not asked for"
        text = f"not simulated ({why}): the numbers are {BASIS[choice.basis]}"
        return Prose(f"{text}; {choice.caveat}" if choice.caveat else text, style="yellow")
    found = sustained.simulated
    how = f"{found.requests:,} requests that arrive at random, {written(sustained.requests_per_s)} a second"
    return latencies(
        (
            ("time to first token", found.ttft_s),
            ("time per output token", found.tpot_s),
            ("whole request", found.e2e_s),
        ),
        title=f"served: {how}",
        caption="± of p99: its 95 % confidence interval; ? where the run is too short to bound it",
    )


def latencies(rows: Sequence[tuple[str, Latency]], *, title: str, caption: str = "") -> Sheet[Any]:
    """Mean and percentiles of latencies, a line each.

    Args:
        caption: says what the interval of p99 is; without it, it is left out.
    """
    columns: list[Column[Any]] = [
        Column("latency"),
        *(Column(name, name, "s") for name in ("mean", "p50", "p90", "p99")),
    ]
    if caption:
        columns.append(Column("p99_interval", "± of p99", "figures", priority=1))
    cells = [
        {"latency": name, "mean": one.mean, "p50": one.p50, "p90": one.p90, "p99": one.p99}
        | ({"p99_interval": _ends(one.p99_interval)} if caption else {})
        for name, one in rows
    ]
    return Sheet("served", columns, cells, title=title, caption=caption)


def _ends(interval: Interval) -> str:
    low, high = ("?" if isnan(end) else format_seconds(end) for end in (interval["low"], interval["high"]))
    return f"{low} to {high}"


def other_kind(plan: Plan) -> list[Prose]:
    """One line about the kind that is not the answer: what it costs, or why it has no answer."""
    best, other = plan.best, plan.runner_up
    if best is None:
        return []
    apart = best.serving == "aggregated"
    what = "separate pools for prefill and decode" if apart else "one engine for both"
    if other is None:
        reason = (plan.disaggregated.reason if plan.disaggregated else "") if apart else plan.reason
        return [Prose(f"{what}: {reason}", style="dim")] if reason else []
    ratio = other.usd_per_mtok_output_all_in / best.usd_per_mtok_output_all_in
    text = (
        f"{what}: {replace(other.layout, dp=1).label()}, {money(other.usd_per_mtok_output_all_in, plan.priced)} per M"
    )
    text += f" output tokens, {written(ratio)} times as much"
    if other.sustained is None:
        return [
            Prose(f"{text} by {BASIS[other.basis]}; not simulated at its own rate: {other.not_simulated}", style="dim")
        ]
    found = other.sustained.simulated
    times = [
        f"{name} {format_seconds(one.mean)} (p99 {format_seconds(one.p99)})"
        for name, one in (("time to first token", found.ttft_s), ("per output token", found.tpot_s))
    ]
    text += f"; simulated at {written(other.requests_per_s)} requests/s: {', '.join(times)}"
    return [Prose(text, style="dim")]


def estimate_line(choice: Choice) -> list[RenderableType]:
    """What the search had expected of it, where the sustained rate differs."""
    found = choice.estimate
    if choice.sustained is None or abs(choice.sustained.requests_per_s / found.requests_per_s - 1.0) < 1e-3:
        return []
    text = (
        f"the search had expected {written(found.requests_per_s)} requests/s, {format_seconds(found.ttft_s)} to the "
        f"first token and {format_seconds(found.tpot_s)} per output token ({BASIS_OF_ONE[found.basis]})"
    )
    return [Prose(f"{text}; {found.caveat}" if found.caveat else text, style="dim")]


def nothing_panel(plan: Plan) -> Group:
    """Why there is no answer, and which cluster would hold it."""
    body = Text()
    body.append("Nothing fits. " if plan.need is not None else "No answer. ", style="bold red")
    named = plan.reason.startswith(plan.system.model.name)  # a name keeps its letters
    body.append(plan.reason if named else f"{plan.reason[:1].upper()}{plan.reason[1:]}")
    panel = Box(body, title(plan), request_text(plan), "red")
    apart = plan.disaggregated.reason if plan.disaggregated else ""
    lines: list[RenderableType] = (
        [Prose(f"separate pools for prefill and decode: {apart}", style="dim")] if apart else []
    )
    if plan.need is not None:
        lines.append(need_text(plan.need, plan.system.cluster.name))
    return Group(panel, *lines)


def need_text(need: ClusterNeed, cluster: str) -> Text:
    """What would hold it: more chips, other types, another cluster.

    Args:
        cluster: name of the one on which it does not fit.
    """
    line = Text("next    ")
    if need.cluster == cluster:
        line.append(f"--chips {need.num_chips}", style="bold")
    else:
        line.append(f"--on {need.cluster}" if need.cluster else "no cluster of the catalogue", style="bold")
    if need.narrower:
        line.append(", or on these chips ")
        line.append(f"--precision {need.narrower}", style="bold")
    line.append(f"\n        {need.reason}", style="dim")
    return line


def fleet_report(fleet: Fleet) -> Sheet[Any]:
    """One row a quantity."""
    traffic = fleet.traffic
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
        each = f"{written(fleet.racks_per_megawatt)} racks, {format_count(fleet.tokens_per_joule * 1e6)} tokens/s"
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
    return facts("fleet", rows, title=f"fleet for {asked_of_fleet(fleet)}")


def asked_of_fleet(fleet: Fleet) -> str:
    """What the traffic was given as, and what it is in tokens."""
    tokens = f"{format_count(fleet.traffic.tokens_per_s)} output tokens/s"
    if fleet.requests_per_s is None:
        return tokens
    requests = f"{written(fleet.requests_per_s)} requests/s, {tokens}"
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
    return f"{format_watts(fleet.power_w)}{basis}"


def fleet_summary(fleet: Fleet | None) -> str:
    """What the traffic needs; empty where none was asked for."""
    if fleet is None:
        return ""
    rent = "" if fleet.usd_per_hour is None else f", {format_usd(fleet.usd_per_hour)} an hour"
    return f";\n  {asked_of_fleet(fleet)}: {fleet.copies:,} copies, {fleet.billed_chips:,} chips paid{rent}"


def adapter_report(adapter: AppliedAdapter) -> Sheet[Any]:
    """One row for each kind of module, then all of them."""

    rows: list[Any] = [
        {
            **plain(one),
            "copies": one.copies if one.copies > 1 else None,
            "bytes": 2.0 * one.params,
            "flop": one.flop,
            "params": one.params,
        }
        for one in adapter.modules
    ]
    rows.append(SECTION)
    if adapter.whole_params:
        whole = adapter.whole_params
        rows.append({"name": "stored whole", "params": whole, "bytes": 2.0 * whole})
    rows.append(
        {
            "name": "all",
            "params": adapter.total_params,
            "bytes": adapter.stored_bytes,
            "flop": adapter.flop_per_token,
        }
    )
    return Sheet(
        "adapter",
        [
            Column("name", "module"),
            Column("layers", "layers", "whole"),
            Column("copies", "experts", "whole"),
            Column("inputs", "inputs", "whole", priority=1),
            Column("outputs", "outputs", "whole", priority=1),
            Column("rank", "rank", "whole"),
            Column("params", "parameters", "count"),
            Column("bytes", "size", "B"),
            Column("flop", "FLOP", "FLOP"),
        ],
        rows,
        title=f"adapter {adapter.name}",
        caption="bf16; FLOP of one token",
    )
