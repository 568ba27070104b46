"""Recorded traces: Azure 2023, Mooncake, vLLM's benchmark and plain CSV tables, read in chunks of bounded size.

The format is detected from the content. A malformed line is an error with its line number, or is skipped and counted.
Ambiguous input is refused, with the interpretation that would be used and the option that confirms it.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, assert_never, cast

import numpy as np

from rackline.errors import InputError, require
from rackline.files import read_lines
from rackline.passes.features import Array
from rackline.serving.workload import Mixture
from rackline.simulation.requests import BlockHashes, Requests

TimeUnit = Literal["s", "ms"]
TIME_UNITS: tuple[TimeUnit, ...] = ("s", "ms")
_UNIT_S: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e-3}
MOONCAKE_BLOCK_TOKENS = 512  # Mooncake's traces hash blocks of 512 tokens (arXiv:2407.00079)
MAX_CHARACTERS = 128 * 2**20
"""Longest line: a result of vLLM's benchmark is one line with all requests [characters]."""
_PIECE = 20_000  # rows held as text at a time
_ALLOWED = "a trace in CSV or JSON lines"
_SPARSE_S = 10.0  # 10 s or more between requests and integer times: probably milliseconds
_DENSE_MS = 10.0  # 100 requests/s or more from a file in milliseconds: probably seconds
_EPOCH_MS = 1e11  # seconds since 1970 stay below this for 3,000 years
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
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
        priority: priority tier, 0 without one, (n,).
        hashes: hashes of the prompt blocks of each row; None without them.
        lines: line number in the file, (n,).
        unit_s: time unit that the column name states, in seconds; None if it states none [s].
    """

    time: Array
    dated: bool
    input_len: Array
    output_len: Array
    priority: Array
    hashes: BlockHashes | None
    lines: Array
    unit_s: float | None


_COLUMNS = ("time", "input_len", "output_len", "priority", "lines")


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


def _rows(rows: Sequence[Any], numbers: Sequence[int]) -> Rows:
    """Convert rows of one form: column name → cell.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: one of them cannot be used, with the reason; or they differ in
            form.
    """
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("not a JSON object")
    names = tuple(cast("dict[str, Any]", rows[0]))
    columns = columns_of(names)
    if columns is None:
        raise KeyError("arrival time, input_length or output_length")
    if any(tuple(row) != names for row in rows):
        raise ValueError("rows that differ in form")
    values = {name: [row[name] for row in rows] for name in columns[:4] if name is not None}
    return _converted(columns, values, [row.get("hash_ids") for row in rows], numbers)


def _converted(
    columns: Columns, values: Mapping[str, Sequence[Any] | Array], hashes: Sequence[Any], numbers: Sequence[int]
) -> Rows:
    """The same by column.

    Args:
        columns: names of the columns.
        values: columns by name, n cells each.
        hashes: `hash_ids` of each row, None for a row without; empty if no row has them.
        numbers: line numbers in the file, (n,).
    """
    time, dated = _times(values[columns.time])
    input_len, output_len = _whole(values[columns.input_len]), _whole(values[columns.output_len])
    if not (usable := np.isfinite(time) & (time >= 0)).all():
        raise ValueError(f"time {time[~usable][0]:g}")
    if min(input_len.min(), output_len.min()) < 1:
        raise ValueError(f"lengths {input_len[0]} and {output_len[0]}")
    tiers = np.zeros(len(time), dtype=np.int64) if columns.tier is None else _whole(values[columns.tier])
    for what, most in (("length", max(input_len.max(), output_len.max())), ("tier", np.abs(tiers).max())):
        if most > MAX_LENGTH:
            raise ValueError(f"a {what} above {MAX_LENGTH:,}" + (" tokens" if what == "length" else ""))
    return Rows(
        time=time,
        dated=dated,
        input_len=input_len,
        output_len=output_len,
        priority=tiers,
        hashes=_hashes(hashes),
        lines=np.array(numbers, dtype=np.int64),
        unit_s=columns.unit_s,
    )


def _hashes(rows: Sequence[Any]) -> BlockHashes | None:
    without = sum(row is None for row in rows)
    if without == len(rows):
        return None
    if without:
        raise ValueError("rows with and without hash_ids")
    try:
        if all(isinstance(row, list) for row in rows):
            return BlockHashes.of(rows)
    except OverflowError:
        raise ValueError("hash_ids of more than 64 bits") from None
    except TypeError:
        pass
    raise ValueError("hash_ids are not whole numbers")


def _whole(cells: Sequence[Any] | Array) -> Array:
    numbers = _numbers(cells)
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
    if not whole.all():
        raise ValueError(f"{_short(str(cells[int(np.argmin(whole))]), 24)} is not a whole number")
    if np.abs(numbers).max() >= 2.0**63:
        raise OverflowError("a whole number of more than 64 bits")
    return numbers.astype(np.int64)


def _numbers(cells: Sequence[Any] | Array) -> Array:
    return cells if isinstance(cells, np.ndarray) else np.fromiter(map(float, cells), dtype=float, count=len(cells))


def _times(cells: Sequence[Any] | Array) -> tuple[Array, bool]:
    """Times as written, or seconds since 2000 for dates, and which of the two."""
    try:
        return _numbers(cells), False
    except ValueError:
        if any("+" in cell or "Z" in cell or cell.count("-") != 2 for cell in map(str, cells)):  # a time zone
            return np.array([_date(str(cell).strip()) for cell in cells]), True
    stamps = np.array([str(cell).strip() for cell in cells], dtype="datetime64[ns]")
    return (stamps - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "s"), True


def _date(text: str) -> float:
    # Azure writes 2023-11-16 18:17:03.9799600, with seven digits of a second, and 2024-05-10 00:00:00.009930+00:00
    fraction = re.search(r"\.\d+", text)
    whole = datetime.fromisoformat(text.replace(fraction[0], "", 1) if fraction else text)
    start = datetime(2000, 1, 1, tzinfo=None if whole.tzinfo is None else UTC)
    return (whole - start).total_seconds() + (float(fraction[0]) if fraction else 0.0)


@dataclass(slots=True, kw_only=True)
class _Reader:
    """State while a file is read."""

    path: str
    skip_bad: bool
    bad: list[int] = field(default_factory=list[int])

    def pieces(self, rows: Sequence[tuple[int, Any, str]]) -> Iterator[Rows]:
        """Rows, each as (line number, cells by column or what is wrong with it, text): all at once where they can be,
        else one by one; a malformed one is counted, or an error with its number."""
        try:
            yield _rows([row for _, row, _ in rows], [number for number, _, _ in rows])
            return
        except _MALFORMED:
            pass
        for number, row, raw in rows:
            try:
                if isinstance(row, Exception):
                    raise row
                found = _rows([row], [number])
            except _MALFORMED as error:
                self.bad.append(number)
                if not self.skip_bad:
                    reason = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
                    allowed = f"a time of 0 or more, whole lengths of at least 1 ({_short(reason)})"
                    where = f"{self.path}:{number}"
                    raise InputError(what="line", given=_short(raw, 80), allowed=allowed, where=where) from error
                continue
            yield found


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


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
    lines, default = itertools.chain([first], lines), "s"
    if not first.lstrip().startswith("{"):
        pieces = _csv_pieces(reader, lines)
    elif (whole := _benchmark(file, first)) is not None:
        pieces = iter(sorted(reader.pieces(whole), key=lambda rows: rows.time[0]))
        pieces = (_kept(rows, np.argsort(rows.time, kind="stable")) for rows in pieces)
    else:
        pieces, default = _json_pieces(reader, lines), "ms"
    return _requests(pieces, file, reader, time_unit, default)


def _requests(
    pieces: Iterator[Rows], file: Path, reader: _Reader, time_unit: TimeUnit | None, default: TimeUnit
) -> Requests:
    kept: list[Rows] = []
    latest = -1.0
    for rows in pieces:
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
    require(kept, what="trace", given="no usable line", allowed="at least one request", where=str(file))
    column = {name: np.concatenate([getattr(rows, name) for rows in kept]) for name in _COLUMNS}
    unit_s = _unit_s(kept, column["time"], file, time_unit, default)
    hashes = [rows.hashes for rows in kept if rows.hashes is not None]
    return Requests(
        arrival_s=(column["time"] - column["time"][0]) * unit_s,
        input_len=column["input_len"],
        output_len=column["output_len"],
        priority=column["priority"] if column["priority"].any() else None,
        hashes=BlockHashes.joined(hashes) if len(hashes) == len(kept) else None,
        hash_tokens=MOONCAKE_BLOCK_TOKENS,
        name=file.name,
        skipped=len(reader.bad),
        lines=column["lines"],
    )


def _kept(rows: Rows, keep: Array) -> Rows:
    hashes = None if rows.hashes is None else rows.hashes.pick(keep)
    return replace(rows, **{name: getattr(rows, name)[keep] for name in _COLUMNS}, hashes=hashes)


def _unit_s(kept: Sequence[Rows], time: Array, file: Path, given: TimeUnit | None, default: TimeUnit) -> float:
    """Time unit in seconds; refuses times that are more likely in the other unit."""
    stated = next((1.0 if rows.dated else rows.unit_s for rows in kept if rows.dated or rows.unit_s is not None), None)
    if stated is not None:
        if given is not None and _UNIT_S[given] != stated:
            unit = "dates" if kept[0].dated else "seconds" if stated == 1.0 else "milliseconds"
            raise InputError(what="--time-unit", given=given, allowed=f"no time unit, because {file} states {unit}")
        return stated
    if given is not None:
        return _UNIT_S[given]
    gap, several = float(time[-1] - time[0]) / max(len(time) - 1, 1), len(time) > 1
    match default:
        case "s":
            whole = bool((time == np.floor(time)).all())
            if several and ((whole and gap >= _SPARSE_S) or float(time[-1]) >= _EPOCH_MS):
                raise _ambiguous(file, "seconds", "ms", f"one request every {gap:,.6g} s")
        case "ms":
            if several and 0.0 < gap < _DENSE_MS:
                raise _ambiguous(file, "milliseconds", "s", f"{1e3 / gap:,.4g} requests/s")
        case _:
            assert_never(default)
    return _UNIT_S[default]


def _ambiguous(file: Path, taken: str, other: TimeUnit, means: str) -> InputError:
    mine = "s" if other == "ms" else "ms"
    return InputError(
        what="arrival times",
        given=f"numbers without a unit; as {taken} they mean {means}",
        allowed=f"--time-unit {other}, or --time-unit {mine} to read them that way",
        where=str(file),
    )


def _json_pieces(reader: _Reader, lines: Iterator[str]) -> Iterator[Rows]:
    numbered = ((number, raw.strip()) for number, raw in enumerate(lines, start=1))
    used = ((number, _parsed(raw), raw) for number, raw in numbered if raw)
    while piece := list(itertools.islice(used, _PIECE)):
        yield from reader.pieces(piece)


def _parsed(raw: str) -> Any:
    """The value of a text in JSON, or the error that it gives."""
    try:
        return json.loads(raw)
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("nested too deeply")


def _csv_pieces(reader: _Reader, lines: Iterator[str]) -> Iterator[Rows]:
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
    while piece := list(itertools.islice(_cells(table, reader, header, before), _PIECE)):
        yield from reader.pieces(piece)


def _cells(table: Any, reader: _Reader, header: list[str], before: int) -> Iterator[tuple[int, Any, str]]:
    while (row := _next(table, reader, before)) is not None:
        cells: Any = dict(zip(header, row, strict=False))
        if len(row) != len(header):
            cells = ValueError(f"{len(row)} of {len(header)} columns")
        if row:
            yield before + table.line_num, cells, ",".join(row)


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
        return _converted(columns, dict(zip(places, cells.T, strict=True)), (), range(first, first + len(lines)))
    except (ValueError, OverflowError):
        return None


def _next(table: Any, reader: _Reader, before: int = 0) -> list[str] | None:
    try:
        return next(table, None)
    except csv.Error as error:
        raise InputError(
            what="line", given=str(error), allowed="cells of at most 131,072 characters without line breaks",
            where=f"{reader.path}:{before + table.line_num}",
        ) from None  # fmt: skip


_BENCHMARK = {"input_lens": "input_len", "output_lens": "output_len", "start_times": "arrival_s"}


def _benchmark(file: Path, first: str) -> list[tuple[int, Any, str]] | None:
    """Rows of a result of vLLM's benchmark, one object with a list for each column, in which the position counts as the
    line number; None if the file is something else."""
    whole = _parsed(first)
    if isinstance(whole, ValueError) and (first.strip() == "{" or any(f'"{name}"' in first for name in _BENCHMARK)):
        # an object that spans several lines
        whole = _parsed("".join(read_lines(file, what="trace", allowed=_ALLOWED, max_characters=MAX_CHARACTERS)))
    if not isinstance(whole, dict):
        return None
    data = cast("dict[str, Any]", whole)
    if not all(isinstance(data.get(name), list) for name in _BENCHMARK):
        return None
    lengths = {name: len(data[name]) for name in _BENCHMARK}
    require(
        len(set(lengths.values())) <= 1,
        what="lists",
        given=", ".join(f"{count:,} {name}" for name, count in lengths.items()),
        allowed=f"lists of equal length (the first {min(lengths.values()):,} of each would be read)",
        where=str(file),
    )
    lists = zip(*(data[name] for name in _BENCHMARK), strict=True)
    rows = [dict(zip(_BENCHMARK.values(), values, strict=True)) for values in lists]
    return [(number, row, str(row)) for number, row in enumerate(rows, start=1)]


def is_trace(path: str, *, what: str) -> bool:
    """Whether a file has recorded requests: its first line is JSON, or names columns that `read_trace` knows.

    Args:
        what: what the file is, in the reader's words.
    """
    if path.endswith(".toml"):
        return False
    first = next(read_lines(path, what=what, allowed="a file of lengths"), "")
    if first.lstrip().startswith(("{", "[")):
        return True
    return columns_of(tuple(cell.strip().lower() for cell in first.split(","))) is not None


def mixture_of_trace(path: str) -> Mixture:
    """The lengths of a trace, each as often as it is there.

    Raises:
        InputError: as `lengths_of_trace`.
    """
    found = lengths_of_trace(path)
    return Mixture.of(1.0, found.input_len, found.output_len, name=found.name)


def lengths_of_trace(path: str) -> Requests:
    """A trace whose times do not matter, nor their unit.

    Raises:
        InputError: as `read_trace`.
    """
    try:
        return read_trace(path)
    except InputError as error:
        if error.what != "arrival times":
            raise
        return read_trace(path, time_unit="s")
