"""Recorded traces: Azure 2023, Mooncake, vLLM's benchmark and plain CSV tables, read in chunks of bounded size.

The format is detected from the content. A malformed line is an error with its line number, or is skipped and counted.
Ambiguous input is refused, with the interpretation that would be used and the option that confirms it.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, assert_never, cast

import numpy as np

from rackline.errors import InputError
from rackline.files import read_lines
from rackline.passes.features import Array
from rackline.simulation.requests import BlockHashes, Requests
from rackline.simulation.trace_rows import (
    ARRIVAL,
    INPUT,
    OUTPUT,
    Columns,
    Line,
    Rows,
    columns_of,
    read_row,
    rows_at_once,
    rows_from_lines,
)

TimeUnit = Literal["s", "ms"]
TIME_UNITS: tuple[TimeUnit, ...] = ("s", "ms")
MOONCAKE_BLOCK_TOKENS = 512  # Mooncake's traces hash blocks of 512 tokens (arXiv:2407.00079)
MAX_CHARACTERS = 128 * 2**20
"""Longest line: a result of vLLM's benchmark is one line with all requests [characters]."""
_PIECE = 20_000  # rows held as text at a time
_ALLOWED = "a trace in CSV or JSON lines"
_SPARSE_S = 10.0  # 10 s or more between requests and integer times: probably milliseconds
_DENSE_MS = 10.0  # 100 requests/s or more from a file in milliseconds: probably seconds
_EPOCH_MS = 1e11  # seconds since 1970 stay below this for 3,000 years


@dataclass(slots=True, kw_only=True)
class _Reader:
    """State while a file is read."""

    path: str
    skip_bad: bool
    bad: list[int] = field(default_factory=list[int])

    def refuse(self, error: Exception, number: int, raw: str) -> None:
        """Count a malformed line, or raise an error with its number."""
        self.bad.append(number)
        if not self.skip_bad:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            raise InputError(
                what="line",
                given=raw if len(raw) <= 80 else raw[:77] + "...",
                allowed=f"a time of 0 or more, whole lengths of at least 1 ({_short(reason)})",
                where=f"{self.path}:{number}",
            ) from error

    def one_by_one(self, rows: Iterator[tuple[int, Any, str]]) -> Rows | None:
        """Read rows one by one, given as (line number, row, text)."""
        lines: list[Line] = []
        numbers: list[int] = []
        unit_s: float | None = None
        for number, row, raw in rows:
            try:
                if isinstance(row, Exception):
                    raise row
                if not isinstance(row, dict):
                    raise ValueError("not a JSON object")
                line, columns = read_row(cast("dict[str, Any]", row))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                self.refuse(error, number, raw)
                continue
            unit_s = columns.unit_s
            lines.append(line)
            numbers.append(number)
        return rows_from_lines(lines, numbers, unit_s) if lines else None


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."


def read_trace(path: str | Path, *, skip_bad: bool = False, time_unit: TimeUnit | None = None) -> Requests:
    """Read recorded requests. Memory grows with the number of requests, not with the size of the file.

    Args:
        path: CSV with a header (such as Azure's), JSON lines (such as Mooncake's), or a result of vLLM's benchmark
            (--save-detailed).
        skip_bad: skip malformed lines and count them.
        time_unit: unit of times whose column does not state it; by default seconds in CSV and milliseconds in JSON
            lines, as in public traces.

    Raises:
        InputError: the file cannot be read, its format is unknown, a line is malformed, or the time unit is ambiguous.
    """
    file = Path(path)
    reader = _Reader(path=str(path), skip_bad=skip_bad)
    lines = read_lines(file, what="trace", allowed=_ALLOWED, max_characters=MAX_CHARACTERS)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise InputError(what="trace", given="an empty file", allowed="at least one request", where=str(path))
    default: TimeUnit = "s"
    if first.lstrip().startswith("{"):
        whole = _benchmark(file, first)
        default = "ms" if whole is None else "s"
        pieces = _json_pieces(reader, itertools.chain([first], lines)) if whole is None else iter(whole.pieces(reader))
    else:
        pieces = _csv_pieces(reader, itertools.chain([first], lines))
    return _requests(pieces, file, reader, time_unit, default)


