"""Tables on pages of the documentation, between two markers; a stored scoreboard as such tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackline.errors import InputError
from rackline.files import read_text, write_text
from rackline.report import column

BEGIN, END = "<!-- scoreboard: begin -->", "<!-- scoreboard: end -->"
RUNS_BEGIN, RUNS_END = "<!-- real servers: begin -->", "<!-- real servers: end -->"
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
        """The same for the terminal."""
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
        cells = [(row["kind"], f"{row['n']:,}", _escaped(row["reason"])) for row in stored["unsupported"]]
        lines += [
            "",
            "### Not supported",
            *PageTable(heads=("kind", "cases", "reason"), rows=cells, texts=3).markdown(),
        ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _cells(stats: Mapping[str, Any]) -> list[str]:
    values = [stats[key] for key in ("median_abs_error", "p90_abs_error", "share_within_20", "bias")]
    bias = "-" if values[3] is None else f"{100 * values[3]:+.1f} %"
    texts = ["-" if value is None else f"{100 * value:.1f} %" for value in values[:3]]
    return [f"{stats['n']:,}", f"{stats['supported']:,}", *texts, bias]


def write_docs(stored: Mapping[str, Any], page: Path) -> None:
    """Replace the scoreboard on a page, or that of replayed server runs; see `fill_block`."""
    if "tpot_p99_s" in stored["metrics"]:
        fill_block(page, RUNS_BEGIN, RUNS_END, markdown(stored, ["chip"]))
    else:
        fill_block(page, BEGIN, END, markdown(stored))


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
