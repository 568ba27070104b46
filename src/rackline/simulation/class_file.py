"""Files of classes of requests: TOML with a table for each class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from rackline.errors import InputError, nearest_name, placed, require, unknown_name
from rackline.files import read_text, toml_tables
from rackline.simulation.classes import ClassTraffic
from rackline.simulation.load import rates_of
from rackline.simulation.requests import USUAL_FILL, ClassLimit
from rackline.simulation.traces import read_trace
from rackline.simulation.workloads import Lengths, Spread
from rackline.units import parse_count, parse_fraction, parse_limit, parse_per_second, parse_whole

SPREADS = get_args(Spread)

_FORM = 'TOML with [[classes]], such as name = "chat", share = 0.8, input = "1k", output = 200, ttft = "1s@p99"'
_KEYS = ("name", "share", "rate", "load", "input", "output", "lengths", "priority", "ttft", "tpot", "e2e", "offline",
         "requests", "fill")  # fmt: skip
_RATES, _LIMITS = ("share", "rate", "load"), ("ttft", "tpot", "e2e")
_MOST_CLASSES, _MOST_BACKLOG = 64, 10_000_000


def read_classes(path: str, *, spread: str, load_s: float | None = None) -> tuple[ClassTraffic, ...]:
    """Read the classes of a file.

    Args:
        spread: of the lengths of a class that states none.
        load_s: to which loads of classes are stretched; None leaves them as they are [s].

    Raises:
        InputError: a file of another form, with the class and the key.
    """
    text = read_text(path, what="classes", allowed=_FORM, max_bytes=2**20)
    rows = toml_tables(path, text, "classes", _FORM)
    require(
        1 <= len(rows) <= _MOST_CLASSES,
        what="classes",
        given=f"{len(rows)} classes",
        allowed=f"1 to {_MOST_CLASSES}",
        where=path,
    )
    found = [_class(row, spread, load_s, f"{path}, class {number}") for number, row in enumerate(rows, start=1)]
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


def _class(row: dict[str, Any], spread: str, load_s: float | None, where: str) -> ClassTraffic:
    with placed(where):
        return _read(row, spread, load_s)


def _read(row: dict[str, Any], usual_spread: str, load_s: float | None) -> ClassTraffic:
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
    spread = row.get("lengths", usual_spread)
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
        own = rates_of(str(row["load"]), load_s, rate, read_trace)
    lengths = [parse_count(row[key], name=key, minimum=1.0, maximum=1e9) for key in ("input", "output")]
    limits = [
        ClassLimit(latency=f"{key}_s", seconds=seconds, percentile=percentile)
        for key in _LIMITS
        if key in row
        for seconds, percentile in (parse_limit(row[key], name=key),)
    ]
    return ClassTraffic(
        name=name.strip(),
        lengths=Lengths(
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
        fill=parse_fraction(row.get("fill", USUAL_FILL), name="fill"),
    )  # fmt: skip
