"""Rows of a result as a data frame of polars or pandas, depending on which is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
    if isinstance(rows, Mapping):
        columns = dict(cast("Mapping[str, Any]", rows))
    else:
        flat = [flatten(plain(row)) for row in rows]
        names = list(dict.fromkeys(name for row in flat for name in row))
        columns = {name: [row.get(name) for row in flat] for name in names}
    if find_spec("polars"):
        from polars import DataFrame

        return DataFrame(columns, strict=False)
    if find_spec("pandas"):
        import importlib

        return importlib.import_module("pandas").DataFrame(columns)
    raise InputError(
        what="to_frame()", given="neither polars nor pandas", allowed="pip install polars, or pip install pandas"
    )


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
