"""Rows of a recorded trace: meaning of the columns, and conversion to numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, cast

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.requests import BlockHashes

MAX_LENGTH = 10**9
"""Longest prompt or output that a line may state [tokens]."""

# Column names in public traces and benchmark results, first match wins; "_ms" and "_s" give the unit.
ARRIVAL = ("arrival_s", "arrived_at", "timestamp", "arrival_time", "arrival", "time", "start_time", "arrival_ms")
INPUT = ("input_len", "input_length", "contexttokens", "input_tokens", "prompt_len", "prompt_tokens", "input_toks",
         "num_prefill_tokens")  # fmt: skip
OUTPUT = ("output_len", "output_length", "generatedtokens", "output_tokens", "output_toks", "completion_tokens",
          "num_decode_tokens")  # fmt: skip
_PRIORITY = ("priority", "tier")
_SECONDS = ("arrived_at", "arrival_time", "start_time")


class Columns(NamedTuple):
    """Names of the columns to read.

    Args:
        time, input_len, output_len: column names.
        tier: column of the priority; None if there is none.
        unit_s: time unit that the column name states, in seconds; None if it states none [s].
    """

    time: str
    input_len: str
    output_len: str
    tier: str | None
    unit_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Usable rows as columns.

    Args:
        time: time as written, or seconds since 2000 for a date, (n,).
        dated: whether the times are dates.
        input_len, output_len: prompt and output lengths [tokens], (n,).
        priority: priority tier, (n,); None without one.
        hashes: hashes of the prompt blocks of each row; None without them.
        lines: line number in the file, (n,).
        unit_s: time unit that the column name states, in seconds; None if it states none [s].
    """

    time: Array
    dated: bool
    input_len: Array
    output_len: Array
    priority: Array | None
    hashes: BlockHashes | None
    lines: Array
    unit_s: float | None


@lru_cache(maxsize=64)
def columns_of(names: tuple[str, ...]) -> Columns | None:
    """Find the columns to read; None without a time, an input or an output length."""
    time_name, input_name, output_name = (
        next((name for name in known if name in names), None) for known in (ARRIVAL, INPUT, OUTPUT)
    )
    if time_name is None or input_name is None or output_name is None:
        return None
    unit_s = 1e-3 if time_name.endswith("_ms") else 1.0 if time_name.endswith("_s") or time_name in _SECONDS else None
    tier = next((name for name in _PRIORITY if name in names), None)
    return Columns(time_name, input_name, output_name, tier, unit_s)


class Line(NamedTuple):
    """One usable row."""

    time: float
    dated: bool
    input_len: int
    output_len: int
    priority: int
    hashes: list[int] | None


def read_row(row: Mapping[str, Any]) -> tuple[Line, Columns]:
    """Read one row.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: the row cannot be used, with the reason.
    """
    columns = columns_of(tuple(row))
    if columns is None:
        raise KeyError("arrival time, input_length or output_length")
    time, dated = _time(row[columns.time])
    input_len, output_len = _whole(row[columns.input_len]), _whole(row[columns.output_len])
    if not (isfinite(time) and time >= 0):
        raise ValueError(f"time {time:g}")
    if input_len < 1 or output_len < 1:
        raise ValueError(f"lengths {input_len} and {output_len}")
    if max(input_len, output_len) > MAX_LENGTH:
        raise ValueError(f"a length above {MAX_LENGTH:,} tokens")
    tier = 0 if columns.tier is None else _whole(row[columns.tier])
    if abs(tier) > MAX_LENGTH:
        raise ValueError(f"a tier above {MAX_LENGTH:,}")
    return Line(time, dated, input_len, output_len, tier, _hashes(row.get("hash_ids"))), columns


def _hashes(value: Any) -> list[int] | None:
    if value is None:
        return None
    listed = cast("list[Any]", value) if isinstance(value, list) else None
    if listed is None or any(kind is not int for kind in set(map(type, listed))):
        raise ValueError("hash_ids are not whole numbers")
    if listed and not -(2**63) <= min(listed) <= max(listed) < 2**63:
        raise ValueError("hash_ids of more than 64 bits")
    return listed


