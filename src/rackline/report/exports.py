"""Answers as files of other programs: data frames, traces, manifests of runs, Kubernetes objects."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never, cast

from rackline.errors import InputError
from rackline.extras import load_optional
from rackline.files import replacing
from rackline.passes import PassTime, RowTime
from rackline.plain import plain

if TYPE_CHECKING:
    from rackline.simulation import Result


def frame(rows: Iterable[Any] | Mapping[str, Any]) -> Any:
    """One row per object; parts of parts are columns with a dot, such as `layout.tp`.

    Args:
        rows: objects, or columns by name.

    Returns:
        A `polars.DataFrame`, or a `pandas.DataFrame` where polars is not installed.

    Raises:
        InputError: neither is installed.
    """
    if hasattr(rows, "collect_schema"):  # a lazy table already
        return rows
    columns = columns_of(rows)
    if find_spec("polars"):
        from polars import DataFrame

        return DataFrame(columns, strict=False)
    if find_spec("pandas"):
        import importlib

        return importlib.import_module("pandas").DataFrame(columns)
    raise InputError(
        what="to_frame()", given="neither polars nor pandas", allowed="pip install polars, or pip install pandas"
    )


def columns_of(rows: Iterable[Any] | Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns by name, of equal lengths; a row without a value has None.

    Args:
        rows: objects, or columns by name.

    Example:
        >>> columns_of([{"a": 1}, {"layout": {"tp": 8}}])
        {'a': [1, None], 'layout.tp': [None, 8]}
    """
    if isinstance(rows, Mapping):
        return {name: list(values) for name, values in cast("Mapping[str, Any]", rows).items()}
    flat = [flatten(plain(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    return {name: [row.get(name) for row in flat] for name in names}


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV; a list is written as JSON, None as nothing.

    Example:
        >>> csv_text({"name": ["a", "b"], "seconds": [1.5, None]})
        'name,seconds\\r\\na,1.5\\r\\nb,\\r\\n'
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([json.dumps(one, ensure_ascii=False) if isinstance(one, list) else one for one in row])
    return out.getvalue()


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level of names with dots; lists of numbers and texts stay, others become JSON.

    Example:
        >>> flatten({"a": 1, "layout": {"tp": 8}})
        {'a': 1, 'layout.tp': 8}
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found.update(flatten(cast("Mapping[str, Any]", value), f"{prefix}{name}."))
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in cast("list[Any]", value)):
            found[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False)
        else:
            found[f"{prefix}{name}"] = value
    return found


_MICROSECONDS = 1e6  # the trace format counts in µs


def chrome_trace(times: dict[str, PassTime]) -> dict[str, Any]:
    """Trace events of passes: a process for each pass, a thread for each stream, rows as complete events.

    Under `serial` rows follow each other over all streams; under `overlap` each stream starts at 0; under
    `blackboard` there is a thread for each resource, and its rows follow each other.

    Args:
        times: title → pass.
    """
    events: list[dict[str, Any]] = []
    for process, (title, time) in enumerate(times.items(), start=1):
        events.append(_name("process_name", process, 0, title))
        threads: dict[str, int] = {}
        ends: dict[str, float] = {}
        for row, thread, duration_s in _pieces(time):
            if thread not in threads:
                threads[thread] = len(threads) + 1
                events.append(_name("thread_name", process, threads[thread], thread))
            clock = "all" if time.policy == "serial" else thread
            start = ends.get(clock, 0.0)
            ends[clock] = start + duration_s
            events.append(_event(row, process, threads[thread], start, duration_s))
        if time.host_s:
            thread = len(threads) + 1
            events.append(_name("thread_name", process, thread, "host"))
            start = max(ends.values(), default=0.0)
            events.append(
                {
                    "name": "host",
                    "ph": "X",
                    "pid": process,
                    "tid": thread,
                    "ts": start * _MICROSECONDS,
                    "dur": time.host_s * _MICROSECONDS,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _pieces(time: PassTime) -> list[tuple[RowTime, str, float]]:
    used = [row for row in time.rows if row.used]
    match time.policy:
        case "serial" | "overlap":
            return [(row, row.stream, row.seconds) for row in used if row.seconds > 0]
        case "blackboard":
            pieces: list[tuple[RowTime, str, float]] = []
            for row in used:
                pieces += [(row, resource, value) for resource, value in row.resource_s.items() if value > 0]
                if row.overhead_s > 0:
                    pieces.append((row, "overhead", row.overhead_s))
            return pieces
    assert_never(time.policy)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _event(row: RowTime, process: int, thread: int, start_s: float, duration_s: float) -> dict[str, Any]:
    return {
        "name": row.name,
        "cat": row.group,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": start_s * _MICROSECONDS,
        "dur": duration_s * _MICROSECONDS,
        "args": {
            "class": row.op_class,
            "dtype": row.dtype,
            "binds": row.binds,
            "formula": row.formula,
            "amounts": row.amounts,
            "resource_s": row.resource_s,
            "overhead_s": row.overhead_s,
        },
    }


def check_series_path(text: str) -> Path:
    """A file for the time series.

    Raises:
        InputError: another ending than .parquet or .csv, or Parquet without its extra.
    """
    path = Path(text)
    if path.suffix.lower() not in (".parquet", ".csv") or not path.parent.is_dir():
        raise InputError(
            what="series", given=text, allowed="a file ending in .parquet or .csv, in a folder that exists"
        )
    if path.suffix.lower() == ".parquet":
        _polars(path)
    return path


def series_of(result: Result) -> dict[str, Any]:
    """Columns with one entry per request: times, lengths, preemptions, cached tokens (SI units)."""
    return {
        "arrival_s": result.arrival_s,
        "input_len": result.requests.input_len,
        "output_len": result.requests.output_len,
        "queue_s": result.queue_s,
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "e2e_s": result.e2e_s,
        "preemptions": result.preempted,
        "cached_tokens": result.cached_tokens,
    }


def write_series(result: Result, path: Path) -> None:
    """One row per request, see `series_of`."""
    columns = series_of(result)
    if path.suffix.lower() == ".parquet":
        polars = _polars(path)
        with replacing(path) as temporary:
            polars.DataFrame(columns).write_parquet(temporary)
        return
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def _polars(path: Path) -> Any:
    return load_optional("polars", what=f"series {path}", instead="a .csv", nearest=str(path.with_suffix(".csv")))


def manifest_text(documents: Sequence[Mapping[str, Any]], about: Sequence[str]) -> str:
    """YAML of several documents.

    Args:
        documents: in the order in which they are applied.
        about: lines of a comment on top.
    """
    import yaml

    head = "".join(f"# {line}\n" for line in about)
    # values that occur twice are written twice: no reader expects anchors in a manifest
    body = yaml.dump_all(documents, Dumper=_plain_dumper(), sort_keys=False, width=120, explicit_start=True)
    return head + body


def _plain_dumper() -> type:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes no anchors, and files within a manifest line by line."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(_: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return yaml.ScalarNode("tag:yaml.org,2002:str", value, style=style)

    Plain.add_representer(str, text)
    return Plain
