"""Tables (CSV) of measurements: which kind a file is, its rows, and the numbers in their cells."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

from rackline.errors import InputError
from rackline.validation.cases import Case, Unsupported

TableRow = dict[str, str]


def has_columns(text: str, columns: Iterable[str]) -> bool:
    """Whether the head of a CSV file names all of some columns."""
    return set(text.partition("\n")[0].strip().split(",")) >= set(columns)


def table_rows(text: str) -> list[TableRow]:
    """The rows of a CSV file; a cell that a short row lacks is empty."""
    return list(csv.DictReader(text.splitlines(), restval=""))


def read_rows(
    path: Path, rows: Iterable[TableRow], kind: str, read: Callable[[TableRow, str, str], Case | Unsupported]
) -> list[Case | Unsupported]:
    """Each row as a case; one whose cells cannot be read is kept with the reason, and the file goes on.

    Args:
        path: of the table, for places.
        kind: of the cases.
        read: (row, id of the case, file and line) → case.
    """
    found: list[Case | Unsupported] = []
    for line, row in enumerate(rows, start=2):
        case_id, where = f"{path.stem}:{line}", f"{path.name}, line {line}"
        try:
            found.append(read(row, case_id, where))
        except InputError as error:
            found.append(
                Unsupported(
                    case_id=case_id,
                    kind=kind,
                    where=where,
                    cause=str(error),
                    bad_input=True,
                    model=row.get("model", ""),
                    chip=row.get("chip", ""),
                )
            )
    return found


def number(row: TableRow, name: str, otherwise: float | None = None) -> float:
    """The number in a cell.

    Args:
        otherwise: what an empty cell stands for; without it, an empty cell is refused.

    Raises:
        InputError: the cell is empty, or not a number.

    >>> number({"step_s": "2.5"}, "step_s"), number({"step_s": ""}, "step_s", 1.0)
    (2.5, 1.0)
    """
    cell = row.get(name, "").strip()
    if not cell and otherwise is not None:
        return float(otherwise)
    try:
        return float(cell)
    except ValueError:
        raise InputError(what=name, given=cell or "an empty cell", allowed="a number") from None


def whole(row: TableRow, name: str, otherwise: int | None = None) -> int:
    """The whole number in a cell; as `number`."""
    found = number(row, name, otherwise)
    if not found.is_integer():
        raise InputError(what=name, given=row.get(name, ""), allowed="a whole number")
    return int(found)
