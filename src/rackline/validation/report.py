"""The scoreboard on the terminal: errors by metric and group, unsupported cases, the worst with their passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from rich.console import Group
from rich.text import Text

from rackline.display.axes import Kind, Layer, Measure, colour, hovered, log_axis, thinned
from rackline.display.column import Column, Sheet, spaced
from rackline.display.figure import Figure
from rackline.display.wording import RESOURCE_NAMES, composed
from rackline.errors import RacklineError
from rackline.units import format_count, format_seconds, several
from rackline.validation.cases import Case
from rackline.validation.laboratories import LikelyStats, likely_table
from rackline.validation.page import speculation_sheet
from rackline.validation.predict import Predictor
from rackline.validation.scoreboard import GROUPED_BY, Score, Scoreboard, Stats, WorstCase, WorstPass

R = TypeVar("R")
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


def shipped_report(board: Scoreboard, *, likely: Sequence[LikelyStats] = (), elapsed_s: float | None = None) -> Group:
    """Return the report of `rackline validate` without files: the errors by metric, and where to see the rest.

    Args:
        likely: errors of the likely numbers.
        elapsed_s: wall time of the prediction [s].
    """
    chips, stacks = (len({score.groups[by] for score in board.scores}) for by in ("chip", "stack"))
    more = (
        f"These are published measurements on {chips} chips under {stacks} engines and frameworks. "
        "cases/README.md has their sources. --json adds the groups by model, chip, stack, version and precision, and "
        "the worst cases. Score your own cases: rackline validate FILE"
    )
    return spaced(
        [
            _head(board, elapsed_s),
            _metrics(board),
            _likely(likely),
            _unsupported(board) if board.unsupported else None,
            Text(more),
        ]
    )


def _head(board: Scoreboard, elapsed_s: float | None) -> Text:
    calibration = "each case's own stack" if board.calibration == "auto" else board.calibration
    return composed(
        (f"{board.num_supported:,} of {several(board.num_cases, 'case')} predicted", "bold"),
        (f", calibration: {calibration}", "dim"),
        None if elapsed_s is None else (f", {format_seconds(elapsed_s)}", "dim"),
    )


def _likely(rows: Sequence[LikelyStats]) -> Any:
    """Return the table of likely numbers; None where no correction is used."""
    return likely_table(rows).table() if any(row.strength for row in rows) else None


def scoreboard_report(
    board: Scoreboard, *, likely: Sequence[LikelyStats] = (), elapsed_s: float | None = None, width: int = 100
) -> Group:
    """Report of `rackline validate`.

    Args:
        likely: errors of the likely numbers.
        elapsed_s: wall time of the prediction [s].
        width: columns of the terminal.
    """
    ignored = ", ".join(f"{key} ({count:,})" for key, count in board.unknown_keys.items())
    return spaced(
        [
            _head(board, elapsed_s),
            _metrics(board) if board.metrics else None,
            _likely(likely),
            *(_groups(board, by) for by in GROUPED_BY[1:]),  # the measured keys distinguish the kinds already
            _parts(board) if any(score.metric in PARTS_OF_STEPS for score in board.scores) else None,
            speculation_sheet(board.both_ways).table() if board.both_ways else None,
            _unsupported(board) if board.unsupported else None,
            Text(f"ignored keys: {ignored}", style="dim") if ignored else None,
            _worst(board.worst, width) if board.worst else None,
        ]
    )


def stats_columns(of: Callable[[R], Stats | None]) -> list[Column[R]]:
    """What tables show of errors.

    Args:
        of: the errors of a row; None for a heading.
    """

    def read(key: str, title: str, unit: str, show: Callable[[Stats], Any]) -> Column[R]:
        def value(row: R) -> Any:
            stats = of(row)
            return "" if stats is None else show(stats)

        return Column(key, title, unit, value)

    def count(stats: Stats) -> Text:
        missing = stats.supported < stats.n
        text = f"{stats.supported:,}/{stats.n:,}" if missing else f"{stats.n:,}"
        return Text(text, style="yellow" if missing else "")

    def median(stats: Stats) -> Text:
        error = stats.median_abs_error
        colour = "green" if error <= 0.1 else "" if error <= 0.2 else "yellow" if error <= 0.4 else "red"
        return Text(percent(error), style=colour)

    return [
        read("supported", "predicted", "figures", count),
        read("median_abs_error", "median", "figures", median),
        read("p90_abs_error", "p90", "figures", lambda stats: percent(stats.p90_abs_error)),
        read("share_within_20", "≤ 20 %", "figures", lambda stats: percent(stats.share_within_20)),
        read("bias", "bias", "figures", lambda stats: percent(stats.bias, signed=True)),
    ]


def percent(fraction: float, *, signed: bool = False) -> str:
    """A share as text; "-" if there is none."""
    if not math.isfinite(fraction):
        return "-"
    digits = 0 if abs(fraction) >= 0.995 else 1
    return f"{100 * fraction:+,.{digits}f} %" if signed else f"{100 * fraction:,.{digits}f} %"


def _metrics(board: Scoreboard) -> Sheet[Any]:
    columns: list[Column[Any]] = [Column("metric", "measured"), *stats_columns(lambda row: row[1])]
    title = "error = |predicted / measured - 1|; bias = median(predicted / measured) - 1"
    return Sheet("metrics", columns, list(board.metrics.items()), title)


def _groups(board: Scoreboard, by: str) -> Sheet[Any] | None:
    """Groups with predictions, the largest first; None if there is only one."""
    groups = [group for group in board.groups if group.by == by and group.stats.supported]
    if len({group.group for group in groups}) < 2:
        return None
    rows: list[tuple[Text | str, Stats | None]] = []
    hidden = 0
    for metric in dict.fromkeys(group.metric for group in groups):
        found = [group for group in groups if group.metric == metric]
        hidden += max(len(found) - _MOST_GROUPS, 0)
        rows.append((Text(metric, style="bold"), None))
        for group in found[:_MOST_GROUPS]:
            name = _bare(group.group) if by == "model" else group.group
            rows.append((f"  {name}", group.stats))
    columns: list[Column[Any]] = [Column("group", unit="words"), *stats_columns(lambda row: row[1])]
    caption = f"{hidden} smaller groups; --json shows all" if hidden else ""
    return Sheet(f"by_{by}", columns, rows, f"by {by}", caption)


def _parts(board: Scoreboard) -> Sheet[Any]:
    """Parts of steps of reinforcement learning beside their prediction; lengths and layouts are not all published."""
    whole = {score.where: score for score in board.scores if score.metric == "rl_step_s"}
    rows: list[dict[str, Any]] = []
    before = ""
    for score in board.scores:
        step, groups = whole.get(score.where), score.groups
        name = f"{_bare(groups['model'])}, {groups['chip']}, {groups['stack']} ({score.where.rpartition(' ')[2]})"
        rows.append(
            {
                "case": "" if score.where == before else name,
                "part": PARTS_OF_STEPS.get(score.metric, "whole step"),
                "measured_s": score.measured,
                "measured_share": "" if step is None else score.measured / step.measured,
                "predicted_s": score.predicted,
                "predicted_share": "" if step is None else score.predicted / step.predicted,
            }
        )
        before = score.where
    columns: list[Column[Any]] = [
        Column("case", "case", "words"),
        Column("part", "part", "words"),
        Column("measured_s", "measured", "s"),
        Column("measured_share", "share", "share"),
        Column("predicted_s", "predicted", "s"),
        Column("predicted_share", "share", "share"),
    ]
    return Sheet("parts", columns, rows, "parts of steps: measured and predicted, with shares of the step")


def _bare(name: str) -> str:
    """A model name without its organisation."""
    return name.rsplit("/", 1)[-1] if name.count("/") == 1 else name


def _unsupported(board: Scoreboard) -> Sheet[Any]:
    columns: list[Column[Any]] = [
        Column("cases", "cases", "whole", lambda row: len(row[1])),
        Column("kind", "kind", getter=lambda row: row[0][0]),
        Column("why", "why", "words", lambda row: row[0][1]),
        Column("first", "first", "words", lambda row: row[1][0].where, style="dim"),
    ]
    title = f"{several(len(board.unsupported), 'case')} without prediction"
    return Sheet("unsupported", columns, list(board.reasons().items()), title)


def _value(metric: str, value: float) -> str:
    if metric.endswith("_per_s") or not (metric.endswith("_s") or metric == "seconds"):
        return format_count(value)
    return format_seconds(value)


def _worst(worst: Sequence[Mapping[str, Any]], width: int) -> Sheet[Any]:
    def case(entry: Mapping[str, Any]) -> Text:
        names = [str(entry[key]) for key in ("model", "op", "chip", "stack", "precision") if entry[key]]
        text = Text(_short(str(entry["id"]), max(24, width - 50)))
        text.append(f"\n{entry['metric']}: {', '.join(names)}", style="dim")
        for name, time in cast("Mapping[str, Mapping[str, Any]]", entry["passes"]).items():
            text.append(f"\n{name} {_pass_text(time)}", style="dim")
        return text

    def number(key: str) -> Column[Any]:
        return Column(key, key, "figures", lambda entry: _value(str(entry["metric"]), float(entry[key])))

    columns: list[Column[Any]] = [
        Column("id", "case", "words", case),
        number("measured"),
        number("predicted"),
        Column("error", "error", "figures", lambda entry: percent(float(entry["error"]), signed=True)),
    ]
    return Sheet("worst", columns, worst, "the worst cases, and where the time goes in their passes")


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

    def case_of(score: Score) -> Case:  # a request of a run is named RUN#NUMBER
        return cases.get((score.case_id, score.where)) or cases[score.case_id.partition("#")[0], score.where]

    return tuple(_entry(predictor, case_of(score), score) for score in worst_scores(scores, most))


def _entry(predictor: Predictor, case: Case, score: Score) -> WorstCase:
    passes: dict[str, WorstPass] = {}
    with suppress(RacklineError, ValueError):  # the prediction exists, only its breakdown is not available
        passes = {
            name: {
                "seconds": time.seconds,
                "binds": time.binds,
                "calibration": time.calibration,
                "by_group_s": time.by_group(),
                "by_resource_s": time.by_resource,
            }
            for name, time in predictor.passes(case).items()
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


_MOST_POINTS = 4000
_BAND = 0.2
_UNITS: tuple[tuple[Kind, str], ...] = (("seconds", "time"), ("count", "rate [tokens/s]"), ("bytes", "memory"))


def parity_figure(board: Scoreboard) -> Figure:
    """All values of a scoreboard on log axes, with the diagonal and the band of 20 % around it; views by unit."""
    kept = [board.scores[index] for index in thinned(len(board.scores), _MOST_POINTS)]
    kept = [score for score in kept if score.predicted > 0 and score.measured > 0]
    views = [
        _view(found, kind, unit)
        for kind, unit in _UNITS
        if (found := [score for score in kept if _kind(score) == kind])
    ]
    metrics = "; ".join(
        f"{name} median error {stats.median_abs_error:.1%} of {stats.n:,}"
        if stats.supported
        else f"{name} without a prediction"
        for name, stats in board.metrics.items()
        if stats.n
    )
    shown = "" if len(kept) == len(board.scores) else f", {len(kept):,} shown"
    return Figure(
        title=f"Predicted over measured: {len(board.scores):,} values{shown}",
        subtitle=f"band: within {100 * _BAND:.0f} %; calibration {board.calibration}",
        description=f"Predicted against measured values on log axes, with the diagonal. {metrics}.",
        spec={"hconcat": views, "resolve": {"scale": {"color": "independent"}}} if len(views) != 1 else views[0],
        width=420,
        height=420,
    )


def _view(scores: list[Score], kind: Kind, unit: str) -> Layer:
    measured = Measure(field="measured", title=f"measured {unit}", kind=kind)
    predicted = Measure(field="predicted", title=f"predicted {unit}", kind=kind)
    names = list(dict.fromkeys(_name(score.metric) for score in scores))
    rows = [
        {
            "series": _name(score.metric),
            "measured": score.measured,
            "predicted": score.predicted,
            "error": score.error,
            "case_id": score.case_id,
            **{key: score.groups[key] for key in ("model", "op", "chip", "stack", "precision") if score.groups[key]},
        }
        for score in scores
    ]
    values = [value for score in scores for value in (score.measured, score.predicted)]
    x, y = log_axis(measured, values, most=7), log_axis(predicted, values, most=7)
    low, high = x["scale"]["domain"]
    ends = [{"measured": at, "low": at * (1 - _BAND), "high": at * (1 + _BAND), "predicted": at} for at in (low, high)]
    data = {"values": ends}
    keys = [key for key in ("model", "op", "chip", "stack", "precision") if any(key in row for row in rows)]
    return {
        "width": 420,
        "height": 420,
        "data": {"values": rows},
        "layer": [
            {
                "data": data,
                "mark": {"type": "area", "style": "band", "clip": True},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "data": data,
                "mark": {"type": "line", "style": "reference", "strokeWidth": 1.4, "clip": True},
                "encoding": {"x": x, "y": y},
            },
            hovered(
                {"type": "point", "size": 14, "opacity": 0.6},
                {"x": x, "y": y, "color": colour(names, width=420)},
                [
                    Measure(field="case_id", title="case"),
                    Measure(field="series", title="metric"),
                    *(Measure(field=key, title=key) for key in keys),
                    measured,
                    predicted,
                    Measure(field="error", title="error", kind="share"),
                ],
            ),
        ],
    }


_NAMES = {"tpot_s": "time per output token", "ttft_s": "time to first token", "request_s": "whole request"}


def _name(metric: str) -> str:
    """Display name of a metric."""
    return _NAMES.get(metric, metric.removesuffix("_s").replace("_", " "))


def _kind(score: Score) -> Kind:
    if score.metric.endswith("_bytes"):
        return "bytes"
    return "count" if score.metric.endswith("_per_s") else "seconds"
