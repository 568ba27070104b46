"""Screens of `rackline calibrate`: errors by kind, rejected fits, siblings that disagree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from rackline.fitting.run import CalibrationResult
from rackline.fitting.summary import errors_by_kind


def calibrate_report(result: CalibrationResult, files: Sequence[str]) -> RenderableType:
    """Errors on held-out shapes and those of the ideal roofline; then rejected fits, with the reasons."""
    table = Table(title="Error on held-out shapes, median over groups (median / p90 of a group)")
    for name in ("kind", "groups", "random half", "whole families", "ideal roofline"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind in errors_by_kind(result):
        table.add_row(
            kind.kind,
            str(kind.groups),
            _pair(kind.median_error, kind.p90_error),
            _pair(kind.family_median_error, kind.family_p90_error),
            _pair(kind.ideal_median_error, kind.ideal_p90_error),
        )
    lines = [
        f"{result.rows} shapes; left out: {result.slower_rows} slower kernels of the same shape, "
        f"{result.older_rows} rows of older versions."
    ]
    if result.rejected:
        lines += ["", "Rejected, these fall back to another stack on the chip or to its generation:"]
        lines += [f"  {' '.join(key)}: {reason}" for key, reason in sorted(result.rejected.items())]
    if result.disagreements:
        lines += ["", "Stacks that differ by more than 1.5x on the layers of the catalogue's models:"]
        lines += [
            f"  {item.chip} {item.op_class} {item.dtype}: {item.slower} {item.ratio:.1f}x {item.faster} "
            f"(p90 {item.largest_ratio:.1f}x)"
            for item in result.disagreements
        ]
    lines += ["", "Written: " + ", ".join(files)]
    return Group(table, "\n".join(lines))


def _pair(median: float, p90: float) -> str:
    return "-" if math.isnan(median) else f"{median:.1%} / {p90:.0%}"
