"""The terminal report of the deployment that a plan chose, of its fleet and of its adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.bands.spread import LEAST_CORRECTION
from rackline.display.column import Column, Predicted, Sheet, facts, stacked
from rackline.display.terminal import band_bar
from rackline.display.wording import Box, Prose, composed, money, money_name, percent, share, short_count, written
from rackline.parallel import Layout
from rackline.report.memory_report import misfit_report
from rackline.report.trust import trust
from rackline.search import Basis, Candidate, Choice, Plan, Pool, PoolPair
from rackline.search.choice import TIE, Energy
from rackline.search.misfit import Misfit
from rackline.search.served import FewRequests
from rackline.serving.fleet import Fleet, Interactive
from rackline.simulation.statistics import Interval
from rackline.system import LEAST_CHANCE, Constraints, LimitRisk, Risk
from rackline.units import format_count, format_seconds, format_usd, format_watts, plural, several, statistic_name

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
_SERVED_NAMES = {
    True: ("time to first token", "time per output token", "whole request"),
    False: ("to first token", "per output token", "request"),
}
"""Latencies of a simulated run, in full and in short."""


def request_text(plan: Plan) -> str:
    """The question as a sentence: lengths and limits."""
    work = plan.demand.workload
    text = f"{short_count(work.input_len)} tokens in, {short_count(work.output_len)} out"
    if work.mixture is not None:
        text += " (means)"
    if work.cache_hit:
        text += f", {percent(work.cache_hit)} of the prompt cached"
    for name, limit, percentile in plan.demand.limits.latencies():
        of = f"{statistic_name(percentile)} of "
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
    return f"{layout.dp} {plural(layout.dp, 'replica')} of {several(layout.chips_per_replica, 'chip')}{on}"


def replica_label(of: Choice | Candidate | Pool) -> str:
    """The layout of one replica, without the number of replicas."""
    return replace(of.layout, dp=1).label()


def replicas_label(of: Choice | Candidate | PoolPair) -> str:
    """The layouts of one replica of each pool; of one engine, that of a replica."""
    pair = of.estimate if isinstance(of, Choice) else of
    if isinstance(pair, PoolPair):
        return f"decode {replica_label(pair.decode)}; prefill {replica_label(pair.prefill)}"
    return replica_label(pair)


def choice_panel(plan: Plan, choice: Choice, risk: Risk | None = None, fleet: Fleet | None = None) -> Box:
    """What to run, in the headline, and how surely it keeps its limits; the fleet that some traffic needs."""
    whole = choice.whole
    cost = f"{money(whole.usd_per_mtok_output_all_in, plan.priced)} per M output tokens, all-in"
    rate = f"{cost} · {written(whole.requests_per_s)} requests/s · {several(whole.num_chips, 'chip')}"
    first, then = choice.prefill_pool, choice.decode_pool
    if first is not None and then is not None:
        lines = [
            composed(
                (f"{name:<9}", "dim green"),
                (replica_label(pool), "bold green"),
                f" · {pool.precision.short()}\n         "
                f"{_replicas(pool.layout, f' on {pool.cluster}')} · {_scheduler(choice, pool)}",
            )
            for name, pool in (("decode", then), ("prefill", first))
        ]
    else:
        how = f" · {choice.precision.short()}\n{_replicas(choice.layout)} · {choice.mode.label()}, {_slots(choice)}"
        lines = [composed((replica_label(choice), "bold green"), how)]
    if choice.leftover is not None:
        one = choice.leftover.choice
        lines.append(
            composed(
                (f"{'beside':<9}", "dim green"),
                (replica_label(one), "bold green"),
                f" · {one.precision.short()}\n         on {choice.leftover.num_chips} paid chips that are left over · "
                f"{one.mode.label()}",
            )
        )
    notes = [Text(note, style="yellow") for note in (then or choice).precision.notes]
    risks = () if risk is None else risk_lines(risk, priced=plan.priced)
    risks = [*risks, *_open_lines(plan, choice)]
    if choice.bound:
        risks.append(Text(f"bottleneck of the rate: {choice.bound}", style="dim"))
    needed = [] if fleet is None else [Text(_fleet_line(fleet), style="bold green")]
    body = Text("\n").join([*needed, Text(rate, style="" if needed else "bold green"), *lines, *notes, *risks])
    return Box(body, title(plan), request_text(plan))


def _open_lines(plan: Plan, choice: Choice) -> list[Text]:
    """List the p99 of each latency that nobody limited, as simulated."""
    if choice.sustained is None:
        return []
    limits, simulated = plan.demand.limits, choice.sustained.simulated
    open_latencies = (
        ("time per output token", limits.tpot_s, simulated.tpot_s),
        ("time to first token", limits.ttft_s, simulated.ttft_s),
    )
    return [
        Text(f"{name}: no limit given, p99 {format_seconds(latency.p99)}")
        for name, limit_s, latency in open_latencies
        if limit_s is None
    ]


def risk_lines(risk: Risk, *, priced: bool) -> list[Text]:
    """Return a line for each limit, one for the likely values, and one for what headroom costs.

    The line of a limit says which share of the servers meet it, and marks it among the times that most of them take.
    """
    lines = [_limit_line(one) for one in risk.limits]
    likely = [limit for limit in risk.limits if abs(limit.likely_s / limit.predicted_s - 1.0) >= LEAST_CORRECTION]
    if likely:
        lines.append(Text("; ".join(map(_likely_text, likely))))
    if risk.confidence is not None:
        text = f"headroom: {100 * risk.confidence:.0f} of 100 such servers meet each limit"
        if risk.usd_without is not None and risk.cost_ratio is not None:
            text += f"; without it {money(risk.usd_without, priced)} per M output"
        lines.append(Text(text))
    return lines


def _limit_name(limit: LimitRisk) -> str:
    """Return the name of what is limited, such as "p99 ttft"."""
    name = limit.metric.removesuffix("_s")
    return name if limit.percentile is None else f"p{limit.percentile:g} {name}"


def _likely_text(limit: LimitRisk) -> str:
    """Return the likely and the computed value of what is limited."""
    likely, computed = format_seconds(limit.likely_s), format_seconds(limit.predicted_s)
    return f"{_limit_name(limit)} likely {likely}, computed {computed}"


def _limit_line(one: LimitRisk) -> Text:
    """The share of the servers that keep a limit, and what 90 % of them take, with the limit marked."""
    low, high = format_seconds(one.low_s), format_seconds(one.high_s)
    number, _, unit = low.partition(" ")
    return composed(
        f"{_limit_name(one)} ≤ {format_seconds(one.limit_s)} kept by {_chance_text(one.chance)} of servers ",
        band_bar(one.low_s, one.predicted_s, one.high_s, one.limit_s, width=_BAR),
        (f" {number if high.endswith(f' {unit}') else low} to {high}", "dim"),
    )


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
    unit, whole = money_name(plan.priced), choice.whole
    each, chip = choice.batch_size, whole.output_tokens_per_s_per_chip
    busy = f"{percent(whole.utilisation)} of {written(whole.saturation_requests_per_s)} requests/s"
    pairs = [
        ("requests/s", written(whole.requests_per_s)),
        (f"{unit} per M input tokens", money(whole.usd_per_mtok_input, plan.priced)),
        ("time per output token", against(plan, choice, "tpot_s")),
        (f"{unit} per M output tokens", money(whole.usd_per_mtok_output, plan.priced)),
        ("time to first token", against(plan, choice, "ttft_s")),
        (f"{unit} per M output, all-in", money(whole.usd_per_mtok_output_all_in, plan.priced)),
        ("tokens/s per user", written(choice.tokens_per_s_per_user)),
        ("price of a chip", _price(plan)),
        ("output tokens/s per chip", f"{chip:,.0f}"),
        ("chips", chips_text(plan, choice)),
        ("output tokens/s, all chips", format_count(whole.output_tokens_per_s)),
        ("utilisation", busy),
        ("requests in flight", f"{each * choice.layout.dp:,.0f}"),
        ("in flight on a replica", written(each)),
    ]
    return facts("numbers", pairs)


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
        if band.metric in drawn or band.metric not in _BANDS:
            continue
        title, write = _BANDS[band.metric]
        limit, place = known.get(band.metric, (None, None))
        value = choice.latency_s(band.metric, place) if place is not None else band.predicted
        low, high = (end * value / band.predicted for end in (band.low, band.high))
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
    of = f"{bands[0].group}, {bands[0].num_cases} cases" if bands else ""
    return Sheet(
        "bands",
        [
            Column("quantity", style="dim"),
            Column("predicted", "predicted", "figures", style="bold"),
            Column("bar", "from 0", priority=1),
            Column("low", "low", "figures"),
            Column("high", "high", "figures"),
            *([Column("limit", "limit", "figures")] if any(row["limit"] for row in rows) else []),
        ],
        rows,
        title=f"within low and high lay 90 % of measured {what} ({of})",
    )


def against(plan: Plan, choice: Choice, name: str) -> Text:
    """The mean of a limited latency, tpot_s or ttft_s, and how much of its limit the limited one takes."""
    mean = Text(format_seconds(choice.latency_s(name, None)), style="bold")
    known = {one: (limit, place) for one, limit, place in plan.demand.limits.latencies()}
    if name not in known:
        return mean
    limit, place = known[name]
    at = "" if place is None or choice.sustained is None else f"p{place:g} "
    return composed(mean, (f"  ({at}{percent(share(choice.latency_s(name, place), limit))} of the limit)", "dim"))


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


def trust_line(plan: Plan) -> Text:
    """Whose numbers the passes of the answer rest on."""
    passes = (time for choice in plan.choices for time in (choice.inside.decode, choice.inside.prefill))
    return trust(plan.system.calibration, plan.system.cluster.chip, [row for time in passes for row in time.rows])


def served_table(choice: Choice, *, full: bool = True) -> RenderableType:
    """What the simulator measured at the sustained rate, or why it was not run.

    Args:
        full: with the rate, the interval of p99, and what is to be said of an estimate.
    """
    sustained = choice.sustained
    if sustained is None:
        caveat = f"; {choice.caveat}" if full and choice.caveat else ""
        basis = f"{'the numbers are ' if full else ''}{BASIS[choice.basis]}{caveat}"
        return Prose(f"not simulated ({choice.not_simulated or 'not asked for'}): {basis}", style="yellow")
    found, names = sustained.simulated, _SERVED_NAMES[full]
    told = f"{found.requests:,} requests that arrive at random"
    return Sheet(
        "served",
        [
            Column("latency"),
            *(Column(name, name, "s") for name in ("mean", "p50", "p90", "p99")),
            *([Column("p99_interval", "± of p99", "figures", priority=1)] if full else []),
        ],
        [
            {
                "latency": name,
                **{key: getattr(one, key) for key in ("mean", "p50", "p90", "p99")},
                "p99_interval": _ends(one.p99_interval),
            }
            for name, one in zip(names, (found.ttft_s, found.tpot_s, found.e2e_s), strict=True)
        ],
        title=f"served: {told}, {written(sustained.requests_per_s)} a second" if full else f"simulated: {told}",
        caption="± of p99: its 95 % confidence interval; ? where the run is too short to bound it" if full else "",
    )


def _ends(interval: Interval) -> str:
    low, high = ("?" if isnan(end) else format_seconds(end) for end in (interval["low"], interval["high"]))
    return f"{low} to {high}"


def other_kind(plan: Plan) -> Prose | None:
    """One line about the kind that is not the answer: what it costs, or why it has no answer."""
    best, other = plan.best, plan.runner_up
    if best is None:
        return None
    apart = best.serving == "aggregated"
    what = "separate pools for prefill and decode" if apart else "one engine for both"
    if other is None:
        reason = (plan.disaggregated.reason if plan.disaggregated else "") if apart else plan.reason
        return Prose(f"{what}: {reason}", style="dim") if reason else None
    usd = other.whole.usd_per_mtok_output_all_in
    if other.sustained is None:  # an estimate compares with an estimate
        ratio = usd / best.estimate.usd_per_mtok_output_all_in
        text = f"{what}: {replica_label(other)}, {written(ratio)} times as much by {BASIS[other.basis]}"
        return Prose(f"{text}{'; ' if ratio >= 1.0 else ', but '}{other.not_simulated}", style="dim")
    times = f"{written(usd / best.whole.usd_per_mtok_output_all_in)} times as much"
    text = f"{what}: {replica_label(other)}, {money(usd, plan.priced)} per M output tokens, {times}"
    if plan.cost_of(other) < plan.cost_of(best):
        text += f" (a tie within {percent(TIE)}, and the answer is simpler)"
    found = other.sustained.simulated
    latencies = ", ".join(
        f"{name} {format_seconds(one.mean)} (p99 {format_seconds(one.p99)})"
        for name, one in (("time to first token", found.ttft_s), ("per output token", found.tpot_s))
    )
    return Prose(f"{text}; simulated at {written(other.requests_per_s)} requests/s: {latencies}", style="dim")


def estimate_line(choice: Choice) -> Prose | None:
    """Return what the simulation changed against the estimate of the search, where the rate differs."""
    found = choice.estimate
    if choice.sustained is None or abs(choice.sustained.requests_per_s / found.requests_per_s - 1.0) < 1e-3:
        return None
    text = (
        f"before the simulation, the {BASIS_OF_ONE[found.basis]} was {written(found.requests_per_s)} requests/s, "
        f"{format_seconds(found.ttft_s)} to the first token and {format_seconds(found.tpot_s)} per output token"
    )
    return Prose(f"{text}; {found.caveat}" if found.caveat else text, style="dim")


def nothing_panel(plan: Plan, misfit: Misfit | None = None) -> Group:
    """Why there is no answer, and what would make it fit where nothing does."""
    named = plan.reason.startswith(plan.system.model.name)  # a name keeps its letters
    reason = plan.reason if named else f"{plan.reason[:1].upper()}{plan.reason[1:]}"
    body = composed(("Nothing fits. " if plan.need is not None else "No answer. ", "bold red"), reason)
    apart = plan.disaggregated.reason if plan.disaggregated else ""
    return stacked(
        Box(body, title(plan), request_text(plan), "red"),
        Prose(f"separate pools for prefill and decode: {apart}", style="dim") if apart else None,
        None if misfit is None else misfit_report(misfit),
    )


def fleet_report(fleet: Fleet) -> Sheet[Any]:
    """A table of the fleet with a row for each quantity."""
    users, paid_more = fleet.interactive, fleet.billed_chips > fleet.num_chips
    rows: list[tuple[str, str | None]] = [
        ("rate that must be reached", f"{format_count(fleet.traffic.capacity_tokens_per_s)} tokens/s"),
        ("copies of the deployment", f"{fleet.copies:,} of {format_count(fleet.copy_tokens_per_s)} tokens/s"),
        ("chips", f"{fleet.num_chips:,}" + (f", {fleet.billed_chips:,} paid" if paid_more else "")),
        ("racks", f"{fleet.num_racks:,}"),
        ("power of the site", _power(fleet)),
        (
            "for a megawatt",
            None
            if fleet.tokens_per_joule is None or fleet.racks_per_megawatt is None
            else f"{written(fleet.racks_per_megawatt)} racks, {format_count(fleet.tokens_per_joule * 1e6)} tokens/s",
        ),
        ("rent", _rent(fleet)),
        ("mean utilisation", percent(fleet.utilisation)),
    ]
    if users is not None:
        rows += [
            ("users of a copy within its limits", f"{users.users_per_copy:,.0f}"),
            ("time of a request at this traffic", format_seconds(users.response_s)),
            ("users who wait, on average", f"{users.waiting_users:,.0f}"),
        ]
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


def _rent(fleet: Fleet) -> str:
    """Dollars an hour and a month, and what they are a user and a request."""
    if fleet.usd_per_hour is None or fleet.usd_per_month is None:
        return "no price"
    parts = [f"{money(fleet.usd_per_hour)} an hour, {money(fleet.usd_per_month)} a month"]
    for usd, of in ((fleet.usd_per_user, "user"), (fleet.usd_per_request, "request")):
        if usd is not None:
            parts.append(f"{money(usd)} a {of}")
    return ", ".join(parts)


def _power(fleet: Fleet) -> str:
    if fleet.power_w is None:
        return "not known"
    basis = {"kernels": "", "nameplate": ", by the nameplate"}.get(fleet.power_basis, f", {fleet.power_basis}")
    return f"{format_watts(fleet.power_w)}{basis}"


def sample_report(sample: FewRequests) -> Sheet[Any]:
    """What nine of ten runs of few requests show."""
    rows: dict[str, dict[str, Any]] = {}
    for one in sample.shown:
        name = {"ttft_s": "to first token", "tpot_s": "per output token"}[one.metric]
        text = f"{format_seconds(one.low_s)} to {format_seconds(one.high_s)}"
        rows.setdefault(name, {"what": name})[one.statistic] = text
    statistics = dict.fromkeys(one.statistic for one in sample.shown)
    rates = f"{written(sample.low_requests_per_s)} to {written(sample.high_requests_per_s)} requests/s arrive"
    errors = ", ".join(f"{name.removesuffix('_s')} {percent(error)}" for name, error in sample.error.items())
    stated = f"errors that the calibration states are in it ({errors})" if errors else "the calibration states no error"
    return Sheet(
        "sample",
        [Column("what", ""), *(Column(name, name, "words", priority=int(name == "p99")) for name in statistics)],
        [*rows.values()],
        title=f"{sample.requests:,} observed requests: between these in nine of ten runs",
        caption=f"{rates}; {sample.runs} runs with arrivals of their own; {stated}",
    )


def _fleet_line(fleet: Fleet) -> str:
    """Copies, chips and dollars of the traffic that was asked for."""
    copies = several(fleet.copies, "copy", "copies")
    text = f"{asked_of_fleet(fleet)}: {copies} of what follows, {several(fleet.billed_chips, 'chip')} paid"
    month, each = fleet.usd_per_month, fleet.usd_per_mtok_output_all_in
    if month is None or each is None:
        return text
    return f"{text}, {format_usd(month)} a month; {format_usd(each)} per M output tokens, idle hours paid"


def fleet_summary(fleet: Fleet | None) -> str:
    """What the traffic needs; empty where none was asked for."""
    if fleet is None:
        return ""
    rent = "" if fleet.usd_per_hour is None else f", {format_usd(fleet.usd_per_hour)} an hour"
    copies, chips = several(fleet.copies, "copy", "copies"), several(fleet.billed_chips, "chip")
    return f";\n  {asked_of_fleet(fleet)}: {copies}, {chips} paid{rent}"
