"""A stored scoreboard, and whether a new one is worse."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError
from rackline.files import parse_json, read_text, write_text
from rackline.plain import plain
from rackline.validation.scoreboard import Scoreboard

RELATIVE, ABSOLUTE = 0.02, 0.002
"""Increase of a median or p90 that does not count as worse: 2 % of itself plus 0.2 percentage points."""
_DIGITS = 4


def stored_form(board: Scoreboard, files: Iterable[str]) -> dict[str, Any]:
    """The stored form of a scoreboard: totals, errors by metric and by group, reasons of unsupported cases."""
    return {
        "files": sorted(Path(name).name for name in files),
        "calibration": board.calibration,
        "cases": board.num_cases,
        "supported": board.num_cases - len(board.unsupported),
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
    """Write the stored form as JSON."""
    text = json.dumps(stored_form(board, files), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", what="--write-stored")


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
    """One line for each metric whose median or p90 got worse, or that fewer cases support."""
    found: list[str] = []
    metrics = board.metrics
    for name, before in cast("Mapping[str, Mapping[str, Any]]", stored["metrics"]).items():
        if name not in metrics:
            found.append(f"{name}: is no longer scored")
            continue
        now = metrics[name]
        if now.supported < before["supported"]:
            found.append(f"{name}: {now.supported} supported cases, before {before['supported']}")
        for key, value in (("median", now.median_abs_error), ("p90", now.p90_abs_error)):
            was = before[f"{key}_abs_error"]
            if was is not None and not value <= was * (1.0 + RELATIVE) + ABSOLUTE:
                found.append(f"{name}: {key} error {value:.2%}, before {was:.2%}")
    return found
