"""Terminal report and figure of an observed run."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
from rich.console import Group
from rich.text import Text

from rackline.passes.features import Array
from rackline.report.axes import Layer, Measure, Row, colour, hovered, linear_axis, log_axis, thinned
from rackline.report.breakdown import plain_table
from rackline.report.figure import Figure
from rackline.report.wording import percent, written
from rackline.units import format_count, format_seconds
from rackline.validation.observed import ObservedRun

_TIMES = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "whole request"}
_WORDS = {
    "finished": "finished", "timeout": "took too long", "stalled": "stalled", "cut": "were cut off",
    "garbage": "got no readable stream", "connection": "found no connection", "rate_limited": "were limited (429)",
    "refused": "were refused (4xx)", "server_error": "met an error of the server (5xx)",
    "unfinished": "were in flight at the end", "not_sent": "were not sent",
}  # fmt: skip
_MOST_POINTS = 3000


class ObservedSpread(TypedDict):
    """Mean and percentiles of a time [s]; None where nothing was measured."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class ObservedSummary(TypedDict):
    """What a run came to, in SI units."""

    requests: int
    finished: int
    outcomes: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    without_usage: int
    retries: int
    malformed_events: int
    ttft_s: ObservedSpread
    tpot_s: ObservedSpread
    e2e_s: ObservedSpread


def summary_of_run(run: ObservedRun) -> ObservedSummary:
    """Counts, rates and percentiles of a run."""
    done = [one for one in run.requests if one.outcome == "finished"]
    took_s = run.duration_s
    tokens = sum(one.tokens for one in done)
    return {
        "requests": len(run.requests),
        "finished": len(done),
        "outcomes": run.counts,
        "duration_s": took_s,
        "requests_per_s": len(done) / took_s if took_s else 0.0,
        "output_tokens_per_s": tokens / took_s if took_s else 0.0,
        "input_tokens": sum(one.prompt_len for one in done),
        "output_tokens": tokens,
        "cached_tokens": sum(one.cached_tokens or 0 for one in done),
        "without_usage": sum(one.output_tokens is None for one in done),
        "retries": sum(one.retries for one in run.requests),
        "malformed_events": sum(one.malformed for one in run.requests),
        "ttft_s": _spread(run.measured("ttft_s")),
        "tpot_s": _spread(run.measured("tpot_s")),
        "e2e_s": _spread(run.measured("e2e_s")),
    }


def _spread(values: Array) -> ObservedSpread:
    if not len(values):
        return {"mean": None, "p50": None, "p90": None, "p99": None}
    p50, p90, p99 = (float(one) for one in np.percentile(values, (50, 90, 99)))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}


def observed_report(run: ObservedRun) -> Group:
    """What `rackline observe` prints: counts, rates, latencies, and what limited the load generator."""
    data = summary_of_run(run)
    body = Text()
    whole = data["finished"] == data["requests"]
    body.append(
        f"{data['finished']:,} of {data['requests']:,} requests finished",
        style="bold green" if whole else "bold yellow",
    )
    body.append(f" in {format_seconds(data['duration_s'])}: {run.served_name or run.source}")
    body.append(
        f"\n{written(data['requests_per_s'])} requests/s, {format_count(data['output_tokens_per_s'])} output tokens/s; "
        f"{format_count(data['input_tokens'])} prompt and {format_count(data['output_tokens'])} output tokens"
    )
    if data["cached_tokens"]:
        body.append(f"\n{percent(data['cached_tokens'] / data['input_tokens'])} of the prompt tokens were cached")
    failed = {name: number for name, number in data["outcomes"].items() if name != "finished"}
    if failed:
        body.append("\n" + ", ".join(f"{number:,} {_WORDS[name]}" for name, number in failed.items()), style="yellow")
        reasons = list(dict.fromkeys(one.error for one in run.requests if one.error and one.outcome != "finished"))
        for reason in reasons[:3]:
            body.append(f"\n  {reason}", style="dim")
    if data["retries"]:
        body.append(f"\nsent again {data['retries']:,} times after 429 or 503")
    table = plain_table("latency")
    for name in ("", "mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for (_, label), spread in zip(_TIMES.items(), (data["ttft_s"], data["tpot_s"], data["e2e_s"]), strict=True):
        table.add_row(label, *map(_seconds, (spread["mean"], spread["p50"], spread["p90"], spread["p99"])))
    parts = [body, Text(""), table]
    found = run.generator
    if found is not None:
        late, lag, busy = _seconds(found.late_p99_s), _seconds(found.lag_p99_s), percent(found.busy_share)
        told = f"load generator: sent {late} late, read {lag} late at p99; {busy} of a core, at most "
        parts.append(Text(f"\n{told}{found.in_flight:,} requests at once", style="dim"))
    return Group(*parts)


def _seconds(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else format_seconds(value)


def observed_figure(run: ObservedRun) -> Figure:
    """Latency of each finished request over the moment at which it was sent."""
    sent = Measure(field="sent_s", title="sent at", kind="seconds")
    latency = Measure(field="latency_s", title="latency", kind="seconds")
    done = [one for one in run.requests if one.outcome == "finished" and one.sent_s is not None]
    kept = [done[index] for index in thinned(len(done), _MOST_POINTS)]
    rows: list[Row] = [
        {"metric": label, "sent_s": one.sent_s, "latency_s": value, "prompt": one.prompt_len, "answer": one.tokens}
        for one in kept
        for name, label in _TIMES.items()
        if math.isfinite(value := getattr(one, name)) and value > 0
    ]
    metrics = [label for label in _TIMES.values() if any(row["metric"] == label for row in rows)]
    encoding: Layer = {
        "x": linear_axis(sent, [row["sent_s"] for row in rows]),
        "y": log_axis(latency, [row["latency_s"] for row in rows]),
        "color": colour(metrics, "metric"),
    }
    shown = [
        Measure(field="metric", title="metric"), sent, latency, Measure(field="prompt", title="prompt [tokens]"),
        Measure(field="answer", title="answer [tokens]"),
    ]  # fmt: skip
    return Figure(
        title=f"{len(done):,} of {len(run.requests):,} requests finished",
        subtitle=f"{run.served_name}, {run.started}",
        description="Latency of each request over the moment at which it was sent.",
        spec={
            "layer": [hovered({"type": "point", "filled": True, "size": 18}, encoding, shown)],
            "data": {"values": rows},
        },
    )
