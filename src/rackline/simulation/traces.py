"""Recorded traffic: Azure 2023, Mooncake, vLLM's benchmark and plain CSV tables.

The format is told from the content. A bad line is an error with its number, or is left out and counted.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from rackline.errors import InputError
from rackline.simulation.requests import Requests

MOONCAKE_BLOCK_TOKENS = 512  # Mooncake's traces hash blocks of 512 tokens (arXiv:2407.00079)

# Names of columns in public traces and in results of benchmarks, first match wins; "_ms" and "_s" give the unit.
_ARRIVAL = ("arrival_s", "arrived_at", "timestamp", "arrival_time", "arrival", "time", "start_time", "arrival_ms")
_INPUT = ("input_len", "input_length", "contexttokens", "input_tokens", "prompt_len", "prompt_tokens", "input_toks",
          "num_prefill_tokens")  # fmt: skip
_OUTPUT = ("output_len", "output_length", "generatedtokens", "output_tokens", "output_toks", "completion_tokens",
           "num_decode_tokens")  # fmt: skip
_PRIORITY = ("priority", "tier")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    arrival_s: float
    input_len: int
    output_len: int
    priority: int
    hashes: tuple[int, ...] | list[int] | None


def read_trace(path: str | Path, *, skip_bad: bool = False) -> Requests:
    """Read recorded requests.

    Args:
        path: Azure's or any CSV with a header, Mooncake's JSON lines, or a result of vLLM's benchmark
            (--save-detailed).
        skip_bad: leave bad lines out and count them.

    Raises:
        InputError: a file that cannot be read, an unknown format, a bad line.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        allowed = "a trace in CSV or JSON lines"
        raise InputError(what="trace", given=str(path), allowed=allowed, where=type(error).__name__) from error
    start = text.lstrip()[:1]
    if not start:
        raise InputError(what="trace", given="an empty file", allowed="at least one request", where=str(path))
    bad: list[int] = []
    if start == "{":
        whole = _benchmark(text)
        lines = _from_rows(whole, str(path), skip_bad, bad) if whole is not None else _json(text, path, skip_bad, bad)
    else:
        lines = _csv(text, path, skip_bad, bad)
    return _requests(lines, file, skip_bad, bad)


def _requests(lines: Iterator[_Line], file: Path, skip_bad: bool, bad: list[int]) -> Requests:
    kept: list[_Line] = []
    last = 0.0
    for line in lines:
        if line.arrival_s < last:
            if not skip_bad:
                raise InputError(
                    what="time of arrival", given=line.arrival_s, allowed=f"at least {last:g} s, the line before it",
                    where=f"{file}:{line.number}",
                )  # fmt: skip
            bad.append(line.number)
            continue
        last = line.arrival_s
        kept.append(line)
    if not kept:
        raise InputError(what="trace", given="no usable line", allowed="at least one request", where=str(file))
    offset = kept[0].arrival_s
    has_hashes = all(line.hashes is not None for line in kept)
    priority = np.array([line.priority for line in kept])
    return Requests(
        arrival_s=np.array([line.arrival_s for line in kept]) - offset,
        input_len=np.array([line.input_len for line in kept]),
        output_len=np.array([line.output_len for line in kept]),
        priority=priority if np.any(priority) else None,
        hashes=[cast("Sequence[int]", line.hashes) for line in kept] if has_hashes else None,
        hash_tokens=MOONCAKE_BLOCK_TOKENS,
        name=file.name,
        skipped=len(bad),
        lines=np.array([line.number for line in kept]),
    )


def _json(text: str, path: str | Path, skip_bad: bool, bad: list[int]) -> Iterator[_Line]:
    for number, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
            yield _line(cast("dict[str, Any]", row), number, unit_s=1e-3)
        except (ValueError, KeyError, TypeError) as error:
            _refuse(error, path, number, raw, skip_bad, bad)


def _csv(text: str, path: str | Path, skip_bad: bool, bad: list[int]) -> Iterator[_Line]:
    reader = csv.reader(text.splitlines())
    header = [name.strip().lower() for name in next(reader)]
    if _find(header, _INPUT) is None or _find(header, _OUTPUT) is None or _find(header, _ARRIVAL) is None:
        raise InputError(
            what="columns",
            given=", ".join(header),
            allowed="a time of arrival (arrival_s, timestamp), input_len and output_len",
            where=f"{path}:1",
        )
    for number, values in enumerate(reader, start=2):
        if not values:
            continue
        try:
            if len(values) != len(header):
                raise ValueError(f"{len(values)} of {len(header)} columns")
            yield _line(dict(zip(header, values, strict=True)), number, unit_s=1.0)
        except (ValueError, KeyError, TypeError) as error:
            _refuse(error, path, number, ",".join(values), skip_bad, bad)


