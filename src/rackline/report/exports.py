"""Answers as files of other programs: data frames, traces, manifests of runs, Kubernetes objects."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never, cast

from rackline.errors import InputError
from rackline.files import replacing
from rackline.late import load_optional
from rackline.passes import PassTime, RowTime
from rackline.plain import plain
from rackline.search.launch_commands import LaunchCommand, Start
from rackline.units import plural

if TYPE_CHECKING:
    from rackline.simulation import Result
    from rackline.training.schedules import Timeline


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
    return {name: [row.get(name) for row in flat] for name in dict.fromkeys(name for row in flat for name in row)}


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV; a list is written as JSON, None as nothing.

    Example:
        >>> csv_text({"name": ["a", "b"], "seconds": [1.5, None]})
        'name,seconds\\r\\na,1.5\\r\\nb,\\r\\n'
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows(
        [json.dumps(one, ensure_ascii=False) if isinstance(one, list) else one for one in row]
        for row in zip(*columns.values(), strict=True)
    )
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
_MOST_EVENTS = 200_000  # of a replica


def chrome_trace(times: dict[str, PassTime]) -> dict[str, Any]:
    """Trace events of passes: a process for each pass, a thread for each stream, rows as complete events.

    Under `serial` rows follow each other over all streams; under `overlap` each stream starts at 0; under
    `blackboard` there is a thread for each resource, and its rows follow each other.

    Args:
        times: title → pass.
    """
    events: list[dict[str, Any]] = []
    for process, (title, time) in enumerate(times.items(), start=1):
        events.append(trace_name("process_name", process, 0, title))
        threads: dict[str, int] = {}
        ends: dict[str, float] = {}
        for row, thread, duration_s in _pieces(time):
            if thread not in threads:
                threads[thread] = len(threads) + 1
                events.append(trace_name("thread_name", process, threads[thread], thread))
            clock = "all" if time.policy == "serial" else thread
            start = ends.get(clock, 0.0)
            ends[clock] = start + duration_s
            said = {
                "class": row.op_class,
                "dtype": row.dtype,
                "binds": row.binds,
                "formula": row.formula,
                "amounts": row.amounts,
                "resource_s": row.resource_s,
                "overhead_s": row.overhead_s,
            }
            events.append(trace_event(row.name, process, threads[thread], start, duration_s, cat=row.group, args=said))
        if time.host_s:
            thread, start = len(threads) + 1, max(ends.values(), default=0.0)
            events.append(trace_name("thread_name", process, thread, "host"))
            events.append(trace_event("host", process, thread, start, time.host_s))
    return trace(events)


def _pieces(time: PassTime) -> list[tuple[RowTime, str, float]]:
    used = [row for row in time.rows if row.used]
    match time.policy:
        case "serial" | "overlap":
            return [(row, row.stream, row.seconds) for row in used if row.seconds > 0]
        case "blackboard":
            each = ((row, {**row.resource_s, "overhead": row.overhead_s}) for row in used)
            return [(row, name, seconds) for row, parts in each for name, seconds in parts.items() if seconds > 0]
    assert_never(time.policy)


def chrome_trace_of_run(result: Result) -> dict[str, Any]:
    """Passes of each replica as trace events, and the decoding sequences as a counter."""
    events: list[dict[str, Any]] = []
    for replica, records in enumerate(result.passes_run):
        events.append(trace_name("process_name", replica, 0, f"replica {replica}"))
        for record in list(records)[:_MOST_EVENTS]:
            name = "prompts" if record.prompt_tokens else f"{record.passes} decode steps"
            said = {"decoding": record.sequences, "prompt_tokens": record.prompt_tokens}
            events.append(trace_event(name, replica, 1, record.start_s, record.duration_s, args=said))
            events.append(trace_event("decoding", replica, None, record.start_s, args={"sequences": record.sequences}))
    return trace(events)


SLOT_NAMES = {"F": "forward", "B": "backward", "W": "gradient of weights"}
"""Operation of a slot of a pipeline's schedule → what it is called."""


def schedule_trace(timeline: Timeline, title: str) -> dict[str, Any]:
    """The timeline of a pipeline: a thread per stage, slots as complete events, activations held as a counter."""
    events = [trace_name("process_name", 1, 0, title)]
    for device, slots in enumerate(timeline.of_device):
        events.append(trace_name("thread_name", 1, device, f"stage {device}"))
        for event in slots:
            slot, lasted = event.slot, event.end - event.start
            said = {"micro_batch": slot.micro_batch, "chunk": slot.chunk}
            name = f"{slot.op}{slot.micro_batch}"
            events.append(trace_event(name, 1, device, event.start, lasted, cat=SLOT_NAMES[slot.op], args=said))
        events += [
            trace_event(f"activations of stage {device}", 1, None, time, args={"micro-batches": held})
            for time, held in timeline.in_flight(device, 0.0)
        ]
    return trace(events)


