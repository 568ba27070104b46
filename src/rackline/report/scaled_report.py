"""What `simulate` and `plan` print of a load over time: dollars, misses and regret of each policy, windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rackline.display import column, wording
from rackline.report import simulate_report
from rackline.units import format_seconds, format_usd

if TYPE_CHECKING:
    from rackline.search.scaled_fleet import Following, Outcome, Ran, ScaledFleet, Tried
    from rackline.simulation import fleet_run


def summary(found: ScaledFleet) -> str:
    """The answer in a line."""
    if found.reason:
        return found.reason
    one = found.first.outcome
    cost = f"{wording.written(one.chip_hours)} chip-hours" if one.usd is None else format_usd(one.usd)
    return (
        f"{one.policy}: {cost} for {format_seconds(found.first.run.seconds)}, {share_text(one.attained)} of "
        f"{one.requests:,.0f} requests within the limits"
    )


def report(found: ScaledFleet, *, elapsed_s: float) -> Iterable[Any]:
    """Everything that is printed.

    Args:
        elapsed_s: wall time [s].
    """
    server = found.server
    title = f"{server.deployment.model.name} on {server.deployment.cluster.name}: {found.load.name}"
    if found.reason:
        yield wording.Box(Text(f"nothing serves it: {found.reason}", style="bold red"), title)
        return
    one, run = found.first.outcome, found.first.run
    kept = one.holds
    body = Text(summary(found), style="bold")
    body.append(f"\n{'keeps' if kept else 'breaks'} the limits", style="bold green" if kept else "bold red")
    body.append(
        f" on {found.slo.statistics} over the whole load; "
        f"replicas: {wording.written(one.mean_replicas)} on average, {one.most_replicas:,.0f} at most"
    )
    if run.interrupted:
        body.append("\ninterrupted: what follows is what was simulated so far", style="bold yellow")
    body.append(f"\n{_regret(found)}")
    if one.failed_replicas:
        body.append(f"\n{one.failed_replicas:,.0f} replicas failed; {one.lost_requests:,.0f} requests were sent again")
    if one.refused:
        body.append(f"\n{wording.percent(one.refused / one.requests)} of the requests were refused", style="yellow")
    if one.unanswered:
        body.append(f"\n{one.unanswered:,.0f} requests got no answer", style="yellow")
    mean, peak = wording.written(found.load.mean_per_s), wording.written(found.load.peak_per_s)
    below = f"{mean} requests/s on average, {peak} at the peak"
    yield column.spaced([wording.Box(body, title, below, "green" if kept else "red"), *_sheets(found)])
    yield from simulate_report.frontend_lines({"frontend": run.frontend, "frontend_binds": False})
    yield wording.Prose(_replica(found), style="dim")
    yield wording.Prose(f"simulated in {format_seconds(elapsed_s)}", style="dim")


def _regret(found: ScaledFleet) -> str:
    """What it spends beyond the oracle and a perfect system."""
    one = found.first.outcome
    perfect = f"{wording.written(found.perfect_chip_hours)} chip-hours"
    if found.perfect_usd is not None:
        perfect = format_usd(found.perfect_usd)
    against = "" if one.over_oracle is None else f"{_more(one.over_oracle)} an oracle, "
    return f"{against}{_more(one.over_perfect or 0.0)} a perfect system ({perfect})"


def _more(share: float) -> str:
    return f"{wording.percent(abs(share))} {'more' if share >= 0 else 'less'} than"


def share_text(attained: float | None) -> str:
    """A share near one with the digits that tell it from one; a dash for none."""
    if attained is None:
        return "-"
    missed = 1.0 - attained
    return wording.percent(attained) if missed >= 0.005 or missed <= 0.0 else f"{100.0 * attained:.3f} %"


def _replica(found: ScaledFleet) -> str:
    """What the policies know of a replica, and how it starts."""
    each = "; ".join(
        f"{wording.written(mark.capacity_per_s)} requests/s within the limits and has "
        f"{wording.written(mark.running)} at 70 % of that"
        f"{'' if mark.pool == 'all' else f' ({mark.pool})'}"
        for mark in found.marks
    )
    parts = ""
    if found.start is not None:
        named = {
            "machine": found.start.node_s, "image": found.start.image_s, "weights": found.start.weights_s,
            "engine": found.start.engine_s,
        }  # fmt: skip
        parts = f" ({', '.join(f'{name} {format_seconds(value)}' for name, value in named.items() if value)})"
    return f"a replica serves {each}; it starts in {format_seconds(found.start_s)}{parts}"


def _sheets(found: ScaledFleet) -> list[column.Sheet[Any]]:
    of_policies: list[column.Column[Ran]] = [
        column.Column("policy", "policy", "text", "outcome.policy"),
        column.Column("usd", "$", "USD", "outcome.usd"),
        column.Column("chip_hours", "chip-hours", "1", "outcome.chip_hours", priority=2),
        column.Column("over_oracle", "over the oracle", "error", "outcome.over_oracle", priority=1),
        column.Column("over_perfect", "over perfect", "error", "outcome.over_perfect", priority=1),
        column.Column("attained", "within limits", "figures", lambda one: share_text(one.outcome.attained)),
        column.Column("holds", "kept", "text", lambda one: "yes" if one.outcome.holds else "no"),
        column.Column("ttft_p99_s", "TTFT p99", "s", "outcome.ttft_p99_s"),
        column.Column("tpot_p99_s", "TPOT p99", "s", "outcome.tpot_p99_s", priority=2),
        column.Column("mean_replicas", "replicas", "1", "outcome.mean_replicas", priority=1),
        column.Column("most_replicas", "most", "whole", "outcome.most_replicas", priority=3),
    ]
    if any(one.outcome.failed_replicas for one in found.ran):
        of_policies.append(column.Column("lost_requests", "sent again", "whole", "outcome.lost_requests", priority=2))
    of_windows: list[column.Column[fleet_run.WindowRow]] = [
        column.Column("start_s", "from", "figures", lambda row: _clock(row.start_s)),
        column.Column("rate_per_s", "requests/s", "1"),
        column.Column("replicas", "replicas", "1"),
        column.Column("waiting", "waiting", "1", priority=1),
        column.Column("attained", "within limits", "figures", lambda row: share_text(row.attained)),
        column.Column("ttft_p50_s", "TTFT p50", "s", priority=2),
        column.Column("ttft_p99_s", "TTFT p99", "s"),
        column.Column("tpot_p99_s", "TPOT p99", "s", priority=1),
        column.Column("kv_use", "KV in use", "share", priority=2),
    ]
    seeds = f", means of {found.seeds} seeds" if found.seeds > 1 else ""
    first = found.first
    return [
        column.Sheet("policies", of_policies, found.ran, f"policies{seeds}", _intervals(first.outcome)),
        *simulate_report.class_sheets(first.by_class, f"{first.outcome.policy}, by class"),
        column.Sheet("windows", of_windows, first.windows, f"{first.outcome.policy}, over time"),
    ]


def _intervals(one: Outcome) -> str:
    """How well the first policy's numbers are known over seeds."""
    halves = one.intervals or {}
    texts = {
        "usd": format_usd(halves.get("usd", 0.0)),
        "attained": f"{100.0 * halves.get('attained', 0.0):.2g} points",
        "ttft_p99_s": format_seconds(halves.get("ttft_p99_s", 0.0)),
    }
    words = {"usd": "dollars", "attained": "within limits", "ttft_p99_s": "TTFT p99"}
    said = [f"{words[name]} ± {text}" for name, text in texts.items() if name in halves]
    return f"95 % intervals of {one.policy}: {', '.join(said)}" if said else ""


