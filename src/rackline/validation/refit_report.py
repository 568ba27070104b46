"""Leave-one-out refits of serving and training, and the ablation, as terminal tables and blocks of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.report.column import Column, Sheet
from rackline.report.wording import Prose, written
from rackline.units import format_seconds
from rackline.validation.ablation import METRICS, Ablated
from rackline.validation.page import fill_block
from rackline.validation.refit import LeftOut, Refit
from rackline.validation.report import percent, scoreboard_report
from rackline.validation.scoreboard import Score, Stats, statistics
from rackline.validation.train_fit import TrainLeftOut, TrainRefit

_UNITS: Mapping[str, tuple[float, str]] = {
    "rank_skew_s": (1e6, "µs"),
    "eager_s_per_layer": (1e3, "ms"),
    "first_token_s": (1e3, "ms"),
    "first_token_equal_s": (1e3, "ms"),
}


def marks(by: LeftOut) -> tuple[str, str]:
    """The marker lines around the table of these refits on a page."""
    return f"<!-- left out by {by}: begin -->", f"<!-- left out by {by}: end -->"


def refit_report(found: Refit, *, elapsed_s: float | None = None, width: int = 100) -> Group:
    """Report of `rackline validate --refit`.

    Args:
        elapsed_s: wall time of the refits [s].
        width: columns of the terminal.
    """
    head = Text(f"serving parameters refitted without each {found.by}, scored on the held-out cases", style="bold")
    if elapsed_s is not None:
        head.append(f", {format_seconds(elapsed_s)}", style="dim")
    parts: list[RenderableType] = [
        head,
        Text(""),
        _summary(found),
        Text(""),
        _numbers({name: [_number(name, one) for one in values] for name, values in found.ranges().items()}),
        Text(""),
    ]
    if found.memory_bound:
        names = "\n".join(f"  {name}" for name in found.memory_bound)
        parts += [Text(f"requests queue for memory, not counted where KV fits:\n{names}", style="dim")]
    parts += [Text(""), scoreboard_report(found.board, width=width)]
    return Group(*parts)


def _rows(found: Refit) -> list[tuple[str, Stats, Stats, str, str]]:
    """(metric, left out, in sample, macro median, worst model) of each metric, and of ttft_s where the KV fits."""

    def of(scores: Sequence[Score], metric: str) -> Stats:
        return statistics([one for one in scores if one.metric == metric])

    rows: list[tuple[str, Stats, Stats, str, str]] = []
    for metric in dict.fromkeys(one.metric for one in found.board.scores):
        name, worst = found.worst_group(metric)
        text = f"{name.rsplit('/', 1)[-1]} {percent(worst)}" if name else "-"
        macro = percent(found.macro_median(metric))
        rows.append((metric, of(found.board.scores, metric), of(found.whole.scores, metric), macro, text))
        if metric == "ttft_s" and found.memory_bound:
            left, whole = found.where_kv_fits(found.board.scores), found.where_kv_fits(found.whole.scores)
            rows.append(("ttft_s, KV fits", left, whole, "", ""))
    return rows


def _cells(stats: Stats) -> list[str]:
    return [percent(stats.median_abs_error), percent(stats.p90_abs_error), percent(stats.bias, signed=True)]


_HEADS = ("median", "p90", "bias", "in sample", "p90", "bias", "mean of models", "worst model")


def _summary(found: Refit) -> Sheet[Any]:
    keys = ("median", "p90", "bias", "in_sample.median", "in_sample.p90", "in_sample.bias", "macro_median", "worst")
    columns: list[Column[Any]] = [Column("metric", "measured")]
    columns += [Column(key, head, "figures") for key, head in zip(keys, _HEADS, strict=True)]
    rows = [(metric, *_cells(left), *_cells(whole), macro, worst) for metric, left, whole, macro, worst in _rows(found)]
    return Sheet("left_out", columns, rows, f"each {found.by} held out, and a fit to all cases")


def _number(name: str, value: float) -> str:
    factor, unit = _UNITS.get(name, (1.0, ""))
    return f"{written(value * factor)} {unit}".strip()


def _numbers(ranges: Mapping[str, Sequence[str]]) -> Sheet[Any]:
    columns: list[Column[Any]] = [
        Column("name", "number"),
        Column("least", "least", "figures"),
        Column("most", "most", "figures"),
        Column("all_cases", "all cases", "figures"),
    ]
    return Sheet("numbers", columns, [(name, *values) for name, values in ranges.items()], "fitted parameters")


def refit_markdown(found: Refit) -> str:
    """The refits as Markdown tables."""
    lines = [
        f"Serving parameters are refitted without each {found.by} in turn and scored on the held-out cases.",
        "",
        f"| measured | {' | '.join(_HEADS)} |",
        f"|---|{'---:|' * len(_HEADS)}",
    ]
    for metric, left, whole, macro, worst in _rows(found):
        lines.append(f"| {metric} | {' | '.join([*_cells(left), *_cells(whole), macro, worst])} |")
    lines += ["", f"| left out {found.by} | cases | {_heads(_metrics(found))} |"]
    lines.append(f"|---|---:|{'---:|' * (2 * len(_metrics(found)))}")
    for fold in found.folds:
        cells: list[str] = []
        for metric in _metrics(found):
            cells += _cells(statistics([one for one in fold.scores if one.metric == metric]))[:2]
        lines.append(f"| {fold.left_out} | {fold.num_cases} | {' | '.join(cells)} |")
    lines += ["", "| number | least | most | all cases |", "|---|---:|---:|---:|"]
    for name, values in found.ranges().items():
        lines.append(f"| {name} | {' | '.join(_number(name, value) for value in values)} |")
    return "\n".join(lines)


def _metrics(found: Refit) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.metric for one in found.board.scores))


def _heads(metrics: Sequence[str]) -> str:
    return " | ".join(f"{metric} {what}" for metric in metrics for what in ("median", "p90"))


def write_refit_docs(found: Refit, page: Path) -> None:
    """Replace the block of these refits in a page; InputError as `rackline.validation.page.fill_block`."""
    fill_block(page, *marks(found.by), refit_markdown(found))


def ablation_report(rows: Sequence[Ablated], *, elapsed_s: float | None = None) -> Group:
    """Report of `rackline validate --ablation`.

    Args:
        elapsed_s: wall time of the refits [s].
    """
    head = Text("each effect switched off in turn, the other parameters refitted to all cases", style="bold")
    if elapsed_s is not None:
        head.append(f", {format_seconds(elapsed_s)}", style="dim")
    columns: list[Column[Ablated]] = [Column("name", "switched off", "words")]
    for metric in METRICS:
        for place, what in enumerate(("median", "p90", "bias")):
            columns.append(_ablated(metric, place, what))
    table = Sheet("ablation", columns, rows, "median, 90th percentile and bias of the error")
    return Group(head, Text(""), table)


def _ablated(metric: str, place: int, what: str) -> Column[Ablated]:
    title = metric if not place else what
    return Column(f"{metric}.{what}", title, "figures", lambda row: _cells(row.stats(metric))[place])


_NAMES = {"source": "source", "model": "model family", "chip": "chip"}


def train_marks(by: TrainLeftOut) -> tuple[str, str]:
    """The marker lines around the table of these refits on a page."""
    return f"<!-- training left out by {by}: begin -->", f"<!-- training left out by {by}: end -->"


def _training_cells(stats: Stats) -> list[str]:
    return [
        str(stats.supported),
        percent(stats.median_abs_error),
        percent(stats.p90_abs_error),
        percent(stats.share_within_20),
        percent(stats.bias, signed=True),
    ]


def _training_rows(found: TrainRefit) -> list[tuple[str, list[str]]]:
    return [
        ("in sample", _training_cells(found.whole.stats)),
        (f"each {_NAMES[found.by]} held out", _training_cells(found.left_out)),
        *((f"without {fold.left_out}", _training_cells(fold.stats)) for fold in found.folds),
    ]


def _notes(found: TrainRefit) -> str:
    pairs, median, p90 = found.spread
    repeats = f"; the same configuration in another release or at another scale ({pairs} pairs) differs by "
    repeats += f"{percent(median)} (median), {percent(p90)} (p90)" if pairs else "nothing: there are no repeats"
    lost = f"; {found.unsupported} cases have no prediction" if found.unsupported else ""
    return f"median of the {_NAMES[found.by]} medians {percent(found.median_of_medians)}{repeats}{lost}"


def train_refit_report(found: TrainRefit, *, elapsed_s: float | None = None) -> Group:
    """Report of `rackline validate --refit` for training cases.

    Args:
        elapsed_s: wall time of the refits [s].
    """
    head = Text(f"training parameters refitted without each {_NAMES[found.by]} in turn", style="bold")
    if elapsed_s is not None:
        head.append(f", {format_seconds(elapsed_s)}", style="dim")
    columns: list[Column[Any]] = [
        Column("what"),
        Column("cases", "cases", "figures"),
        Column("median_abs_error", "median", "figures"),
        Column("p90_abs_error", "p90", "figures"),
        Column("share_within_20", "≤ 20 %", "figures"),
        Column("bias", "bias", "figures"),
    ]
    rows = [(name, *cells) for name, cells in _training_rows(found)]
    table = Sheet("left_out", columns, rows, "error of the step time, |predicted / measured - 1|")
    numbers = _numbers({name: [written(one) for one in values] for name, values in ranges(found).items()})
    return Group(head, Text(""), table, Prose(_notes(found), style="dim"), Text(""), numbers)


def ranges(found: TrainRefit) -> dict[str, tuple[float, float, float]]:
    """Parameter → (least, greatest value over the folds, value in the fit to all cases)."""
    spread: dict[str, tuple[float, float, float]] = {}
    for name, value in found.whole.numbers.items():
        known = [fold.numbers[name] for fold in found.folds]
        spread[name] = (min(known, default=value), max(known, default=value), value)
    return spread


def train_refit_markdown(found: TrainRefit) -> str:
    """The refits as Markdown tables."""
    lines = [
        f"Training parameters are refitted without each {_NAMES[found.by]} in turn; {_notes(found)}.",
        "",
        "| | cases | median error | p90 | within 20 % | bias |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in _training_rows(found)]
    lines += ["", "| number | least | most | all cases |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {a:.3g} | {b:.3g} | {c:.3g} |" for name, (a, b, c) in ranges(found).items()]
    return "\n".join(lines)


def write_train_refit_docs(found: TrainRefit, page: Path) -> None:
    """Replace the block of these refits in a page; InputError as `rackline.validation.page.fill_block`."""
    fill_block(page, *train_marks(found.by), train_refit_markdown(found))
