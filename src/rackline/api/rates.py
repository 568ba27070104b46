"""Rates, classes and mixtures of requests: a number, a shape of a day or a week, a table, a trace, files of classes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from rackline.api.groups import SPREADS, Traffic
from rackline.errors import InputError, nearest_name, placed, require, unknown_name
from rackline.files import is_file, parse_toml, read_text
from rackline.late import late
from rackline.units import format_limit, parse_count, parse_fraction, parse_limit, parse_per_second, parse_whole

with late:
    from rackline import simulation
    from rackline.serving import workload
    from rackline.simulation import classes, load, requests as simulation_requests, traces


def base_load(question: Traffic) -> load.Load:
    """The rates of `load` itself, of which classes have shares."""
    name = question.load or ""
    rate = None if question.rate is None else rate_of(question.rate)
    amplitude = question.diurnal_amplitude or load.PEAK_AMPLITUDE
    return rates_of(name, question.load_time, rate, partial(trace_of, question), amplitude=amplitude)


def rates_of(
    name: str,
    seconds: float | None,
    rate_per_s: float | None,
    read: Callable[[str], simulation.Requests],
    *,
    option: str = "rate",
    amplitude: float | None = None,
) -> load.Load:
    """The rates of a table, of a recorded trace or of a shape.

    Args:
        name: file, or one of the shapes.
        seconds: to which they are stretched; None leaves them as they are [s].
        rate_per_s: to whose mean they are scaled; None leaves them as they are [requests/s].
        read: reads a trace.
        option: that gives the mean.
        amplitude: of a shape's daily cycle; None for the usual one [1].

    Raises:
        InputError: neither a file that holds rates nor a shape; a shape without a mean rate.
    """
    if name in load.SHAPES:
        if rate_per_s is None:
            raise InputError(what=option, given="nothing", allowed=f"the mean of a {name}", nearest="5/s")
        found = load.shape(name, rate_per_s, load.PEAK_AMPLITUDE if amplitude is None else amplitude)
    elif not is_file(name):
        near = nearest_name(name, load.SHAPES)
        raise InputError(what="load", given=name, allowed=f"a file, or {', '.join(load.SHAPES)}", nearest=near)
    else:
        found = load.read_load(name) if load.is_table(name) else load.profile(read(name), Path(name).name)
    if seconds is not None:
        found = found.lasting(seconds)
    return found if rate_per_s is None else found.scaled(rate_per_s)


def trace_of(question: Traffic, path: str) -> simulation.Requests:
    """A recorded trace, with the unit of its times that the question names."""
    unit = cast("traces.TimeUnit | None", question.time_unit)  # one of its choices
    return simulation.read_trace(path, skip_bad=question.skip_bad, time_unit=unit)


def is_recorded(path: str) -> bool:
    """Whether a load is that of a recorded trace."""
    return path not in load.SHAPES and is_file(path) and not load.is_table(path)


def rate_of(text: str) -> float:
    """Read a rate, or inf for all at once [requests/s]."""
    return math.inf if text == "inf" else parse_per_second(text, name="rate", maximum=1e9)


_FORM = 'TOML with [[classes]], such as name = "chat", share = 0.8, input = "1k", output = 200, ttft = "1s@p99"'
_KEYS = ("name", "share", "rate", "load", "input", "output", "lengths", "priority", "ttft", "tpot", "e2e", "offline",
         "requests", "fill")  # fmt: skip
_RATES, _LIMITS = ("share", "rate", "load"), ("ttft", "tpot", "e2e")
_MOST_CLASSES, _MOST_BACKLOG = 64, 10_000_000


def classes_of(question: Traffic) -> tuple[classes.ClassTraffic, ...]:
    """The classes of a question's file; none without one.

    Raises:
        InputError: a file of another form, with the class and the key.
    """
    path = question.classes
    if path is None:
        return ()
    text = read_text(path, what="classes", allowed=_FORM, max_bytes=2**20)
    rows = _tables(path, text, "classes", _FORM)
    require(
        1 <= len(rows) <= _MOST_CLASSES,
        what="classes",
        given=f"{len(rows)} classes",
        allowed=f"1 to {_MOST_CLASSES}",
        where=path,
    )
    found = [_class(question, row, f"{path}, class {number}") for number, row in enumerate(rows, start=1)]
    names = [one.name for one in found]
    for name in names:
        require(names.count(name) <= 1, what="name", given=f"{name} twice", allowed="a name for each class", where=path)
    online = [one for one in found if not one.offline]
    require(online, what="classes", given="offline classes alone", allowed="one that is not", where=path)
    whole = sum(one.share or 0.0 for one in online)
    last = max(one.priority for one in online) + 1
    return tuple(
        replace(one, priority=max(one.priority, last)) if one.offline else
        replace(one, share=None if one.share is None else one.share / whole)
        for one in found
    )  # fmt: skip


def _class(question: Traffic, row: dict[str, Any], where: str) -> classes.ClassTraffic:
    with placed(where):
        return _read(question, row)


def _read(question: Traffic, row: dict[str, Any]) -> classes.ClassTraffic:
    """A class of the rows of a table.

    Raises:
        InputError: an unknown key, a value of another kind, a length or a rate that is missing.
    """
    for key in row:
        if key not in _KEYS:
            raise unknown_name("key", key, _KEYS)
    name, offline = row.get("name"), row.get("offline", False)
    if not isinstance(name, str) or not name.strip():
        raise InputError(what="name", given=name, allowed="a text")
    if not isinstance(offline, bool):
        raise InputError(what="offline", given=offline, allowed="true or false")
    for key in ("input", "output"):
        require(key in row, what=key, given="nothing", allowed="mean tokens of a request, such as 1k")
    spread = row.get("lengths", question.lengths)
    if spread not in SPREADS:
        raise InputError(what="lengths", given=spread, allowed=", ".join(SPREADS), nearest=nearest_name(str(spread),
                         SPREADS))  # fmt: skip
    given = [key for key in _RATES if key in row]
    if offline:
        if given or "requests" not in row:
            raise InputError(what=given[0] if given else "requests", given=row.get(given[0]) if given else "nothing",
                             allowed="requests, how many wait at the start, of an offline class")  # fmt: skip
    elif len(given) != 1 and given != ["rate", "load"]:
        raise InputError(what="share", given=" and ".join(given) or "nothing",
                         allowed="one of share, rate and load (with the mean in rate) of a class")  # fmt: skip
    for key in ("requests", "fill"):
        if key in row and not offline:
            raise InputError(what=key, given=row[key], allowed="only with offline = true")
    rate = parse_per_second(str(row["rate"]), name="rate", maximum=1e9) if "rate" in row else None
    own = None
    if "load" in row:
        own = rates_of(str(row["load"]), question.load_time, rate, simulation.read_trace)
    lengths = [parse_count(row[key], name=key, minimum=1.0, maximum=1e9) for key in ("input", "output")]
    limits = [
        simulation_requests.ClassLimit(latency=f"{key}_s", seconds=seconds, percentile=percentile)
        for key in _LIMITS
        if key in row
        for seconds, percentile in (parse_limit(row[key], name=key),)
    ]
    return classes.ClassTraffic(
        name=name.strip(),
        lengths=simulation.Lengths(
            input_len=lengths[0], output_len=lengths[1], spread=spread
        ),
        share=parse_count(str(row["share"]).strip().removesuffix("%"), name="share", maximum=1e12)
        if "share" in row else None,
        rate_per_s=None if own is not None else rate,
        load=own,
        priority=parse_whole(row.get("priority", 0), name="priority", maximum=1000.0, zero_allowed=True),
        limits=tuple(limits),
        offline=offline,
        requests=parse_whole(row.get("requests", 0), name="requests", maximum=_MOST_BACKLOG, zero_allowed=True),
        fill=parse_fraction(row.get("fill", simulation_requests.USUAL_FILL), name="fill"),
    )  # fmt: skip


def total_rate(question: Traffic, kinds: Sequence[classes.ClassTraffic]) -> float:
    """Rate of the traffic that the classes with a share have together [requests/s].

    Raises:
        InputError: shares of nothing, rates over time without a load.
    """
    for one in kinds:
        if one.load is not None and question.load is None:
            raise InputError(what="load", given=f"of the class {one.name}", allowed="only with `load`",
                             nearest="--load day")  # fmt: skip
    if question.rate is not None:
        return rate_of(question.rate)
    require(
        not any(one.share is not None for one in kinds),
        what="rate",
        given="nothing",
        allowed="the rate of all classes with a share",
        nearest="5/s",
    )
    return 0.0


def requests_in(question: Traffic, usual: int) -> simulation.Requests:
    """The requests of a question's classes.

    Args:
        usual: number of those that come where the question names none [requests].
    """
    kinds = classes_of(question)
    rng = np.random.default_rng(question.seed)
    if question.load is not None:
        return classes.over_time(rng, kinds, loads_of(question, kinds), question.arrival_cv)
    total = total_rate(question, kinds)
    return classes.steady(rng, kinds, question.requests or usual, total, question.arrival_cv)


def loads_of(question: Traffic, kinds: Sequence[classes.ClassTraffic]) -> list[load.Load]:
    """The rates over time of each class that is not offline, all of the same length."""
    shared = base_load(question)
    found: list[load.Load] = []
    for one in (one for one in kinds if not one.offline):
        if one.load is not None:
            found.append(one.load.lasting(shared.seconds))
        elif one.rate_per_s is not None:
            flat = np.array([one.rate_per_s])
            found.append(load.Load(edges_s=np.array([0.0, shared.seconds]), rates_per_s=flat, name=one.name))
        else:
            found.append(shared.scaled(shared.mean_per_s * (one.share or 0.0)))
    return found


def lengths_in(question: Traffic) -> classes.ClassLengths:
    """Lengths of the requests that come, of all classes together."""
    kinds = classes_of(question)
    if question.load is None:
        return classes.lengths_of(kinds, total_rate(question, kinds))
    means = iter([one.mean_per_s for one in loads_of(question, kinds)])
    rates = [0.0 if one.offline else next(means) for one in kinds]
    return classes.ClassLengths(kinds=kinds, rates_per_s=np.array(rates))


def has_tiers(question: Traffic) -> bool:
    """Whether some classes are more urgent than others."""
    return len({one.priority for one in classes_of(question)}) > 1


def strictest(kinds: Sequence[classes.ClassTraffic]) -> str | None:
    """Return the lowest limit on each latency of any class, at its highest percentile, as `slo` is written."""
    limits = [limit for kind in kinds for limit in kind.limits]
    texts: list[str] = []
    for latency in dict.fromkeys(limit.latency for limit in limits):
        same = [limit for limit in limits if limit.latency == latency]
        percentile = max((limit.percentile for limit in same if limit.percentile is not None), default=None)
        text = format_limit(min(limit.seconds for limit in same), percentile)
        texts.append(f"{latency.removesuffix('_s')}={text}")
    return ",".join(texts) or None


_MIX_KEYS = ("share", "input", "output")


_MIX_FORM = "CSV with the columns share, input, output, or TOML with [[requests]] of these keys"


_MOST_LENGTHS = 100_000


def mixture_of_file(path: str) -> workload.Mixture:
    """Read shares with their lengths, such as `share = 0.8`, `input = "500"`, `output = 200`.

    Raises:
        InputError: another form, a row that lacks a length, values that are not counts.
    """
    text = read_text(path, what="mix", allowed=_MIX_FORM, max_bytes=16 * 2**20)
    if path.endswith(".toml"):
        tables = _tables(path, text, "requests", _MIX_FORM, "mix")
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
    return workload.Mixture.of(values[:, 0], values[:, 1], values[:, 2], name=path.rpartition("/")[2])


def _tables(path: str, text: str, key: str, form: str, what: str = "") -> list[dict[str, Any]]:
    """The tables of a TOML file that has nothing else.

    Raises:
        InputError: no TOML, or another form.
    """
    refused = partial(InputError, what=what or key, allowed=form, where=path)
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise refused(given=str(error)) from None
    tables = data.get(key)
    rows: list[Any] = cast("list[Any]", tables) if isinstance(tables, list) else [None]
    if set(data) != {key} or not all(isinstance(one, dict) for one in rows):
        raise refused(given=", ".join(data) or "an empty file")
    return rows


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
