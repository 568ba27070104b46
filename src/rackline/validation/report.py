"""The scoreboard on the terminal: errors by metric and group, unsupported cases, the worst with their passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rackline.errors import RacklineError
from rackline.report.breakdown import plain_table
from rackline.report.wording import RESOURCE_NAMES
from rackline.units import format_count, format_seconds
from rackline.validation.cases import Case
from rackline.validation.predict import Predictor
from rackline.validation.scoreboard import GROUPED_BY, Score, Scoreboard, Stats, WorstCase, WorstPass
from rackline.validation.speculation import speculation_sheet

_MOST_GROUPS = 12
PARTS_OF_STEPS = {
    "rollouts_s": "rollouts",
    "old_log_probs_s": "old log-probabilities",
    "reference_log_probs_s": "reference log-probabilities",
    "log_probs_s": "both log-probabilities",
    "updates_s": "updates",
    "transfer_s": "weights to engines",
}
"""Measured parts of a step of reinforcement learning, and their names on screen."""


def scoreboard_report(board: Scoreboard, *, elapsed_s: float | None = None, width: int = 100) -> Group:
    """Report of `rackline validate`.

    Args:
        elapsed_s: wall time of the prediction [s].
        width: columns of the terminal.
    """
    supported = board.num_cases - len(board.unsupported)
    head = Text(f"{supported:,} of {board.num_cases:,} cases predicted", style="bold")
    calibration = "each case's own stack" if board.calibration == "auto" else board.calibration
    head.append(f", calibration: {calibration}", style="dim")
    if elapsed_s is not None:
        head.append(f", {format_seconds(elapsed_s)}", style="dim")
    parts: list[RenderableType] = [head, Text("")]
    if board.metrics:
        parts += [_metrics(board), Text("")]
    for by in GROUPED_BY[1:]:  # the measured keys distinguish the kinds already
        table = _groups(board, by)
        if table is not None:
            parts += [table, Text("")]
    if any(score.metric in PARTS_OF_STEPS for score in board.scores):
        parts += [_parts(board), Text("")]
    if board.both_ways:
        parts += [speculation_sheet(board.both_ways).table(), Text("")]
    if board.unsupported:
        parts += [_unsupported(board), Text("")]
    if board.unknown_keys:
        names = ", ".join(f"{key} ({count:,})" for key, count in board.unknown_keys.items())
        parts += [Text(f"ignored keys: {names}", style="dim"), Text("")]
    if board.worst:
        parts.append(_worst(board.worst, width))
    return Group(*parts)


def _stats_columns(table: Table) -> None:
    for name in ("predicted", "median", "p90", "≤ 20 %", "bias"):
        table.add_column(name, justify="right", no_wrap=True)


def _stats_cells(stats: Stats) -> list[str | Text]:
    missing = stats.supported < stats.n
    count = f"{stats.supported:,}/{stats.n:,}" if missing else f"{stats.n:,}"
    return [
        Text(count, style="yellow" if missing else ""),
        Text(percent(stats.median_abs_error), style=_style(stats.median_abs_error)),
        percent(stats.p90_abs_error),
        percent(stats.share_within_20),
        percent(stats.bias, signed=True),
    ]


def _style(error: float) -> str:
    return "green" if error <= 0.1 else "" if error <= 0.2 else "yellow" if error <= 0.4 else "red"


def percent(fraction: float, *, signed: bool = False) -> str:
    """A share as text; "-" if there is none."""
    if not math.isfinite(fraction):
        return "-"
    digits = 0 if abs(fraction) >= 0.995 else 1
    return f"{100 * fraction:+,.{digits}f} %" if signed else f"{100 * fraction:,.{digits}f} %"


def _metrics(board: Scoreboard) -> Table:
    table = plain_table("error = |predicted / measured - 1|; bias = median(predicted / measured) - 1")
    table.add_column("measured", overflow="fold")
    _stats_columns(table)
    for name, stats in board.metrics.items():
        table.add_row(name, *_stats_cells(stats))
    return table


def _groups(board: Scoreboard, by: str) -> Table | None:
    """Groups with predictions, the largest first; None if there is only one."""
    groups = [group for group in board.groups if group.by == by and group.stats.supported]
    if len({group.group for group in groups}) < 2:
        return None
    table = plain_table(f"by {by}")
    table.add_column("", overflow="fold")
    _stats_columns(table)
    hidden = 0
    for metric in dict.fromkeys(group.metric for group in groups):
        rows = [group for group in groups if group.metric == metric]
        hidden += max(len(rows) - _MOST_GROUPS, 0)
        table.add_row(Text(metric, style="bold"))
        for group in rows[:_MOST_GROUPS]:
            name = _bare(group.group) if by == "model" else group.group
            table.add_row(Padding(Text(name, overflow="fold"), (0, 0, 0, 2)), *_stats_cells(group.stats))
    if hidden:
        table.caption = f"{hidden} smaller groups; --json shows all"
    return table


def _parts(board: Scoreboard) -> Table:
    """Parts of steps of reinforcement learning beside their prediction; lengths and layouts are not all published."""
    table = plain_table("parts of steps: measured and predicted, with shares of the step")
    table.add_column("case", overflow="fold")
    for name in ("part", "measured", "share", "predicted", "share"):
        table.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    whole = {score.where: score for score in board.scores if score.metric == "rl_step_s"}
    before = ""
    for score in board.scores:
        step, part = whole.get(score.where), PARTS_OF_STEPS.get(score.metric, "whole step")
        groups = score.groups
        shares = ("", "") if step is None else (score.measured / step.measured, score.predicted / step.predicted)
        cells = [share if isinstance(share, str) else percent(share) for share in shares]
        name = f"{_bare(groups['model'])}, {groups['chip']}, {groups['stack']} ({score.where.rpartition(' ')[2]})"
        table.add_row(
            "" if score.where == before else name,
            part,
            format_seconds(score.measured),
            cells[0],
            format_seconds(score.predicted),
            cells[1],
        )
        before = score.where
    return table


def _bare(name: str) -> str:
    """A model name without its organisation."""
    return name.rsplit("/", 1)[-1] if name.count("/") == 1 else name


def _unsupported(board: Scoreboard) -> Table:
    table = plain_table(f"{len(board.unsupported):,} cases without prediction")
    table.add_column("cases", justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("why", overflow="fold")
    table.add_column("first", overflow="fold", max_width=32)
    for (kind, cause), cases in board.reasons().items():
        table.add_row(f"{len(cases):,}", kind, cause, Text(cases[0].where, style="dim"))
    return table


def _value(metric: str, value: float) -> str:
    if metric.endswith("_per_s") or not (metric.endswith("_s") or metric == "seconds"):
        return format_count(value)
    return format_seconds(value)


def _worst(worst: Sequence[Mapping[str, Any]], width: int) -> Table:
    table = plain_table("the worst cases, and where the time goes in their passes")
    table.add_column("case", overflow="fold")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("predicted", justify="right", no_wrap=True)
    table.add_column("error", justify="right", no_wrap=True)
    for entry in worst:
        metric = str(entry["metric"])
        names = [str(entry[key]) for key in ("model", "op", "chip", "stack", "precision") if entry[key]]
        text = Text(_short(str(entry["id"]), max(24, width - 50)))
        text.append(f"\n{metric}: {', '.join(names)}", style="dim")
        for name, time in cast("Mapping[str, Mapping[str, Any]]", entry["passes"]).items():
            text.append(f"\n{name} {_pass_text(time)}", style="dim")
        table.add_row(
            text,
            _value(metric, float(entry["measured"])),
            _value(metric, float(entry["predicted"])),
            percent(float(entry["error"]), signed=True),
        )
    return table


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[-(most // 2 - 2) :]}"


def _pass_text(time: Mapping[str, Any]) -> str:
    groups = sorted(cast("Mapping[str, float]", time["by_group_s"]).items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {value / time['seconds']:.0%}" for name, value in groups if value > 0)
    binds = RESOURCE_NAMES.get(str(time["binds"]), str(time["binds"]))
    return f"{format_seconds(float(time['seconds']))} ({shares}; {binds} binds)"


MOST = 10


def worst_scores(scores: Sequence[Score], most: int = MOST) -> list[Score]:
    """The predictions with the largest errors, at most one per case, largest first."""
    found: dict[tuple[str, str], Score] = {}
    for score in sorted(scores, key=lambda score: -score.log_ratio):
        if len(found) == most:
            break
        found.setdefault((score.case_id, score.where), score)
    return list(found.values())


def worst_cases(
    predictor: Predictor, cases: Mapping[tuple[str, str], Case], scores: Sequence[Score], most: int = MOST
) -> tuple[WorstCase, ...]:
    """The worst cases as plain data: measured and predicted values, and where the time goes in their passes.

    Args:
        cases: cases by id and location.
    """
    found: list[WorstCase] = []
    for score in worst_scores(scores, most):
        # a request of a run is named RUN#NUMBER
        case = cases.get((score.case_id, score.where)) or cases[score.case_id.partition("#")[0], score.where]
        found.append(_entry(predictor, case, score))
    return tuple(found)


def _entry(predictor: Predictor, case: Case, score: Score) -> WorstCase:
    passes: dict[str, WorstPass] = {}
    try:
        found = predictor.passes(case)
    except (RacklineError, ValueError):  # the prediction exists, only its breakdown is not available
        found = {}
    for name, time in found.items():
        passes[name] = {
            "seconds": time.seconds,
            "binds": time.binds,
            "calibration": time.calibration,
            "by_group_s": time.by_group(),
            "by_resource_s": time.by_resource,
        }
    return {
        "id": score.case_id,
        "where": case.where,
        "metric": score.metric,
        "measured": score.measured,
        "predicted": score.predicted,
        "error": score.error,
        "kind": score.groups["kind"],
        "model": score.groups["model"],
        "chip": score.groups["chip"],
        "stack": score.groups["stack"],
        "precision": score.groups["precision"],
        "op": score.groups["op"],
        "passes": passes,
    }
