"""Lengths of requests: files of shares or a trace → several lengths at once."""

from __future__ import annotations

import csv
import io
import tomllib
from typing import TYPE_CHECKING, Any, cast

from rackline.errors import InputError, nearest_names
from rackline.files import read_text
from rackline.units import parse_count

if TYPE_CHECKING:
    from rackline.api.groups import Served
    from rackline.serving.mixture import Mixture

_KEYS = ("share", "input", "output")
_FORM = "CSV with the columns share, input, output, or TOML with [[requests]] of these keys"
_MOST = 100_000


def mixture_of(question: Served, *alone: str) -> Mixture | None:
    """The lengths of a question's file or trace; None without one.

    Args:
        alone: options that say the same, which no file stands beside.

    Raises:
        InputError: lengths that are given in two ways, or as `mixture_of_file` and `mixture_of_trace`.
    """
    first, *more = [*question.given("mix", "trace"), ""]
    if not first:
        return None
    question.refuse(*filter(None, more), *alone, allowed=f"only without `{first}`")
    return mixture_of_file(question.mix) if question.mix is not None else mixture_of_trace(question.trace or "")


def mixture_of_file(path: str) -> Mixture:
    """Read shares with their lengths, such as `share = 0.8`, `input = "500"`, `output = 200`.

    Raises:
        InputError: another form, a row that lacks a length, values that are not counts.
    """
    import numpy as np

    from rackline.serving.mixture import Mixture

    text = read_text(path, what="mix", allowed=_FORM, max_bytes=16 * 2**20)
    rows = _toml_rows(path, text) if path.endswith(".toml") else _csv_rows(path, text)
    if not rows or len(rows) > _MOST:
        raise InputError(what="mix", given=f"{len(rows):,} lengths", allowed=f"1 to {_MOST:,}", where=path)
    values = np.array([_row(row, f"{path}, {place}") for place, row in rows], dtype=np.float64)
    return Mixture.of(values[:, 0], values[:, 1], values[:, 2], name=path.rpartition("/")[2])


def mixture_of_trace(path: str) -> Mixture:
    """The lengths of a trace, each as often as it is there; its times are not read.

    Raises:
        InputError: as `rackline.simulation.read_trace`.
    """
    from rackline.serving.mixture import Mixture
    from rackline.simulation import read_trace

    try:
        found = read_trace(path)
    except InputError as error:
        if error.what != "arrival times":  # whose unit does not matter here
            raise
        found = read_trace(path, time_unit="s")
    return Mixture.of(1.0, found.input_len, found.output_len, name=found.name)


def _toml_rows(path: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(what="mix", given=str(error) or "nested tables", allowed=_FORM, where=path) from None
    tables = data.get("requests")
    other = [key for key in data if key != "requests"]
    if other or not isinstance(tables, list) or not all(isinstance(one, dict) for one in cast("list[Any]", tables)):
        raise InputError(what="mix", given=", ".join(data) or "an empty file", allowed=_FORM, where=path)
    rows = cast("list[dict[str, Any]]", tables)
    return [(f"requests {number}", row) for number, row in enumerate(rows, start=1)]


def _csv_rows(path: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        table = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise InputError(what="mix", given=str(error), allowed=_FORM, where=path) from None
    rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(table, start=1) if any(row)]
    if not rows:
        raise InputError(what="mix", given="an empty file", allowed=_FORM, where=path)
    header = [name.lower().removesuffix("_len") for name in rows[0][1]]
    found: list[tuple[str, dict[str, Any]]] = []
    for number, row in rows[1:]:
        if len(row) != len(header):
            allowed = f"{len(header)} cells: {', '.join(header)}"
            raise InputError(what="mix", given=f"{len(row)} cells", allowed=allowed, where=f"{path}:{number}")
        found.append((f"line {number}", dict(zip(header, row, strict=True))))
    return found


def _row(row: dict[str, Any], where: str) -> tuple[float, float, float]:
    for key in row:
        if key not in _KEYS:
            near = nearest_names(key, _KEYS, 1)
            raise InputError(
                what="mix", given=key, allowed=", ".join(_KEYS), nearest=near[0] if near else None, where=where
            )
    for key in _KEYS[1:]:
        if row.get(key) in (None, ""):
            raise InputError(what=key, given="nothing", allowed="tokens per request, such as 2k", where=where)
    share = str(row.get("share", "1")).strip()
    weight = parse_count(share.removesuffix("%"), name="share", maximum=1e12)
    lengths = [parse_count(row[key], name=key, minimum=1.0, maximum=1e9) for key in _KEYS[1:]]
    return weight, lengths[0], lengths[1]