def _clock(seconds: float) -> str:
    days, rest = divmod(round(seconds), 86400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}" + (f":{rest % 60:02d}" if rest % 60 else "")
    return f"{days} d {text}" if days else text


def window_rows(found: ScaledFleet) -> list[dict[str, Any]]:
    """A row for each window of each policy."""
    return [{"policy": one.outcome.policy, **asdict(row)} for one in found.ran for row in one.windows]


def following_text(found: Following) -> Iterable[Any]:
    """The best, and what else was tried."""
    best, runs = found.best, found.first
    load = f"{runs.load.name}, {format_seconds(runs.load.seconds)}"
    if best is None:
        why = "; ".join(f"{label}: {reason}" for label, reason in found.reasons.items())
        yield wording.Prose(f"over {load}: no policy that was tried meets the limits{f' ({why})' if why else ''}")
    else:
        one = best.outcome
        usd = "" if one.usd is None else f"{format_usd(one.usd)}, "
        yield wording.Prose(
            f"over {load}: {usd}{one.chip_hours:,.0f} chip-hours with {best.layout} under {one.policy}, "
            f"{share_text(one.attained)} of {one.requests:,.0f} requests within the limits"
        )
    columns: list[column.Column[Tried]] = [
        column.Column("layout", "layout"),
        column.Column("policy", "policy", "text", "outcome.policy"),
        column.Column("usd", "$", "USD", "outcome.usd"),
        column.Column("chip_hours", "chip-hours", "1", "outcome.chip_hours"),
        column.Column("attained", "within limits", "figures", lambda one: share_text(one.outcome.attained)),
        column.Column("holds", "met", "text", lambda one: "yes" if one.outcome.holds else "no"),
        column.Column("ttft_p99_s", "TTFT p99", "s", "outcome.ttft_p99_s", priority=1),
        column.Column("tpot_p99_s", "TPOT p99", "s", "outcome.tpot_p99_s", priority=1),
        column.Column("most_replicas", "most replicas", "whole", "outcome.most_replicas", priority=2),
    ]
    at = f"limits on {runs.slo.statistics} of the whole load"
    yield column.Sheet("over time", columns, found.tried, f"{load}, by layout and policy", at)
