"""What `simulate` prints of a load over time: dollars, misses and regret of each policy, and the run by windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.text import Text

from rackline.api.scaled import Outcome, Ran, ScaledRuns
from rackline.report.column import Column, Sheet, spaced
from rackline.report.simulate_report import class_sheets, frontend_lines
from rackline.report.wording import Box, Prose, percent, written
from rackline.simulation.fleet_run import WindowRow
from rackline.units import format_seconds, format_usd


def summary(found: ScaledRuns) -> str:
    """The answer in a line."""
    if found.reason:
        return found.reason
    one = found.first.outcome
    cost = f"{written(one.chip_hours)} chip-hours" if one.usd is None else format_usd(one.usd)
    return (
        f"{one.policy}: {cost} for {format_seconds(found.first.run.seconds)}, {share_text(one.attained)} of "
        f"{one.requests:,.0f} requests within the limits"
    )


def report(found: ScaledRuns, *, elapsed_s: float) -> Iterable[Any]:
    """Everything that is printed.

    Args:
        elapsed_s: wall time [s].
    """
    server = found.server
    title = f"{server.deployment.model.name} on {server.deployment.cluster.name}: {found.load.name}"
    if found.reason:
        yield Box(Text(f"nothing serves it: {found.reason}", style="bold red"), title)
        return
    one, run = found.first.outcome, found.first.run
    kept = one.holds
    body = Text(summary(found), style="bold")
    body.append(f"\n{'keeps' if kept else 'breaks'} the limits", style="bold green" if kept else "bold red")
    body.append(
        f" at p{found.slo.percentile:g} over the whole load; replicas: {written(one.mean_replicas)} on average, "
        f"{one.most_replicas:,.0f} at most"
    )
    if run.interrupted:
        body.append("\ninterrupted: what follows is what was simulated so far", style="bold yellow")
    body.append(f"\n{_regret(found)}")
    if one.failed_replicas:
        body.append(f"\n{one.failed_replicas:,.0f} replicas failed; {one.lost_requests:,.0f} requests were sent again")
    if one.refused:
        body.append(f"\n{percent(one.refused / one.requests)} of the requests were refused", style="yellow")
    if one.unanswered:
        body.append(f"\n{one.unanswered:,.0f} requests got no answer", style="yellow")
    below = f"{written(found.load.mean_per_s)} requests/s on average, {written(found.load.peak_per_s)} at the peak"
    yield spaced([Box(body, title, below, "green" if kept else "red"), *_sheets(found)])
    yield from frontend_lines({"frontend": run.frontend, "frontend_binds": False})
    yield Prose(_replica(found), style="dim")
    yield Prose(f"simulated in {format_seconds(elapsed_s)}", style="dim")


def _regret(found: ScaledRuns) -> str:
    """What it spends beyond the oracle and a perfect system."""
    one = found.first.outcome
    perfect = f"{written(found.perfect_chip_hours)} chip-hours"
    if found.perfect_usd is not None:
        perfect = format_usd(found.perfect_usd)
    against = "" if one.over_oracle is None else f"{_more(one.over_oracle)} an oracle, "
    return f"{against}{_more(one.over_perfect or 0.0)} a perfect system ({perfect})"


def _more(share: float) -> str:
    return f"{percent(abs(share))} {'more' if share >= 0 else 'less'} than"


def share_text(attained: float | None) -> str:
    """A share near one with the digits that tell it from one; a dash for none."""
    if attained is None:
        return "-"
    missed = 1.0 - attained
    return percent(attained) if missed >= 0.005 or missed <= 0.0 else f"{100.0 * attained:.3f} %"


def _replica(found: ScaledRuns) -> str:
    """What the policies know of a replica, and how it starts."""
    each = "; ".join(
        f"{written(mark.capacity_per_s)} requests/s within the limits and has {written(mark.running)} at 70 % of that"
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


def _sheets(found: ScaledRuns) -> list[Sheet[Any]]:
    of_policies: list[Column[Ran]] = [
        Column("policy", "policy", "text", "outcome.policy"),
        Column("usd", "$", "USD", "outcome.usd"),
        Column("chip_hours", "chip-hours", "1", "outcome.chip_hours", priority=2),
        Column("over_oracle", "over the oracle", "error", "outcome.over_oracle", priority=1),
        Column("over_perfect", "over perfect", "error", "outcome.over_perfect", priority=1),
        Column("attained", "within limits", "figures", lambda one: share_text(one.outcome.attained)),
        Column("holds", "kept", "text", lambda one: "yes" if one.outcome.holds else "no"),
        Column("ttft_p99_s", "TTFT p99", "s", "outcome.ttft_p99_s"),
        Column("tpot_p99_s", "TPOT p99", "s", "outcome.tpot_p99_s", priority=2),
        Column("mean_replicas", "replicas", "1", "outcome.mean_replicas", priority=1),
        Column("most_replicas", "most", "whole", "outcome.most_replicas", priority=3),
    ]
    if any(one.outcome.failed_replicas for one in found.ran):
        of_policies.append(Column("lost_requests", "sent again", "whole", "outcome.lost_requests", priority=2))
    of_windows: list[Column[WindowRow]] = [
        Column("start_s", "from", "figures", lambda row: _clock(row.start_s)),
        Column("rate_per_s", "requests/s", "1"),
        Column("replicas", "replicas", "1"),
        Column("waiting", "waiting", "1", priority=1),
        Column("attained", "within limits", "figures", lambda row: share_text(row.attained)),
        Column("ttft_p50_s", "TTFT p50", "s", priority=2),
        Column("ttft_p99_s", "TTFT p99", "s"),
        Column("tpot_p99_s", "TPOT p99", "s", priority=1),
        Column("kv_use", "KV in use", "share", priority=2),
    ]
    seeds = f", means of {found.seeds} seeds" if found.seeds > 1 else ""
    first = found.first
    return [
        Sheet("policies", of_policies, found.ran, f"policies{seeds}", _intervals(first.outcome)),
        *class_sheets(first.by_class, f"{first.outcome.policy}, by class"),
        Sheet("windows", of_windows, first.windows, f"{first.outcome.policy}, over time"),
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


def window_rows(found: ScaledRuns) -> list[dict[str, Any]]:
    """A row for each window of each policy."""
    return [{"policy": one.outcome.policy, **asdict(row)} for one in found.ran for row in one.windows]
