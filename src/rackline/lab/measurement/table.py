"""A measurement on a terminal: device and rates, then predicted against measured."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rackline.lab.measurement.engine import WORK_KINDS
from rackline.lab.measurement.held_out import Compared
from rackline.lab.measurement.measured import Measured
from rackline.lab.measurement.rates import Rate
from rackline.report.breakdown import plain_table
from rackline.units import format_bytes, format_seconds


def measured_report(found: Measured, width: int) -> Iterable[RenderableType]:
    """Device, rates, passes and requests, errors.

    Args:
        width: of the terminal [characters].
    """
    device = found.device
    clock = f", {device.clock_hz / 1e9:.2f} GHz" if device.clock_hz else ""
    many = f"{device.count} × " if device.count > 1 else ""
    yield Text(
        f"{many}{device.name}: {device.cores} cores{clock}, last-level cache {format_bytes(device.cache_bytes)}, "
        f"memory {format_bytes(device.memory_bytes)}"
    )
    yield _rates(found.rates)
    yield _rows(found.rows)
    yield _scores(found)
    if found.is_busy:
        yield Text(
            f"measured on a busy machine: medians of passes are known to {found.uncertainty:.0%}, repeats spread by "
            f"{found.spread:.0%}",
            style="yellow",
        )


def _rates(rates: Iterable[Rate]) -> Table:
    table = plain_table("reached without the engine")
    for name in ("", "type", "rate", "spread"):
        table.add_column(name, justify="left" if name in ("", "type") else "right")
    for rate in rates:
        size = f" {rate.rows} × {rate.inputs} × {rate.outputs}" if rate.rows else _footprint(rate)
        table.add_row(f"{rate.name}{size}", rate.dtype, _value(rate), f"{rate.spread:.0%}")
    return table


def _footprint(rate: Rate) -> str:
    return f", {format_bytes(rate.footprint_bytes)}" if rate.footprint_bytes else ""


def _value(rate: Rate) -> str:
    match rate.unit:
        case "s":
            return format_seconds(rate.value)
        case "FLOP/s":
            return f"{rate.value / 1e9:,.3g} GFLOP/s"
        case _:
            return f"{format_bytes(rate.value)}/s"


def _rows(rows: Iterable[Compared]) -> Table:
    table = plain_table("passes", caption="* fitted")
    for name in ("", "sequences", "context", "prompt", "predicted", "measured", "error"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        if row.kind not in WORK_KINDS:
            continue
        table.add_row(
            f"{row.kind}{' *' if row.is_fitted else ''}",
            *(str(number) if number else "" for number in (row.sequences, row.context_len, row.prompt_tokens)),
            format_seconds(row.predicted_s),
            format_seconds(row.measured_s),
            f"{row.error:+.0%}",
        )
    return table


def _scores(found: Measured) -> Table:
    table = plain_table("not fitted: predicted against measured")
    for name in ("", "n", "median error", "p90"):
        table.add_column(name, justify="left" if not name else "right")
    for kind, one in found.held_out.items():
        errors = (one.median_abs_error, one.p90_abs_error)
        table.add_row(kind, str(one.n), *("-" if error is None else f"{error:.1%}" for error in errors))
    return table
