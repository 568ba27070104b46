"""Operation tables → fitted calibrations, with their errors on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from rackline.arch import Model
from rackline.fitting.report import KindErrors, Summary, errors_by_kind, summary
from rackline.fitting.run import CalibrationResult, calibrate
from rackline.fitting.tables import Measurements, read_tables
from rackline.fitting.write import generic_file, merged_file, stack_file, stacks_of, write_files
from rackline.hardware import Chip

__all__ = [
    "CalibrationResult",
    "KindErrors",
    "Measurements",
    "Summary",
    "calibrate",
    "calibrate_tables",
    "errors_by_kind",
    "generic_file",
    "merged_file",
    "read_tables",
    "stack_file",
    "stacks_of",
    "summary",
    "write_files",
]


def calibrate_tables(
    paths: Iterable[str | Path],
    *,
    chips: Mapping[str, Chip],
    links: Mapping[str, float],
    in_network: Collection[str] = (),
    scale_out: Mapping[str, float] | None = None,
    models: Iterable[Model],
    processes: int = 2,
    done: Callable[[str, int, int], None] | None = None,
) -> CalibrationResult:
    """Read operation tables and fit them; see `read_tables` and `calibrate`."""
    tables = read_tables(paths, list(chips))
    return calibrate(
        tables,
        chips=chips,
        links=links,
        in_network=in_network,
        scale_out=scale_out,
        models=models,
        processes=processes,
        done=done,
    )