def trace_name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """The event that names a process or a thread ("process_name", "thread_name")."""
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def trace_event(
    name: str, process: int, thread: int | None, start_s: float, duration_s: float | None = None, **more: Any
) -> dict[str, Any]:
    """An event that lasts; without a duration, the values of a counter.

    Args:
        name: of the event, or of the counter.
        process: it belongs to.
        thread: it belongs to; None for a counter.
        start_s: when it begins [s].
        duration_s: how long it lasts [s].
        more: `cat`, its kind, and `args`, what is said of it.
    """
    found: dict[str, Any] = {"name": name, "ph": "C" if duration_s is None else "X", "pid": process}
    found |= {"ts": start_s * _MICROSECONDS, **more}
    return found if duration_s is None else {**found, "tid": thread, "dur": duration_s * _MICROSECONDS}


def trace(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A file of the Chrome trace format."""
    return {"traceEvents": events, "displayTimeUnit": "ms"}


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
        return yaml.ScalarNode("tag:yaml.org,2002:str", value, style=("|" if "\n" in value else None))

    Plain.add_representer(str, text)
    return Plain


_NAMES = {"both": "replica", "prefill": "prefill replica", "decode": "decode replica"}
_FUNCTIONS = {"both": "replica", "prefill": "prefill", "decode": "decode"}
# words that the script expands; all others are quoted
_EXPANDED = re.compile(r"\$HOST(:\d+)?|\$RANK|\$HOST_SLOTS|\$\(\(RANK \* \d+\)\)")
_ADDRESS = re.compile(r"\$HOST(\d+)")
_OWN_ADDRESS = "\"$(hostname -I | cut -d' ' -f1)\""


def commands_text(commands: Sequence[LaunchCommand]) -> str:
    """A script that starts every replica, and the router in front of several.

    Args:
        commands: of a deployment, with their places.
    """
    router = [one for one in commands if one.role == "router"]
    replicas = [one for one in commands if one.role != "router"]
    parts = [_here(one.options_name, one.options_file, "'END'") for one in replicas if one.options_file]
    hosts = 1 + max(start.host + start.num_hosts - 1 for one in replicas for start in one.starts)
    if hosts == 1 and sum(len(one.starts) for one in replicas) == 1:
        return "\n\n".join([*parts, *(_alone(one, one.starts[0]) for one in replicas)])
    names = _function_names(replicas)
    parts += [_function(one, name, several=hosts > 1) for one, name in zip(replicas, names, strict=True)]
    if hosts == 1:
        return "\n\n".join([*parts, "\n".join(_calls(replicas, names, 0)), *map(_router, router)])
    parts = [_hosts_head(hosts), *parts, "\n".join(_by_host(replicas, names, hosts))]
    parts += [f'if [ "$NODE" = 0 ]; then\n{_router(one)}\nfi' for one in router]
    return "\n\n".join([*parts, "wait"])


def _hosts_head(hosts: int) -> str:
    return (
        f"# on each of {hosts} hosts with NODE=0 to {hosts - 1}, its number, and HOSTS='ADDRESS0 ADDRESS1 ...'\n"
        f": ${{NODE:?number of this host, 0 to {hosts - 1}}} ${{HOSTS:?addresses of the {hosts} hosts}}\n"
        "HOSTS=($HOSTS)"
    )


def _here(name: str, lines: Sequence[str], end: str) -> str:
    return "\n".join((f"cat > {name} <<{end}", *lines, end.strip("'")))


def _head(command: LaunchCommand) -> list[str]:
    chips = f"{command.chips_per_replica} {plural(command.chips_per_replica, 'chip')}"
    times = f", {command.replicas:,} times {chips}" if command.replicas > 1 else ""
    return [f"# {_NAMES[command.role]} with {command.stack} {command.version}{times}"]


def _remarks(command: LaunchCommand) -> list[str]:
    return [f"# {note}" for note in command.notes] + [f"# not in this command: {lack}" for lack in command.lacks]


def _alone(command: LaunchCommand, start: Start) -> str:
    """The only replica, on one host."""
    env = [*_chips(command, _arguments(command, start).get("chips", "")), *command.env]
    text = _command(command.words, env, command.server_words(str(start.port), str(start.side_port)))
    return "\n".join((*_head(command), *_remarks(command), text))


def _chips(command: LaunchCommand, chips: str) -> list[tuple[str, str]]:
    return [(command.chips_variable, chips)] if chips and command.chips_variable else []


def _function_names(replicas: Sequence[LaunchCommand]) -> list[str]:
    names = [_FUNCTIONS[one.role] for one in replicas]
    # an engine that does both after others is the one on chips that they leave free
    return ["beside" if place and name == "replica" else name for place, name in enumerate(names)]


def _function(command: LaunchCommand, name: str, *, several: bool) -> str:
    """A function of the shell that starts a replica."""
    at = {key: f'"${place}"' for place, key in enumerate(_arguments(command, command.starts[0]), start=1)}
    env = [*_chips(command, at.get("chips", "")), *command.env]
    env += command.server_env(at.get("side port", ""), _OWN_ADDRESS if several else "localhost")
    first = _command([*command.before, *command.words], env, command.server_words(at["port"], at.get("side port", "")))
    if command.num_hosts > 1 and command.other_words != command.words:
        others = _command(command.other_words, env, ()) if command.other_words else ":  # mpirun starts these hosts"
        first = f'if [ "$RANK" = 0 ]; then\n{first}\nelse\n{others}\nfi'
    body = "\n".join(f"  {line}" for line in first.splitlines())
    return "\n".join((*_head(command), *_remarks(command), f"{name}() {{  # {', '.join(at)}", body, "}"))


def _arguments(command: LaunchCommand, start: Start) -> dict[str, str]:
    """What a function is told of a replica, by name."""
    found = {"port": str(start.port)}
    if command.needs_side_port:
        found["side port"] = str(start.side_port)
    if start.chips and command.chips_variable:
        found["chips"] = ",".join(map(str, start.chips))
    return found


def _command(words: Sequence[str], env: Sequence[tuple[str, str]], server: Sequence[str]) -> str:
    """A command of the shell; the values of variables and the words of the server are shell text already."""
    before = "".join(f"{name}={value} " for name, value in env)
    text = command_text(words)
    pairs = [f"{flag} {value}" for flag, value in zip(server[::2], server[1::2], strict=True)]
    return (f"{before}\\\n" if before else "") + " \\\n  ".join((text, *pairs))


def command_text(words: Sequence[str]) -> str:
    """Shell text with an option and its value on each line.

    >>> print(command_text(["serve", "m", "--tp", "8", "--fast"]))
    serve m \\
      --tp 8 \\
      --fast
    """
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        quoted = f'"{_addresses(word)}"' if _EXPANDED.fullmatch(word) or _ADDRESS.search(word) else shlex.quote(word)
        lines[-1].append(quoted)
    return " \\\n  ".join(" ".join(line) for line in lines if line)


def _calls(replicas: Sequence[LaunchCommand], names: Sequence[str], host: int) -> Iterator[str]:
    """What one host starts in the background."""
    for command, name in zip(replicas, names, strict=True):
        for start in command.starts:
            if start.host <= host < start.host + start.num_hosts:
                yield f"{' '.join((name, *_arguments(command, start).values()))} &"


def _by_host(replicas: Sequence[LaunchCommand], names: Sequence[str], hosts: int) -> Iterator[str]:
    """A `case` over the hosts; those that start the same are one."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for host in range(hosts):
        alike.setdefault((*_group(replicas, host), *_calls(replicas, names, host)), []).append(host)
    yield "case $NODE in"
    for lines, numbers in alike.items():
        yield f"  {'|'.join(map(str, numbers))})"
        yield from (f"    {line}" for line in lines)
        yield "    ;;"
    yield "esac"


def _group(replicas: Sequence[LaunchCommand], host: int) -> Iterator[str]:
    """Variables of a host that is one of several of a replica."""
    for command in replicas:
        for start in command.starts:
            if start.num_hosts > 1 and start.host <= host < start.host + start.num_hosts:
                yield f"HOST=${{HOSTS[{start.host}]}} RANK=$((NODE - {start.host}))"
                if command.before:
                    slots = command.chips_per_replica // start.num_hosts
                    yield f"HOST_SLOTS=$(printf ',%s:{slots}' \"${{HOSTS[@]:{start.host}:{start.num_hosts}}}\")"
                    yield "HOST_SLOTS=${HOST_SLOTS#,}"
                return


def _router(command: LaunchCommand) -> str:
    lines = ["# router"]
    if command.options_file:
        lines.append(_addresses(_here(command.options_name, command.options_file, "END")))
    return "\n".join((*lines, command_text(command.words)))


def _addresses(text: str) -> str:
    return _ADDRESS.sub(r"${HOSTS[\1]}", text)
