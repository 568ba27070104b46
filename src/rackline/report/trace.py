"""A pass as a Chrome trace: open it in Perfetto or chrome://tracing."""

from __future__ import annotations

from typing import Any, assert_never

from rackline.passes import PassTime, RowTime

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
