"""An operation table (CSV) as cases of kind op, one per shape: the fastest of several kernels, as a stack selects
it."""

from __future__ import annotations

from pathlib import Path

from rackline.errors import InputError
from rackline.fitting.tables import FORMATS, TableRow, table_rows
from rackline.validation.cases import Case, Unsupported, case_from

_OF_EVERY_TABLE = ("chip", "stack", "stack_version")


def read_op_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table whose operations follow from its columns, or from one that names them.

    Args:
        text: the content of the file.

    Raises:
        InputError: the columns do not match any operation.
    """
    found: list[Case | Unsupported] = []
    places: dict[tuple[object, ...], int] = {}
    for row in table_rows(path, text.splitlines()):
        where = f"{path.name}, line {row.line}"
        if row.problem or row.form is None:
            cause = f"line: got {row.problem[0]}, allowed: {row.problem[1]}" if row.problem else _unknown(row)
            found.append(Unsupported(case_id=where, kind="op", where=where, cause=cause, bad_input=True))
            continue
        data = _data(row, f"{path.stem}:{row.line}")
        case = case_from(data, where, unknown_keys)
        key = tuple(value for name, value in data.items() if name not in ("id", "measured"))
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


def _unknown(row: TableRow) -> str:
    given = row.cells.get("op_name") or "nothing"
    return str(InputError(what="operation", given=given, allowed=f"one of {', '.join(FORMATS)}"))


def _data(row: TableRow, case_id: str) -> dict[str, object]:
    form = row.form
    if form is None:
        return {}
    data: dict[str, object] = {"id": case_id, "kind": "op", "op": form.name}
    for name in (*_OF_EVERY_TABLE, *form.texts, *form.sizes, "num_chips"):
        cell = row.cells.get(name, "")
        if cell and cell != form.usual.get(name):
            data[name] = cell if name in form.texts or name in _OF_EVERY_TABLE else _number(cell)
    data["measured"] = {"seconds": _number(row.cells.get("seconds", ""))}
    return data


def _number(cell: str) -> object:
    """The number in a cell; the text if it is not one, which is refused later with its location."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    return int(value) if value.is_integer() else value
