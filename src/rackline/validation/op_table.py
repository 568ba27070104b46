"""An operation table (CSV) as cases of kind op, one per shape: the fastest of several kernels, as a stack selects
it."""

from __future__ import annotations

import csv
from pathlib import Path

from rackline.errors import InputError, nearest_names
from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.forms import OP_COLUMNS, OP_WORDS

_TEXTS = (*OP_WORDS, "chip", "stack", "stack_version")
_NOT_IN_KEY = ("kernel", "seconds", "dispatch_s", "combine_s")


def read_op_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table whose operation follows from its file name, or else from its columns.

    Args:
        text: the content of the file.

    Raises:
        InputError: the columns do not match any operation.
    """
    try:
        rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        allowed = f"a readable CSV file ({error})"
        raise InputError(what="operation table", given=str(path), allowed=allowed) from None
    header = rows[0] if rows else []
    op = _operation(path, header)
    found: list[Case | Unsupported] = []
    places: dict[tuple[str, ...], int] = {}
    for number, cells in enumerate(rows[1:], start=2):
        if not cells:
            continue
        where = f"{path.name}, line {number}"
        row = dict(zip(header, cells, strict=False))
        if len(cells) != len(header):
            cause = f"line: got {len(cells)} values, allowed: {len(header)}, one per column"
            found.append(Unsupported(case_id=where, kind="op", where=where, cause=cause, bad_input=True))
            continue
        case = case_from(_data(op, row, f"{path.stem}:{number}"), where, unknown_keys)
        key = tuple(value for name, value in row.items() if name not in _NOT_IN_KEY)
        before = places.get(key)
        if before is not None and isinstance(case, Case):
            other = found[before]
            if isinstance(other, Case) and case.measured["seconds"] < other.measured["seconds"]:
                found[before] = case
            continue
        if isinstance(case, Case):
            places[key] = len(found)
        found.append(case)
    return found


def _operation(path: Path, header: list[str]) -> str:
    if path.stem in OP_COLUMNS:
        return path.stem
    wanted = {"chip", "seconds"}
    for op, columns in sorted(OP_COLUMNS.items(), key=lambda item: -len(item[1])):
        if wanted | set(columns) <= set(header):
            return op
    near = nearest_names(path.stem, OP_COLUMNS, 1)
    raise InputError(
        what="operation table",
        given=", ".join(header) or "nothing",
        allowed=f"chip, seconds and the columns of one of {', '.join(OP_COLUMNS)}",
        where=str(path),
        nearest=near[0] if near else None,
    )


def _data(op: str, row: dict[str, str], case_id: str) -> dict[str, object]:
    data: dict[str, object] = {"id": case_id, "kind": "op", "op": op}
    for name, cell in row.items():
        if not cell:
            continue
        value: object = cell if name in _TEXTS else _number(cell)
        if name == "seconds":
            data["measured"] = {"seconds": value}
        else:
            data[name] = value
    return data


def _number(cell: str) -> object:
    """The number in a cell; the text if it is not one, which is refused later with its location."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    return int(value) if value.is_integer() else value
