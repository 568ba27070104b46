"""What `simulate` finds of a load over time, and prints of it: dollars, misses and regret of each policy, windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from rich.text import Text

from rackline.api.server import Server
from rackline.api.traffic import Use
from rackline.late import late
from rackline.units import format_seconds, format_usd

with late:
    from rackline import simulation
    from rackline.display import column, wording
    from rackline.report import simulate_report
    from rackline.simulation import fleet_pool, fleet_run, load as loads, outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a replica takes.

    Args:
        pool: "prompts", "outputs" or "all".
        capacity_per_s: its highest rate within the limits [requests/s].
        running: requests in it at 70 % of that rate [requests].
        kv_use: share of its KV blocks in use, likewise [1].
        chips: of it [count].
    """

    pool: str
    capacity_per_s: float
    running: float
    kv_use: float
    chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a policy did, over one seed or as a mean over several.

    Args:
        policy: its name.
        chip_hours: that were paid for [chip h].
        usd: of them; None without a price [USD].
        attained: share of the requests answered within the limits [1].
        holds: whether each limit is met at its percentile.
        ttft_p99_s, tpot_p99_s: over the whole run [s].
        mean_replicas, most_replicas: that were paid for [count].
        requests, refused, unanswered: of the run [requests].
        lost_requests: that were sent again as their replica failed [requests].
        failed_replicas: [count].
        over_oracle, over_perfect: chip-hours over those of the oracle, and of a perfect system, less 1; None for
            themselves [1].
        intervals: half of the 95 % interval of the mean over seeds, by name; empty for one seed.
    """

    policy: str
    chip_hours: float
    usd: float | None
    attained: float
    holds: bool
    ttft_p99_s: float
    tpot_p99_s: float
    mean_replicas: float
    most_replicas: float
    requests: float
    refused: float
    unanswered: float
    lost_requests: float
    failed_replicas: float
    over_oracle: float | None = None
    over_perfect: float | None = None
    intervals: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One policy: its outcome, and the run of the first seed.

    Args:
        outcome: over all seeds.
        run: of the first.
        windows: of it.
    """

    json_keys: ClassVar = ("*outcome", "interrupted=run.interrupted", "by_class", "frontend=run.frontend", "windows")

    outcome: Outcome
    run: fleet_run.FleetRun
    windows: tuple[fleet_run.WindowRow, ...]

    @property
    def by_class(self) -> list[outcomes.ClassData]:
        """What became of each class of requests in the first run; empty where there are none."""
        return self.run.by_class()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRuns:
    """A load over time, served under each policy.

    Args:
        server: a replica, and what comes before it.
        load: the rates.
        slo: limits.
        marks: a replica of each pool at its highest rate within them.
        start: of a replica, in parts; None where a time was given.
        start_s: the whole [s].
        perfect_chip_hours: of a system that follows the load at once, in any fraction, at that rate [chip h].
        ran: each policy that was asked for, then the oracle.
        window_s: time of a window [s].
        reason: why there is none; empty otherwise.
        seeds: runs of each policy [count].
        use: what the use added to the question.
    """

    json_keys: ClassVar = (
        "deployment=server", "load", "slo", "replica=marks", "start_up=start",
        "start_up_s=start_s", "perfect_chip_hours", "perfect_usd", "policies=ran", "reason", "seeds", "use",
    )  # fmt: skip

    server: Server
    load: loads.Load
    slo: simulation.Slo
    marks: tuple[Mark, ...]
    start: fleet_pool.StartUp | None
    start_s: float
    perfect_chip_hours: float
    ran: tuple[Ran, ...]
    window_s: float
    reason: str = ""
    seeds: int = 1
    use: Use | None = None

    @property
    def first(self) -> Ran:
        """The first policy that was asked for."""
        return self.ran[0]

    @property
    def perfect_usd(self) -> float | None:
        """What a perfect system would cost [USD]."""
        price = self.server.deployment.cluster.usd_per_chip_hour
        return None if price is None else price * self.perfect_chip_hours


def summary(found: ScaledRuns) -> str:
    """The answer in a line."""
    if found.reason:
        return found.reason
    one = found.first.outcome
    cost = f"{wording.written(one.chip_hours)} chip-hours" if one.usd is None else format_usd(one.usd)
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


def _regret(found: ScaledRuns) -> str:
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


def _replica(found: ScaledRuns) -> str:
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


def _sheets(found: ScaledRuns) -> list[column.Sheet[Any]]:
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


def window_rows(found: ScaledRuns) -> list[dict[str, Any]]:
    """A row for each window of each policy."""
    return [{"policy": one.outcome.policy, **asdict(row)} for one in found.ran for row in one.windows]