def _refuse(error: Exception, path: str | Path, number: int, raw: str, skip_bad: bool, bad: list[int]) -> None:
    bad.append(number)
    if not skip_bad:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            what="line",
            given=raw if len(raw) <= 80 else raw[:77] + "...",
            allowed=f"a time of 0 or more, whole lengths of at least 1 ({reason})",
            where=f"{path}:{number}",
        ) from error


def _find(header: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in header), None)


class _Columns(NamedTuple):
    time: str
    input_len: str
    output_len: str
    tier: str | None
    unit_s: float


@lru_cache(maxsize=64)
def _columns(names: tuple[str, ...], unit_s: float) -> _Columns | None:
    """Which columns hold what; None without one of them."""
    time_name, input_name, output_name = (_find(names, known) for known in (_ARRIVAL, _INPUT, _OUTPUT))
    if time_name is None or input_name is None or output_name is None:
        return None
    if time_name.endswith("_ms"):
        unit_s = 1e-3
    elif time_name.endswith("_s") or time_name in ("arrived_at", "arrival_time", "start_time"):
        unit_s = 1.0
    return _Columns(time_name, input_name, output_name, _find(names, _PRIORITY), unit_s)


def _line(row: Mapping[str, Any], number: int, *, unit_s: float) -> _Line:
    columns = _columns(tuple(row), unit_s)
    if columns is None:
        raise KeyError("time of arrival, input_length or output_length")
    time_s = _time(row[columns.time], columns.unit_s)
    input_len, output_len = _whole(row[columns.input_len]), _whole(row[columns.output_len])
    if not (isfinite(time_s) and time_s >= 0):
        raise ValueError(f"time {time_s:g}")
    if input_len < 1 or output_len < 1:
        raise ValueError(f"lengths {input_len} and {output_len}")
    hashes = row.get("hash_ids")
    listed = cast("list[Any]", hashes) if isinstance(hashes, list) else None
    if hashes is not None and (listed is None or any(kind is not int for kind in set(map(type, listed)))):
        raise ValueError("hash_ids are not whole numbers")
    tier = 0 if columns.tier is None else _whole(row[columns.tier])
    return _Line(number, time_s, input_len, output_len, tier, listed)


def _whole(value: Any) -> int:
    number = float(value)
    if not number.is_integer():
        raise ValueError(f"{value} is not a whole number")
    return int(number)


def _time(value: Any, unit_s: float) -> float:
    try:
        return float(value) * unit_s
    except ValueError:
        # Azure writes 2023-11-16 18:17:03.9799600, with seven digits of a second
        text = str(value).strip()
        head, dot, digits = text.partition(".")
        whole = datetime.fromisoformat(head)
        return (whole - datetime(2000, 1, 1, tzinfo=whole.tzinfo)).total_seconds() + (
            float(f"0.{digits}") if dot else 0
        )


def _benchmark(text: str) -> list[dict[str, Any]] | None:
    """Rows of a result of vLLM's benchmark: one object with a list for each column."""
    try:
        whole = json.loads(text)
    except ValueError:
        return None
    if not isinstance(whole, dict):
        return None
    data = cast("dict[str, Any]", whole)
    lists = {"input_lens": "input_len", "output_lens": "output_len", "start_times": "arrival_s"}
    if not all(isinstance(data.get(name), list) for name in lists):
        return None
    columns = {new: cast("list[Any]", data[old]) for old, new in lists.items()}
    first = min(columns["arrival_s"], default=0.0)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]
    for row in rows:
        row["arrival_s"] = float(row["arrival_s"]) - float(first)
    return sorted(rows, key=lambda row: row["arrival_s"])


def _from_rows(rows: list[dict[str, Any]], path: str, skip_bad: bool, bad: list[int]) -> Iterator[_Line]:
    for number, row in enumerate(rows, start=1):
        try:
            yield _line(row, number, unit_s=1.0)
        except (ValueError, KeyError, TypeError) as error:
            _refuse(error, path, number, str(row), skip_bad, bad)
