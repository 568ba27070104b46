"""A stored scoreboard: what was reached once, as a file, and whether a new one is worse."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError
from rackline.validation.scoreboard import Scoreboard

RELATIVE, ABSOLUTE = 0.02, 0.002
"""A median or p90 may grow by so much before it counts as worse: 2 % of itself and 0.2 points."""
_DIGITS = 4


def stored_form(board: Scoreboard, files: Iterable[str]) -> dict[str, Any]:
    """What is stored of a scoreboard: totals, errors by metric and by group, why cases are unsupported."""
    return {
        "files": sorted(Path(name).name for name in files),
        "calibration": board.calibration,
        "cases": board.num_cases,
        "supported": board.num_cases - len(board.unsupported),
        "metrics": {name: _rounded(stats.as_dict()) for name, stats in board.metrics.items()},
        "groups": [_rounded(group.as_dict()) for group in board.groups],
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
    """Write the stored form as JSON."""
    text = json.dumps(stored_form(board, files), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_stored(path: Path) -> dict[str, Any]:
    """Read a stored scoreboard.

    Raises:
        InputError: no such file, or not one that `write_stored` wrote.
    """
    try:
        data: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(what="--stored", given=str(path), allowed=f"a readable file ({error.strerror})") from None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(cast("dict[str, object]", data).get("metrics"), dict):
        raise InputError(
            what="--stored", given=str(path), allowed="a scoreboard written by rackline validate --write-stored"
        )
    return cast("dict[str, Any]", data)


def worse_than(stored: Mapping[str, Any], board: Scoreboard) -> list[str]:
    """What got worse: one line a metric whose median or p90 widened, or that fewer cases support."""
    found: list[str] = []
    metrics = board.metrics
    for name, before in cast("Mapping[str, Mapping[str, Any]]", stored["metrics"]).items():
        if name not in metrics:
            found.append(f"{name}: is not scored any more")
            continue
        now = metrics[name]
        if now.supported < before["supported"]:
            found.append(f"{name}: {now.supported} supported cases, there were {before['supported']}")
        for key, value in (("median", now.median_abs_error), ("p90", now.p90_abs_error)):
            was = before[f"{key}_abs_error"]
            if was is not None and not value <= was * (1.0 + RELATIVE) + ABSOLUTE:
                found.append(f"{name}: {key} error {value:.2%}, it was {was:.2%}")
    return found


# --------------------------------------------------------------------------------------------- a page of docs

BEGIN, END = "<!-- scoreboard: begin -->", "<!-- scoreboard: end -->"
RUNS_BEGIN, RUNS_END = "<!-- real servers: begin -->", "<!-- real servers: end -->"
_HEAD = "| n | supported | median error | p90 | within 20 % | bias |"
_RULE = "---:|---:|---:|---:|---:|---:|"
_TITLES = {
    "model": "By model",
    "chip": "By chip",
    "stack": "By stack",
    "precision": "By precision",
    "op": "By operation",
}


def markdown(stored: Mapping[str, Any], by_what: Sequence[str] = tuple(_TITLES)) -> str:
    """A stored scoreboard as Markdown tables, in total and by these groups."""
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
    """Replace the scoreboard of a page, or that of runs of real servers; see `fill_block`."""
    if "tpot_p99_s" in stored["metrics"]:
        fill_block(page, RUNS_BEGIN, RUNS_END, markdown(stored, ["chip"]))
    else:
        fill_block(page, BEGIN, END, markdown(stored))


def fill_block(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the block between two marks of a page.

    Raises:
        InputError: the page cannot be read, or has no such block.
    """
    try:
        old = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise InputError(what="--write-docs", given=str(page), allowed=f"a readable page ({reason})") from None
    if old.count(begin) != 1 or end not in old.split(begin)[1]:
        raise InputError(what="--write-docs", given=str(page), allowed=f"a page with the lines {begin} and {end}")
    before, rest = old.split(begin)
    _, after = rest.split(end, 1)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
