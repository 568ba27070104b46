"""Rows of a result as a data frame of polars or pandas, depending on which is installed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

from rackline.errors import InputError
from rackline.plain import plain


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
