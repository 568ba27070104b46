"""What `simulate` prints of tasks of several calls."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rackline.display import column, wording
from rackline.units import format_seconds, format_usd

if TYPE_CHECKING:
    from rackline.search.agent_runs import AgentRun, AgentRuns


def summary(found: AgentRuns) -> str:
    """The answer in a line: the cheapest number in progress, and where the hit rate falls."""
    best = min(found.first, key=lambda one: one.chip_s_per_task)
    cost = (
        f"{wording.written(best.chip_s_per_task)} chip-seconds"
        if best.usd_per_task is None
        else format_usd(best.usd_per_task)
    )
    took = _time(best.statistics.task_s["mean"])
    there = "at the recorded times" if best.concurrency is None else f"with {best.concurrency:,} at a time"
    hit = wording.percent(best.statistics.hit_share)
    return f"a task costs {cost} and takes {took} on average {there}, with {hit} of its prompt tokens cached"


def report(found: AgentRuns, *, elapsed_s: float) -> Iterable[Any]:
    """Everything that is printed.

    Args:
        elapsed_s: wall time [s].
    """
    server = found.server
    body = Text(summary(found), style="bold")
    cliff = found.most_before_the_cliff
    first = found.first
    if cliff is not None:
        fallen = next(one for one in first if one.concurrency is not None and one.concurrency > cliff)
        share = wording.percent(fallen.statistics.hit_share)
        body.append(
            f"\nbeyond {cliff:,} at a time the hit rate falls to {share}: contexts no longer fit into the KV cache",
            style="bold yellow",
        )
    title = f"{server.deployment.model.name} on {server.deployment.cluster.name}: {found.name}"
    calls_per_task, millions = wording.written(found.calls_per_task), wording.written(found.kv_tokens / 1e6)
    below = f"{calls_per_task} calls a task; KV cache of {millions}M tokens"
    yield column.spaced([wording.Box(body, title, below, "green" if cliff is None else "yellow"), _sheet(found)])
    if any(one.statistics.task_s["p90"] == inf for one in found.ran):
        yield wording.Prose("-: too few tasks ended to tell (simulate more calls with --requests)", style="dim")
    yield wording.Prose(f"simulated in {format_seconds(elapsed_s)}", style="dim")


def _time(seconds: float) -> str:
    return format_seconds(seconds) if isfinite(seconds) else "an unknown time"


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _sheet(found: AgentRuns) -> column.Sheet[AgentRun]:
    Column = column.Column
    columns: list[column.Column[AgentRun]] = [
        Column("concurrency", "at a time", "whole"),
        Column("hit_share", "hit rate", "share", "statistics.hit_share"),
        Column("unlimited_hit_share", "unlimited cache", "share", "statistics.unlimited_hit_share", priority=4),
        Column("task_s.mean", "task mean", "s", lambda one: _finite(one.statistics.task_s["mean"])),
        Column("task_s.p50", "task p50", "s", lambda one: _finite(one.statistics.task_s["p50"]), priority=1),
        Column("task_s.p90", "task p90", "s", lambda one: _finite(one.statistics.task_s["p90"]), priority=2),
        Column("usd_per_task", "$ a task", "USD", lambda one: _finite(one.usd_per_task)),
        Column("ttft_s", "TTFT p50", "s", "statistics.ttft_s"),
        Column("tokens.fresh", "fresh", "count", lambda one: one.statistics.tokens["fresh"], priority=1),
        Column("tokens.cached", "cached", "count", lambda one: one.statistics.tokens["cached"], priority=2),
        Column("tokens.generated", "generated", "count", lambda one: one.statistics.tokens["generated"], priority=2),
        Column("tokens_per_s", "tokens/s", "count", "statistics.tokens_per_s", priority=3),
    ]
    if len({one.between_calls for one in found.ran}) > 1:
        columns.insert(0, Column("between_calls", "between calls"))
    return column.Sheet(
        "runs", columns, found.ran, "tasks in progress (tokens are of a task: computed, found, written)"
    )


def rows(found: AgentRuns) -> list[dict[str, Any]]:
    """A row for each run."""
    return [{each.key: each.value(one, 0) for each in _sheet(found).columns} for one in found.ran]


def points(found: AgentRuns) -> list[dict[str, Any]]:
    """What the figure is drawn from."""
    return [
        {
            "series": one.between_calls,
            "concurrency": one.concurrency or 1,
            "hit_share": one.statistics.hit_share,
            "unlimited_hit_share": one.statistics.unlimited_hit_share,
            "task_s": one.statistics.task_s["mean"],
            "usd_per_task": one.usd_per_task,
        }
        for one in found.ran
    ]