def _whole(value: Any) -> int:
    number = float(value)
    if not number.is_integer():
        shown = str(value)
        raise ValueError(f"{shown if len(shown) <= 24 else shown[:21] + '...'} is not a whole number")
    return int(number)


def _time(value: Any) -> tuple[float, bool]:
    try:
        return float(value), False
    except ValueError:
        # Azure writes 2023-11-16 18:17:03.9799600, with seven digits of a second, and 2024-05-10 00:00:00.009930+00:00
        text = str(value).strip()
        fraction = re.search(r"\.\d+", text)
        whole = datetime.fromisoformat(text.replace(fraction[0], "", 1) if fraction else text)
        start = datetime(2000, 1, 1, tzinfo=None if whole.tzinfo is None else UTC)
        return (whole - start).total_seconds() + (float(fraction[0]) if fraction else 0.0), True


def rows_from_lines(lines: Sequence[Line], numbers: Sequence[int], unit_s: float | None) -> Rows:
    """Combine rows that were read one by one.

    Args:
        lines: the rows.
        numbers: their line numbers in the file.
        unit_s: as in `Rows`.
    """
    hashed = bool(lines) and all(line.hashes is not None for line in lines)
    return Rows(
        time=np.array([line.time for line in lines], dtype=np.float64),
        dated=any(line.dated for line in lines),
        input_len=np.array([line.input_len for line in lines], dtype=np.int64),
        output_len=np.array([line.output_len for line in lines], dtype=np.int64),
        priority=np.array([line.priority for line in lines], dtype=np.int64),
        hashes=BlockHashes.of(line.hashes or () for line in lines) if hashed else None,
        lines=np.array(numbers, dtype=np.int64),
        unit_s=unit_s,
    )


def rows_at_once(
    columns: Columns, values: Mapping[str, Sequence[Any] | Array], hashes: Sequence[Any] | None, numbers: Sequence[int]
) -> Rows | None:
    """Convert thousands of rows at once, as arrays.

    Args:
        columns: names of the columns.
        values: columns by name, n cells each.
        hashes: `hash_ids` of each row; None if no row has them.
        numbers: line numbers in the file, (n,).

    Returns:
        The rows; None if one of them must be read by itself.
    """
    try:
        time, dated = _times_at_once(values[columns.time])
        lengths = [_numbers(values[name]) for name in (columns.input_len, columns.output_len)]
        tiers = None if columns.tier is None else _numbers(values[columns.tier])
        packed = None if hashes is None else BlockHashes.of(hashes)
    except (ValueError, TypeError, OverflowError):
        return None
    whole = [*lengths, *([] if tiers is None else [tiers])]
    if not (np.isfinite(time).all() and (time >= 0).all() and all((part == np.floor(part)).all() for part in whole)):
        return None
    if not all(((part >= 1) & (part <= MAX_LENGTH)).all() for part in lengths):
        return None
    if tiers is not None and not (np.abs(tiers) <= MAX_LENGTH).all():
        return None
    return Rows(
        time=time,
        dated=dated,
        input_len=lengths[0].astype(np.int64),
        output_len=lengths[1].astype(np.int64),
        priority=None if tiers is None else tiers.astype(np.int64),
        hashes=packed,
        lines=np.array(numbers, dtype=np.int64),
        unit_s=columns.unit_s,
    )


def _numbers(cells: Sequence[Any] | Array) -> Array:
    if isinstance(cells, np.ndarray):
        return cells
    return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))


def _times_at_once(cells: Sequence[Any] | Array) -> tuple[Array, bool]:
    first = cells[0]
    if isinstance(first, str) and len(first) > 10 and first[4:5] == "-" and first[7:8] == "-":
        if any("+" in cell or "Z" in cell or cell.count("-") != 2 for cell in cells):
            raise ValueError("a time zone")  # NumPy does not support them
        stamps = np.array(cells, dtype="datetime64[ns]")
        return (stamps - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "s"), True
    return _numbers(cells), False
