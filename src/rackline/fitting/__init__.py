"""Operation tables → fitted calibrations, with their errors on held-out data."""

from __future__ import annotations

from rackline.fitting.report import KindErrors, Summary, errors_by_kind, summary
from rackline.fitting.run import CalibrationResult, calibrate
from rackline.fitting.tables import Measurements, read_tables
from rackline.fitting.write import generic_file, merged_file, stack_file, stacks_of, write_files

__all__ = [
    "CalibrationResult",
    "KindErrors",
    "Measurements",
    "Summary",
    "calibrate",
    "errors_by_kind",
    "generic_file",
    "merged_file",
    "read_tables",
    "stack_file",
    "stacks_of",
    "summary",
    "write_files",
]
