"""Measured losses in a CSV file: one run per line, with its size, its tokens and its final loss."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from rackline.errors import InputError
from rackline.files import read_lines
from rackline.scaling.fit import FittedLaw, fit_loss_law

COLUMNS = {"params": ("params", "n"), "tokens": ("tokens", "d_tokens", "d"), "loss": ("loss", "l")}


def fit_file(path: str, *, exclude_highest: int = 0) -> FittedLaw:
    """Fit a loss law to a CSV file with columns params (or N), tokens (or D) and loss.

    Args:
        path: the file.
        exclude_highest: number of runs with the highest loss to leave out [count].

    Returns:
        The law and its error.

    Raises:
        InputError: no such file, a column that is missing, a cell that is not a number above 0, too few points.
    """
    file = Path(path)
    try:
        rows = list(csv.DictReader(read_lines(file, what="points", allowed="a readable CSV file")))
    except csv.Error as error:
        raise InputError(what="points", given=str(path), allowed=f"a readable CSV file ({error})") from None
    header = {name.strip().lower(): name for name in (rows[0] if rows else {}) if isinstance(name, str)}
    values: dict[str, list[float]] = {}
    for column, spellings in COLUMNS.items():
        found = next((header[spelling] for spelling in spellings if spelling in header), None)
        if found is None:
            raise InputError(
                what="columns", given=", ".join(header) or "none", allowed=f"one of {', '.join(spellings)}", where=path
            )
        values[column] = [_number(row[found], found, f"{path}, line {line}") for line, row in enumerate(rows, start=2)]
    return fit_loss_law(
        values["params"], values["tokens"], values["loss"], exclude_highest=exclude_highest, name=file.stem
    )


def _number(text: str | None, column: str, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0.0):
        raise InputError(what=column, given=text, allowed="a number above 0", where=where)
    return value
