"""Mixtures of request lengths from files: CSV with a row for each length, or TOML."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from rackline.errors import InputError, placed, require, unknown_name
from rackline.files import read_text, toml_tables
from rackline.serving.workload import Mixture
from rackline.units import parse_count

_MIX_KEYS = ("share", "input", "output")


_MIX_FORM = "CSV with the columns share, input, output, or TOML with [[requests]] of these keys"


_MOST_LENGTHS = 100_000


def mixture_of_file(path: str) -> Mixture:
    """Read shares with their lengths, such as `share = 0.8`, `input = "500"`, `output = 200`.

    Raises:
        InputError: another form, a row that lacks a length, values that are not counts.
    """
    text = read_text(path, what="mix", allowed=_MIX_FORM, max_bytes=16 * 2**20)
    if path.endswith(".toml"):
        tables = toml_tables(path, text, "requests", _MIX_FORM, "mix")
        rows = [(f"requests {number}", row) for number, row in enumerate(tables, start=1)]
    else:
        rows = _csv_rows(path, text)
    require(
        rows and len(rows) <= _MOST_LENGTHS,
        what="mix",
        given=f"{len(rows):,} lengths",
        allowed=f"1 to {_MOST_LENGTHS:,}",
        where=path,
    )
    values = np.array([_row(row, f"{path}, {place}") for place, row in rows], dtype=np.float64)
    return Mixture.of(values[:, 0], values[:, 1], values[:, 2], name=path.rpartition("/")[2])


def _csv_rows(path: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        table = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise InputError(what="mix", given=str(error), allowed=_MIX_FORM, where=path) from None
    rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(table, start=1) if any(row)]
    require(rows, what="mix", given="an empty file", allowed=_MIX_FORM, where=path)
    header = [name.lower().removesuffix("_len") for name in rows[0][1]]
    found: list[tuple[str, dict[str, Any]]] = []
    for number, row in rows[1:]:
        require(
            len(row) == len(header),
            what="mix",
            given=f"{len(row)} cells",
            allowed=f"{len(header)} cells: {', '.join(header)}",
            where=f"{path}:{number}",
        )
        found.append((f"line {number}", dict(zip(header, row, strict=True))))
    return found


def _row(row: dict[str, Any], where: str) -> tuple[float, float, float]:
    with placed(where):
        for key in row:
            if key not in _MIX_KEYS:
                raise unknown_name("mix", key, _MIX_KEYS)
        for key in _MIX_KEYS[1:]:
            require(row.get(key) not in (None, ""), what=key, given="nothing", allowed="tokens per request, such as 2k")
        weight = parse_count(str(row.get("share", "1")).strip().removesuffix("%"), name="share", maximum=1e12)
        lengths = [parse_count(row[key], name=key, minimum=1.0, maximum=1e9) for key in _MIX_KEYS[1:]]
    return weight, lengths[0], lengths[1]
