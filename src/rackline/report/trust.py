"""Whose numbers an answer rests on, and how far they may be off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from rackline.catalog import measured_stacks, release_numbers
from rackline.display.wording import percent
from rackline.hardware import Chip
from rackline.passes import UNIT, Calibration, RowTime
from rackline.passes.fallback import GENERIC, best_stack
from rackline.serving.stack import known_stack

_FALLBACK = "fallback: "


def trust(calibration: Calibration, chip: Chip, rows: Sequence[RowTime] = ()) -> Text:
    """Return one line: whose numbers these are, whether they were measured on this chip, and what was not.

    Args:
        rows: of the passes that are shown; those in use are counted by name.
    """
    if calibration.name == UNIT.name:
        return Text("calibration unit: ideal roofline, a bound and not a prediction", style="yellow")
    used = {row.name: row.origin for row in rows if row.used and row.seconds > 0}
    numbers = (*calibration.operations.values(), *calibration.collectives.values())
    measured_here = any(one.evidence == "measured" and one.origin.endswith(f", {chip.name}") for one in numbers)
    shaky = "expect tens of percent"
    if calibration.name == GENERIC:
        best = best_stack(chip)
        why = f"nothing was measured on {chip.name}" if best == GENERIC else f"not those measured on {chip.name}"
        return Text(f"generic numbers: {why}, {shaky}", style="bold yellow")
    if calibration.stack not in measured_stacks():
        what = f"calibration {calibration.name} ({calibration.evidence}): {calibration.description}"
        return Text(f"{what}; {shaky}" if calibration.evidence == "assumed" else what)
    fallbacks = Counter(_fallback_place(origin, chip) for origin in used.values() if origin.startswith(_FALLBACK))
    line = Text(f"calibration {calibration.label}, measured on {chip.name}")
    if not measured_here:
        line = Text(f"calibration {calibration.label}: not measured on {chip.name}, {shaky}", style="bold yellow")
    line.append(_other_version(calibration, rows), style="not bold")
    if calibration.version:
        line.append(f"; {calibration.of_versions}", style="not bold")
    if used:
        line.append(f"; {fallbacks.total()} of {len(used)} rows fall back", style="not bold")
        if len(fallbacks) == 1:
            line.append(f" to {next(iter(fallbacks))}", style="not bold")
        elif fallbacks:
            places = ", ".join(f"{count} to {place}" for place, count in fallbacks.most_common())
            line.append(f": {places}", style="not bold")
    return line


def _other_version(calibration: Calibration, rows: Sequence[RowTime]) -> str:
    """Return the newest version whose kernels were measured, if another one is launched, and the error to expect."""
    used = (calibration.lookup(row.op_class, row.dtype) for row in rows if row.used and row.seconds > 0)
    measured = {one.version for one in used if one.version and not one.origin.startswith(_FALLBACK)}
    stack = known_stack(calibration.stack)
    launched = calibration.version or (stack.newest_version if stack else "")
    newest = max(measured, key=release_numbers, default="")
    if stack is None or not launched or not newest or newest == launched:
        return ""
    width = ", ".join(percent(error) for error in stack.version_error)
    return f" up to {newest} ({launched} launched" + (f": versions left out {width} off)" if width else ")")


def _fallback_place(origin: str, chip: Chip) -> str:
    """Return where numbers were taken from instead: the same chip under another stack, a generation, all chips."""
    stack, _, place = origin.removeprefix(_FALLBACK).partition(", ")
    if place == chip.name:
        return f"{'what stacks share' if stack == GENERIC else stack} on this chip"
    return place if place == "all chips" else f"the {place} generation"