def _requests(
    pieces: Iterator[Rows | None], file: Path, reader: _Reader, time_unit: TimeUnit | None, default: TimeUnit
) -> Requests:
    kept: list[Rows] = []
    latest = -1.0
    for rows in pieces:
        if rows is None:
            continue
        before = np.maximum.accumulate(np.concatenate([[latest], rows.time]))[:-1]
        late = rows.time < before
        if late.any():
            if not reader.skip_bad:
                index = int(np.argmax(late))
                raise InputError(
                    what="arrival time", given=float(rows.time[index]),
                    allowed=f"at least {before[index]:g}, as in the line before", where=f"{file}:{rows.lines[index]}",
                )  # fmt: skip
            reader.bad.extend(rows.lines[late].tolist())
            rows = _kept(rows, ~late)
        if len(rows.time):
            latest = float(rows.time[-1])
            kept.append(rows)
    if not kept:
        raise InputError(what="trace", given="no usable line", allowed="at least one request", where=str(file))
    time = np.concatenate([rows.time for rows in kept])
    unit_s = _unit_s(kept, time, file, time_unit, default)
    priority = _joined([rows.priority for rows in kept], [len(rows.time) for rows in kept])
    hashed = all(rows.hashes is not None for rows in kept)
    return Requests(
        arrival_s=(time - time[0]) * unit_s,
        input_len=np.concatenate([rows.input_len for rows in kept]),
        output_len=np.concatenate([rows.output_len for rows in kept]),
        priority=priority if np.any(priority) else None,
        hashes=BlockHashes.joined([rows.hashes for rows in kept if rows.hashes is not None]) if hashed else None,
        hash_tokens=MOONCAKE_BLOCK_TOKENS,
        name=file.name,
        skipped=len(reader.bad),
        lines=np.concatenate([rows.lines for rows in kept]),
    )


def _kept(rows: Rows, keep: Array) -> Rows:
    return replace(
        rows,
        time=rows.time[keep],
        input_len=rows.input_len[keep],
        output_len=rows.output_len[keep],
        priority=None if rows.priority is None else rows.priority[keep],
        hashes=None if rows.hashes is None else rows.hashes.pick(keep),
        lines=rows.lines[keep],
    )


def _joined(parts: Sequence[Array | None], counts: Sequence[int]) -> Array:
    pieces = (np.zeros(n, dtype=np.int64) if part is None else part for part, n in zip(parts, counts, strict=True))
    return np.concatenate(list(pieces))


def _unit_s(kept: Sequence[Rows], time: Array, file: Path, given: TimeUnit | None, default: TimeUnit) -> float:
    """Time unit in seconds; refuses times that are more likely in the other unit."""
    stated = next((1.0 if rows.dated else rows.unit_s for rows in kept if rows.dated or rows.unit_s is not None), None)
    if stated is not None:
        if given is not None and {"s": 1.0, "ms": 1e-3}[given] != stated:
            unit = "dates" if kept[0].dated else "seconds" if stated == 1.0 else "milliseconds"
            raise InputError(what="--time-unit", given=given, allowed=f"no time unit, because {file} states {unit}")
        return stated
    if given is not None:
        return {"s": 1.0, "ms": 1e-3}[given]
    gap = float(time[-1] - time[0]) / max(len(time) - 1, 1)
    match default:
        case "s":
            whole = bool((time == np.floor(time)).all())
            if len(time) > 1 and ((whole and gap >= _SPARSE_S) or float(time[-1]) >= _EPOCH_MS):
                raise _ambiguous(file, "seconds", "ms", f"one request every {gap:,.6g} s")
            return 1.0
        case "ms":
            if len(time) > 1 and 0.0 < gap < _DENSE_MS:
                raise _ambiguous(file, "milliseconds", "s", f"{1e3 / gap:,.4g} requests/s")
            return 1e-3
        case _:
            assert_never(default)


def _ambiguous(file: Path, taken: str, other: TimeUnit, means: str) -> InputError:
    mine = "s" if other == "ms" else "ms"
    return InputError(
        what="arrival times",
        given=f"numbers without a unit; as {taken} they mean {means}",
        allowed=f"--time-unit {other}, or --time-unit {mine} to read them that way",
        where=str(file),
    )


def _json_pieces(reader: _Reader, lines: Iterator[str]) -> Iterator[Rows | None]:
    number = 0
    while piece := list(itertools.islice(lines, _PIECE)):
        numbered = [(number + place, raw.strip()) for place, raw in enumerate(piece, start=1)]
        number += len(piece)
        used = [(place, raw) for place, raw in numbered if raw]
        if used:
            rows = _json_at_once(used)
            yield rows if rows is not None else reader.one_by_one(_parsed(used))


def _parsed(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Any, str]]:
    for number, raw in lines:
        try:
            yield number, json.loads(raw), raw
        except (ValueError, RecursionError) as error:
            yield number, error if isinstance(error, ValueError) else ValueError("nested too deeply"), raw


def _json_at_once(lines: Sequence[tuple[int, str]]) -> Rows | None:
    try:
        rows = cast("list[Any]", json.loads(f"[{','.join(raw for _, raw in lines)}]"))
    except (ValueError, RecursionError):
        return None
    if len(rows) != len(lines) or not all(isinstance(row, dict) for row in rows):
        return None
    names = tuple(cast("dict[str, Any]", rows[0]))
    columns = columns_of(names)
    if columns is None or any(tuple(row) != names for row in rows):
        return None
    read = [name for name in columns[:4] if name is not None]
    values = {name: [row[name] for row in rows] for name in read}
    hashes = [row["hash_ids"] for row in rows] if "hash_ids" in names else None
    if hashes is not None and any(value is None for value in hashes):
        return None
    return rows_at_once(columns, values, hashes, [number for number, _ in lines])


