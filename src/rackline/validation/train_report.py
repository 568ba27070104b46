"""Reports of refits of the training parameters: a terminal table and a block on a page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group
from rich.text import Text

from rackline.report.breakdown import plain_table
from rackline.units import format_seconds
from rackline.validation.page import fill_block
from rackline.validation.report import percent
from rackline.validation.scoreboard import Stats
from rackline.validation.train_refit import TrainLeftOut, TrainRefit

_NAMES = {"source": "source", "model": "model family", "chip": "chip"}


def train_marks(by: TrainLeftOut) -> tuple[str, str]:
    """The marker lines around the table of these refits on a page."""
    return f"<!-- training left out by {by}: begin -->", f"<!-- training left out by {by}: end -->"


def _cells(stats: Stats) -> list[str]:
    return [
        str(stats.supported),
        percent(stats.median_abs_error),
        percent(stats.p90_abs_error),
        percent(stats.share_within_20),
        percent(stats.bias, signed=True),
    ]


def _rows(found: TrainRefit) -> list[tuple[str, list[str]]]:
    return [
        ("in sample", _cells(found.whole.stats)),
        (f"each {_NAMES[found.by]} held out", _cells(found.left_out)),
        *((f"without {fold.left_out}", _cells(fold.stats)) for fold in found.folds),
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
    table = plain_table("error of the step time, |predicted / measured - 1|")
    table.add_column("")
    for name in ("cases", "median", "p90", "≤ 20 %", "bias"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, cells in _rows(found):
        table.add_row(name, *cells)
    numbers = plain_table("fitted parameters")
    numbers.add_column("number", no_wrap=True)
    for name in ("least", "most", "all cases"):
        numbers.add_column(name, justify="right", no_wrap=True)
    for name, (least, most, value) in ranges(found).items():
        numbers.add_row(name, f"{least:.3g}", f"{most:.3g}", f"{value:.3g}")
    return Group(head, Text(""), table, Text(_notes(found), style="dim"), Text(""), numbers)


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
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in _rows(found)]
    lines += ["", "| number | least | most | all cases |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {a:.3g} | {b:.3g} | {c:.3g} |" for name, (a, b, c) in ranges(found).items()]
    return "\n".join(lines)


def write_train_refit_docs(found: TrainRefit, page: Path) -> None:
    """Replace the block of these refits in a page; InputError as `rackline.validation.page.fill_block`."""
    fill_block(page, *train_marks(found.by), train_refit_markdown(found))
