"""Files of a simulated run: one row per request as Parquet or CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rackline.errors import InputError
from rackline.extras import load_optional
from rackline.files import replacing

if TYPE_CHECKING:
    from rackline.simulation import Result


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
