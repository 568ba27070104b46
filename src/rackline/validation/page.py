"""Scoreboards as they are stored and compared, and as tables on pages of the documentation, between two markers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rackline.display import column
from rackline.errors import InputError
from rackline.files import parse_json, read_text, write_text
from rackline.plain import plain
from rackline.serving.workload import usual_speculation
from rackline.validation.scoreboard import BothWays, Scoreboard, by_group

_DIGITS = 4
_LEAST_CASES = 30
"""Cases of a group whose median is compared; fewer scatter too much [count]."""
_TOLERATED = 0.05
"""Growth of an error that does not count as worse, as a share of the error."""
_TOLERATED_POINTS = 0.0005
"""Growth that does not count however small the error is: half a tenth of a per cent is two units of the last digit that
is stored, and less than what equal tables give on another processor [1]."""
_HEADS = ("n", "supported", "median error", "p90", "within 20 %", "bias")
_TITLES = {
    "model": "By model",
    "chip": "By chip",
    "stack": "By stack",
    "version": "By version of the stack",
    "precision": "By precision",
    "op": "By operation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table for the terminal and for a page.

    Args:
        heads: of the columns.
        rows: cells.
        texts: columns from the left that hold text; the others hold numbers [count].
        title: on the terminal.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    title: str = ""

    def markdown(self) -> list[str]:
        """Lines of Markdown, an empty one before them."""
        rule = "|---" * self.texts + "|---:" * (len(self.heads) - self.texts) + "|"
        return ["", f"| {' | '.join(self.heads)} |", rule, *(f"| {' | '.join(row)} |" for row in self.rows)]

    def table(self) -> column.Sheet[Any]:
        """The rows as a table of the terminal."""
        columns: list[column.Column[Any]] = [
            column.Column(name, name, "words" if place < self.texts else "figures", priority=max(place - self.texts, 0))
            for place, name in enumerate(self.heads)
        ]
        return column.Sheet(self.title, columns, [tuple(row) for row in self.rows], self.title)


def markdown(stored: Mapping[str, Any], by_what: Sequence[str] = tuple(_TITLES)) -> str:
    """A stored scoreboard as Markdown tables, overall and by group."""
    lines = [
        f"{stored['supported']:,} of {stored['cases']:,} cases are supported. Error is |predicted / measured − 1|, "
        "bias is median(predicted / measured) − 1; calibration "
        + ("of each case's own stack." if stored["calibration"] == "auto" else f"{stored['calibration']}."),
    ]
    lines += PageTable(
        heads=("measured", *_HEADS), rows=[(name, *_cells(stats)) for name, stats in stored["metrics"].items()]
    ).markdown()
    for by in by_what:
        rows = [row for row in stored["groups"] if row["by"] == by and row["supported"]]
        if rows:
            cells = [(row["metric"], row["group"], *_cells(row)) for row in rows]
            lines += [
                "",
                f"### {_TITLES[by]}",
                *PageTable(heads=("measured", by, *_HEADS), rows=cells, texts=2).markdown(),
            ]
    if stored["unsupported"]:
        cells = [
            (row["kind"], f"{row['n']:,}", row["reason"].replace("|", "\\|").replace("<", "&lt;"))
            for row in stored["unsupported"]
        ]
        lines += [
            "",
            "### Not supported",
            *PageTable(heads=("kind", "cases", "reason"), rows=cells, texts=3).markdown(),
        ]
    return "\n".join(lines)


def block_of(stored: Mapping[str, Any]) -> tuple[str, str]:
    """Name and text of the block for a stored scoreboard, or for that of replayed server runs."""
    if "tpot_p99_s" in stored["metrics"]:
        return "real servers", markdown(stored, ["chip"])
    return "scoreboard", markdown(stored)


def _cells(stats: Mapping[str, Any]) -> list[str]:
    values = [stats[key] for key in ("median_abs_error", "p90_abs_error", "share_within_20", "bias")]
    bias = "-" if values[3] is None else f"{100 * values[3]:+.1f} %"
    texts = ["-" if value is None else f"{100 * value:.1f} %" for value in values[:3]]
    return [f"{stats['n']:,}", f"{stats['supported']:,}", *texts, bias]


def marks(name: str) -> tuple[str, str]:
    """The marker lines around a block of a page."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def fill_block(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the block between two markers on a page; line endings are kept.

    Args:
        page: the page, or a folder with one page that has this block.

    Raises:
        InputError: the page cannot be read or written, or does not have this block.
    """
    if page.is_dir():
        pages = [one for one in sorted(page.glob("*.md")) if begin in one.read_text(encoding="utf-8")]
        if len(pages) != 1:
            allowed = f"a folder with one page that has the lines {begin} and {end}"
            raise InputError(what="--write-docs", given=str(page), allowed=allowed)
        page = pages[0]
    old = read_text(page, what="--write-docs", allowed="a readable page")
    if old.count(begin) != 1 or end not in old.split(begin)[1]:
        raise InputError(what="--write-docs", given=str(page), allowed=f"a page with the lines {begin} and {end}")
    before, rest = old.split(begin)
    _, after = rest.split(end, 1)
    block = f"{begin}\n{text}\n{end}"
    if before.endswith("\r\n") or after.startswith("\r\n"):
        block = block.replace("\n", "\r\n")
    write_text(page, f"{before}{block}{after}", what="--write-docs")


def heading() -> str:
    """Description of the two predictions."""
    return f"one token per step, and {usual_speculation().label()}"


def speculation_sheet(rows: Sequence[BothWays]) -> PageTable:
    """Where the measured values lie, all and by group."""
    cells = [
        (one.name, f"{one.cases:,}", *(f"{100 * value:.0f} %" for value in (*one.shares, *one.errors)))
        for one in by_group(rows)
    ]
    return PageTable(
        title=f"time per output token where the source does not say whether it speculates: {heading()}",
        heads=(
            "group",
            "cases",
            "between both",
            "faster than both",
            "slower than both",
            "median error, plain",
            "with drafts",
        ),
        rows=cells,
    )


def speculation_markdown(rows: Sequence[BothWays]) -> str:
    """The table of a page."""
    said = (
        f"Time per output token of {len(rows):,} cases whose source does not say whether it speculates, predicted with "
        f"{heading()}."
    )
    return "\n".join([said, *speculation_sheet(rows).markdown()])


def stored_form(board: Scoreboard, files: Iterable[str]) -> dict[str, Any]:
    """The stored form of a scoreboard: totals, errors by metric and by group, reasons of unsupported cases."""
    return {
        "files": sorted(Path(name).name for name in files),
        "calibration": board.calibration,
        "cases": board.num_cases,
        "supported": board.num_supported,
        "metrics": {name: _rounded(plain(stats)) for name, stats in board.metrics.items()},
        "groups": [_rounded(plain(group)) for group in board.groups],
        "unsupported": [
            {"kind": kind, "reason": cause, "n": len(cases)} for (kind, cause), cases in board.reasons().items()
        ],
    }


def _rounded(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: (round(value, _DIGITS) if math.isfinite(value) else None) if isinstance(value, float) else value
        for key, value in data.items()
    }


def write_stored(board: Scoreboard, files: Iterable[str], path: Path) -> None:
    """Write the stored form as JSON, one line for each metric and group, so that a difference shows what moved."""
    form = stored_form(board, files)

    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    metrics = ",\n".join(f"  {line(name)}: {line(stats)}" for name, stats in form.pop("metrics").items())
    lists = [
        f" {line(name)}: [\n{','.join(f'{chr(10)}  {line(row)}' for row in form.pop(name)).removeprefix(chr(10))}\n ]"
        for name in ("groups", "unsupported")
    ]
    head = [f" {line(name)}: {line(value)}" for name, value in form.items()]
    text = ",\n".join([*head, f' "metrics": {{\n{metrics}\n }}', *lists])
    write_text(path, f"{{\n{text}\n}}\n", what="--write-stored")


def read_stored(path: Path) -> dict[str, Any]:
    """Read a stored scoreboard.

    Raises:
        InputError: the file does not exist, or `write_stored` did not write it.
    """
    allowed = "a scoreboard written by rackline validate --write-stored"
    text = read_text(path, what="--stored", allowed=allowed)
    try:
        data = parse_json(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise InputError(what="--stored", given=str(path), allowed=allowed)
    table = cast("dict[str, Any]", data)
    metrics: object = table.get("metrics")
    if not isinstance(metrics, dict):
        raise InputError(what="--stored metrics", given=metrics, allowed=allowed, where=str(path))
    for name, stats in cast("dict[str, object]", metrics).items():
        if not _is_compared(stats):
            raise InputError(what=f"--stored metrics {name}", given=stats, allowed=allowed, where=str(path))
    return table


def _is_compared(stats: object) -> bool:
    """Whether a metric has the numbers that `worse_than` reads."""
    if not isinstance(stats, dict):
        return False
    table = cast("dict[str, object]", stats)
    errors = [table.get(f"{key}_abs_error", "") for key in ("median", "p90")]
    return isinstance(table.get("supported"), int | float) and all(
        error is None or isinstance(error, int | float) for error in errors
    )


def worse_than(stored: Mapping[str, Any], board: Scoreboard) -> list[str]:
    """List what got worse than in a stored scoreboard, one line each.

    These are metrics whose median or p90 got worse, or that fewer cases support, and `worse_groups`.
    """
    worse: list[str] = []
    metrics = board.metrics
    for name, before in cast("Mapping[str, Mapping[str, Any]]", stored["metrics"]).items():
        if name not in metrics:
            worse.append(f"{name}: is no longer scored")
            continue
        now = metrics[name]
        if now.supported < before["supported"]:
            worse.append(f"{name}: {now.supported} supported cases, before {before['supported']}")
        for key, value in (("median", now.median_abs_error), ("p90", now.p90_abs_error)):
            was = before[f"{key}_abs_error"]
            if was is not None and _is_worse(value, was):
                worse.append(f"{name}: {key} error {value:.2%}, before {was:.2%}")
    return worse + worse_groups(stored, board)


def worse_groups(stored: Mapping[str, Any], board: Scoreboard) -> list[str]:
    """List the groups of 30 cases or more whose median error got worse than in a stored scoreboard, one line each.

    Worse means by more than 5 % of the error, and by more than 0.05 percentage points, so that a tiny error may move. A
    group that is gone, or that lost more than 5 % of its predictions, is worse as well: an error that is not measured
    any more is no improvement.
    """
    now = {(group.by, group.group, group.metric): group.stats for group in board.groups}
    worse: list[str] = []
    for row in cast("Sequence[Mapping[str, Any]]", stored.get("groups", ())):
        if row["supported"] < _LEAST_CASES:
            continue
        name = f"{row['metric']} of {row['by']} {row['group']}"
        stats = now.get((row["by"], row["group"], row["metric"]))
        if stats is None or stats.supported < (1.0 - _TOLERATED) * row["supported"]:
            supported = 0 if stats is None else stats.supported
            worse.append(f"{name}: {supported} supported cases, before {row['supported']}")
        elif _is_worse(stats.median_abs_error, row["median_abs_error"]):
            worse.append(f"{name}: median error {stats.median_abs_error:.2%}, before {row['median_abs_error']:.2%}")
    return worse


def _is_worse(now: float, before: float) -> bool:
    """Return whether an error grew by more than what is tolerated; an error that is not a number is worse."""
    return not now <= before + max(_TOLERATED * before, _TOLERATED_POINTS)
