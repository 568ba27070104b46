"""Leave-one-out refits of serving and training, and the ablation, as terminal tables and blocks of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.report.wording import written
from rackline.units import format_seconds
from rackline.validation.ablation import Ablated, ablation_sheet
from rackline.validation.page import PageTable, fill_block
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
    said = f"serving parameters refitted without each {found.by}, scored on the held-out cases"
    parts: list[RenderableType] = [_head(said, elapsed_s), _summary(found).table(), Text("")]
    parts += [_numbers(found.ranges()).table(), Text("")]
    if found.memory_bound:
        names = "\n".join(f"  {name}" for name in found.memory_bound)
        parts += [Text(f"requests queue for memory, not counted where KV fits:\n{names}", style="dim")]
    parts += [Text(""), scoreboard_report(found.board, width=width)]
    return Group(*parts)


def _head(said: str, elapsed_s: float | None) -> Text:
    head = Text(said, style="bold")
    if elapsed_s is not None:
        head.append(f", {format_seconds(elapsed_s)}", style="dim")
    return head.append("\n")


_HEADS = ("median", "p90", "bias", "in sample: median", "in sample: p90", "in sample: bias", "mean of models")


def _summary(found: Refit) -> PageTable:
    """Errors left out and in sample of each metric, and of ttft_s where the KV fits."""

    def of(scores: Sequence[Score], metric: str) -> Stats:
        return statistics([one for one in scores if one.metric == metric])

    rows: list[tuple[str, ...]] = []
    for metric in dict.fromkeys(one.metric for one in found.board.scores):
        name, worst = found.worst_group(metric)
        text = f"{name.rsplit('/', 1)[-1]} {percent(worst)}" if name else "-"
        both = [*_cells(of(found.board.scores, metric)), *_cells(of(found.whole.scores, metric))]
        rows.append((metric, *both, percent(found.macro_median(metric)), text))
        if metric == "ttft_s" and found.memory_bound:
            fits = [found.where_kv_fits(scores) for scores in (found.board.scores, found.whole.scores)]
            rows.append(("ttft_s, KV fits", *(cell for stats in fits for cell in _cells(stats)), "", ""))
    title = f"each {found.by} held out, and a fit to all cases"
    return PageTable(title=title, heads=("measured", *_HEADS, "worst model"), rows=rows)


def _cells(stats: Stats) -> list[str]:
    return [percent(stats.median_abs_error), percent(stats.p90_abs_error), percent(stats.bias, signed=True)]


def _number(name: str, value: float) -> str:
    factor, unit = _UNITS.get(name, (1.0, ""))
    return f"{written(value * factor)} {unit}".strip()


def _numbers(ranges: Mapping[str, tuple[float, float, float]]) -> PageTable:
    rows = [(name, *(_number(name, value) for value in values)) for name, values in ranges.items()]
    return PageTable(title="fitted parameters", heads=("number", "least", "most", "all cases"), rows=rows)


def refit_markdown(found: Refit) -> str:
    """The refits as Markdown tables."""
    said = f"Serving parameters are refitted without each {found.by} in turn and scored on the held-out cases."
    sheets = (_summary(found), *_groups(found), _numbers(found.ranges()))
    return "\n".join([said, *(line for sheet in sheets for line in sheet.markdown())])


_TOGETHER = (
    ("tpot_s", "ttft_s", "request_s", "served_tokens_per_s"),
    ("pools_tpot_s", "pools_ttft_s", "pools_request_s"),
    ("prefill_s", "token_s", "total_s"),
)


def _groups(found: Refit) -> list[PageTable]:
    """Errors of each group left out: of single engines, pools, single batches, the rest."""
    known = list(dict.fromkeys(one.metric for one in found.board.scores))
    rest = [metric for metric in known if not any(metric in kind for kind in _TOGETHER)]
    sheets: list[PageTable] = []
    for metrics in ([metric for metric in kind if metric in known] for kind in (*_TOGETHER, rest)):
        cells = [(fold, [_pair(fold.metrics.get(metric)) for metric in metrics]) for fold in found.folds]
        rows = [(one.left_out, str(one.num_cases), *own) for one, own in cells if set(own) != {"-"}]
        if metrics:
            sheets.append(PageTable(heads=(f"left out {found.by}", "cases", *metrics), rows=rows))
    return sheets


def _pair(stats: Stats | None) -> str:
    """Median and 90th percentile of the errors of a group."""
    return f"{percent(stats.median_abs_error)} / {percent(stats.p90_abs_error)}" if stats else "-"


def write_refit_docs(found: Refit, page: Path) -> None:
    """Replace the block of these refits in a page; InputError as `rackline.validation.page.fill_block`."""
    fill_block(page, *marks(found.by), refit_markdown(found))


def ablation_report(rows: Sequence[Ablated], *, elapsed_s: float | None = None) -> Group:
    """Report of `rackline validate --ablation`.

    Args:
        elapsed_s: wall time of the refits [s].
    """
    head = _head("each effect switched off in turn, the other parameters refitted to all cases", elapsed_s)
    return Group(head, ablation_sheet(rows).table())


_NAMES = {"source": "source", "model": "model family", "chip": "chip"}


def train_marks(by: TrainLeftOut) -> tuple[str, str]:
    """The marker lines around the table of these refits on a page."""
    return f"<!-- training left out by {by}: begin -->", f"<!-- training left out by {by}: end -->"


def _training(found: TrainRefit) -> PageTable:
    named = [
        ("in sample", found.whole.stats),
        (f"each {_NAMES[found.by]} held out", found.left_out),
        *((f"without {fold.left_out}", fold.stats) for fold in found.folds),
    ]
    cells = [
        (name, str(one.supported), *_cells(one)[:2], percent(one.share_within_20), percent(one.bias, signed=True))
        for name, one in named
    ]
    title = "error of the step time, |predicted / measured - 1|"
    return PageTable(title=title, heads=("", "cases", "median error", "p90", "within 20 %", "bias"), rows=cells)


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
    head = _head(f"training parameters refitted without each {_NAMES[found.by]} in turn", elapsed_s)
    note = Text(_notes(found), style="dim")
    return Group(head, _training(found).table(), note, Text(""), _numbers(ranges(found)).table())


def ranges(found: TrainRefit) -> dict[str, tuple[float, float, float]]:
    """Parameter → (least, greatest value over the folds, value in the fit to all cases)."""
    spread: dict[str, tuple[float, float, float]] = {}
    for name, value in found.whole.numbers.items():
        known = [fold.numbers[name] for fold in found.folds]
        spread[name] = (min(known, default=value), max(known, default=value), value)
    return spread


def train_refit_markdown(found: TrainRefit) -> str:
    """The refits as Markdown tables."""
    said = f"Training parameters are refitted without each {_NAMES[found.by]} in turn; {_notes(found)}."
    return "\n".join([said, *_training(found).markdown(), *_numbers(ranges(found)).markdown()])


def write_train_refit_docs(found: TrainRefit, page: Path) -> None:
    """Replace the block of these refits in a page; InputError as `rackline.validation.page.fill_block`."""
    fill_block(page, *train_marks(found.by), train_refit_markdown(found))
