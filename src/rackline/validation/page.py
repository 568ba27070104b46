"""Tables on pages of the documentation, between two markers; a stored scoreboard as such tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rackline.errors import InputError
from rackline.files import read_text, write_text

BEGIN, END = "<!-- scoreboard: begin -->", "<!-- scoreboard: end -->"
RUNS_BEGIN, RUNS_END = "<!-- real servers: begin -->", "<!-- real servers: end -->"
_HEAD = "| n | supported | median error | p90 | within 20 % | bias |"
_RULE = "---:|---:|---:|---:|---:|---:|"
_TITLES = {
    "model": "By model",
    "chip": "By chip",
    "stack": "By stack",
    "version": "By version of the stack",
    "precision": "By precision",
    "op": "By operation",
}


def markdown(stored: Mapping[str, Any], by_what: Sequence[str] = tuple(_TITLES)) -> str:
    """A stored scoreboard as Markdown tables, overall and by group."""
    lines = [
        f"{stored['supported']:,} of {stored['cases']:,} cases are supported. Error is |predicted / measured − 1|, "
        "bias is median(predicted / measured) − 1; calibration "
        + ("of each case's own stack." if stored["calibration"] == "auto" else f"{stored['calibration']}."),
        "",
        f"| measured {_HEAD}",
        f"|---|{_RULE}",
    ]
    lines += [f"| {name} | {_cells(stats)}" for name, stats in stored["metrics"].items()]
    for by in by_what:
        rows = [row for row in stored["groups"] if row["by"] == by and row["supported"]]
        if rows:
            lines += ["", f"### {_TITLES[by]}", "", f"| measured | {by} {_HEAD}", f"|---|---|{_RULE}"]
            lines += [f"| {row['metric']} | {row['group']} | {_cells(row)}" for row in rows]
    if stored["unsupported"]:
        lines += ["", "### Not supported", "", "| kind | cases | reason |", "|---|---:|---|"]
        lines += [f"| {row['kind']} | {row['n']:,} | {_escaped(row['reason'])} |" for row in stored["unsupported"]]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _cells(stats: Mapping[str, Any]) -> str:
    values = [stats[key] for key in ("median_abs_error", "p90_abs_error", "share_within_20", "bias")]
    texts: Sequence[str] = ["-" if v is None else f"{100 * v:.1f} %" for v in values[:3]]
    bias = "-" if values[3] is None else f"{100 * values[3]:+.1f} %"
    return " | ".join([f"{stats['n']:,}", f"{stats['supported']:,}", *texts, bias]) + " |"


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