def _csv_pieces(reader: _Reader, lines: Iterator[str]) -> Iterator[Rows | None]:
    table = csv.reader(lines)
    header = [name.strip().lower() for name in _next(table, reader) or []]
    columns = columns_of(tuple(header))
    if columns is None:
        raise InputError(
            what="columns",
            given=_short(", ".join(header)),
            allowed="an arrival time (arrival_s, timestamp), input_len and output_len",
            where=f"{reader.path}:1",
        )
    twice = next((name for name in header if header.count(name) > 1 and name in (*ARRIVAL, *INPUT, *OUTPUT)), None)
    if twice is not None:
        raise InputError(
            what="columns",
            given=f"{twice} {header.count(twice)} times",
            allowed="each column once (the last one would be read)",
            where=f"{reader.path}:1",
        )
    places = [(name, header.index(name)) for name in columns[:4] if name is not None]
    before = table.line_num
    while piece := list(itertools.islice(lines, _PIECE)):
        rows = _plain_numbers(piece, columns, dict(places), len(header), before + 1)
        if rows is None:
            break  # the rest may have quoted cells that span lines
        yield rows
        before += len(piece)
    table = csv.reader(itertools.chain(piece, lines))
    while True:
        cells: list[list[str]] = []
        numbers: list[int] = []
        while len(cells) < _PIECE and (row := _next(table, reader, before)) is not None:
            if row:
                cells.append(row)
                numbers.append(before + table.line_num)
        if not cells:
            return
        rows = None
        if all(len(row) == len(header) for row in cells):
            values = {name: [row[place] for row in cells] for name, place in places}
            rows = rows_at_once(columns, values, None, numbers)
        yield rows if rows is not None else reader.one_by_one(_named(header, cells, numbers))


def _plain_numbers(
    lines: list[str], columns: Columns, places: Mapping[str, int], width: int, first: int
) -> Rows | None:
    """Read lines of numbers at once; None if one of them must be read by itself.

    Args:
        places: positions of the columns in a line.
        width: cells per line [count].
        first: line number of the first line.
    """
    if {line.count(",") for line in lines} != {width - 1}:
        return None
    try:
        cells = np.loadtxt(lines, delimiter=",", comments=None, usecols=list(places.values()), ndmin=2)
    except ValueError:
        return None
    return rows_at_once(columns, dict(zip(places, cells.T, strict=True)), None, range(first, first + len(lines)))


def _next(table: Any, reader: _Reader, before: int = 0) -> list[str] | None:
    try:
        return next(table, None)
    except csv.Error as error:
        raise InputError(
            what="line", given=str(error), allowed="cells of at most 131,072 characters without line breaks",
            where=f"{reader.path}:{before + table.line_num}",
        ) from None  # fmt: skip


def _named(header: list[str], cells: list[list[str]], numbers: list[int]) -> Iterator[tuple[int, Any, str]]:
    for row, number in zip(cells, numbers, strict=True):
        if len(row) != len(header):
            yield number, ValueError(f"{len(row)} of {len(header)} columns"), ",".join(row)
        else:
            yield number, dict(zip(header, row, strict=True)), ",".join(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Benchmark:
    """A result of vLLM's benchmark: one object with a list for each column."""

    rows: list[dict[str, Any]]

    def pieces(self, reader: _Reader) -> list[Rows | None]:
        """Its requests in the order of arrival; the position in the lists counts as the line number."""
        usable = [(number, row, str(row)) for number, row in enumerate(self.rows, start=1)]
        rows = reader.one_by_one(iter(usable))
        if rows is None:
            return [None]
        order = np.argsort(rows.time, kind="stable")
        return [replace(rows, time=rows.time[order], input_len=rows.input_len[order],
                        output_len=rows.output_len[order], priority=None, lines=rows.lines[order])]  # fmt: skip


_BENCHMARK = {"input_lens": "input_len", "output_lens": "output_len", "start_times": "arrival_s"}


def _benchmark(file: Path, first: str) -> _Benchmark | None:
    """The file as a result of vLLM's benchmark; None if it is something else."""
    try:
        whole = json.loads(first)
    except RecursionError:
        return None
    except ValueError:
        if not _begins_benchmark(first):
            return None
        text = "".join(read_lines(file, what="trace", allowed=_ALLOWED, max_characters=MAX_CHARACTERS))
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            return None
    if not isinstance(whole, dict):
        return None
    data = cast("dict[str, Any]", whole)
    if not all(isinstance(data.get(name), list) for name in _BENCHMARK):
        return None
    lists = {new: cast("list[Any]", data[old]) for old, new in _BENCHMARK.items()}
    lengths = {old: len(data[old]) for old in _BENCHMARK}
    if len(set(lengths.values())) > 1:
        raise InputError(
            what="lists",
            given=", ".join(f"{count:,} {name}" for name, count in lengths.items()),
            allowed=f"lists of equal length (the first {min(lengths.values()):,} of each would be read)",
            where=str(file),
        )
    return _Benchmark(rows=[dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)])


def _begins_benchmark(first: str) -> bool:
    """Whether the first line can start an object that spans several lines."""
    return first.strip() == "{" or any(f'"{name}"' in first for name in _BENCHMARK)
